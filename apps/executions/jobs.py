"""Celery's way to the engine. A message only nudges: losing, repeating or overlapping it does no harm."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from celery import Task, shared_task
from django.dispatch import receiver

from apps.core.notifications import Publisher
from apps.executions import calls, selectors, services
from apps.executions.signals import execution_can_go_on, job_unwanted
from apps.principals.tenancy import acting_in
from apps.tasks.signals import tasks_finished

# A nudge older than this is dropped unread: the tick will have sent another.
_FRESH_SECONDS = 30


# Acked early: a nudge that dies with its worker is replaced by the tick.
@shared_task(name="executions.advance", ignore_result=True, acks_late=False)
def advance(tenant_id: int, execution_id: int) -> None:
    """Carry an execution as far as it will go."""
    services.advance(tenant_id=tenant_id, execution_id=execution_id)


@shared_task(name="executions.cancel_job", ignore_result=True, acks_late=False)
def cancel_job(tenant_id: int, begun_job_id: int) -> None:
    """Tell a worker that nobody wants its job any more."""
    services.cancel_job(tenant_id=tenant_id, begun_job_id=begun_job_id)


def _publish(job: "Task[[int, int], None]", tenant_id: int, number: int) -> None:
    job.apply_async(args=(tenant_id, number), expires=_FRESH_SECONDS, retry=False)


_publisher = Publisher(partial(_publish, advance))
_job_publisher = Publisher(partial(_publish, cancel_job))


@receiver(execution_can_go_on)
def nudge(tenant_id: int, execution_id: int, **_: Any) -> None:
    """Tell a worker process. A broker that is away costs a tick, not the execution."""
    _publisher.publish(tenant_id, execution_id)


@receiver(job_unwanted)
def nudge_job(tenant_id: int, begun_job_id: int, **_: Any) -> None:
    """As above, of a job that is to be canceled."""
    _job_publisher.publish(tenant_id, begun_job_id)


@receiver(tasks_finished)
def follow_up(tenant_id: int, task_ids: Sequence[int], **_: Any) -> None:
    """A task that this process ran for an execution has ended: go on at once, without waiting for the tick."""
    for task_id in filter(calls.was_run_here, task_ids):
        with acting_in(tenant_id, "execution of a finished task"):
            execution_id = selectors.execution_of_task(task_id)
        if execution_id is not None:
            nudge(tenant_id=tenant_id, execution_id=execution_id)
