"""Calls of workers: the target and its limits, the call over MCP, storage of the answer, and one call without a plan."""

import asyncio
import base64
import binascii
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import structlog

from apps.core import foreign_schemas, outbound, strict_json
from apps.core.errors import DomainError, FieldError, Forbidden, Invalid, TooLarge, Unavailable
from apps.core.ids import parse_ref
from apps.core.outbound import legible
from apps.executions import selectors
from apps.executions.errors import (
    CallCanceled,
    OutcomeUnknown,
    UnresolvedReference,
    UnusableAnswer,
    WorkerAsks,
    WorkerAway,
    WorkerCallFailed,
    WorkerRefused,
    WorkerUnavailable,
)
from apps.executions.models import Execution
from apps.executions.shapes import CallOutcome
from apps.plans import selectors as plans
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_in
from apps.receipts.shapes import GroupInput
from apps.tasks import selectors as stored_results
from apps.tasks.services import queueing, running
from apps.tasks.shapes import QueueTask
from apps.workers import selectors as workers
from apps.workers import services as registry
from apps.workers.models import ROUTABLE, State
from apps.workers.shapes import OfferView

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, ElicitResult, ErrorData

logger = structlog.get_logger(__name__)

TASK_TYPE: Final = "mcp_worker_call"
DIRECT: Final = timedelta(seconds=30)
"""The deadline of a call that somebody waits for; a longer call should be a task."""
EVENT_FAMILY: Final = "asyncgate.task"
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
MAX_PARAMS_BYTES: Final = 1024 * 1024
LOOK_AGAIN: Final = timedelta(seconds=5)
AWAY_LOOKS: Final = 24
"""How often a step looks again for a worker that takes no calls: for two minutes, in which this side must be up."""
WAIT: Final = timedelta(seconds=10)
"""How long `auto` waits for a tool: one that has been faster so far is called directly."""
_SECONDS: Final = 180
_HINT: Final = 300
_SUMMARY_BYTES: Final = 16 * 1024
_CAUSE: Final = "caused_by_receipt_id"
_HARMLESS_TWICE: Final = frozenset({"read", "network"})

_MOST_OF_A_QUESTION: Final = 16 * 1024

Progress = Callable[[float | None, str | None], None]
"""Receives how far a call is, in percent where the worker names a total."""
Answers = Mapping[str, Mapping[str, Any] | None]
"""To a tool's questions, by their keys: the fields of each, or None to decline. `*` stands for all other questions."""
ANY_QUESTION: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A tool on a worker, and the limits of a call of it."""

    worker_id: str
    tool_name: str
    endpoint: str
    input_schema: Mapping[str, Any]
    deadline: timedelta
    max_params_bytes: int
    repeatable: bool
    """The tool may run twice, so a call whose outcome is unknown may be made again."""
    runtime: str
    """`fast`, `medium` or `long`, as the worker declares or its calls have shown; else `unknown`."""
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The answer of a tool: its structured content, else its text as `{"text": …}`.

    Other content is in its member `content`. `files` are the images and the like that it names by their pointers.
    """

    payload: dict[str, Any]
    seconds: float
    summary: str
    files: tuple[tuple[str, bytes], ...] = ()
    """The media type and the bytes of each."""


class CallMode(StrEnum):
    """`auto` calls tools directly that are declared or known to be fast, and tries those of which nothing is known.

    It queues the others, all calls with an idempotency key, and calls that it has waited ten seconds for if the tool
    may run twice.
    """

    AUTO = "auto"
    DIRECT = "direct"
    ASYNC = "async"


