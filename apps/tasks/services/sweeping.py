"""What must happen to open tasks by itself."""

import logging
from dataclasses import dataclass
from typing import Final

import psycopg
from django.db import DatabaseError, connection

from apps.core.ids import format_ref
from apps.core.sql import hot_cursor
from apps.principals.tenancy import acting_as_system, acting_in
from apps.tasks import registry, sql
from apps.tasks.services.ending import bury

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
        requeued, readied = cursor.fetchone()
        cursor.execute(sql.DOOMED)
        doomed = cursor.fetchall()
    return Swept(requeued=requeued, readied=readied, buried=_bury_all(doomed))


def _bury_all(doomed: list[tuple[int, int, int]]) -> int:
    buried = 0
    busy: set[int] = set()
    for tenant_id, task_id, recipient_id in doomed:
        if recipient_id in busy:
            continue
        try:
            with acting_in(tenant_id, "sweep of leases"):
                with connection.cursor() as cursor:
                    cursor.execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
                buried += bury(task_id=task_id)
        except DatabaseError as exc:
            logger.warning(
                "%s could not be ended; the next sweep tries again", format_ref("task", task_id), exc_info=exc
            )
            if isinstance(exc.__cause__, psycopg.errors.LockNotAvailable):
                busy.add(recipient_id)
    return buried


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyQueue:
    """A queue with work that a handler of this product could be doing."""

    tenant_id: int
    queue: str
    task_type: str


def unannounced() -> list[ReadyQueue]:
    """Where work for handlers has been ready for a second and nobody has come. Opens its own transaction."""
    with acting_as_system("looking for work"), hot_cursor() as cursor:
        cursor.execute(sql.UNANNOUNCED, {"types": registry.names()})
        return [ReadyQueue(tenant_id=row[0], queue=row[1], task_type=row[2]) for row in cursor.fetchall()]
