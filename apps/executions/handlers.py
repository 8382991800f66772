"""A task that calls a worker's tool: how MCP workers do long work without knowing of tasks."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Final

from apps.core.errors import DomainError
from apps.core.ids import parse_ref
from apps.core.sql import database_now
from apps.executions import calls, following, selectors, sql
from apps.executions.errors import (
    BUDGET_EXCEEDED,
    OUTCOME_UNKNOWN,
    CallCanceled,
    JobFailed,
    JobLost,
    JobOverdue,
    WorkerCallFailed,
    WorkerUnavailable,
    WorkerUnintelligible,
)
from apps.tasks import services as tasks
from apps.tasks.handlers import Canceled, Context, Failed, Postponed, Result, handler
from apps.workers.errors import WorkerRateLimited

_ALIAS: Final = "mcp_worker_"
_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "worker_id": {"type": "string", "minLength": 1, "maxLength": 100},
        "tool_name": {"type": "string", "minLength": 1, "maxLength": 128},
        "params": {"type": "object"},
    },
    "required": ["worker_id", "tool_name", "params"],
    "additionalProperties": False,
}


def for_worker(task_type: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read `mcp_worker_<worker_id>` as a call of that worker.

    The parameters name a tool, or are those of the only tool that the worker has.
    """
    if not task_type.startswith(_ALIAS):
        return None
    worker_id = task_type.removeprefix(_ALIAS)
    if set(params) <= {"worker_id", "tool_name", "params"} and "tool_name" in params:
        return {"worker_id": worker_id, "params": {}, **params}
    only = selectors.only_tool_of(worker_id)
    return None if only is None else {"worker_id": worker_id, "tool_name": only, "params": dict(params)}


@handler(
    task_type=calls.TASK_TYPE,
    params_schema=_SCHEMA,
    title="Call of an MCP worker",
    lease=timedelta(seconds=10),
    max_expiries=10,
    backoff=timedelta(seconds=1),
    backoff_cap=timedelta(seconds=60),
    alias=for_worker,
)
def mcp_worker_call(context: Context, params: Mapping[str, Any]) -> Result:
    """Call the tool, tell of its progress, keep its answer as an artifact. Where the answer is a job's id, follow the job."""
    try:
        return _worked(context, params)
    except WorkerUnavailable as away:
        _wait_for_worker(context, away)
        raise


def _worked(context: Context, params: Mapping[str, Any]) -> Result:
    job = following.kept_job(context.checkpoint)
    with context.caller.acting():
        # What has begun is followed to its end, whatever has become of the tool since.
        planned = _planned(context, params["worker_id"]) if job is None else None
        target = calls.target_of(worker_id=params["worker_id"], tool_name=params["tool_name"], tool_uid=planned)
        patience = _HEARD_WITHIN if job is None and following.begins_jobs(target) else timedelta(0)
    calls.note_run(context.task_id)
    _end_absence(context)
    if job is None:
        called = _called(context, target, params["params"], patience)
        job = _begun(context, target, called)
        if job is None:
            _record(context, target, called)
            return Result(pointer=calls.keep(caller=context.caller, value=called.payload), summary=called.summary)
    return _followed(context, target, job)


def _planned(context: Context, worker_id: str) -> str | None:
    """The version of the tool that the task was planned with; None where it carries out no step of a plan.

    :raises OutsidePool: if a DeleGate calls past its pool. The workers of a plan were looked at when it was begun.
    """
    step = sql.step_of_task(task_id=parse_ref("task", context.task_id))
    if not step.is_there:
        calls.refuse_outside_pool(context.caller, worker_id)
    return step.tool_uid


def _wait_for_worker(context: Context, away: WorkerUnavailable) -> None:
    """Give the task back for a moment, but not for ever: the checkpoint says since when its worker is missed.

    :raises Postponed: if the worker may come back in time.
    """
    if not away.may_come_back:
        return
    with context.caller.acting():
        now = database_now()
    kept = context.checkpoint or {}
    before, looked_for_at = (datetime.fromisoformat(kept[name]) if name in kept else None for name in _ABSENCE)
    missed = calls.missed_since(before, looked_for_at=looked_for_at, now=now)
    if now - missed < calls.WORKER_AWAY:
        absence = dict(zip(_ABSENCE, (missed.isoformat(), (now + calls.LOOK_AGAIN).isoformat()), strict=True))
        context.heartbeat(checkpoint={**kept, **absence})
        raise Postponed(calls.LOOK_AGAIN) from away


def _end_absence(context: Context) -> None:
    """The worker is there: an absence that may come is waited for from its own beginning."""
    kept = context.checkpoint or {}
    if not kept.keys().isdisjoint(_ABSENCE):
        context.heartbeat(checkpoint={name: value for name, value in kept.items() if name not in _ABSENCE})


def _called(context: Context, target: calls.Target, params: Mapping[str, Any], patience: timedelta) -> calls.Called:
    """What the tool answers.

    :param patience: for how long it is listened to after nobody wants it any more.
    :raises Postponed: if the worker may be sent no more calls just now.
    :raises Canceled: if it is not wanted any more, or this run may not call: another has its task, or may have it.
    :raises Failed: if it gave no answer, or may not be called a second time.
    """
    costs = _admit(context, target, params)
    marked = costs or not target.repeatable
    if marked:
        context.heartbeat(checkpoint=_CALLED)
    if context.cancelled:
        raise Canceled
    try:
        return calls.call(
            target=target,
            params=params,
            deadline=target.deadline,
            on_progress=lambda percent, message: context.progress(percent or 0.0, message or ""),
            canceled=_unwanted(context, patience),
        )
    except CallCanceled as exc:
        raise Canceled from exc
    except DomainError as exc:
        _record(context, target, exc)
        if marked and isinstance(exc, WorkerCallFailed) and not exc.reached:
            context.heartbeat(checkpoint=_NOT_CALLED)
        raise _failed(exc, target) from exc


