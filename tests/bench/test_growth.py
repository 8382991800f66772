"""Databases for measurements go whatever the server is doing in them."""

import os
import secrets
import time
from urllib.parse import urlsplit

import psycopg
import pytest

from apps.bench import growth

# Autovacuum comes round once a minute.
_PATIENCE = 150.0


@pytest.mark.ci
def test_a_database_in_which_somebody_waits_and_autovacuum_works_is_dropped_by_a_role_that_is_no_superuser() -> None:
    url, name = os.environ["DATABASE_URL"], f"busy_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("set role none")
        assert server.execute("select rolsuper from pg_roles where rolname = current_user").fetchone() == (False,)
        server.execute(f"create database {name}")
        try:
            with psycopg.connect(urlsplit(url)._replace(path=f"/{name}").geturl(), autocommit=True) as visitor:
                _make_work_for_autovacuum(visitor)
                _await_somebody_else(server, name)
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    server.execute(f"drop database {name} with (force)")

                growth.drop(server, name)

                with pytest.raises(psycopg.OperationalError):
                    visitor.execute("select 1")
        finally:
            growth.drop(server, name)
        assert server.execute("select from pg_database where datname = %s", [name]).fetchone() is None


def _make_work_for_autovacuum(visitor: psycopg.Connection) -> None:
    """A table that it takes up at its next round and is not done with for minutes."""
    visitor.execute("set role none")
    visitor.execute(
        "create table work (number int, words text) with (autovacuum_vacuum_cost_delay = 100,"
        " autovacuum_vacuum_cost_limit = 1, autovacuum_vacuum_threshold = 10, autovacuum_vacuum_scale_factor = 0)"
    )
    visitor.execute("insert into work select n, repeat('x', 500) from generate_series(1, 200000) n")
    visitor.execute("update work set number = number + 1")


def _await_somebody_else(server: psycopg.Connection, name: str) -> None:
    """Wait until the server itself is in a database; of such a session others than superusers see hardly more than that."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        found = server.execute(
            "select from pg_stat_activity where datname = %s and usename is distinct from session_user", [name]
        )
        if found.fetchone() is not None:
            return
        time.sleep(0.1)
    raise AssertionError("Autovacuum did not come.")
