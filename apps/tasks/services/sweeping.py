"""What must happen to open tasks by itself."""

from dataclasses import dataclass
from typing import Final

from apps.core.sql import hot_cursor
from apps.principals.tenancy import acting_as_system, acting_in
from apps.tasks import registry, sql
from apps.tasks.services.ending import bury

SWEEP_BATCH: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one sweep has found to do."""

    requeued: int
    readied: int
    buried: int


def sweep() -> Swept:
    """Bring expired leases back, ready what is due, end what must not run again; a bounded batch of each.

    Opens transactions of its own: the ends are one each, in their tenant. Safe to repeat and to overlap.
    """
    with acting_as_system("sweep of leases"), hot_cursor() as cursor:
        cursor.execute(sql.RECLAIM_ALL)
        requeued, readied = cursor.fetchone()
        cursor.execute(sql.DOOMED)
        doomed = cursor.fetchall()
    buried = 0
    for tenant_id, task_id in doomed:
        with acting_in(tenant_id, "sweep of leases"):
            buried += bury(task_id=task_id)
    return Swept(requeued=requeued, readied=readied, buried=buried)


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