def call_worker(
    *,
    caller: Caller,
    worker_id: str,
    tool_name: str,
    params: Mapping[str, Any],
    mode: CallMode,
    answers: Answers | None = None,
    idempotency_key: str | None = None,
    caused_by: str | None = None,
    execution_ref: str | None = None,
) -> CallOutcome:
    """Call a tool without a plan and wait for it, or queue the call. Opens its own transactions.

    :param execution_ref: the execution that the call belongs to: its receipts are grouped and chained with it.
    :raises NotFound: if there is no such worker, tool or execution.
    :raises Forbidden: if the caller is a DeleGate, and the worker is not in its pool (`outside_pool`).
    :raises Invalid: if the parameters don't fit, or a direct call has an idempotency key.
    :raises WorkerRateLimited: if the worker takes no further direct call now; a queued call waits instead.
    :raises WorkerCallFailed: if a direct call gave no result.
    """
    if mode == CallMode.DIRECT and idempotency_key is not None:
        raise Invalid(
            "A direct call is made each time; with an idempotency_key, ask for auto or async.",
            code="direct_calls_are_not_kept",
        )
    with caller.acting():
        target = target_of(worker_id=worker_id, tool_name=tool_name)
        refuse_outside_pool(caller, worker_id)
        execution = None if execution_ref is None else selectors.execution_of(caller, execution_ref)
        cause = caused_by or (None if execution is None else execution.plan_receipt_id)
        params = with_cause(target, params, cause)
        check_params(target, params)
        request = QueueTask(
            task_type=TASK_TYPE,
            params={"worker_id": worker_id, "tool_name": tool_name, "params": dict(params)}
            | ({"answers": answers} if answers else {}),
            idempotency_key=idempotency_key,
            caused_by_receipt_id=cause,
            group=None if execution is None else group_of(execution),
        )
        may_be_queued = mode == CallMode.AUTO and target.repeatable
        is_direct = target.runtime == "fast" or (target.runtime == "unknown" and target.repeatable)
        if mode == CallMode.ASYNC or (mode == CallMode.AUTO and (not is_direct or idempotency_key is not None)):
            return _queued(caller, request)
        registry.take_call(worker_id=worker_id)
    try:
        deadline = min(target.deadline, WAIT if may_be_queued else DIRECT)
        called = call(target=target, params=params, deadline=deadline, answers=answers)
    except DomainError as refusal:
        with caller.acting():
            record(target, refusal)
            if may_be_queued and refusal.code == "worker_timed_out":
                return _queued(caller, request)
        raise
    with caller.acting():
        record(target, called)
    pointer: str | None = None
    try:
        pointer = keep(caller=caller, value=called.payload, files=called.files)
    except Unavailable as away:
        # The tool has run: whoever is told to try again would run it twice.
        logger.warning(
            "call.not_kept", worker_id=worker_id, tool=tool_name, files=len(called.files), reason=away.detail
        )
    return CallOutcome(status="complete", result=called.payload, result_pointer=pointer)


def _queued(caller: Caller, request: QueueTask) -> CallOutcome:
    queued = queueing.queue(requester=caller, request=request)
    return CallOutcome(**{**queued.model_dump(), "status": "queued"})


def target_of(*, worker_id: str, tool_name: str, tool_uid: str | None = None) -> Target:
    """The target of a call. Needs an acting transaction.

    :param tool_uid: the version of the tool that the call was planned for; None: any version.
    :raises NotFound: if there is no such worker or tool.
    :raises WorkerUnavailable: if the worker takes no calls now.
    :raises Invalid: if the tool has other parameters or effects than the planned version (`tool_changed`).
    :raises Forbidden: if the worker's tier does not allow the tool's effects (`worker_barred`).
    """
    terms = workers.terms_of(worker_id, tool_name)
    worker, tool, offer = terms.worker, terms.tool, terms.offer
    if worker.state not in ROUTABLE:
        raise WorkerUnavailable(f"{worker_id} is {worker.state}.", may_come_back=worker.state != State.QUARANTINED)
    if tool_uid not in {None, tool.uid}:
        planned = workers.tool_versions({tool_uid or ""}).get(tool_uid or "")
        if planned is None or (planned.effects, planned.input_schema) != (tool.effects, tool.input_schema):
            raise Invalid(
                f"{tool_name} of {worker_id} takes other parameters or has other effects than the planned version.",
                code="tool_changed",
            )
    if offer.barred is not None:
        raise Forbidden(f"{tool_name} of {worker_id} may not be called: {offer.barred}.", code="worker_barred")
    return Target(
        worker_id=worker.worker_id,
        tool_name=tool.name,
        endpoint=worker.endpoint,
        input_schema=tool.input_schema,
        deadline=timedelta(seconds=worker.constraints.get("timeout_seconds") or _SECONDS),
        max_params_bytes=worker.constraints.get("max_payload_bytes") or MAX_PARAMS_BYTES,
        repeatable=set(tool.effects) <= _HARMLESS_TWICE,
        runtime=_runtime(offer),
        cost=Decimal(str(offer.cost)),
    )


