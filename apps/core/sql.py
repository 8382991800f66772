"""The database beside the ORM: hot statements, its clock, and transactions that are tried again.

Django's cursor binds on the client, so nothing is prepared. A hot cursor binds on the server and prepares at
first use; connections run with `plan_cache_mode = force_generic_plan` (see settings), which concerns
prepared statements only. `jsonb` columns come back as text, as they do in Django's own cursor.
"""

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.db import InterfaceError, OperationalError, connection
from django.db.backends.utils import CursorWrapper
from psycopg import pq, sql

from apps.core.errors import Unavailable

if TYPE_CHECKING:
    from psycopg.abc import Params


class _PreparedCursor(psycopg.RawCursor[tuple[Any, ...]]):
    """Takes statements as every cursor does; how it has read one it remembers, whatever its length."""

    def execute(  # type: ignore[override]  # a template string needs no parameters; no hot statement is one
        self, query: str, params: "Params | None" = None, **options: Any
    ) -> "_PreparedCursor":
        statement, names = (query, ()) if params is None else _numbered(query)
        values = [params[name] for name in names] if isinstance(params, Mapping) else params
        super().execute(statement, values, **{**options, "prepare": True})
        if connection.queries_logged:  # Django's log reads this, which a prepared execution leaves empty.
            self._query = self._convert_query(statement)
        return self


# Seconds. A generic plan is kept until its tables are analyzed, which comes late for tables that fill within a minute:
# what was planned while they were empty would join them whole.
_PLANS_LAST: Final = 20.0


class _Beginnings:
    """How the transactions of a connection begin: their statements as it has prepared them, and when plans are made anew."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.prepared = 0
        self.plans_until = 0.0


_beginnings: Final[WeakKeyDictionary[Any, _Beginnings]] = WeakKeyDictionary()

_PLACEHOLDER: Final = re.compile(r"%(?:%|s|\((\w+)\)s)")


@lru_cache(maxsize=1024)
def _numbered(statement: str) -> tuple[str, tuple[str, ...]]:
    """A statement as PostgreSQL takes it, with numbers for its placeholders, and their names if they have any."""
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        # A placeholder without a name stands for a value of its own.
        return f"${numbers.setdefault(found[1] or str(len(numbers)), len(numbers) + 1)}"

    text = _PLACEHOLDER.sub(number, statement)
    return text, tuple(numbers)


@contextmanager
def hot_cursor() -> Iterator[CursorWrapper]:
    """A server-side binding, preparing cursor on the current connection; counted among captured queries."""
    connection.ensure_connection()
    raw = _PreparedCursor(connection.connection)
    try:
        # Django's own wrapper counts, logs and translates errors; there is no public way to it.
        yield connection._prepare_cursor(raw)  # type: ignore[attr-defined]  # noqa: SLF001
    finally:
        raw.close()


def fetch(statement: str, given: "Params | None" = None, *, hot: bool = False) -> list[tuple[Any, ...]]:
    """The rows that a statement answers."""
    with hot_cursor() if hot else connection.cursor() as cursor:
        cursor.execute(statement, given)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def execute(statement: str, given: "Params | None" = None, *, hot: bool = False) -> int:
    """How many rows a statement has read or written."""
    with hot_cursor() if hot else connection.cursor() as cursor:
        cursor.execute(statement, given)
        count: int = cursor.rowcount
    return count


def begin_with(settings: Mapping[str, str]) -> None:
    """Begin the transaction of an atomic block in which nothing has been said yet, with these settings local to it.

    The block alone would begin it in an exchange of its own, ahead of the first statement. Now and then the
    connection's plans are made anew, see _PLANS_LAST.
    """
    _begin(_setting(tuple(settings)), list(settings.values()))


def begin_asking(question: str, given: Sequence[str], *, lock_timeout: str | None = None) -> list[list[str | None]]:
    """Begin such a transaction with a question, which is prepared; its rows as text."""
    answer = _begin(question, given, "" if lock_timeout is None else f"set local lock_timeout = '{lock_timeout}'; ")
    rows = [[answer.get_value(row, column) for column in range(answer.nfields)] for row in range(answer.ntuples)]
    return [[None if value is None else value.decode() for value in row] for row in rows]


def _begin(statement: str, given: Sequence[str], first: str = "") -> "pq.abc.PGresult":
    raw = connection.connection
    known = _beginnings.setdefault(raw, _Beginnings())
    values = ", ".join(map(_quoted, given))
    while True:
        name, before = known.names.pop(statement, None), ""
        if time.monotonic() >= known.plans_until:
            known.plans_until, before = time.monotonic() + _PLANS_LAST, "discard plans; "
        is_new = name is None
        if name is None:
            known.prepared += 1
            name = f"begin_{known.prepared}"
            before += f"prepare {name} as {statement}; "
        with connection.wrap_database_errors, raw.lock:
            answer: pq.abc.PGresult = raw.pgconn.exec_(f"{before}begin; {first}execute {name}({values})".encode())
            if answer.status == pq.ExecStatus.TUPLES_OK:
                # Only now: where it fails, it is not known to be prepared.
                known.names[statement] = name
                return answer
            state = answer.error_field(pq.DiagnosticField.SQLSTATE)
            # A connection that was lost has no word from the server about it.
            if state is None:
                raise psycopg.OperationalError(answer.error_message.decode(errors="replace"))
            if is_new or state != _UNPREPARED:
                raise psycopg.errors.error_from_result(answer, raw.info.encoding)
            # After a rollback in a cursor, psycopg has the server forget whatever is prepared.
            raw.pgconn.exec_(b"rollback")


_UNPREPARED: Final = b"26000"
# Tenants, principals and tokens come again and again.
_quoted: Final = lru_cache(maxsize=1024)(sql.quote)


@lru_cache(maxsize=1024)
def _setting(names: tuple[str, ...]) -> str:
    calls = ", ".join(f"set_config({sql.quote(name)}, ${place}, true)" for place, name in enumerate(names, 1))
    return f"select {calls}"


def database_now() -> datetime:
    """The database's clock, the only one that leases, due times and retention compare with."""
    with connection.cursor() as cursor:
        cursor.execute("select gatehouse_now()")
        row: tuple[datetime] = cursor.fetchone()
    return row[0]


def violated_constraint(exc: Exception) -> str:
    """The name of the constraint that an IntegrityError reports; empty when it names none."""
    cause = exc.__cause__
    return (cause.diag.constraint_name or "") if isinstance(cause, psycopg.Error) else ""


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
            cause = exc.__cause__
            if not isinstance(cause, psycopg.Error) or cause.sqlstate not in _TRANSIENT:
                raise DatabaseAway("The database does not answer just now. Try again.") from exc
            if attempt == attempts - 1:
                raise Busy("Others are using what this needs. Try again.") from exc
        time.sleep(_FIRST_PAUSE * 2**attempt * (1 + random.random()))  # noqa: S311  # jitter, no secret
    raise AssertionError("unreachable")
