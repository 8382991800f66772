"""The database beside the ORM: hot statements, its clock, and transactions that are tried again.

Django's cursor binds on the client, so nothing is prepared. A hot statement is bound on the server and prepared at
first use; connections run with `plan_cache_mode = force_generic_plan` (see settings), which concerns
prepared statements only. The beginning of a transaction and its first hot statement are one exchange with the
server. `jsonb` columns come back as text, as they do in Django's own cursor.
"""

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connection, connections
from django.db.backends.postgresql.psycopg_any import BaseTzLoader
from django.db.models import DateTimeField, Func, Model, QuerySet, Window
from django.db.models.functions import RowNumber
from psycopg import generators, pq, sql
from psycopg.adapt import PyFormat, Transformer

from apps.core.errors import Unavailable

if TYPE_CHECKING:
    from psycopg.abc import Buffer, Params, PQGen
    from psycopg.abc import Transformer as AdaptTransformer


SYSTEM: Final = "system"
OWNER: Final = "owner"
# Of operators, their sessions and what they have let in. Requests of tenants reach none of them.
_OF_OPERATORS: Final = frozenset({"auth", "admin", "sessions", "axes", "oauth2_provider"})
_OPERATORS: Final = frozenset({"operator", "membership"})


class Logins:
    """A database router: rows of operators are read and written by the system's login, in whatever thread asks."""

    @staticmethod
    def is_of_operators(model: type[Model]) -> bool:
        meta = model._meta  # noqa: SLF001  # Django's own way
        # What Django makes for many-to-many fields is named after its model.
        name = (meta.model_name or "").partition("_")[0]
        return meta.app_label in _OF_OPERATORS or (meta.app_label == "principals" and name in _OPERATORS)

    def db_for_read(self, model: type[Model], **_: Any) -> str | None:
        return SYSTEM if SYSTEM in connections.settings and self.is_of_operators(model) else None

    db_for_write = db_for_read

    def allow_relation(self, *_: Model, **__: Any) -> bool:
        return True  # it is one database


@contextmanager
def logged_in_as(login: str) -> Iterator[None]:
    """Have everything that asks the database here do so by another login.

    It stays the same where the settings name no other, or a transaction is open.
    """
    before = connections[DEFAULT_DB_ALIAS]
    if login not in connections.settings or before.alias == login or before.in_atomic_block:
        yield
        return
    connections[DEFAULT_DB_ALIAS] = other = connections[login]
    try:
        yield
    finally:
        connections[DEFAULT_DB_ALIAS] = before
        if not other.settings_dict["CONN_MAX_AGE"]:
            other.close()


T = TypeVar("T")

# Seconds. A generic plan is kept until its tables are analyzed, which comes late for tables that fill within a minute:
# what was planned while they were empty would join them whole. Behind a pooler that is so for the connection at hand only.
_PLANS_LAST: Final = 20.0


class _Session:
    """A connection: the statements that it has prepared, when plans are made anew, and what begins its transaction."""

    def __init__(self) -> None:
        self.names: dict[str, bytes] = {}
        self.numbers = count()
        self.plans_until = 0.0
        self.beginning: Sequence[tuple[str, Sequence[Any]]] = ()
        """What goes ahead of the next statement, which is the first of a transaction."""


_sessions: Final[WeakKeyDictionary[Any, _Session]] = WeakKeyDictionary()


def _session(raw: Any) -> _Session:
    if (known := _sessions.get(raw)) is None:
        known = _sessions[raw] = _Session()
        raw.adapters.register_loader("timestamptz", _Moment)
    return known


class _Moment(BaseTzLoader):  # type: ignore[misc]  # it has no stub
    """Reads a moment in a fraction of the time that Django's own takes."""

    timezone = UTC

    def load(self, data: "Buffer") -> datetime:
        try:
            return datetime.fromisoformat(bytes(data).decode())
        except ValueError:
            found: datetime = super().load(data)
            return found