def _runtime(offer: OfferView) -> str:
    """What the worker declares, else what its calls so far have taken."""
    if offer.expected_runtime is not None:
        return offer.expected_runtime
    if offer.p95_seconds is None:
        return "unknown"
    return "fast" if offer.p95_seconds <= WAIT.total_seconds() else "medium"


def refuse_outside_pool(caller: Caller, worker_id: str) -> None:
    """A DeleGate calls only workers of its own pool. Needs an acting transaction.

    :raises Forbidden: if the caller is a DeleGate, and the worker is not in its pool (`outside_pool`).
    """
    if caller.kind == Kind.DELEGATE and plans.outside_pool(
        [worker_id], tenant_id=caller.tenant_id, delegate=caller.name
    ):
        raise Forbidden(f"{worker_id} is not in the pool of {caller.name}.", code="outside_pool")


def group_of(execution: Execution) -> GroupInput:
    """Groups the receipts of one execution's tasks into one thread of an inbox."""
    return GroupInput(
        resource_ref=f"execution:{execution.ref}",
        event_family=EVENT_FAMILY,
        summary_hint=f"Tasks of {execution.ref}: {execution.intent}"[:_HINT],
    )


def with_cause(target: Target, params: Mapping[str, Any], cause: str | None) -> Mapping[str, Any]:
    """Add the causing receipt for a tool that has a parameter for it, so that the chain goes on below."""
    asked = _CAUSE in (target.input_schema.get("properties") or {})
    return {**params, _CAUSE: cause} if asked and cause is not None and _CAUSE not in params else params


def check_params(target: Target, params: Mapping[str, Any]) -> None:
    """Check the parameters of a call.

    :raises TooLarge: if they are larger than the worker accepts (`payload_too_large`).
    :raises Invalid: with a pointer to each fault, if they don't fit the tool's schema (`invalid_params`).
    """
    size = strict_json.size(params)
    if size > target.max_params_bytes:
        detail = f"The parameters are {size} bytes; the MCP worker accepts {target.max_params_bytes}."
        raise TooLarge(detail, code="payload_too_large")
    faults = foreign_schemas.faults(params, target.input_schema, under="params")
    if faults:
        detail = "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults[:5])
        raise Invalid(
            f"{target.tool_name} does not take these parameters: {detail}", code="invalid_params", errors=faults
        )


def call(
    *,
    target: Target,
    params: Mapping[str, Any],
    deadline: timedelta,
    answers: Answers | None = None,
    on_progress: Progress | None = None,
    canceled: Callable[[], bool] | None = None,
) -> Called:
    """Call the tool and wait for its answer. Touches no database, and must not run inside a transaction.

    :param answers: to what the tool asks meanwhile. What it asks besides gets none, which ends most calls.
    :raises ForbiddenEndpoint: if this deployment does not call that address.
    :raises Invalid: if an answer does not fit its question (`invalid_answers`).
    :raises WorkerCallFailed: one of its kinds.
    """
    from apps.core import mcp_client  # noqa: PLC0415  # takes most of a second, and few processes need it

    tool, began, questions = target.tool_name, monotonic(), _Questions(answers or {})

    async def dialogue(client: "Client") -> "CallToolResult":
        progress = None if on_progress is None else _forwarded(on_progress)
        mcp_client.know(client, tool, target.input_schema)
        return await client.call_tool(tool, dict(params), progress_callback=progress)

    try:
        talk = mcp_client.talk(
            target.endpoint,
            dialogue,
            deadline=deadline,
            max_answer_bytes=MAX_ANSWER_BYTES,
            canceled=canceled,
            on_question=questions.answer,
        )
        result = asyncio.run(talk)
    except outbound.CallFailed as failure:
        questions.check(tool)
        raise _refusal(failure, target) from failure
    if result.is_error:
        questions.check(tool)
    payload, files = _payload(result, target)
    # A tool that returns one plain value has it under `result`.
    told = next(
        (one for name in ("summary", "result") if isinstance(one := payload.get(name), (str, int, float)) and one), ""
    )
    summary = str(told).encode()[:_SUMMARY_BYTES].decode(errors="ignore")
    return Called(
        payload=payload,
        seconds=monotonic() - began,
        summary=summary or f"{tool} of {target.worker_id} has answered.",
        files=files,
    )


