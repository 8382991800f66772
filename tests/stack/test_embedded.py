"""The embedded servers keep what they were told, whatever happens to their processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

from config.stack.folders import DataFolder
from config.stack.processes import MARK, StackError, end_all, exit_code, marked, servers_user
from config.stack.servers import LOGINS
from config.stack.supervisor import Supervisor


@pytest.fixture(scope="module")
def data() -> Iterator[DataFolder]:
    """A folder with a path that no socket could have. Its servers are made once for all these tests."""
    with Supervisor.of_a_run() as run:
        folder = DataFolder(run.data.path / "files" / "Größe und Länge" / ("so tief " * 20).strip())
        assert folder.claim()
        yield folder
        folder.clear()
        folder.release()


@contextmanager
def _running(data: DataFolder, borrowed: str = "REDIS_URL") -> Iterator[Supervisor]:
    """One server; the other one is that of the test run."""
    environment = {borrowed: os.environ[borrowed]}
    supervisor = Supervisor(data=data, environment=environment, forks=False, tell=lambda _line: None)
    try:
        supervisor.start_servers()
        yield supervisor
    finally:
        supervisor.stop()


def _connect(supervisor: Supervisor) -> psycopg.Connection:
    return psycopg.connect(supervisor.environment["DATABASE_URL_OWNER"], autocommit=True)


def test_refused_rows_are_logged_without_their_words(data: DataFolder) -> None:
    with _running(data) as supervisor, _connect(supervisor) as connection:
        connection.execute("CREATE TABLE refused (word text CHECK (word IS NULL))")
        for values, given in (("('zanzibar')", None), ("(%s)", ["zanzibar"])):
            with pytest.raises(psycopg.errors.CheckViolation, match="zanzibar"):
                connection.execute(f"INSERT INTO refused VALUES {values}", given)
    log = data.log("postgres").read_text()
    assert (log.count("violates check constraint"), "zanzibar" in log) == (2, False)


def test_killed_database_keeps_its_rows_and_leaves_a_stranger_alone(data: DataFolder) -> None:
    with _running(data) as supervisor:
        with _connect(supervisor) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        pid_file = data.servers / "postgres" / "postmaster.pid"
        text, killed = pid_file.read_text(), supervisor.kept["postgres"].child
        killed.kill()
        killed.wait()
    # The database's own user: the one case in which PostgreSQL would take the stranger for its rival.
    user = servers_user()
    stranger = subprocess.Popen(["sleep", "600"], user=user and user.pw_uid)
    try:
        pid_file.write_text(text.replace(str(killed.pid), str(stranger.pid), 1))
        with _running(data) as supervisor, _connect(supervisor) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_foreign_database_is_neither_ended_nor_doubled(data: DataFolder) -> None:
    foreign = DataFolder(data.path)
    foreign.mark, foreign.sockets, foreign.lock = "foreign", data.sockets.with_suffix(".foreign"), data.lock
    with _running(foreign) as other:
        with pytest.raises(StackError, match="shared memory"), _running(data):
            pass
        assert exit_code(other.kept["postgres"].child) is None
        with _connect(other) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_messages_outlive_the_broker(tmp_path: Path) -> None:
    data = DataFolder(tmp_path)
    assert data.claim()
    for expected in ([], [b"message"]):
        with (
            _running(data, borrowed="DATABASE_URL") as supervisor,
            redis.Redis.from_url(supervisor.environment["REDIS_URL"]) as client,
        ):
            assert client.lrange("queue", 0, -1) == expected
            client.rpush("queue", "message")
    data.clear()
    data.release()


def test_mark_tells_our_processes() -> None:
    sleeper = [sys.executable, "-c", "print(flush=True); input()"]
    with (
        subprocess.Popen(sleeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={MARK: "ours"}) as ours,
        subprocess.Popen(sleeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={MARK: "theirs"}) as theirs,
    ):
        try:
            for child in (ours, theirs):
                assert child.stdout is not None
                child.stdout.readline()

            assert [process.pid for process in marked("ours")] == [ours.pid]
            # A test run in the background ignores SIGINT, and so do its children.
            end_all(marked("ours"), sign=signal.SIGTERM)

            assert ours.poll() is not None
            assert theirs.poll() is None
        finally:
            ours.kill()
            theirs.kill()


def test_no_login_of_a_stack_can_become_another(data: DataFolder) -> None:
    with _running(data) as supervisor:
        for variable, login in LOGINS.items():
            with psycopg.connect(supervisor.environment[variable], autocommit=True) as connection:
                found = """SELECT bool_or(rolsuper OR rolbypassrls OR rolcreaterole), session_user::text FROM pg_roles
                           WHERE rolname = session_user"""
                assert connection.execute(found).fetchone() == (False, login)
                for other in {*LOGINS.values(), "postgres"} - {login}:
                    for verb in ("SET ROLE", "SET SESSION AUTHORIZATION", f"GRANT {other} TO {login}; SET ROLE"):
                        with pytest.raises(psycopg.errors.InsufficientPrivilege):
                            connection.execute(f"{verb} {other}")


def test_broker_evicts_nothing() -> None:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
