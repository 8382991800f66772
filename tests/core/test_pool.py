"""The pool of the web process: it is back when the database is."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from config.pooled.base import DatabaseWrapper
from config.settings import database

pytestmark = pytest.mark.django_db(transaction=True)

_NAME = "pool-under-test"


@contextmanager
def _pooled(**changed: Any) -> Iterator[Any]:
    """A pooled connection to the database of the test, not yet made."""
    given = connection.settings_dict
    options = {
        **given["OPTIONS"],
        "application_name": _NAME,
        "pool": {**database("web")["OPTIONS"]["pool"], "min_size": 1, "max_size": 8, "timeout": 60},
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
        deadline = time.monotonic() + 60
        while pooled.pool.get_stats().get("connections_errors", 0) < 6:
            assert time.monotonic() < deadline, "it does not go on trying"
            time.sleep(0.05)
        assert waiting.is_alive()
        connection.ensure_connection()
        server = connection.connection.info
        name = f".s.PGSQL.{server.port}"
        (tmp_path / name).symlink_to(Path(server.host) / name)
        waiting.join(timeout=60)

        assert answers == [1]
