"""The few statements that are too hot for the ORM run through here.

Django's cursor binds on the client, so nothing is prepared. A hot cursor binds on the server and prepares at
first use; connections run with `plan_cache_mode = force_generic_plan` (see settings), which concerns
prepared statements only. `jsonb` columns come back as text, as they do in Django's own cursor.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psycopg
from django.db import connection
from django.db.backends.utils import CursorWrapper

if TYPE_CHECKING:
    from psycopg.abc import Params, QueryNoTemplate


class _PreparedCursor(psycopg.Cursor[tuple[Any, ...]]):
    def execute(  # type: ignore[override]  # a template string needs no parameters; no hot statement is one
        self, query: "QueryNoTemplate", params: "Params | None" = None, **options: Any
    ) -> "_PreparedCursor":
        return super().execute(query, params, **{**options, "prepare": True})


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
