"""How executions continue without a caller: Celery's messages, the ends of tasks, and periodic jobs.

A lost, repeated or overlapping message does no harm.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import structlog
from celery import shared_task
from django.db import DatabaseError
from django.dispatch import receiver

from apps.core.errors import DomainError
from apps.core.ticks import tick
from apps.executions import calls, selectors, services
from apps.executions.models import ExecutionStep
from apps.executions.states import StepStatus
from apps.executions.wakeups import ADVANCE, wake
from apps.principals.tenancy import acting_as_system, acting_in
from apps.tasks.signals import tasks_finished

logger = structlog.get_logger(__name__)

_AT_ONCE: Final = 200


# Acknowledged early: if the message dies with its process, the tick sends another.
@shared_task(name=ADVANCE, ignore_result=True, acks_late=False)
def advance(tenant_id: int, execution_id: int) -> None:
    """Continue an execution as far as it goes."""
    services.advance(tenant_id=tenant_id, execution_id=execution_id)


@receiver(tasks_finished)
def follow_up(tenant_id: int, task_ids: Sequence[int], **_: Any) -> None:
    """Continue an execution at once after a task that this process ran for it."""
    for task_id in filter(calls.was_run_here, task_ids):
        with acting_in(tenant_id, "execution of a finished task"):
            step = ExecutionStep.objects.filter(task_id=task_id, status=StepStatus.QUEUED).first()
        if step is not None:
            wake(tenant_id, step.execution_id)


@tick(every=timedelta(seconds=1))
def advance_due() -> None:
    """Continue what needs no worker; calls of workers are left to worker processes."""
    with acting_as_system("executions that can go on"):
        due = selectors.due(limit=_AT_ONCE)
    for tenant_id, execution_id in due:
        try:
            services.advance(tenant_id=tenant_id, execution_id=execution_id, patience=timedelta(0), skip_locked=True)
        except (DomainError, DatabaseError):
            # It must not hold up the others; the next tick looks again.
            logger.exception("executions.stuck", execution_id=execution_id)
