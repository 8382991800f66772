"""The embedded servers keep what they were told, whatever happens to their processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from config.stack.folders import RuntimeFolder, lock, sweep_abandoned
from config.stack.processes import MARK, StackError, end_all, exit_code, marked, server_account, spawn
from config.stack.servers import Postgres, Valkey


@pytest.fixture
def runtime() -> Iterator[RuntimeFolder]:
    folder = RuntimeFolder(server_account())
    yield folder
    end_all(marked(folder.path.name))
    folder.remove()


@pytest.fixture
def cluster(runtime: RuntimeFolder) -> Postgres:
    home, account = runtime.folder("deep") / "Größe und Länge" / ("so tief " * 20).strip(), server_account()
    home.mkdir(parents=True)
    if account is not None:
        account.own(home)
    sockets = runtime.folder("sockets")
    return Postgres(home=home, sockets=sockets, log=runtime.path / "log", mark=runtime.path.name, account=account)


@contextmanager
def _running(server: Postgres | Valkey) -> Iterator[psutil.Popen]:
    program = server.program()
    child = spawn(program)
    try:
        server.wait_ready(lambda: exit_code(child) is None)
        yield child
    finally:
        end_all([child], program.farewell)


def test_refused_rows_are_logged_without_their_words(cluster: Postgres) -> None:
    with _running(cluster), psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (word text CHECK (word IS NULL))")
        for values, given in (("('zanzibar')", None), ("(%s)", ["zanzibar"])):
            with pytest.raises(psycopg.errors.CheckViolation, match="zanzibar"):
                connection.execute(f"INSERT INTO kept VALUES {values}", given)
    log = cluster.log.read_text()
    assert (log.count("violates check constraint"), "zanzibar" in log) == (2, False)


def test_data_outlives_a_killed_database_in_a_deep_folder(cluster: Postgres) -> None:
    with _running(cluster) as child, psycopg.connect(cluster.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        connection.commit()
        child.kill()
        child.wait()

    with _running(cluster), psycopg.connect(cluster.url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_messages_outlive_the_broker(runtime: RuntimeFolder) -> None:
    broker = Valkey(
        home=runtime.folder("servers"),
        sockets=runtime.folder("sockets"),
        log=runtime.path / "log",
        mark=runtime.path.name,
        account=server_account(),
    )
    with _running(broker), redis.Redis.from_url(broker.url) as client:
        client.rpush("queue", "message")

    with _running(broker), redis.Redis.from_url(broker.url) as client:
        assert client.lrange("queue", 0, -1) == [b"message"]


def test_process_named_by_a_stale_pid_file_is_left_alone(cluster: Postgres) -> None:
    with _running(cluster) as child:
        pid_file = (cluster.cluster / "postmaster.pid").read_text()
        child.kill()
        child.wait()
    account = server_account()
    # The database's own user: the one case in which PostgreSQL would take the stranger for its rival.
    stranger = subprocess.Popen(["sleep", "600"], user=None if account is None else account.uid)
    try:
        (cluster.cluster / "postmaster.pid").write_text(pid_file.replace(str(child.pid), str(stranger.pid), 1))

        with _running(cluster), psycopg.connect(cluster.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)

        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_foreign_database_is_neither_ended_nor_doubled(cluster: Postgres) -> None:
    other = replace(cluster, mark="another")
    with _running(other) as child:
        with pytest.raises(StackError, match=rf"pid {child.pid}"):
            cluster.program()

        assert exit_code(child) is None


def test_cluster_of_another_version_is_refused(cluster: Postgres) -> None:
    cluster.program()
    (cluster.cluster / "PG_VERSION").write_text("17\n")

    with pytest.raises(StackError, match="made by PostgreSQL 17"):
        cluster.program()


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
            end_all(marked("ours"))

            assert ours.poll() is not None
            assert theirs.poll() is None
        finally:
            ours.kill()
            theirs.kill()


def test_leftovers_of_a_killed_run_are_removed(runtime: RuntimeFolder) -> None:
    abandoned = runtime.path.with_name("gatehouse-abandoned0")
    abandoned.mkdir()
    descriptor = lock(abandoned / "lock")
    assert descriptor is not None
    os.close(descriptor)
    left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={MARK: abandoned.name})
    assert left.stdin is not None

    sweep_abandoned(server_account())

    assert left.poll() is not None
    left.stdin.close()
    assert not abandoned.exists()
    assert runtime.path.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_servers_die_with_a_killed_owner(runtime: RuntimeFolder) -> None:
    script = (
        "import os\n"
        "from config.stack.servers import start_servers\n"
        "environ = {}\n"
        "start_servers(environ)\n"
        "print(environ['GATEHOUSE_DATA'], flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    ) as owner:
        assert owner.stdout is not None
        mark = Path(owner.stdout.readline().strip()).parent.name
        servers = marked(mark)
        owner.kill()

    _, alive = psutil.wait_procs(servers, timeout=30)
    assert len(servers) == 2
    assert alive == []


def test_role_of_the_product_is_no_superuser() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = session_user").fetchone() == (False,)


def test_broker_evicts_nothing() -> None:
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