class _Questions:
    """What a tool asks in the middle of a call. A question is known by its text and its fields, in a later call too."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._open: list[dict[str, Any]] = []
        self._faults: list[FieldError] = []

    async def answer(self, context: object, params: object) -> "ElicitResult | ErrorData":
        """The caller's answer, with the question's defaults for what it leaves out; an error where there is none."""
        from mcp.types import INVALID_REQUEST, ElicitRequestFormParams, ElicitResult, ErrorData  # noqa: PLC0415  # as above

        if not isinstance(params, ElicitRequestFormParams):  # a page to open in somebody's browser
            return ElicitResult(action="decline")
        schema = params.requested_schema
        question = {"message": legible(params.message), "fields": schema}
        if strict_json.size(question) > _MOST_OF_A_QUESTION or foreign_schemas.fault_of_schema(schema):
            return ElicitResult(action="decline")
        key = f"question-{hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:12]}"
        given = self._answers.get(key, self._answers.get(ANY_QUESTION, {}))
        if given is None:
            return ElicitResult(action="decline")
        fields = schema.get("properties", {}).items()
        defaults = {name: one["default"] for name, one in fields if isinstance(one, dict) and "default" in one}
        content = {**defaults, **given}
        faults = foreign_schemas.faults(content, schema, under=f"answers/{key}")
        if key in self._answers:
            self._faults += faults
        elif faults or ANY_QUESTION not in self._answers:
            self._open.append({"key": key, **question})
            return ErrorData(code=INVALID_REQUEST, message="The answer comes with the next call of this tool.")
        return ElicitResult(action="cancel") if faults else ElicitResult(action="accept", content=content)

    def check(self, tool: str) -> None:
        """:raises WorkerAsks, Invalid: if this is why the call gave no result."""
        if self._faults:
            detail = f"{tool} does not take this answer: {self._faults[0].message}"
            raise Invalid(detail, code="invalid_answers", errors=self._faults)
        if self._open:
            asked = " ".join(f"{one['key']}: {one['message']}" for one in self._open)
            detail = f"{tool} asks, and was not answered. Call it again with `answers`. {asked}"
            raise WorkerAsks(detail[:_SUMMARY_BYTES], questions=self._open)


def _forwarded(on_progress: Progress) -> Any:
    async def forward(progress: float, total: float | None, message: str | None) -> None:
        share = progress / total if total else math.nan
        percent = max(0.0, min(100.0, 100.0 * share)) if math.isfinite(share) else None
        # The listener may write to the database, which must not happen on the event loop.
        await asyncio.to_thread(on_progress, percent, None if message is None else legible(message))

    return forward


def _refusal(failure: outbound.CallFailed, target: Target) -> DomainError:
    """The refusal that a failed conversation means."""
    tool = target.tool_name
    refusal: DomainError
    match failure:
        case outbound.ForbiddenEndpoint():
            refusal = failure
        case outbound.GivenUp():
            refusal = CallCanceled(f"The call of {tool} was canceled.")
        case outbound.AnswerTooLarge():
            refusal = WorkerRefused(str(failure), code="answer_too_large")
        case outbound.Redirected():
            refusal = WorkerRefused(str(failure), code="worker_redirected", reached=False)
        case outbound.Refused(broke=True):
            refusal = _away(target, f"{tool} broke inside the worker. {failure}", code="worker_broke")
        case outbound.Refused():
            refusal = WorkerRefused(f"{tool}: {failure}", mcp_code=failure.mcp_code)
        case outbound.NotMCP():
            refusal = UnusableAnswer(f"{tool}: {failure}")
        case _:
            limit = ""
            if isinstance(failure, outbound.TimedOut):
                limit = (
                    f" A queued call may take {target.deadline.total_seconds():g} s: "
                    "`timeout_seconds` among the constraints of its manifest sets that."
                )
            what, code = f"{tool}: {failure}{limit}", f"worker_{failure.code}"
            refusal = _away(target, what, code=code, reached=failure.reached)
    return refusal


def _away(target: Target, what: str, *, code: str, reached: bool = True) -> WorkerCallFailed:
    """No answer of a tool. Whether it may be called again depends on the tool."""
    if reached and not target.repeatable:
        return OutcomeUnknown(f"{what} {target.tool_name} may have done its work all the same; it is not called again.")
    return WorkerAway(what, code=code, reached=reached)


def _payload(result: "CallToolResult", target: Target) -> tuple[dict[str, Any], tuple[tuple[str, bytes], ...]]:
    tool = target.tool_name
    text = "\n".join(block.text for block in result.content if block.type == "text")
    if result.is_error and text == f"Error executing tool {tool}":  # the SDK's words for an exception in the tool
        raise _away(target, f"{tool} broke inside the worker, which does not say why.", code="worker_broke")
    if result.is_error:
        raise WorkerRefused(f"{tool}: {legible(text) or 'the tool failed without a message.'}")
    payload: dict[str, Any] | None = result.structured_content
    if payload is None:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = {"text": text}
        payload = found if isinstance(found, dict) else {"result": found}
    files: list[tuple[str, bytes]] = []
    others = [block for block in result.content if block.type != "text"]
    try:
        if others:
            said = {} if payload == {"text": ""} else payload
            parts = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in others]
            # A tool's own `content` is often the same; something else is not written over.
            name = "content" if said.get("content", parts) == parts else "other_content"
            payload = {**said, name: [_with_pointer(part, files) for part in parts]}
        strict_json.check(payload)
    except (strict_json.UnstorableJSON, binascii.Error) as fault:
        why = fault.detail if isinstance(fault, strict_json.UnstorableJSON) else str(fault)
        raise UnusableAnswer(f"The worker's answer to {tool} can't be stored: {legible(why)}") from fault
    return payload, tuple(files)


def _with_pointer(part: dict[str, Any], files: list[tuple[str, bytes]]) -> dict[str, Any]:
    """A part of an answer that is no text, as MCP writes it, with a pointer to its bytes in place of the bytes."""
    holder = part.get("resource", part)
    for member in ("data", "blob"):
        if isinstance(encoded := holder.pop(member, None), str):
            content = base64.b64decode(encoded, validate=True)
            files.append((holder.get("mimeType") or "application/octet-stream", content))
            holder["pointer"] = running.pointer_of(content)
    return part


def keep(*, caller: Caller, value: Any, files: Sequence[tuple[str, bytes]] = ()) -> str:
    """Store a JSON value, and the files that it names, as artifacts of the caller's tenant; returns its pointer."""
    for media_type, file in files:
        running.store_artifact(tenant_id=caller.tenant_id, content=file, media_type=media_type)
    return running.store_artifact(tenant_id=caller.tenant_id, content=_as_stored(value), media_type="application/json")


