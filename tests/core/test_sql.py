"""Statements that are too hot for the ORM."""

import pytest
from django.db import connection, transaction

from apps.core import sql


def _said(statement: str) -> list[tuple[str, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("lasting", "reads_all"), [(3600.0, True), (0.0, False)])
def test_plan_of_an_empty_table_is_made_anew(monkeypatch: pytest.MonkeyPatch, lasting: float, reads_all: bool) -> None:
    monkeypatch.setattr(sql, "_PLANS_LAST", lasting)
    sql._plans_until.clear()
    _said("create temporary table grown (n int primary key) with (autovacuum_enabled = off)")
    _said("analyze grown")
    with transaction.atomic():
        sql.begin_with({"gatehouse.reason": "test"})
        with sql.hot_cursor() as cursor:
            cursor.execute("select n from grown where n = any(%(wanted)s::int[])", {"wanted": [1]})
    _said("insert into grown select * from generate_series(1, 20000)")
    with transaction.atomic():
        sql.begin_with({"gatehouse.reason": "test"})
        ((name,),) = _said("select name from pg_prepared_statements where statement like 'select n from grown%'")
        plan = "\n".join(line for (line,) in _said(f"explain execute {name}('{{1}}')"))
    _said("drop table grown")
    assert ("Seq Scan" in plan) is reads_all
