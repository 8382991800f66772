"""Celery's part: a message says that a queue has work; what work, the database says."""

from typing import Any

from celery import shared_task

from apps.core.nudges import Nudger
from apps.tasks import registry
from apps.tasks.jobs.executor import work
from apps.tasks.signals import task_queued

# A nudge older than this is dropped unread: the tick will have sent another.
_FRESH_SECONDS = 10
# More hands than this are not called at once; each works until the queue is dry.
_MOST_AT_ONCE = 16


# Acked early: a nudge that dies with its worker is replaced by the tick, and a second one would find nothing.
@shared_task(name="tasks.execute", ignore_result=True, acks_late=False)
def execute(tenant_id: int, queue: str) -> None:
    """Work a queue until it is dry. Safe to lose, repeat or overlap."""
    if not work(tenant_id, queue):
        _nudger.nudge(tenant_id, queue)


def _publish(tenant_id: int, queue: str) -> None:
    execute.apply_async(args=(tenant_id, queue), expires=_FRESH_SECONDS, retry=False)


_nudger = Nudger(_publish, most_at_once=_MOST_AT_ONCE)


def listen() -> None:
    """Turn announcements of work that has a handler here into messages from now on."""
    task_queued.connect(_announced, dispatch_uid="tasks.execute")


def _announced(*, tenant_id: int, queue: str, task_type: str, **_: Any) -> None:
    if registry.policy_of(task_type) is not None:
        _nudger.nudge(tenant_id, queue)
