"""Statements that are too hot for the ORM."""

import pytest
from django.db import connection, transaction

from apps.core import sql

_LOOKED_UP = "select n from grown where n = any(%(wanted)s::int[])"


@pytest.mark.django_db(transaction=True)
def test_plan_of_an_empty_table_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with connection.cursor() as cursor:
        cursor.execute("create temporary table grown (n int primary key) with (autovacuum_enabled = off)")
    try:
        for lasting, reads_all in ((3600.0, True), (0.0, False)):
            monkeypatch.setattr(sql, "_PLANS_LAST", lasting)
            sql._plans_until.clear()
            _empty()
            _look_up()
            _fill()
            assert ("Seq Scan" in _planned()) is reads_all
    finally:
        with connection.cursor() as cursor:
            cursor.execute("drop table grown")


def _fill() -> None:
    with connection.cursor() as cursor:
        cursor.execute("insert into grown select * from generate_series(1, 20000)")


def _empty() -> None:
    with connection.cursor() as cursor:
        cursor.execute("truncate grown")
        cursor.execute("analyze grown")


def _look_up() -> None:
    with transaction.atomic():
        sql.begin_with({"gatehouse.reason": "test"})
        with sql.hot_cursor() as cursor:
            cursor.execute(_LOOKED_UP, {"wanted": [1]})


def _planned() -> str:
    """The plan by which the connection would look up just now."""
    with transaction.atomic():
        sql.begin_with({"gatehouse.reason": "test"})
        with connection.cursor() as cursor:
            cursor.execute("select name from pg_prepared_statements where statement like 'select n from grown%%'")
            (name,) = cursor.fetchone()
            cursor.execute(f"explain execute {name}('{{1}}')")
            return "\n".join(line for (line,) in cursor.fetchall())
