"""Erase what names a subject by key, in every table of a tenant.

A row names a subject where one of its values is the subject's id: a text column, an element of an array, or a whole string
in a JSON document. Free text that mentions the id is not searched; :func:`search` lists it for an operator.

Each app registers in its `erasure.py` what its rows lose. A row of any other table stays and is counted as remaining.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import FieldDoesNotExist
from django.db import connection, models

from apps.core.sql import fetch

FORGOTTEN: Final = '{"gatehouse:forgotten": true}'
"""The JSON document that replaces an erased one."""

# Erased rows can make others erasable: see `also`.
_PASSES: Final = 20
# Reading whole tables takes longer than other statements may.
_LONGEST: Final = "1h"
_EXCERPT: Final = 120
_OF_TENANT: Final = "tenant_id = %(tenant)s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What the rows of a table lose.

    Give `redacted` (new values of columns, as SQL), or `remove` (a function of primary keys), or neither: then rows are
    deleted. `also` is SQL for rows that belong to rows already erased. `then` runs once at the end, with the keys of all
    rows that were erased.
    """

    table: str
    redacted: Mapping[str, str] | None = None
    remove: Callable[[Collection[int]], object] | None = None
    also: str = ""
    then: Callable[[int, Collection[int]], object] | None = None
    tenant: str = _OF_TENANT

    def erase(self, tenant_id: int, *, key: str | None = None, numbers: Collection[int] = ()) -> set[int]:
        """Erase the rows that name a key, or have these primary keys; return the primary keys of erased rows."""
        table = _tables()[self.table]
        belonging = [self.also or "false", *_belonging.get(self.table, ())]
        found = f"{table.pk} = any(%(numbers)s)" if key is None else f"({table.named} or {' or '.join(belonging)})"
        where = f"{self.tenant} and {found}"
        if self.redacted is not None:
            where += (
                f" and ({' or '.join(f'{name} is distinct from {value}' for name, value in self.redacted.items())})"
            )
            changes = ", ".join(f"{name} = {value}" for name, value in self.redacted.items())
            statement = f"update {self.table} set {changes} where {where} returning {table.pk}"
        elif self.remove is not None:
            statement = f"select {table.pk} from {self.table} where {where}"
        else:
            statement = f"delete from {self.table} where {where} returning {table.pk}"
        erased = set(_column(statement, tenant=tenant_id, needle=_needle(key), numbers=list(numbers)))
        if erased and self.remove is not None:
            self.remove(erased)
        return erased


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a tenant's texts."""

    name: str
    pk: str
    texts: tuple[str, ...]
    tenant: str

    @property
    def said(self) -> str:
        """SQL for all texts of a row, as one JSON array."""
        return f"jsonb_build_array({', '.join(self.texts)})::text"

    @property
    def named(self) -> str:
        """SQL for the rows in which a value is the key."""
        return f"strpos({self.said}, %(needle)s) > 0"


_registered: Final[dict[str, Rows]] = {}
_belonging: Final[dict[str, list[str]]] = {}
_indexes: Final[set[str]] = set()


def register(*rows: Rows) -> None:
    """Register what the rows of tables lose, in the order in which writers lock these tables."""
    for one in rows:
        if one.table in _registered:
            raise ValueError(f"The table {one.table!r} is registered twice.")
        _registered[one.table] = one


def belong(table: str, also: str) -> None:
    """Say which rows of another app's table belong to rows already erased, as :attr:`Rows.also`."""
    _belonging.setdefault(table, []).append(also)


def skip(*tables: str) -> None:
    """Leave out tables that hold nothing but an index of others."""
    _indexes.update(tables)


@cache
def _tables() -> Mapping[str, Table]:
    """All tables with a tenant's texts, from the model catalogue."""
    found = {}
    for model in apps.get_models():
        meta = model._meta  # noqa: SLF001  # Django documents it as public
        texts = tuple(
            connection.ops.quote_name(str(field.column)) for field in meta.concrete_fields if _holds_text(field)
        )
        rows = _registered.get(meta.db_table)
        try:
            meta.get_field("tenant")
        except FieldDoesNotExist:
            if rows is None:
                continue
        if texts and meta.db_table not in _indexes:
            tenant = _OF_TENANT if rows is None else rows.tenant
            found[meta.db_table] = Table(meta.db_table, str(meta.pk.column), texts, tenant)
    return found


