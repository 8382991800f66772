"""What must happen to open tasks by itself."""

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import psycopg
from django.db import DatabaseError, connection

from apps.core.ids import format_ref
from apps.core.notifications import send_on_commit
from apps.core.sql import hot_cursor
from apps.principals.tenancy import acting_as_system, acting_in
from apps.tasks import registry, sql
from apps.tasks.services.admission import admit
from apps.tasks.services.ending import bury, end_overdue
from apps.tasks.signals import task_queued

logger = logging.getLogger(__name__)

SWEEP_BATCH: Final = 100
ADMIT_BATCH: Final = 1_000
# How long an end waits for its recipient's inbox: the next sweep comes soon.
_PATIENCE: Final = "200ms"


class BroughtBack(NamedTuple):
    """How many leases had expired, and how many tasks were due."""

    requeued: int
    readied: int


def bring_back() -> BroughtBack:
    """Bring expired leases back and ready what is due, a bounded batch of each. Opens its own transaction.

    Safe to repeat and to overlap.
    """
    with acting_as_system("sweep of leases"), hot_cursor() as cursor:
        cursor.execute(sql.RECLAIM_ALL)
        requeued, readied, tenants, keys, ready = cursor.fetchone()
        admit(list(zip(tenants, keys, strict=True)))
        for tenant_id, queue, task_type in json.loads(ready):
            send_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)
    return BroughtBack(requeued, readied)


def admit_waiting() -> int:
    """Give concurrency keys that nobody has to those who wait for them; says how many keys. Opens its own transaction.

    Who gives a key up passes over a task that another transaction has at hand just then.
    """
    with acting_as_system("looking for free keys"), hot_cursor() as cursor:
        cursor.execute(sql.FREE_KEYS, {"limit": ADMIT_BATCH})
        keys: list[tuple[int, str]] = cursor.fetchall()
        admit(keys)
    return len(keys)


def end_what_must() -> int:
    """End what must not run again, a bounded batch; says how many.

    Opens transactions of its own: the ends for one recipient are one, in their tenant. One that fails, or whose recipient's
    inbox is busy, is left to the next sweep and keeps back no other. Safe to repeat and to overlap.
    """
    with acting_as_system("sweep of leases"), hot_cursor() as cursor:
        cursor.execute(sql.DOOMED)
        doomed = cursor.fetchall()
        cursor.execute(sql.OVERDUE)
        overdue = cursor.fetchall()
    return _end_all(bury, doomed) + _end_all(end_overdue, overdue)


class _Ending(Protocol):
    """Ends tasks, but for those of which there is nothing to end any more or which somebody has at hand; says how many."""

    def __call__(self, *, task_ids: Collection[int]) -> int: ...


def _end_all(end: _Ending, doomed: list[tuple[int, int, int]]) -> int:
    """In one transaction for each recipient: its inbox is waited for once."""
    theirs: dict[tuple[int, int], list[int]] = {}
    for tenant_id, task_id, recipient_id in doomed:
        theirs.setdefault((tenant_id, recipient_id), []).append(task_id)
    return sum(_end_of_one(end, tenant_id, task_ids) for (tenant_id, _), task_ids in theirs.items())


def _end_of_one(end: _Ending, tenant_id: int, task_ids: Sequence[int]) -> int:
    """Together, or each by itself where one of them can't be ended."""
    try:
        with acting_in(tenant_id, "sweep of leases"):
            with connection.cursor() as cursor:
                cursor.execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
            return end(task_ids=task_ids)
    except DatabaseError as exc:
        if len(task_ids) > 1 and not isinstance(exc.__cause__, psycopg.errors.LockNotAvailable):
            return sum(_end_of_one(end, tenant_id, [task_id]) for task_id in task_ids)
        refs = ", ".join(format_ref("task", task_id) for task_id in task_ids)
        logger.warning("%s could not be ended; the next sweep tries again", refs, exc_info=exc)
        return 0


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
