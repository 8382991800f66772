"""The database: its pool, statements that are too hot for the ORM, migrations of another release, sealed secrets."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from pytest_django import Settings

from apps.core import sql
from apps.core.management.commands import migrate
from apps.core.sealing import SealBroken, seal, unseal
from config.pooled.base import DatabaseWrapper
from config.settings import databases
from tests.waiters import until

pytestmark = pytest.mark.django_db(transaction=True)

_NAME = "pool-under-test"


@contextmanager
def _pooled(**changed: Any) -> Iterator[Any]:
    """A pooled connection to the database of the test, not yet made."""
    given = connection.settings_dict
    options = {
        **given["OPTIONS"],
        "application_name": _NAME,
        "pool": {**databases("web")["default"]["OPTIONS"]["pool"], "min_size": 1, "max_size": 8, "timeout": 60},
    }
    settings = {**given, "CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False, "OPTIONS": options, **changed}
    pooled: Any = DatabaseWrapper(settings, alias=_NAME)
    pooled.inc_thread_sharing()
    try:
        yield pooled
    finally:
        pooled.close()
        pooled.close_pool()


def _asked(pooled: Any) -> int:
    with pooled.cursor() as cursor:
        cursor.execute("select 1")
        (one,) = cursor.fetchone()
    return int(one)


def _end_sessions(count: int) -> None:
    """As a restart of the server ends those of its clients."""
    owner: Any = connection.copy()
    try:
        with owner.cursor() as cursor:
            cursor.execute("set role none")
            cursor.execute(
                "select pg_terminate_backend(pid, 60000) from pg_stat_activity where application_name = %s", [_NAME]
            )
            assert cursor.fetchall() == [(True,)] * count
    finally:
        owner.close()


def test_pool_survives_a_restart_of_the_database() -> None:
    with _pooled() as pooled:
        assert _asked(pooled) == 1
        pooled.close()
        held = [pooled.pool.getconn() for _ in range(8)]
        for one in held:
            pooled.pool.putconn(one)
        _end_sessions(8)
        before = pooled.pool.get_stats()["requests_num"]

        assert _asked(pooled) == 1
        # One connection is found to have ended; then all are looked at.
        assert pooled.pool.get_stats()["requests_num"] == before + 2


def test_pool_connects_again_after_a_long_outage(tmp_path: Path) -> None:
    with _pooled(HOST=str(tmp_path)) as pooled:
        answers: list[int] = []
        waiting = threading.Thread(target=lambda: answers.append(_asked(pooled)))
        waiting.start()
        # By pauses that double it would take half a minute to fail so often.
        until(lambda: pooled.pool.get_stats().get("connections_errors", 0) >= 6, "a sixth try")
        assert waiting.is_alive()
        connection.ensure_connection()
        server = connection.connection.info
        name = f".s.PGSQL.{server.port}"
        (tmp_path / name).symlink_to(Path(server.host) / name)
        waiting.join(timeout=60)

        assert answers == [1]


def _said(statement: str) -> list[tuple[str, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("lasting", "reads_all"), [(3600.0, True), (0.0, False)])
def test_plan_of_an_empty_table_is_made_anew(monkeypatch: pytest.MonkeyPatch, lasting: float, reads_all: bool) -> None:
    monkeypatch.setattr(sql, "_PLANS_LAST", lasting)
    connection.close()
    _said("set role none")
    _said("create temporary table grown (n int primary key) with (autovacuum_enabled = off)")
    _said("analyze grown")
    with transaction.atomic(), sql.beginning_with({"gatehouse.reason": "test"}):
        sql.fetch("select n from grown where n = any(%(wanted)s::int[])", {"wanted": [1]}, hot=True)
    _said("insert into grown select * from generate_series(1, 20000)")
    with transaction.atomic(), sql.beginning_with({"gatehouse.reason": "test"}):
        ((name,),) = _said("select name from pg_prepared_statements where statement like 'select n from grown%'")
        plan = "\n".join(line for (line,) in _said(f"explain execute {name}('{{1}}')"))
    _said("drop table grown")
    _said("reset role")
    assert ("Seq Scan" in plan) is reads_all


STRANGE = ("memory", "9999_of_another_release")


def test_database_of_another_release_is_left_unchanged() -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_applied(*STRANGE)
    try:
        before = recorder.applied_migrations()
        with pytest.raises(CommandError, match=r"memory\.9999_of_another_release.*bin/up reset"):
            call_command("migrate", "memory", "zero", verbosity=0)
        assert recorder.applied_migrations() == before
    finally:
        recorder.record_unapplied(*STRANGE)


def test_what_is_sealed_can_be_opened_and_not_be_read() -> None:
    sealed = seal("whsec_ünlock")
    assert unseal(sealed) == "whsec_ünlock"
    assert "nlock" not in sealed
    assert seal("whsec_ünlock") != sealed


def test_a_retired_key_still_opens_and_no_longer_seals(settings: Settings) -> None:
    sealed = seal("secret")
    settings.SEALING_KEYS = ["new", *settings.SEALING_KEYS]
    assert unseal(sealed) == "secret"
    sealed_anew = seal("secret")
    settings.SEALING_KEYS = ["new"]
    assert unseal(sealed_anew) == "secret"
    with pytest.raises(SealBroken):
        unseal(sealed)


def test_migrate_asks_for_a_lock_again_and_again() -> None:
    held, told = threading.Event(), StringIO()

    def hold() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("lock table plans_plan in access share mode")
            held.set()
            until(lambda: "29 tries are left" in told.getvalue())
        connection.close()

    def alter() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("set local lock_timeout = '50ms'; lock table plans_plan in access exclusive mode")

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(20)
    migrate.Command(stdout=told)._try_again(alter)
    other.join()