class _HotCursor:
    """Prepares statements at first use and binds values on the server, as text whose types the server infers.

    A transaction that has not begun yet begins in the same exchange.
    """

    def __init__(self, raw: Any) -> None:
        self.rowcount = -1
        self._raw = raw
        self._query = SimpleNamespace(query=b"")  # Django's log reads this.
        self._rows: list[tuple[Any, ...]] = []

    def execute(self, query: str, params: "Params | None" = None) -> None:
        bound = _bound(query, params)
        self._query.query = bound[0].encode()
        self.rowcount, self._rows = _exchange(self._raw, bound)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def close(self) -> None:
        """Nothing is open."""


def _exchange(raw: Any, *asked: tuple[str, Sequence[Any]]) -> tuple[int, list[tuple[Any, ...]]]:
    """How many rows the last of these statements concerns, and those that it answers.

    What begins the transaction goes ahead of them in the same exchange.
    """
    session, pgconn, transformer = _session(raw), raw.pgconn, Transformer(raw)
    opening: list[tuple[str, Sequence[Any]]] = []
    if not raw.autocommit and pgconn.transaction_status == pq.TransactionStatus.IDLE:
        opening = [("begin", ())]
        if time.monotonic() >= session.plans_until:
            session.plans_until = time.monotonic() + _PLANS_LAST
            opening.append(("discard plans", ()))
    statements = [*opening, *session.beginning, *asked]
    new = {text: b"hot_%d" % next(session.numbers) for text, _ in statements if text not in session.names}
    names = {**session.names, **new} if new else session.names
    given = [[_text(value, transformer) for value in values] for _, values in statements]
    session.beginning = ()
    with raw.lock:
        try:
            pgconn.enter_pipeline_mode()
            for (text, _), values in zip(statements, given, strict=True):
                if text in new:
                    pgconn.send_prepare(names[text], text.encode())
                pgconn.send_query_prepared(names[text], values)
            pgconn.pipeline_sync()
            results = raw.wait(_results(pgconn))
            if pgconn.status == pq.ConnStatus.OK:
                pgconn.exit_pipeline_mode()
        except BaseException:
            raw.close()  # there is no telling what it would answer next
            raise
    for result in results:
        if result.status not in _DONE:
            raise psycopg.errors.error_from_result(result, raw.info.encoding)
    session.names.update(new)
    transformer.set_pgresult(results[-1])
    return results[-1].command_tuples or 0, transformer.load_rows(0, results[-1].ntuples, tuple)


def _text(value: Any, transformer: "AdaptTransformer") -> "Buffer | None":
    """A value as PostgreSQL reads it from text; those that come most often are not left to psycopg."""
    kind = type(value)
    if value is None or kind is bool:
        return _PLAIN[value]
    if kind is int:
        return b"%d" % value
    if kind is str and "\0" not in value:
        encoded: bytes = value.encode()
        return encoded
    if kind is list and all(type(one) is int for one in value):
        return b"{%b}" % ",".join(map(str, value)).encode()
    if kind is list and all(type(one) is str and "\0" not in one for one in value):
        quoted: list[str] = [one.replace("\\", r"\\").replace('"', r"\"") for one in value]
        return b'{"%b"}' % '","'.join(quoted).encode()
    return transformer.dump_sequence([value], _AS_TEXT)[0]


_PLAIN: Final = {None: None, True: b"t", False: b"f"}
_AS_TEXT: Final = [PyFormat.TEXT]
_DONE: Final = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}


def _results(pgconn: "pq.abc.PGconn") -> "PQGen[list[pq.abc.PGresult]]":
    yield from generators.send(pgconn)
    results: list[pq.abc.PGresult] = []
    while (found := (yield from generators.fetch_many(pgconn))) and found[0].status != pq.ExecStatus.PIPELINE_SYNC:
        results += found
    return results


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


def _bound(query: str, params: "Params | None") -> tuple[str, Sequence[Any]]:
    statement, names = (query, ()) if params is None else _numbered(query)
    return statement, [params[name] for name in names] if isinstance(params, Mapping) else params or ()


def fetch(statement: str, given: "Params | None" = None, *, hot: bool = False) -> list[tuple[Any, ...]]:
    """The rows that a statement answers."""
    return _asked(statement, given, hot=hot)[1]


