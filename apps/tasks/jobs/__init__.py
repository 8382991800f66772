"""Celery's part: a message says that a queue has work; what work, the database says."""

from typing import Any

from celery import shared_task

from apps.core.notifications import Publisher
from apps.tasks import registry, services
from apps.tasks.jobs.executor import work
from apps.tasks.signals import dependency_finished, task_queued

# A nudge older than this is dropped unread: the tick will have sent another.
_FRESH_SECONDS = 10
# More hands than this are not called at once; each works until the queue is dry.
_MOST_AT_ONCE = 16


# Acked early: a nudge that dies with its worker is replaced by the tick, and a second one would find nothing.
@shared_task(name="tasks.execute", ignore_result=True, acks_late=False)
def execute(tenant_id: int, queue: str) -> None:
    """Work a queue until it is dry. Safe to lose, repeat or overlap."""
    if not work(tenant_id, queue):
        _publisher.publish(tenant_id, queue)


@shared_task(name="tasks.fire", ignore_result=True)
def fire(tenant_id: int, schedule_id: int) -> None:
    """Queue what a schedule has due. Safe to lose, repeat or overlap."""
    services.fire_schedule(tenant_id=tenant_id, schedule_id=schedule_id)


@shared_task(name="tasks.release_dependants", ignore_result=True)
def release_dependants(tenant_id: int) -> None:
    """Release what waited for tasks that have ended. Safe to lose, repeat or overlap."""
    services.release_dependants_in(tenant_id=tenant_id)


def _publish(tenant_id: int, queue: str) -> None:
    execute.apply_async(args=(tenant_id, queue), expires=_FRESH_SECONDS, retry=False)


def _publish_release(tenant_id: int) -> None:
    release_dependants.apply_async(args=(tenant_id,), queue="nudge", expires=_FRESH_SECONDS, retry=False)


_publisher = Publisher(_publish, most_at_once=_MOST_AT_ONCE)
_release_publisher = Publisher(_publish_release)


def listen() -> None:
    """FairShare announcements of work that has a handler here into messages from now on."""
    task_queued.connect(_announced, dispatch_uid="tasks.execute")
    dependency_finished.connect(_dependency_finished, dispatch_uid="tasks.release_dependants")


def _announced(*, tenant_id: int, queue: str, task_type: str, **_: Any) -> None:
    if registry.policy_of(task_type) is not None:
        _publisher.publish(tenant_id, queue)


def _dependency_finished(*, tenant_id: int, **_: Any) -> None:
    _release_publisher.publish(tenant_id)
