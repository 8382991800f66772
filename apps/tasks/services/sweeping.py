"""What must happen to open tasks by itself."""

from dataclasses import dataclass

from apps.core.sql import hot_cursor
from apps.principals.tenancy import acting_as_system, acting_in
from apps.tasks import sql
from apps.tasks.services.ending import bury


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
