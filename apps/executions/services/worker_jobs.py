"""Jobs inside workers: a call answers `{job_id, estimated_duration_seconds}`, and two tools of the same worker give the
job's status and result. This module recognises such answers, and follows jobs to their ends.

The two tools take nothing but a `job_id`, and their names differ in one word, `status` and `result`: `get_job_status`,
`get_job_result`. Of several pairs the one is used that shares most words with the called tool.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from apps.core.lexical import words
from apps.core.sql import database_now
from apps.executions import calls
from apps.executions.calls import Called, Target
from apps.executions.errors import CallCanceled, UnusableAnswer, WorkerAway, WorkerCallFailed, WorkerRefused
from apps.workers import selectors as workers
from apps.workers.models import UnknownWorker

_COMPLETE: Final = frozenset({"complete", "completed", "done", "finished", "succeeded", "success"})
_FAILED: Final = frozenset({"failed", "failure", "error", "canceled", "cancelled", "aborted"})
_MAX_JOB_ID: Final = 1_000
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 10.0
_POLLS_AN_ESTIMATE: Final = 20
_LOOK_SECONDS: Final = 0.2
_POLL: Final = timedelta(seconds=30)
# A worker that restarts is waited for this long; then the task's own retries follow the same job.
_AWAY: Final = timedelta(seconds=60)
# How much longer than estimated a job may take.
_GENEROSITY: Final = 4
_LEAST: Final = timedelta(minutes=10)
_MOST: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A worker's job as a task's checkpoint holds it: enough for any process to follow it."""

    job_id: str
    estimate: float
    began_at: datetime
    status_tool: str
    result_tool: str
    cancel_tool: str | None = None

    def checkpoint(self) -> dict[str, Any]:
        return {"job": {**asdict(self), "began_at": self.began_at.isoformat()}}

    @property
    def allowed(self) -> timedelta:
        return min(max(_GENEROSITY * timedelta(seconds=self.estimate), _LEAST), _MOST)


LOST: Final = {"job": None}
"""The checkpoint of a task whose job the worker does not know any more: the next run starts another."""


def kept_job(checkpoint: Any) -> Job | None:
    """The job that an earlier run of a task has started, or None."""
    kept = checkpoint.get("job") if isinstance(checkpoint, Mapping) else None
    return None if kept is None else Job(**{**kept, "began_at": datetime.fromisoformat(kept["began_at"])})


def begun(target: Target, payload: Mapping[str, Any]) -> Job | None:
    """The job that an answer names, or None if the answer is the result itself. Needs an acting transaction."""
    job_id, estimate = payload.get("job_id"), payload.get("estimated_duration_seconds")
    if not isinstance(job_id, str) or not 0 < len(job_id) <= _MAX_JOB_ID:
        return None
    if isinstance(estimate, bool) or not isinstance(estimate, int | float) or not 0 <= estimate < math.inf:
        return None
    try:
        tools = workers.manifest_of(target.worker_id).tools
    except UnknownWorker:  # it was removed after the call
        return None
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


