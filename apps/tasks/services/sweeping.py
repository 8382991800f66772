"""What must happen by itself: expired leases, ends, announcements, statistics and retention."""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import DatabaseError

from apps.core.ids import format_ref
from apps.core.notifications import send_on_commit
from apps.core.sql import execute, fetch
from apps.principals.tenancy import acting_as_system, acting_in
from apps.tasks import handlers, sql
from apps.tasks.services.ending import bury
from apps.tasks.services.leasing import admit
from apps.tasks.signals import task_queued

logger = logging.getLogger(__name__)

SWEEP_BATCH: Final = 100
ADMIT_BATCH: Final = 1_000
# How long an end waits for its recipient's inbox: the next sweep comes soon.
_PATIENCE: Final = "200ms"


def bring_back() -> tuple[int, int]:
    """Reclaim expired leases and ready due tasks, a bounded batch of each, in its own transaction; says how many.

    Safe to repeat and to overlap.
    """
    with acting_as_system("sweep of leases"):
        ((requeued, readied, tenants, keys, ready),) = fetch(sql.RECLAIM_ALL, hot=True)
        admit(list(zip(tenants, keys, strict=True)))
        for tenant_id, queue, task_type in json.loads(ready):
            send_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)
    return requeued, readied


def admit_waiting() -> int:
    """Give free concurrency keys to waiting tasks; says how many keys. Opens its own transaction.

    Whoever frees a key skips a task that another transaction has locked.
    """
    with acting_as_system("looking for free keys"):
        keys: list[tuple[int, str]] = fetch(sql.FREE_KEYS, {"limit": ADMIT_BATCH}, hot=True)
        admit(keys)
    return len(keys)


def end_what_must() -> int:
    """End tasks that must not run again, a bounded batch; says how many.

    Opens one transaction for each recipient. An end that fails, or whose recipient's inbox is locked, is left
    to the next sweep and does not block others. Safe to repeat and to overlap.
    """
    with acting_as_system("sweep of leases"):
        doomed = fetch(sql.DOOMED, hot=True)
    # One transaction for each recipient, so that an inbox is waited for once.
    theirs: dict[tuple[int, int], list[int]] = {}
    for tenant_id, task_id, recipient_id in doomed:
        theirs.setdefault((tenant_id, recipient_id), []).append(task_id)
    return sum(_end_of_one(tenant_id, task_ids) for (tenant_id, _), task_ids in theirs.items())


def _end_of_one(tenant_id: int, task_ids: Sequence[int]) -> int:
    """End tasks together, or one by one if one of them can't end."""
    try:
        with acting_in(tenant_id, "sweep of leases"):
            execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
            return bury(tenant_id=tenant_id, task_ids=task_ids)
    except DatabaseError as exc:
        if len(task_ids) > 1 and not isinstance(exc.__cause__, psycopg.errors.LockNotAvailable):
            return sum(_end_of_one(tenant_id, [task_id]) for task_id in task_ids)
        refs = ", ".join(format_ref("task", task_id) for task_id in task_ids)
        logger.warning("%s could not be ended; the next sweep tries again", refs, exc_info=exc)
        return 0


def ready_again() -> list[tuple[int, str, str]]:
    """Queues whose work for handlers has been ready for a second, or where a limit may keep back ready work: tenant, queue
    and type. Opens its own transaction.
    """
    with acting_as_system("looking for ready work"):
        return [*fetch(sql.UNANNOUNCED, {"types": handlers.names()}, hot=True), *fetch(sql.KEPT_BACK, hot=True)]


# An end is dated when its statement begins; after this long it is committed, or counts in no figure.
_SETTLED: Final = timedelta(seconds=5)
HISTORY_DAYS: Final = 30
# Of each minute: what bounds the rows of the history.
_QUEUES_IN_HISTORY: Final = 50


def keep_history() -> int:
    """Write the minutes that are over into the history of their queues, and delete old ones; says how many rows are new.
    Opens its own transaction.

    Safe to repeat and to overlap.
    """
    given = {"settled": _SETTLED, "queues": _QUEUES_IN_HISTORY, "history": timedelta(days=HISTORY_DAYS)}
    with acting_as_system("keeping the history of queues"):
        return int(execute(sql.KEEP_HISTORY, given, hot=True))


FORGET_BATCH: Final = 1_000
# Whatever a type says: who looks at the end of a task has a day to do so.
LEAST: Final = timedelta(days=1)
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Walk:
    """How far one process has come in deleting ended tasks."""

    def __init__(self) -> None:
        self._ends = _BEGINNING
        self._keys = 0

    def forget(self) -> int:
        """Delete a range of ended tasks that have been kept their time, in all tenants; says how many.

        Opens its own transactions. A task goes with its runs, budget and record. Safe to repeat and to overlap.
        """
        return self._forget_ends() + self._forget_keys()

    @property
    def is_at_the_beginning(self) -> bool:
        """Whether the next call starts again from the oldest."""
        return self._ends == _BEGINNING and not self._keys

    def _forget_ends(self) -> int:
        given: dict[str, Any] = {
            "after": self._ends,
            "kept": settings.TASKS_KEPT,
            "least": LEAST,
            "limit": FORGET_BATCH,
        }
        with acting_as_system("forgetting tasks"):
            ((reached, forgotten),) = fetch(sql.FORGET, given, hot=True)
        self._ends = reached or _BEGINNING
        return int(forgotten)

    def _forget_keys(self) -> int:
        given: dict[str, Any] = {"after": self._keys, "kept": settings.TASK_KEYS_KEPT, "limit": FORGET_BATCH}
        with acting_as_system("forgetting idempotency keys"):
            ((reached, forgotten),) = fetch(sql.FORGET_KEYS, given, hot=True)
        self._keys = reached or 0
        return int(forgotten)
