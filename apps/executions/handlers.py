"""The task that calls a worker's tool: MCP workers do long work without knowledge of tasks."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import structlog

from apps.core.errors import DomainError
from apps.core.ids import parse_ref
from apps.core.sql import database_now
from apps.executions import calls, services
from apps.executions.errors import OUTCOME_UNKNOWN, CallCanceled, UnusableAnswer, WorkerCallFailed, WorkerUnavailable
from apps.executions.models import ExecutionStep
from apps.executions.states import StepStatus
from apps.tasks import selectors as tasks
from apps.tasks.handlers import Canceled, Context, Failed, Postponed, Result, handler
from apps.tasks.shapes import Backoff, RegisterTaskType
from apps.tasks.states import Status
from apps.workers import services as registry
from apps.workers.models import Offer, WorkerRateLimited

logger = structlog.get_logger(__name__)

_ALIAS: Final = "mcp_worker_"
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "worker_id": {"type": "string", "minLength": 1, "maxLength": 100},
        "tool_name": {"type": "string", "minLength": 1, "maxLength": 128},
        "params": {"type": "object"},
        "answers": {"type": "object"},
    },
    "required": ["worker_id", "tool_name", "params"],
    "additionalProperties": False,
}
_CALLED: Final = {"called": True}
_NOT_CALLED: Final = {"called": False}
# In the checkpoint: how often the task has looked for its worker in vain.
_AWAY: Final = "worker_away_looks"
# Then the task goes back to its queue with its job, so that long jobs don't occupy all executors.
_FOLLOWED_FOR: Final = timedelta(seconds=60)


def for_worker(task_type: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read `mcp_worker_<worker_id>` as a call of that worker.

    The parameters name a tool, or are those of the worker's only tool.
    """
    if not task_type.startswith(_ALIAS):
        return None
    worker_id = task_type.removeprefix(_ALIAS)
    if set(params) <= {"worker_id", "tool_name", "params", "answers"} and "tool_name" in params:
        return {"worker_id": worker_id, "params": {}, **params}
    names = Offer.objects.current().filter(worker__worker_id=worker_id).values_list("name", flat=True)[:2]
    return {"worker_id": worker_id, "tool_name": names[0], "params": dict(params)} if len(names) == 1 else None


@handler(
    RegisterTaskType(
        name=calls.TASK_TYPE,
        params_schema=_SCHEMA,
        queue="execute",
        title="Call of an MCP worker",
        lease_seconds=10,
        max_expiries=10,
        backoff=Backoff(base_seconds=1, cap_seconds=60),
    ),
    alias=for_worker,
)
def mcp_worker_call(context: Context, params: Mapping[str, Any]) -> Result:
    """Call the tool, report its progress, store its answer as an artifact. If the answer names a job, follow the job."""
    try:
        return _worked(context, params)
    except WorkerUnavailable as away:
        _wait_for_worker(context, away)
        raise


def _worked(context: Context, params: Mapping[str, Any]) -> Result:
    job = services.kept_job(context.checkpoint)
    worker_id, tool_name = params["worker_id"], params["tool_name"]
    with context.caller.acting():
        step = None
        if job is None:
            # The workers of a plan were checked at its begin. A job is followed even if its tool has changed since.
            task_id = parse_ref("task", context.task_id)
            step = ExecutionStep.objects.filter(task_id=task_id, status=StepStatus.QUEUED).first()
        target = calls.target_of(worker_id=worker_id, tool_name=tool_name, tool_uid=step.tool_uid if step else None)
        if job is None and step is None:
            calls.refuse_outside_pool(context.caller, worker_id)
    calls.note_run(context.task_id)
    checkpoint = context.checkpoint or {}
    if _AWAY in checkpoint:
        # The worker is back: a later absence counts from its own beginning.
        context.heartbeat(checkpoint={name: value for name, value in checkpoint.items() if name != _AWAY})
    if job is None:
        called = _called(context, target, params)
        with context.caller.acting():
            job = services.begun(target, called.payload)
        if job is None:
            _record(context, target, called)
            pointer = calls.keep(caller=context.caller, value=called.payload, files=called.files)
            return Result(pointer=pointer, summary=called.summary)
        # By this any later run follows the job.
        context.heartbeat(checkpoint=job.checkpoint())
    return _followed(context, target, job)


def _wait_for_worker(context: Context, away: WorkerUnavailable) -> None:
    """Give the task back for a moment, at most :data:`calls.AWAY_LOOKS` times.

    :raises Postponed: if the worker may come back in time.
    """
    kept = context.checkpoint or {}
    looks = kept.get(_AWAY, 0) + 1
    if away.may_come_back and looks <= calls.AWAY_LOOKS:
        context.heartbeat(checkpoint={**kept, _AWAY: looks})
        raise Postponed(calls.LOOK_AGAIN) from away


