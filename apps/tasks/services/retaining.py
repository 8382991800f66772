"""What is kept of tasks that are over, and for how long: the history first, their idempotency keys longer.

The history lies in partitions by ranges of ids. One in which all has been kept its time is dropped; row by row goes what
lies beside something that stays. That walks in the order of ends, and of keys, a range at a time; where a process stops
it goes on at its next turn, and a new one begins at the oldest. What is open is never touched.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection

from apps.core.sql import hot_cursor
from apps.principals.tenancy import acting_as_system
from apps.tasks import sql

FORGET_BATCH: Final = 1_000
# Whatever a type says: who looks at the end of a task has a day to do so.
LEAST: Final = timedelta(days=1)
# In a partition that is full, what has been kept its time is kept by so large a part of it longer, for the whole to be
# dropped: as long as a partition takes to fill, if tasks come evenly.
SPARED: Final = 0.25
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


def make_partitions() -> int | None:
    """Make partitions where fewer ids lie ahead than one takes; says how many it made. Opens its own transaction.

    None: somebody else is at it, or in the way of it, and nobody was kept waiting. Until the next time, what has no
    partition of its own is in the default one.
    """
    with acting_as_system("making partitions of tasks"), hot_cursor() as cursor:
        cursor.execute(sql.MAKE_PARTITIONS)
        (made,) = cursor.fetchone()
    return None if made is None else int(made)


def drop_partitions() -> int:
    """Drop the partitions that are full and have been kept their time, in all tenants; says how many.

    Opens its own transactions. A task goes with its runs, its spend, its record and its budget. Where somebody is in
    the way, the partition is left for the next time, and nobody was kept waiting.
    """
    with acting_as_system("looking for old partitions of tasks"), hot_cursor() as cursor:
        cursor.execute(sql.QUIET_PARTITIONS)
        quiet = cursor.fetchall()
    return sum(_drop(lower, upper) for lower, upper in quiet)


def _drop(lower: int, upper: int) -> bool:
    given: dict[str, Any] = {"lower": lower, "upper": upper, "kept": settings.TASKS_KEPT, "least": LEAST}
    # Planned for these values: which partition they name decides how it is read.
    with acting_as_system("looking at an old partition of tasks"), connection.cursor() as cursor:
        cursor.execute(sql.KEEPS, given)
        since, keeps = cursor.fetchone()
    if keeps:
        return False
    gone = FORGET_BATCH
    while gone == FORGET_BATCH:
        with acting_as_system("forgetting budgets of tasks"), hot_cursor() as cursor:
            cursor.execute(sql.FORGET_BUDGETS, {"lower": lower, "upper": upper, "limit": FORGET_BATCH})
            (gone,) = cursor.fetchone()
    with acting_as_system("dropping an old partition of tasks"), hot_cursor() as cursor:
        cursor.execute(sql.DROP_PARTITION, {"lower": lower, "since": since})
        (dropped,) = cursor.fetchone()
    return bool(dropped)


class Walk:
    """How far one process has come."""

    def __init__(self) -> None:
        self._ends = _BEGINNING
        self._keys = 0

    def forget(self) -> int:
        """Remove a range of what has been kept its time, in all tenants; says how much. Opens its own transactions.

        A task goes with its runs, its spend and its record at once. Safe to repeat and to overlap.
        """
        return self._forget_ends() + self._forget_keys()

    @property
    def is_at_the_beginning(self) -> bool:
        """Whether a round is over, and the next has yet to begin."""
        return self._ends == _BEGINNING and not self._keys

    def _forget_ends(self) -> int:
        given: dict[str, Any] = {
            "after": self._ends,
            "kept": settings.TASKS_KEPT,
            "least": LEAST,
            "spared": SPARED,
            "limit": FORGET_BATCH,
        }
        with acting_as_system("forgetting tasks"), hot_cursor() as cursor:
            cursor.execute(sql.FORGET, given)
            reached, forgotten = cursor.fetchone()
        self._ends = reached or _BEGINNING
        return int(forgotten)

    def _forget_keys(self) -> int:
        given: dict[str, Any] = {"after": self._keys, "kept": settings.TASK_KEYS_KEPT, "limit": FORGET_BATCH}
        with acting_as_system("forgetting idempotency keys"), hot_cursor() as cursor:
            cursor.execute(sql.FORGET_KEYS, given)
            reached, forgotten = cursor.fetchone()
        self._keys = reached or 0
        return int(forgotten)
