"""What must happen to open tasks by itself."""

import json
import logging
from dataclasses import dataclass
from typing import Any, Final, Protocol

import psycopg
from django.db import DatabaseError, connection

from apps.core.hints import hint_on_commit
from apps.core.ids import format_ref
from apps.core.sql import hot_cursor
from apps.principals.tenancy import acting_as_system, acting_in
from apps.tasks import registry, sql
from apps.tasks.services.admission import admit
from apps.tasks.services.budgets import end_unpaid
from apps.tasks.services.ending import bury, end_overdue
from apps.tasks.signals import task_queued

logger = logging.getLogger(__name__)

SWEEP_BATCH: Final = 100
# How long an end waits for its recipient's inbox: the next sweep comes soon.
_PATIENCE: Final = "200ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one sweep has found to do."""

    requeued: int
    readied: int
    buried: int


def sweep() -> Swept:
    """Bring expired leases back, ready what is due, end what must not run again; a bounded batch of each.

    Opens transactions of its own: the ends are one each, in their tenant. One that fails, or whose recipient's
    inbox is busy, is left to the next sweep and keeps back no other. Safe to repeat and to overlap.
    """
    with acting_as_system("sweep of leases"), hot_cursor() as cursor:
        cursor.execute(sql.RECLAIM_ALL)
        requeued, readied, tenants, keys, ready = cursor.fetchone()
        admit(list(zip(tenants, keys, strict=True)))
        for tenant_id, queue, task_type in json.loads(ready):
            hint_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)
        cursor.execute(sql.DOOMED)
        doomed = cursor.fetchall()
        cursor.execute(sql.OVERDUE)
        overdue = cursor.fetchall()
        unpaid = _unpaid(cursor)
    buried = _end_all(bury, doomed) + _end_all(end_overdue, overdue) + _end_all(end_unpaid, unpaid)
    return Swept(requeued=requeued, readied=readied, buried=buried)


def _unpaid(cursor: Any) -> list[tuple[int, int, int]]:
    """Tasks that nobody holds and whose budget is spent."""
    cursor.execute(sql.SETTLE)
    (any_left,) = cursor.fetchone()
    if not any_left:
        return []
    cursor.execute(sql.UNPAID)
    found: list[tuple[int, int, int]] = cursor.fetchall()
    return found


class _Ending(Protocol):
    """Ends one task, unless there is nothing to end any more or somebody has it at hand."""

    def __call__(self, *, task_id: int) -> bool: ...


def _end_all(end: _Ending, doomed: list[tuple[int, int, int]]) -> int:
    buried = 0
    busy: set[int] = set()
    for tenant_id, task_id, recipient_id in doomed:
        if recipient_id in busy:
            continue
        try:
            with acting_in(tenant_id, "sweep of leases"):
                with connection.cursor() as cursor:
                    cursor.execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
                buried += end(task_id=task_id)
        except DatabaseError as exc:
            logger.warning(
                "%s could not be ended; the next sweep tries again", format_ref("task", task_id), exc_info=exc
            )
            if isinstance(exc.__cause__, psycopg.errors.LockNotAvailable):
                busy.add(recipient_id)
    return buried


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyQueue:
    """A queue with work that somebody could be doing."""

    tenant_id: int
    queue: str
    task_type: str


def unannounced() -> list[ReadyQueue]:
    """Where work for handlers has been ready for a second and nobody has come. Opens its own transaction."""
    with acting_as_system("looking for work"), hot_cursor() as cursor:
        cursor.execute(sql.UNANNOUNCED, {"types": registry.names()})
        return [ReadyQueue(tenant_id=row[0], queue=row[1], task_type=row[2]) for row in cursor.fetchall()]


def kept_back() -> list[ReadyQueue]:
    """Where a limit may have kept back what is ready. Opens its own transaction."""
    with acting_as_system("looking for room"), hot_cursor() as cursor:
        cursor.execute(sql.KEPT_BACK)
        return [ReadyQueue(tenant_id=row[0], queue=row[1], task_type=row[2]) for row in cursor.fetchall()]
