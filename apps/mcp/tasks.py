"""The tasks extension: tasks and executions that a call has begun, for clients that know tasks.

Nothing is kept for it: the id of such a task is that of the AsyncGate's task or of the execution.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Literal

import mcp_types as mcp
from pydantic import BaseModel, Field
from pydantic_core import to_json

from apps.core import operations
from apps.core.errors import Conflict, DomainError, NotFound
from apps.core.schemas import parse
from apps.mcp.asking import elicit
from apps.mcp.protocol import Exchange, ProtocolError, refused

EXTENSION: Final = "io.modelcontextprotocol/tasks"

_Status = Literal["working", "input_required", "completed", "cancelled", "failed"]
_BADLY: Final = frozenset({"failed", "budget_exceeded"})
_ENDED: Final = _BADLY | {"succeeded", "complete", "partial"}
# The task itself is not to blame: whoever worked on it went away.
_GONE: Final = "expiries_exhausted"


class TaskParams(BaseModel):
    task_id: str = Field(alias="taskId", max_length=40)
    input_responses: dict[str, dict[str, Any]] = Field(alias="inputResponses", default_factory=dict)


class TaskState(mcp.Result):
    """A task, as the call that begins it and `tasks/get` show it."""

    result_type: Literal["task", "complete"] = "complete"
    task_id: str
    status: _Status = "working"
    status_message: str | None = None
    created_at: datetime
    last_updated_at: datetime
    ttl_ms: int = 86_400_000  # no result is forgotten earlier
    poll_interval_ms: int = 2_000
    result: mcp.CallToolResult | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, mcp.ElicitRequest] | None = None


def is_declared(exchange: Exchange) -> bool:
    """Whether the client knows tasks."""
    extensions = exchange.envelope.capabilities.get("extensions")
    return exchange.envelope.modern and isinstance(extensions, dict) and EXTENSION in extensions


def require(exchange: Exchange) -> None:
    """:raises ProtocolError: if the client does not know tasks."""
    if not is_declared(exchange):
        needed: Any = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise ProtocolError(mcp.MISSING_REQUIRED_CLIENT_CAPABILITY, f"This needs {EXTENSION}.", data=needed)


def begun(exchange: Exchange, ref: str) -> TaskState:
    """The task that stands for what a call has begun.

    :raises DomainError: if it may not be read.
    """
    state = _state(exchange, ref)
    return state.model_copy(update={"result_type": "task", "result": None, "error": None, "input_requests": None})


def update(exchange: Exchange, given: TaskParams) -> mcp.EmptyResult:
    """Take the decisions that an execution waits for; what it does not wait for is ignored."""
    asked = _state(exchange, given.task_id).input_requests or {}
    for step_id in asked.keys() & given.input_responses.keys():
        decision = {"accept": "accept", "decline": "reject"}.get(str(given.input_responses[step_id].get("action")))
        if decision:
            _ask(exchange, "decide_step", execution_id=given.task_id, step_id=step_id, decision=decision)
    return mcp.EmptyResult()


def cancel(exchange: Exchange, given: TaskParams) -> mcp.EmptyResult:
    kind = _kind(given.task_id)
    with suppress(Conflict):  # it has ended
        _ask(exchange, f"cancel_{kind}", **{f"{kind}_id": given.task_id})
    return mcp.EmptyResult()


def _method(run: Callable[[Exchange, TaskParams], mcp.Result]) -> Callable[[Exchange, Any], mcp.Result]:
    """A method for clients that know tasks, whose refusals are errors."""

    def answer(exchange: Exchange, params: Any) -> mcp.Result:
        require(exchange)
        try:
            return run(exchange, parse(TaskParams, params))
        except DomainError as exc:
            raise refused(exc) from exc

    return answer


METHODS: Final = {
    "tasks/get": _method(lambda exchange, given: _state(exchange, given.task_id)),
    "tasks/update": _method(update),
    "tasks/cancel": _method(cancel),
}


def result_of(content: Any, *, is_error: bool = False) -> mcp.CallToolResult:
    """An output of an operation as the result of a tool."""
    text = mcp.TextContent(text=to_json(content).decode())
    return mcp.CallToolResult(content=[text], structured_content=content, is_error=is_error)


def _state(exchange: Exchange, ref: str) -> TaskState:
    return _of_task(exchange, ref) if _kind(ref) == "task" else _of_execution(exchange, ref)


def _kind(ref: str) -> str:
    kind = {"task": "task", "exec": "execution"}.get(ref.partition("_")[0])
    if kind is None:
        raise NotFound("There is no such task.")
    return kind


def _of_task(exchange: Exchange, ref: str) -> TaskState:
    task = _ask(exchange, "check_task_status", task_id=ref)
    state = _told(task, ref, task["finished_at"], (task["progress"] or {}).get("message"))
    if task["reason"] == _GONE:
        return state.model_copy(update={"status": "failed", "error": {"code": mcp.INTERNAL_ERROR, "message": _GONE}})
    if state.status == "completed":
        return _ended(state, task, _ask(exchange, "fetch_task_result", task_id=ref))
    return state


def _of_execution(exchange: Exchange, ref: str) -> TaskState:
    report = _ask(exchange, "get_execution", execution_id=ref)
    state = _told(report, ref, report["ended_at"], " ".join(report["next_actions"]))
    awaiting = {step["step_id"]: step["step_type"] for step in report["steps"] if step["status"] == "awaiting"}
    # Who waits for the task would never combine its results.
    if state.status == "completed" or "aggregate" in awaiting.values():
        return _ended(state, report, report)
    told = [report["report"][name] for name in ("report_summary", "recommendation")] if report["report"] else []
    asked = {step_id: elicit("\n".join(told), {}) for step_id, kind in awaiting.items() if kind == "escalate"}
    if asked and exchange.envelope.can_elicit:
        return state.model_copy(update={"status": "input_required", "input_requests": asked})
    return state


def _told(told: Mapping[str, Any], ref: str, ended_at: Any, message: str | None) -> TaskState:
    status = told["status"]
    return TaskState(
        task_id=ref,
        status="completed" if status in _ENDED else "cancelled" if status == "canceled" else "working",
        status_message=message or None,
        created_at=told["created_at"],
        last_updated_at=ended_at or told["created_at"],
    )


def _ended(state: TaskState, told: Mapping[str, Any], content: Any) -> TaskState:
    result = result_of(content, is_error=told["status"] in _BADLY)
    return state.model_copy(update={"status": "completed", "result": result})


def _ask(exchange: Exchange, name: str, **arguments: Any) -> Any:
    reply = operations.call_with(operations.find(name), exchange.caller, arguments)
    return reply.output.model_dump(mode="json") if reply.output else {}
