"""What happens by itself: executions go on though no message said so."""

from datetime import timedelta

import structlog
from django.db import DatabaseError

from apps.core.errors import DomainError
from apps.core.ticks import tick
from apps.executions import selectors, services
from apps.executions.signals import job_unwanted
from apps.principals.tenancy import acting_as_system

logger = structlog.get_logger(__name__)

_AT_ONCE = 200


@tick(every=timedelta(seconds=1))
def advance_due() -> None:
    """Take in what has ended and begin what needs no worker; calls of workers are nudged to worker processes."""
    with acting_as_system("executions that can go on"):
        due = selectors.due(limit=_AT_ONCE)
    for tenant_id, execution_id in due:
        try:
            services.advance(tenant_id=tenant_id, execution_id=execution_id, patience=timedelta(0), skip_locked=True)
        except (DomainError, DatabaseError):
            # One that can't go on must not hold up the others; it is looked at again next time.
            logger.exception("executions.stuck", execution_id=execution_id)


@tick(every=timedelta(seconds=1))
def cancel_unwanted_jobs() -> None:
    """Have workers told of jobs of theirs that nobody wants any more: by worker processes, since workers take their time."""
    with acting_as_system("jobs that nobody wants any more"):
        unwanted = selectors.unwanted_jobs(limit=_AT_ONCE)
    for tenant_id, begun_job_id in unwanted:
        job_unwanted.send(sender=None, tenant_id=tenant_id, begun_job_id=begun_job_id)
