"""Jobs of workers that nobody wants any more: each worker is told until it has heard, or for a day."""

from datetime import timedelta
from typing import Final

import structlog

from apps.core.errors import DomainError, Unavailable
from apps.core.ids import format_ref
from apps.core.sql import database_now
from apps.executions import calls, following, sql
from apps.executions.models import BegunJob
from apps.executions.sql import GATEHOUSE_NOW
from apps.principals.tenancy import acting_in

logger = structlog.get_logger(__name__)

# As many as there are in a day, nearly all of them after the longest pause.
_MOST_TRIES: Final = 275
# Longer than the call takes, so that only a dead process is followed by another.
_CLAIM: Final = timedelta(seconds=60)
_AGAIN: Final = timedelta(seconds=5)
_MOST_DOUBLED: Final = 6
_WHY: Final = "a job that nobody wants any more"


def cancel_job(*, tenant_id: int, begun_job_id: int) -> None:
    """Tell a worker that nobody wants its job any more; later again, if it does not hear it now. The log tells of one that goes on.

    For :func:`selectors.unwanted_jobs`. Opens its own transactions; safe to lose, repeat or overlap.
    """
    with acting_in(tenant_id, _WHY):
        job = _claimed(begun_job_id)
    if job is None:
        return
    refusal = _told(job)
    with acting_in(tenant_id, _WHY):
        if isinstance(refusal, Unavailable) and job.tries < _MOST_TRIES:
            pause = _AGAIN * 2 ** min(job.tries, _MOST_DOUBLED)
            BegunJob.objects.filter(pk=job.pk).update(next_at=database_now() + pause)
            return
        if refusal is None:
            sql.end_job(worker_id=job.worker_id, job_id=job.job_id)
        BegunJob.objects.filter(pk=job.pk).delete()
    if refusal is not None:
        logger.warning(
            "job.not_canceled",
            task_id=None if job.task_id is None else format_ref("task", job.task_id),
            worker_id=job.worker_id,
            job_id=job.job_id,
            code=refusal.code,
            detail=refusal.detail,
        )


def _claimed(begun_job_id: int) -> BegunJob | None:
    due = BegunJob.objects.unwanted().filter(pk=begun_job_id, next_at__lte=GATEHOUSE_NOW)
    job = due.select_for_update(skip_locked=True).first()
    if job is not None:
        job.tries += 1
        job.next_at = database_now() + _CLAIM
        job.save()
    return job


def _told(job: BegunJob) -> DomainError | None:
    """Why the worker did not cancel it; None if it did."""
    try:
        with acting_in(job.tenant_id, _WHY):
            target = calls.target_of(worker_id=job.worker_id, tool_name=job.cancel_tool)
        following.let_go(target, job.job_id)
    except DomainError as refusal:
        return refusal
    return None