def execute(statement: str, given: "Params | None" = None, *, hot: bool = False) -> int:
    """How many rows a statement has read or written."""
    return _asked(statement, given, hot=hot, rows=False)[0]


def _asked(
    statement: str, given: "Params | None", *, hot: bool, rows: bool = True
) -> tuple[int, list[tuple[Any, ...]]]:
    """On the current connection; a hot statement is prepared. Both are counted among captured queries."""
    wrapper: Any = connections[DEFAULT_DB_ALIAS]
    if hot:
        wrapper.ensure_connection()
        if not wrapper.queries_logged and all(one is _begin_first for one in wrapper.execute_wrappers):
            # Nobody is to see it: Django's cursors only take time.
            wrapper.validate_no_broken_transaction()
            with wrapper.wrap_database_errors:
                return _exchange(wrapper.connection, _bound(statement, given))
    # Django's own wrapper counts, logs and translates errors; there is no public way to it.
    with wrapper._prepare_cursor(_HotCursor(wrapper.connection)) if hot else wrapper.cursor() as cursor:  # noqa: SLF001
        cursor.execute(statement, given)
        return cursor.rowcount, cursor.fetchall() if rows else []


@contextmanager
def beginning_with(settings: Mapping[str, str]) -> Iterator[None]:
    """Have an atomic block in which nothing has been said yet begin its transaction with these settings local to it.

    They go ahead of its first statement. Now and then the connection's plans are made anew, see _PLANS_LAST.
    """
    wrapper: Any = connections[DEFAULT_DB_ALIAS]
    session = _session(wrapper.connection)
    session.beginning = [(_setting(tuple(settings)), list(settings.values()))]
    wrapper.execute_wrappers.append(_begin_first)
    try:
        yield
    finally:
        wrapper.execute_wrappers.pop()
        session.beginning = ()


def _begin_first(execute: Callable[..., T], query: str, params: Any, many: bool, context: dict[str, Any]) -> T:  # noqa: FBT001  # Django's
    """Begin the transaction ahead of a statement of Django's own."""
    raw = context["connection"].connection
    if _session(raw).beginning and not isinstance(context["cursor"].cursor, _HotCursor):
        with connection.wrap_database_errors:
            _exchange(raw)
    return execute(query, params, many, context)


def begin_asking(question: str, given: Sequence[str], *, lock_timeout: str | None = None) -> list[tuple[Any, ...]]:
    """Begin such a transaction with a question, which is prepared; its rows."""
    raw = connection.connection
    _session(raw).beginning = () if lock_timeout is None else [(_setting(("lock_timeout",)), [lock_timeout])]
    with connection.wrap_database_errors:
        return _exchange(raw, (question, given))[1]


@lru_cache(maxsize=1024)
def _setting(names: tuple[str, ...]) -> str:
    calls = ", ".join(f"set_config({sql.quote(name)}, ${place}, true)" for place, name in enumerate(names, 1))
    return f"select {calls}"


GATEHOUSE_NOW: Final = Func(function="gatehouse_now", output_field=DateTimeField())
"""The database's clock in queries of the ORM."""


def in_turn(rows: QuerySet[Any], *, by: str) -> QuerySet[Any]:
    """The first row of each tenant by a field, then the second of each, and so on; `turn` is which one it is."""
    turn = Window(RowNumber(), partition_by="tenant_id", order_by=[by, "pk"])
    found: QuerySet[Any] = rows.annotate(turn=turn).order_by("turn", by, "pk")
    return found


def database_now() -> datetime:
    """The database's clock, the only one that leases, due times and retention compare with."""
    now: datetime = fetch("select gatehouse_now()")[0][0]
    return now


def in_batches(do: Callable[[int], int], batch: int) -> int:
    """Do it until less than a batch is left; returns how many. Each time is a transaction of its own."""
    total = some = do(batch)
    while some >= batch:
        some = do(batch)
        total += some
    return total


def violated_constraint(exc: Exception) -> str:
    """The name of the constraint that an IntegrityError reports; empty when it names none."""
    cause = exc.__cause__
    return (cause.diag.constraint_name or "") if isinstance(cause, psycopg.Error) else ""


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