def pointer_to(value: Any) -> str:
    """The pointer that :func:`keep` answers for a value."""
    return running.pointer_of(_as_stored(value))


def _as_stored(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def kept(*, tenant_id: int, pointer: str) -> Any:
    """The JSON value behind a pointer of the tenant.

    :raises DomainError: if the pointer leads to nothing that this deployment reads.
    :raises Unavailable: if the storage does not answer now.
    :raises UnresolvedReference: if the content is no JSON, or can't be stored.
    """
    with acting_in(tenant_id, "reading a result"):
        content = stored_results.open_pointer(pointer, tenant_id=tenant_id)
    try:
        return strict_json.loads(content)
    except (strict_json.NotJSON, strict_json.UnstorableJSON) as exc:
        raise UnresolvedReference(f"The content of {pointer} can't be used: {exc.detail}") from exc


def record(target: Target, outcome: Called | DomainError) -> None:
    """Record in the registry how a call went, in the transaction that writes its outcome.

    Only the worker's own failures count, not the caller's mistakes. Nobody records a canceled call.
    """
    is_failure = isinstance(outcome, WorkerCallFailed) and not isinstance(outcome, WorkerAsks)
    if isinstance(outcome, DomainError) and not is_failure:
        return
    registry.record_call(
        worker_id=target.worker_id,
        tool_name=target.tool_name,
        ok=isinstance(outcome, Called),
        seconds=outcome.seconds if isinstance(outcome, Called) else 0.0,
        cost=target.cost,
    )


# The tasks that this process runs: at their end their executions go on at once. If lost, the tick does it.
_running_here: Final[set[int]] = set()


def note_run(task_ref: str) -> None:
    """Note that this process runs a task of this app."""
    _running_here.add(parse_ref("task", task_ref))


def was_run_here(task_id: int) -> bool:
    """Whether this process ran the task; asked once, at its end."""
    if task_id in _running_here:
        _running_here.discard(task_id)
        return True
    return False
