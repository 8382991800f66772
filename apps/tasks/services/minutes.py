"""Counting what ends, queue by queue and minute by minute, so that nobody reads the history to know the pace."""

from datetime import timedelta
from typing import Any, Final

from apps.core.sql import hot_cursor
from apps.principals.tenancy import acting_as_system
from apps.tasks import sql

MINUTES_BATCH: Final = 5_000
# An end is dated when its statement begins; after this long it is committed, or counts in no figure.
_SETTLED: Final = timedelta(seconds=5)
_KEPT: Final = timedelta(days=2)


def count_minutes() -> int:
    """Count the next few thousand ends into their minutes; says how many. Opens its own transaction.

    Safe to repeat, and to overlap: whoever comes second counts nothing.
    """
    given: dict[str, Any] = {"settled": _SETTLED, "limit": MINUTES_BATCH}
    with acting_as_system("counting what ended"), hot_cursor() as cursor:
        cursor.execute(sql.COUNT_MINUTES_ALONE)
        (alone,) = cursor.fetchone()
        if not alone:
            return 0
        cursor.execute(sql.COUNT_MINUTES, given)
        (counted,) = cursor.fetchone()
        return int(counted)


def forget_minutes() -> int:
    """Remove minutes that nobody asks for any more; says how many rows. Opens its own transaction."""
    given: dict[str, Any] = {"kept": _KEPT}
    with acting_as_system("forgetting old minutes"), hot_cursor() as cursor:
        cursor.execute(sql.FORGET_MINUTES, given)
        return int(cursor.rowcount)