def _holds_text(field: "models.Field[Any, Any]") -> bool:
    if isinstance(field, ArrayField):
        return _holds_text(field.base_field)
    return isinstance(field, models.CharField | models.TextField | models.JSONField) and not field.choices


def erase(tenant_id: int, key: str) -> dict[str, set[int]]:
    """Erase the rows that name a subject, within :func:`redacting`; return the primary keys of each table's."""
    erased: dict[str, set[int]] = {}
    for _ in range(_PASSES):
        found = {name: numbers for name, rows in _registered.items() if (numbers := rows.erase(tenant_id, key=key))}
        if not found:
            break
        for name, numbers in found.items():
            erased.setdefault(name, set()).update(numbers)
    _follow(tenant_id, erased)
    return erased


def _follow(tenant_id: int, erased: Mapping[str, Collection[int]]) -> None:
    """Do once what follows from erased rows: two tables may name the same function."""
    following: dict[Callable[[int, Collection[int]], object], set[int]] = {}
    for name, numbers in erased.items():
        if (then := _registered[name].then) is not None:
            following.setdefault(then, set()).update(numbers)
    for then, numbers in following.items():
        then(tenant_id, numbers)


def named(table: str, tenant_id: int, key: str) -> list[int]:
    """The primary keys of the rows of a table that name a subject."""
    of = _tables()[table]
    where = f"{of.tenant} and {of.named}"
    return _column(f"select {of.pk} from {table} where {where}", tenant=tenant_id, needle=_needle(key))


def remaining(tenant_id: int, key: str) -> dict[str, int]:
    """How many rows of each table name a subject: in ids and names that clients chose, which stay."""
    return {name: len(numbers) for name in sorted(_tables()) if (numbers := named(name, tenant_id, key))}


def redact(tenant_id: int, table: str, number: int) -> bool:
    """Erase one row of a registered table, within :func:`redacting`; False if there is none, or nothing is left in it."""
    erased = _registered[table].erase(tenant_id, numbers=[number])
    _follow(tenant_id, {table: erased} if erased else {})
    return bool(erased)


def redactable() -> list[str]:
    """The tables whose rows :func:`redact` can erase."""
    return sorted(_registered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A row whose text holds what an operator searches for."""

    table: str
    number: int
    excerpt: str


def search(tenant_id: int, text: str, *, limit: int = 100) -> Iterator[Hit]:
    """Rows whose texts hold these words, in any case: at most `limit` of each table. Reads whole tables."""
    for name, table in sorted(_tables().items()):
        at = f"strpos(lower({table.said}), lower(%(text)s))"
        rows = fetch(
            f"select {table.pk}, substr({table.said}, greatest({at} - 40, 1), {_EXCERPT}) from {name}"
            f" where {table.tenant} and {at} > 0 order by 1 limit %(limit)s",
            {"tenant": tenant_id, "text": json.dumps(text, ensure_ascii=False)[1:-1], "limit": limit},
        )
        yield from (Hit(table=name, number=number, excerpt=excerpt) for number, excerpt in rows)


def _needle(key: str | None) -> str:
    return json.dumps(key, ensure_ascii=False)


def _column(statement: str, **given: Any) -> list[int]:
    return [value for (value,) in fetch(statement, given)]


@contextmanager
def redacting() -> Iterator[None]:
    """Let the system change rows that are immutable otherwise, and read tables for as long as that takes."""
    with connection.cursor() as cursor:
        cursor.execute("select current_setting('statement_timeout')")
        (usual,) = cursor.fetchone()
        settings = "select set_config('gatehouse.redacting', %s, true), set_config('statement_timeout', %s, true)"
        cursor.execute(settings, ["on", _LONGEST])
        yield
        cursor.execute(settings, ["", usual])