def _called(context: Context, target: calls.Target, given: Mapping[str, Any]) -> calls.Called:
    """The tool's answer.

    :raises Postponed: if the worker's rate limit is reached.
    :raises Canceled: if the call is not wanted, or this run has lost the task.
    :raises Failed: if there is no answer, or the tool may not be called a second time.
    """
    params = given["params"]
    _admit(context, target, params)
    if not target.repeatable:
        context.heartbeat(checkpoint=_CALLED)
    if context.cancelled:
        raise Canceled
    try:
        return calls.call(
            target=target,
            params=params,
            deadline=target.deadline,
            answers=given.get("answers"),
            on_progress=lambda percent, message: context.progress(percent or 0.0, message or ""),
            canceled=lambda: context.cancelled,
        )
    except CallCanceled as exc:
        raise Canceled from exc
    except DomainError as exc:
        _record(context, target, exc)
        if not target.repeatable and isinstance(exc, WorkerCallFailed) and not exc.reached:
            context.heartbeat(checkpoint=_NOT_CALLED)
        raise _failed(exc, target) from exc


def _followed(context: Context, target: calls.Target, job: services.Job) -> Result:
    """The job's result: the pointer that it answers, or a pointer to its answer.

    :raises Canceled: if it is not wanted, or is left to the next free executor.
    :raises Failed: if the job failed, or the worker can't be asked.
    """
    with context.caller.acting():
        # They only tell of the job, so they are asked again whatever the worker touches.
        status, result = (
            replace(calls.target_of(worker_id=target.worker_id, tool_name=name), repeatable=True)
            for name in (job.status_tool, job.result_tool)
        )
        age = database_now() - job.began_at
    try:
        called = services.follow(
            job,
            status=status,
            result=result,
            age=age,
            patience=_FOLLOWED_FOR,
            on_progress=context.progress,
            canceled=lambda: context.cancelled,
        )
    except CallCanceled as exc:
        with context.caller.acting():
            is_unwanted = tasks.status(context.task_id).status in {Status.CANCELING, Status.CANCELED}
        if is_unwanted:
            _cancel(context, target, job)
        raise Canceled from exc
    except WorkerCallFailed as exc:
        is_lost, is_over = exc.code == "job_lost", exc.code in {"job_lost", "job_failed"}
        if is_lost:
            context.heartbeat(checkpoint=services.LOST)
        ends_here = exc.code == "job_overdue" or isinstance(exc, UnusableAnswer)
        if is_over or ends_here:
            _record(context, target, exc)
        if ends_here:
            _cancel(context, target, job)
        raise Failed(exc.code, exc.detail, retryable=exc.retryable and (target.repeatable or not is_lost)) from exc
    if called is None:
        raise Canceled
    _record(context, target, called)
    pointer = called.payload.get("result_pointer")
    if not isinstance(pointer, str):
        pointer = calls.keep(caller=context.caller, value=called.payload, files=called.files)
    return Result(pointer=pointer, summary=called.summary)


def _admit(context: Context, target: calls.Target, params: Mapping[str, Any]) -> None:
    """Check that this run may call, and count the call."""
    kept = context.checkpoint or {}
    if context.run_id > 1 and not target.repeatable and (kept.get("called") or "job" in kept):
        raise Failed(
            OUTCOME_UNKNOWN,
            f"An earlier run of {target.tool_name} may have done its work, and it may not be run twice.",
            retryable=False,
        )
    try:
        calls.check_params(target, params)
        with context.caller.acting():
            registry.take_call(worker_id=target.worker_id)
    except WorkerRateLimited as full:
        raise Postponed(timedelta(seconds=full.retry_after)) from full
    except DomainError as refusal:
        raise _failed(refusal, target) from refusal


def _cancel(context: Context, target: calls.Target, job: services.Job) -> None:
    """Ask the worker once to cancel a job, if it can. The job may go on: a refusal is only logged."""
    if job.cancel_tool is None:
        return
    try:
        with context.caller.acting():
            tool = calls.target_of(worker_id=target.worker_id, tool_name=job.cancel_tool)
        calls.call(target=tool, params={"job_id": job.job_id}, deadline=calls.DIRECT)
    except DomainError as refusal:
        named = {"task_id": context.task_id, "worker_id": target.worker_id, "job_id": job.job_id}
        logger.warning("job.not_canceled", **named, code=refusal.code, detail=refusal.detail)


def _record(context: Context, target: calls.Target, outcome: calls.Called | DomainError) -> None:
    with context.caller.acting():
        calls.record(target, outcome)


def _failed(exc: DomainError, target: calls.Target) -> Failed:
    """The failure of a run: another run follows only where that does no harm."""
    if exc.code == "worker_timed_out":
        detail = f"{exc.detail} It is not called again: it would take as long."
        return Failed(exc.code, detail, retryable=False)
    again = isinstance(exc, WorkerCallFailed) and exc.retryable and (target.repeatable or not exc.reached)
    return Failed(exc.code, exc.detail, retryable=again)