def followers(tool_name: str, tools: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The tools that give the status and the result of a job that another tool of the worker starts."""
    able = [tool["name"] for tool in tools if _takes_a_job(tool["input_schema"]) and tool["name"] != tool_name]
    results = {_without(name, "result"): name for name in sorted(able) if "result" in words(name)}
    pairs = [
        (name, results[rest])
        for name in sorted(able)
        if "status" in words(name) and (rest := _without(name, "status")) in results
    ]
    own = set(words(tool_name))
    return max(pairs, key=lambda pair: len(own.intersection(words(pair[0]))), default=None)


def canceler(status_tool: str, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The tool that cancels the jobs of a status tool, or None."""
    able = [tool["name"] for tool in tools if _takes_a_job(tool["input_schema"]) and "cancel" in words(tool["name"])]
    rest = set(_without(status_tool, "status")) - {"get"}
    return max(sorted(able), key=lambda name: len(rest.intersection(words(name))), default=None)


def _takes_a_job(schema: Mapping[str, Any]) -> bool:
    return "job_id" in schema.get("properties", {}) and set(schema.get("required", ())) <= {"job_id"}


def _without(name: str, word: str) -> tuple[str, ...]:
    return tuple(other for other in words(name) if other != word)


def follow(
    job: Job,
    *,
    status: Target,
    result: Target,
    age: timedelta,
    patience: timedelta,
    on_progress: Callable[[float, str], None],
    canceled: Callable[[], bool],
) -> Called | None:
    """Poll until the job is over; None if it still runs when patience ends. Touches no database.

    :param status: the tool that gives the job's status; `result` gives its result.
    :param age: how long the job has run.
    :raises CallCanceled: if the asker no longer wants it.
    :raises WorkerRefused: if the job failed, or its result is refused (`job_failed`), or an answer is unusable.
    :raises WorkerAway: if the worker does not know the job (`job_lost`), the job takes far too long (`job_overdue`), or
        the worker does not answer for longer than a restart takes.
    """
    began = time.monotonic() - age.total_seconds()
    until = time.monotonic() + patience.total_seconds()
    pause = _FIRST_PAUSE
    while not _is_complete(job, _asked(job, status, _POLL, canceled).payload, on_progress):
        if time.monotonic() - began > job.allowed.total_seconds():
            detail = f"{job.job_id[:200]} still runs after {job.allowed}."
            raise WorkerAway(detail, code="job_overdue", retryable=False)
        if time.monotonic() >= until:
            return None
        _wait(pause, canceled)
        pause = pause_after(pause, estimate=job.estimate, age=time.monotonic() - began)
    try:
        called = _asked(job, result, result.deadline, canceled)
    except WorkerAway as refusal:
        if refusal.code != "job_lost":
            raise
        # The worker refuses the result of a job that it knows, or does not know it.
        _asked(job, status, _POLL, canceled)
        detail = f"The worker does not give the result of {job.job_id[:200]}: {refusal.detail}"
        raise WorkerRefused(detail, code="job_failed") from refusal
    return replace(called, seconds=time.monotonic() - began)


def pause_after(pause: float, *, estimate: float, age: float) -> float:
    """The seconds until the next poll: a twentieth of the job's estimate, or of its age where that is longer."""
    return min(2 * pause, max(_FIRST_PAUSE, max(estimate, age) / _POLLS_AN_ESTIMATE), _LONGEST_PAUSE)


def _is_complete(job: Job, answer: Mapping[str, Any], on_progress: Callable[[float, str], None]) -> bool:
    status = str(answer.get("status", "")).casefold()
    message = next((text for key in ("message", "error") if isinstance(text := answer.get(key), str)), "")
    if status in _FAILED:
        detail = f"{job.job_id[:200]} has {status}: {message[:1000] or 'the worker does not say why.'}"
        raise WorkerRefused(detail, code="job_failed")
    percent = answer.get("progress")
    if isinstance(percent, int | float) and math.isfinite(percent):
        on_progress(max(0.0, min(float(percent), 100.0)), message)
    return status in _COMPLETE


def _asked(job: Job, target: Target, deadline: timedelta, canceled: Callable[[], bool]) -> Called:
    """Ask about the job, also across a restart of the worker."""
    away_until = time.monotonic() + _AWAY.total_seconds()
    while True:
        try:
            return calls.call(target=target, params={"job_id": job.job_id}, deadline=deadline, canceled=canceled)
        except UnusableAnswer:
            raise
        except WorkerRefused as refusal:
            if refusal.code != "worker_refused":
                raise
            detail = f"The worker does not know the job that it began: {refusal.detail}"
            raise WorkerAway(detail, code="job_lost") from refusal
        except WorkerCallFailed as failure:
            if not failure.retryable or time.monotonic() > away_until:
                raise
        _wait(1.0, canceled)


def _wait(seconds: float, canceled: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if canceled():
            raise CallCanceled("The job is not wanted any more.")
        time.sleep(min(left, _LOOK_SECONDS))
