"""Trying a whole transaction again when the database had to break it off."""

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
from django.db import InterfaceError, OperationalError, connection

from apps.core.errors import Unavailable

T = TypeVar("T")

# serialization_failure, deadlock_detected, lock_not_available
_TRANSIENT: Final = frozenset({"40001", "40P01", "55P03"})
# Classes of program_limit_exceeded and the like: what is over a limit of the database's own.
_OVER_LIMIT: Final = "54"
ATTEMPTS: Final = 3
_FIRST_PAUSE: Final = 0.02


class Busy(Unavailable):
    """Others held what this request needs, several times in a row."""

    code = "busy"


class DatabaseAway(Unavailable):
    """The database does not answer, or has ended this connection. What was not answered may or may not have happened."""

    code = "database_unavailable"


def has_undone(away: DatabaseAway) -> bool:
    """Whether the database has said of itself that it broke off what was asked, so that nothing of it happened."""
    cause = away.__cause__ and away.__cause__.__cause__
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    # Of connections, and of sessions that were ended, it may have come after the commit.
    return state is not None and not state.startswith(("08", "57P"))


def is_away(exc: OperationalError | InterfaceError) -> bool:
    """Whether the database could not be asked. What is over one of its limits it has answered, and would answer again."""
    cause = exc.__cause__
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    return state is None or not state.startswith(_OVER_LIMIT)


def retried(run: Callable[[], T], *, attempts: int = ATTEMPTS) -> T:
    """Run a function that opens its own transactions; once more, a few times, after a deadlock or a lock timeout.

    For interfaces only: what is inside a transaction already can't be repeated alone. `attempts` is 1 for what
    can't be repeated at all.

    :raises Busy: if it went on failing so.
    :raises DatabaseAway: if the database could not be asked.
    :raises OperationalError: if what it was asked is over one of its limits.
    """
    for attempt in range(attempts):
        try:
            return run()
        except InterfaceError as exc:
            raise DatabaseAway("The database does not answer just now. Try again.") from exc
        except OperationalError as exc:
            if connection.in_atomic_block or not is_away(exc):
                raise
            if not _is_transient(exc):
                raise DatabaseAway("The database does not answer just now. Try again.") from exc
            if attempt == attempts - 1:
                raise Busy("Others are using what this needs. Try again.") from exc
        time.sleep(_FIRST_PAUSE * 2**attempt * (1 + random.random()))  # noqa: S311  # jitter, no secret
    raise AssertionError("unreachable")


def _is_transient(exc: OperationalError) -> bool:
    cause = exc.__cause__
    return isinstance(cause, psycopg.Error) and cause.sqlstate in _TRANSIENT