def _unwanted(context: Context, patience: timedelta) -> Callable[[], bool]:
    """Whether to give a call up, so long after nobody wants it any more."""
    since: list[float] = []

    def unwanted() -> bool:
        if not context.cancelled:
            return False
        since.append(monotonic())
        return monotonic() - since[0] >= patience.total_seconds()

    return unwanted


def _begun(context: Context, target: calls.Target, called: calls.Called) -> following.Job | None:
    """The job that a call has begun, if it has. From here on any process follows it, and none starts another."""
    task_id = parse_ref("task", context.task_id)
    with context.caller.acting():
        job, kept = following.begin(target, called.payload, task_id=task_id)
    if job is None:
        return None
    try:
        context.heartbeat(checkpoint=job.checkpoint())
    except Canceled:
        # Another run has the task, and will not know of this job from here.
        if kept is not None:
            with context.caller.acting():
                sql.disown_job(row=kept)
        raise
    return job


def _followed(context: Context, target: calls.Target, job: following.Job) -> Result:
    """What the job has found: its own pointer to it, or the pointer to what it answered.

    :raises Canceled: if it is not wanted any more, or is left to the next process that has a hand free.
    :raises Failed: if nothing comes of it, or the worker can't be asked.
    """
    with context.caller.acting():
        watch = following.watch(target, job, on_progress=context.progress, canceled=lambda: context.cancelled)
    try:
        called = following.follow(watch, patience=_FOLLOWED_FOR)
    except CallCanceled as exc:
        raise Canceled from exc
    except WorkerCallFailed as exc:
        if isinstance(exc, JobLost):
            context.heartbeat(checkpoint=following.LOST)
        if isinstance(exc, JobLost | JobFailed | JobOverdue | WorkerUnintelligible):
            _record(context, target, exc, over=job if isinstance(exc, JobLost | JobFailed) else None)
        again = exc.retryable and (target.repeatable or not isinstance(exc, JobLost))
        raise Failed(exc.code, exc.detail, retryable=again) from exc
    if called is None:
        raise Canceled
    _record(context, target, called, over=job)
    pointer = called.payload.get("result_pointer")
    if not isinstance(pointer, str):
        pointer = calls.keep(caller=context.caller, value=called.payload)
    return Result(pointer=pointer, summary=called.summary)


def _admit(context: Context, target: calls.Target, params: Mapping[str, Any]) -> bool:
    """See that this run may call, and count and pay for the call; the first one was paid for when the task was queued.

    :return: whether such calls cost anything, by the worker's price or by the plan's estimate.
    :raises Canceled: if the end of its execution is certain, and an earlier run may have called: nothing is called again then.
    """
    task_id = parse_ref("task", context.task_id)
    again = context.run_id > 1 and _may_have_run(context.checkpoint)
    if again and not target.repeatable:
        raise Failed(
            OUTCOME_UNKNOWN,
            f"An earlier run of {target.tool_name} may have done its work, and it may not be run twice.",
            retryable=False,
        )
    with context.caller.acting():
        step = sql.step_of_task(task_id=task_id)
        if again and step.is_halted:
            tasks.cancel(caller=context.caller, task_id=task_id)
    if again and step.is_halted:
        raise Canceled
    try:
        calls.check_params(target, params)
        with context.caller.acting():
            calls.take(target)
            paid = not again or sql.charge_again(task_id=task_id, cost=target.cost)
    except WorkerRateLimited as full:
        raise Postponed(timedelta(seconds=full.retry_after)) from full
    except DomainError as refusal:
        raise _failed(refusal, target) from refusal
    if not paid:
        raise Failed(
            BUDGET_EXCEEDED,
            f"{target.tool_name} was called before and may have run; the budget does not pay for another call.",
            retryable=False,
        )
    return target.cost > 0 or step.costs


def _may_have_run(checkpoint: Any) -> bool:
    """Whether an earlier run may have called the tool: it has said so, or has followed a job that the call began."""
    kept = checkpoint or {}
    return bool(kept.get("called")) or "job" in kept


def _record(
    context: Context, target: calls.Target, outcome: calls.Called | DomainError, *, over: following.Job | None = None
) -> None:
    """:param over: the job that has ended with this."""
    with context.caller.acting():
        calls.record(target, outcome)
        if over is not None:
            sql.end_job(worker_id=target.worker_id, job_id=over.job_id)


_CALLED: Final = {"called": True}
_NOT_CALLED: Final = {"called": False}
# Of a worker that is missed: since when, and when it is looked for again.
_ABSENCE: Final = ("worker_missed_since", "worker_looked_for_at")
# A call that may begin a job is listened to for so long after nobody wants it any more: a job is canceled by its id.
_HEARD_WITHIN: Final = timedelta(seconds=60)
# Then the task goes back to its queue, with its job, so that long jobs don't keep all hands from other work.
_FOLLOWED_FOR: Final = timedelta(seconds=60)


def _failed(exc: DomainError, target: calls.Target) -> Failed:
    """What a refusal means for the task: another run only where that can do no harm."""
    again = isinstance(exc, WorkerCallFailed) and exc.retryable and (target.repeatable or not exc.reached)
    return Failed(exc.code, exc.detail, retryable=again)
