"""What is kept of tasks that are over, and for how long: the history first, their idempotency keys longer.

Walks in the order of ends, and of keys, a range at a time; where a process stops it goes on at its next turn, and a new
one begins at the oldest. What is open is never touched.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings

from apps.core.sql import hot_cursor
from apps.principals.tenancy import acting_as_system
from apps.tasks import sql

FORGET_BATCH: Final = 1_000
# Whatever a type says: who looks at the end of a task has a day to do so.
LEAST: Final = timedelta(days=1)
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


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
