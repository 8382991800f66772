"""Celery's messages to the engine. A lost, repeated or overlapping message does no harm."""

from collections.abc import Sequence
from typing import Any

from celery import shared_task
from django.dispatch import receiver

from apps.executions import calls, selectors
from apps.executions.services import advancing
from apps.executions.wakeups import ADVANCE, wake
from apps.principals.tenancy import acting_in
from apps.tasks.signals import tasks_finished


# Acknowledged early: if the message dies with its process, the tick sends another.
@shared_task(name=ADVANCE, ignore_result=True, acks_late=False)
def advance(tenant_id: int, execution_id: int) -> None:
    """Continue an execution as far as it goes."""
    advancing.advance(tenant_id=tenant_id, execution_id=execution_id)


@receiver(tasks_finished)
def follow_up(tenant_id: int, task_ids: Sequence[int], **_: Any) -> None:
    """Continue an execution at once after a task that this process ran for it."""
    for task_id in filter(calls.was_run_here, task_ids):
        with acting_in(tenant_id, "execution of a finished task"):
            execution_id = selectors.execution_of_task(task_id)
        if execution_id is not None:
            wake(tenant_id, execution_id)
