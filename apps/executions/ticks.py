"""Periodic jobs: executions continue without a message, and unwanted jobs of workers are canceled."""

from datetime import timedelta

import structlog
from django.db import DatabaseError

from apps.core.errors import DomainError
from apps.core.ticks import tick
from apps.executions import selectors
from apps.executions.services import advancing, worker_jobs
from apps.principals.tenancy import acting_as_system

logger = structlog.get_logger(__name__)

_AT_ONCE = 200


@tick(every=timedelta(seconds=1))
def advance_due() -> None:
    """Continue what needs no worker; calls of workers are left to worker processes."""
    with acting_as_system("executions that can go on"):
        due = selectors.due(limit=_AT_ONCE)
    for tenant_id, execution_id in due:
        try:
            advancing.advance(tenant_id=tenant_id, execution_id=execution_id, patience=timedelta(0), skip_locked=True)
        except (DomainError, DatabaseError):
            # It must not hold up the others; the next tick looks again.
            logger.exception("executions.stuck", execution_id=execution_id)


@tick(every=timedelta(seconds=1), calls_out=True)
def cancel_unwanted_jobs() -> None:
    """Have workers cancel their jobs that no task follows."""
    worker_jobs.cancel_unwanted()
