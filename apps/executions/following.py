"""Jobs that workers run by themselves: a call answers `{job_id, estimated_duration_seconds}`, and two other tools of the
same worker tell how far the job is and what came of it. Here such an answer is known as one, and followed to its end.

Which two tools: each takes nothing but a `job_id`, and their names differ in one word, `status` in one and `result` in the
other (`get_job_status`, `get_job_result`). Of several pairs the one that shares most words with the tool that was called.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from apps.core.lexical import words
from apps.core.sql import database_now
from apps.executions import calls, sql
from apps.executions.calls import Called, Target
from apps.executions.errors import (
    CallCanceled,
    JobFailed,
    JobLost,
    JobOverdue,
    WorkerCallFailed,
    WorkerRefused,
    WorkerUnintelligible,
)
from apps.workers import selectors as workers
from apps.workers.errors import UnknownWorker

_STATUS: Final = "status"
_RESULT: Final = "result"
_CANCEL: Final = "cancel"
_COMPLETE: Final = frozenset({"complete", "completed", "done", "finished", "succeeded", "success"})
_FAILED: Final = frozenset({"failed", "failure", "error", "canceled", "cancelled", "aborted"})
_MAX_JOB_ID: Final = 1_000
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 10.0
_POLLS_AN_ESTIMATE: Final = 20
_LOOK_SECONDS: Final = 0.2
_POLL: Final = timedelta(seconds=30)
# A worker that restarts is waited for this long; then the task's own retries take over, with the same job.
_AWAY: Final = timedelta(seconds=60)
# How much longer than estimated a job may take before it is given up.
_GENEROSITY: Final = 4
_LEAST: Final = timedelta(minutes=10)
_MOST: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A worker's job as a task's checkpoint holds it: enough for any process to go on following it."""

    job_id: str
    estimate: float
    began_at: datetime
    status_tool: str
    result_tool: str
    cancel_tool: str | None = None

    def checkpoint(self) -> dict[str, Any]:
        return {
            "job": {
                "job_id": self.job_id,
                "estimate": self.estimate,
                "began_at": self.began_at.isoformat(),
                "status_tool": self.status_tool,
                "result_tool": self.result_tool,
                "cancel_tool": self.cancel_tool,
            }
        }

    @property
    def allowed(self) -> timedelta:
        return min(max(_GENEROSITY * timedelta(seconds=self.estimate), _LEAST), _MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Whom to ask about a job, who is told of it, and when its clock began in this process's monotonic time."""

    job: Job
    began: float
    status: Target
    result: Target
    on_progress: Callable[[float, str], None]
    canceled: Callable[[], bool]


LOST: Final[Mapping[str, Any]] = {"job": None}
"""The checkpoint of a task whose job the worker no longer knows: the next run starts another."""


def kept_job(checkpoint: Any) -> Job | None:
    """The job that an earlier run of a task has started, or None."""
    kept = checkpoint.get("job") if isinstance(checkpoint, Mapping) else None
    return None if kept is None else Job(**{**kept, "began_at": datetime.fromisoformat(kept["began_at"])})


def begins_jobs(target: Target) -> bool:
    """Whether a call of the tool may begin a job that can be canceled, if its id is known. Needs an acting transaction."""
    tools = _tools_beside(target)
    pair = followers(target.tool_name, tools)
    return pair is not None and canceler(pair[0], tools) is not None


def begin(target: Target, payload: Mapping[str, Any], *, task_id: int | None) -> tuple[Job | None, int | None]:
    """As :func:`started_job`, and from here on the job is canceled should nobody want it any more.

    :param task_id: the task that follows it; None: nobody does.
    :return: the job, and the row by which it is kept; no row where it can't be canceled.
    """
    job = started_job(target, payload)
    if job is None or job.cancel_tool is None:
        return job, None
    kept = sql.begin_job(task_id=task_id, worker_id=target.worker_id, cancel_tool=job.cancel_tool, job_id=job.job_id)
    return job, kept


def started_job(target: Target, payload: Mapping[str, Any]) -> Job | None:
    """The job that a tool's answer speaks of, or None where the answer is the result itself. Needs an acting transaction."""
    job_id, estimate = payload.get("job_id"), payload.get("estimated_duration_seconds")
    if not isinstance(job_id, str) or not 0 < len(job_id) <= _MAX_JOB_ID:
        return None
    if isinstance(estimate, bool) or not isinstance(estimate, int | float) or not 0 <= estimate < math.inf:
        return None
    tools = _tools_beside(target)
    pair = followers(target.tool_name, tools)
    if pair is None:
        return None
    return Job(
        job_id=job_id,
        estimate=min(float(estimate), _MOST.total_seconds()),
        began_at=database_now(),
        status_tool=pair[0],
        result_tool=pair[1],
        cancel_tool=canceler(pair[0], tools),
    )


def _tools_beside(target: Target) -> Sequence[Mapping[str, Any]]:
    """The tools of the same worker; none, if it has gone since the call."""
    try:
        tools: Sequence[Mapping[str, Any]] = workers.manifest_of(target.worker_id)["tools"]
    except UnknownWorker:
        return ()
    return tools


def followers(tool_name: str, tools: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The names of the tools that tell the status and give the result of what another tool of the worker starts."""
    able = [tool["name"] for tool in tools if _takes_a_job(tool["input_schema"]) and tool["name"] != tool_name]
    results = {_around(name, _RESULT): name for name in sorted(able) if _RESULT in words(name)}
    pairs = [
        (name, results[around])
        for name in sorted(able)
        if _STATUS in words(name) and (around := _around(name, _STATUS)) in results
    ]
    own = set(words(tool_name))
    return max(pairs, key=lambda pair: len(own.intersection(words(pair[0]))), default=None)


def canceler(status_tool: str, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The name of the tool that cancels what another one tells the status of, or None."""
    able = [tool["name"] for tool in tools if _takes_a_job(tool["input_schema"]) and _CANCEL in words(tool["name"])]
    around = set(_around(status_tool, _STATUS)) - {"get"}
    return max(sorted(able), key=lambda name: len(around.intersection(words(name))), default=None)


def watch(
    target: Target, job: Job, *, on_progress: Callable[[float, str], None], canceled: Callable[[], bool]
) -> Watch:
    """Get ready to follow a job. Needs an acting transaction.

    :raises DomainError: as :func:`calls.target_of` does, for the tools that tell of the job.
    """
    age = database_now() - job.began_at
    return Watch(
        job=job,
        began=time.monotonic() - age.total_seconds(),
        status=calls.target_of(worker_id=target.worker_id, tool_name=job.status_tool),
        result=calls.target_of(worker_id=target.worker_id, tool_name=job.result_tool),
        on_progress=on_progress,
        canceled=canceled,
    )


def follow(watch: Watch, *, patience: timedelta) -> Called | None:
    """Ask until the job is over; None if it still runs when patience ends. Touches no database.

    :raises CallCanceled: if the asker no longer wants it.
    :raises JobFailed: if the worker says so, or knows the job and won't give its result.
    :raises JobLost: if the worker does not know the job.
    :raises JobOverdue: if it takes far longer than was said.
    :raises WorkerUnintelligible: if it answers what can't be used.
    :raises WorkerCallFailed: if the worker can't be asked, for longer than a restart takes.
    """
    until = time.monotonic() + patience.total_seconds()
    pause = _FIRST_PAUSE
    while not _is_complete(watch):
        if time.monotonic() - watch.began > watch.job.allowed.total_seconds():
            raise JobOverdue(f"{watch.job.job_id[:200]} still runs after {watch.job.allowed}.")
        if time.monotonic() >= until:
            return None
        _wait(pause, watch.canceled)
        pause = pause_after(pause, estimate=watch.job.estimate, age=time.monotonic() - watch.began)
    called = _result(watch)
    return replace(called, seconds=time.monotonic() - watch.began)


def let_go(target: Target, job_id: str) -> None:
    """Tell a worker that nobody wants its job any more. Touches no database.

    :param target: the job's own tool for it.
    :raises WorkerCallFailed: if the worker can't be asked, or says that it can't be canceled.
    """
    calls.call(target=target, params={"job_id": job_id}, deadline=_POLL)


def pause_after(pause: float, *, estimate: float, age: float) -> float:
    """How many seconds to leave a job alone after this pause: a twentieth of what it was to take, or of what it has taken
    where that is longer, so that one that never ends is asked ever more rarely.
    """
    return min(2 * pause, max(_FIRST_PAUSE, max(estimate, age) / _POLLS_AN_ESTIMATE), _LONGEST_PAUSE)


def _takes_a_job(schema: Mapping[str, Any]) -> bool:
    return "job_id" in schema.get("properties", {}) and set(schema.get("required", ())) <= {"job_id"}


def _around(name: str, word: str) -> tuple[str, ...]:
    return tuple(other for other in words(name) if other != word)


def _is_complete(watch: Watch) -> bool:
    """:raises JobFailed: if the worker says that nothing will come of it."""
    said = _asked(watch, watch.status, _POLL).payload
    status = str(said.get("status", "")).casefold()
    message = next((text for key in ("message", "error") if isinstance(text := said.get(key), str)), "")
    if status in _FAILED:
        raise JobFailed(f"{watch.job.job_id[:200]} has {status}: {message[:1000] or 'the worker does not say why.'}")
    percent = said.get("progress")
    if isinstance(percent, int | float) and math.isfinite(percent):
        watch.on_progress(max(0.0, min(float(percent), 100.0)), message)
    return status in _COMPLETE


def _result(watch: Watch) -> Called:
    """:raises JobFailed: if the worker says no, though it knows the job."""
    try:
        return _asked(watch, watch.result, watch.result.deadline)
    except JobLost as refusal:
        _asked(watch, watch.status, _POLL)
        raise JobFailed(
            f"The worker does not give the result of {watch.job.job_id[:200]}: {refusal.detail}"
        ) from refusal


def _asked(watch: Watch, target: Target, deadline: timedelta) -> Called:
    """Ask about the job, through a restart of the worker."""
    away_until = time.monotonic() + _AWAY.total_seconds()
    while True:
        try:
            return calls.call(
                target=target, params={"job_id": watch.job.job_id}, deadline=deadline, canceled=watch.canceled
            )
        except WorkerUnintelligible:
            raise
        except WorkerRefused as refusal:
            raise JobLost(f"The worker does not know the job that it began: {refusal.detail}") from refusal
        except WorkerCallFailed as failure:
            if not failure.retryable or time.monotonic() > away_until:
                raise
        _wait(1.0, watch.canceled)


def _wait(seconds: float, canceled: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if canceled():
            raise CallCanceled("The job is not wanted any more.")
        time.sleep(min(left, _LOOK_SECONDS))
