"""What happens to a whole product at work: an upgrade, a full disk, a web process that freezes, a failover."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import psycopg
import pytest

from config.stack import processes
from config.stack.servers import LOGINS
from config.stack.supervisor import CELERY_WORKERS, WEB, Kept, readiness
from tests.chaos.ground import LEASE_SECONDS, Breakage, Ground
from tests.chaos.history import History, now
from tests.chaos.promises import violations
from tests.chaos.run import Chaos
from tests.commands import PATIENCE, ROOT
from tests.waiters import until

# What a release may bring to each of two hot tables, and take back later.
_MIGRATION: Final = """
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("{app}", "{leaf}")]
    operations = [{operations}]
"""
_EXPAND: Final = """
migrations.AddField("{model}", "later", models.TextField(null=True)),
migrations.RunSQL("create index concurrently {table}_later on {table} (later)"),
"""
_CONTRACT: Final = 'migrations.RemoveField("{model}", "later")'
_HOT: Final = {"tasks": ("Task", "tasks_task"), "receipts": ("Receipt", "receipts_receipt")}


def _while(happens: Callable[[Ground, Random], None], *harms: str, seed: int) -> History:
    """A run in which this happens, held to every promise. Prints how much it was."""
    happening = Breakage(name=happens.__name__, apply=happens, harms=harms)
    history = Chaos(tasks=1, seed=seed, deal=lambda _: [happening]).run()
    assert violations(history) == []
    print(f"{len(history.accepted):,} tasks, {len(history.receipts):,} receipts")
    return history


def _add_web(ground: Ground) -> None:
    assert ground._listener is not None
    ground.add("web-2", *WEB.format(fd=ground._listener.fileno()).split(), GATEHOUSE_PROCESS="web")


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def _released() -> str:
    """The commit that set the last release's version; or, if it is newer, the first whose database is that of today."""
    changes = (["HEAD~1", "-Gversion = ", "--", "pyproject.toml"], ["--", "apps/*/migrations/0001_initial.py"])
    found = [_git("log", "-1", "--format=%H", *change).decode().strip() for change in changes]
    return max(found, key=lambda commit: int(_git("rev-list", "--count", commit)))


def _tree(path: Path, commit: str) -> Path:
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as tree:
        tree.extractall(path, filter="data")
    return path


def _migrate(ground: Ground, tree: Path, name: str, operations: str) -> None:
    """Add a migration to each of the two apps, and bring the database up to date."""
    for app, (model, table) in _HOT.items():
        folder = tree / "apps" / app / "migrations"
        leaf = max(folder.glob("0*.py")).stem
        written = _MIGRATION.format(app=app, leaf=leaf, operations=operations.format(model=model, table=table))
        (folder / f"{int(leaf[:4]) + 1:04}_{name}.py").write_text(written)
    _manage(ground, "prepare")


def _manage(ground: Ground, command: str) -> None:
    log = ground.data.log("manage")
    assert ground._launch("manage.py", command, log=log).wait() == 0, log.read_text()


def _product(ground: Ground) -> list[str]:
    return [name for name in ground.kept if name.startswith(("web", "worker", "beat"))]


def _replace(ground: Ground, name: str) -> None:
    """End a process as an operator does, and start it again from the tree that processes are started from now."""
    one, ready = ground.kept[name], "startup complete"
    begun = one.log.read_text().count(ready)
    processes.end_all([one.child], sign=signal.SIGTERM, patience=60)  # as long as systemd waits
    one.restart()
    if name.startswith("web"):
        until(lambda: one.log.read_text().count(ready) > begun, one.log.read_text, seconds=PATIENCE)


@pytest.mark.long
def test_an_upgrade_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = _tree(tmp_path / "old", _released()), _tree(tmp_path / "new", "HEAD")
    monkeypatch.setattr(processes, "PRODUCT", old)

    def upgrade(ground: Ground, _: object) -> None:
        _add_web(ground)
        product = _product(ground)
        time.sleep(5)
        monkeypatch.setattr(processes, "PRODUCT", new)
        _migrate(ground, new, "expand", _EXPAND)
        for _ in range(10):
            assert readiness(ground.url)[0] != 503, "a process that knows nothing of the migration"
            time.sleep(1)
        assert {Path(ground.kept[name].child.cwd()) for name in product} == {old}
        for name in product:
            _replace(ground, name)
        assert {Path(ground.kept[name].child.cwd()) for name in product} == {new}
        _migrate(ground, new, "contract", _CONTRACT)
        time.sleep(5)
        _manage(ground, "doctor")
        # The way back.
        monkeypatch.setattr(processes, "PRODUCT", old)
        for name in product:
            _replace(ground, name)
        time.sleep(5)
        _manage(ground, "doctor")

    # While a web process ends, an answer may get lost on a kept connection. None may be a failure.
    history = _while(upgrade, "web", seed=20261129)
    assert [call for call in history.calls if (call.status or 0) >= 500] == []
    assert min(len(history.accepted), len(history.receipts)) > 300


@contextmanager
def _small_disk(ground: Ground) -> Iterator[Path]:
    """PostgreSQL's cluster on a disk of 512 MB, and afterwards where it was."""
    cluster = ground.data.servers / "postgres"
    away = cluster.with_name("away")

    def move(source: Path, target: Path) -> None:
        ground.kept["postgres"].child.send_signal(signal.SIGINT)
        ground.kept["postgres"].child.wait(timeout=PATIENCE)
        subprocess.run(["cp", "-a", f"{source}/.", target], check=True)

    move(cluster, away)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", cluster], check=True)
    try:
        subprocess.run(["cp", "-a", f"{away}/.", cluster], check=True)
        ground.start_server("postgres")
        yield cluster
        shutil.rmtree(away)
        move(cluster, away)
    finally:
        subprocess.run(["umount", "--lazy", cluster], check=True)
    subprocess.run(["cp", "-a", f"{away}/.", cluster], check=True)
    ground.start_server("postgres")


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root mounts a disk")
def test_a_full_disk_of_the_database_costs_only_answers() -> None:
    full: list[float] = []

    def fill(ground: Ground, _: object) -> None:
        with _small_disk(ground) as cluster:
            time.sleep(5)
            full.append(now())
            ballast = cluster / "ballast"
            assert (
                b"No space"
                in subprocess.run(["dd", "if=/dev/zero", f"of={ballast}"], check=False, capture_output=True).stderr
            )
            time.sleep(20)
            ballast.unlink()
            if "postgres" in ground.ended():  # as what runs PostgreSQL starts it again
                ground.start_server("postgres")
            until(lambda: readiness(ground.url)[0] == 200, ground.logs, seconds=PATIENCE)
            full.append(now())
            time.sleep(5)

    history = _while(fill, "database", seed=20261129)
    during = [call for call in history.calls if full[0] < call.begin < full[1]]
    assert {call.status for call in during if (call.status or 0) >= 500} == {503}
    assert [call for call in history.calls if call.ok and call.begin > full[1]]


@pytest.mark.long
def test_a_frozen_process_of_two_harms_only_whom_it_answers() -> None:
    def freeze(ground: Ground, _: object) -> None:
        _add_web(ground)
        for name, line in CELERY_WORKERS.items():
            ground.add(f"{name}-2", *line.replace("@", "-2@").split(), GATEHOUSE_PROCESS="worker")
        until(lambda: "startup complete" in ground.data.log("web-2").read_text(), ground.logs, seconds=PATIENCE)
        time.sleep(5)
        for name in CELERY_WORKERS:
            ground.pause(name, 5 * LEASE_SECONDS)
        ground.pause("web-2", 75)  # longer than PostgreSQL waits for a transaction that does nothing
        time.sleep(5)

    history = _while(freeze, "web", seed=20261130)
    (fault,) = (one for one in history.faults if one.name == "freeze")
    late = [call for call in history.calls if fault.begin + 40 < call.begin < fault.end - 10]
    assert sum(call.ok for call in late) > len(late) / 2


_STANDBY: Final = 5433


def _server(ground: Ground, port: int) -> psycopg.Connection:
    return psycopg.connect(
        host=str(ground.data.sockets), port=port, user="postgres", dbname="gatehouse", autocommit=True
    )


def _start_standby(ground: Ground) -> Kept:
    """A streaming copy of PostgreSQL. From now on no commit is confirmed before it is there too."""
    primary, cluster, log = ground.kept["postgres"].child, ground.data.sockets / "standby", ground.data.log("standby")
    launch, argv = partial(processes.launch, env=primary.environ(), log=log, server=True), primary.cmdline()
    copy = [str(Path(argv[0]).with_name("pg_basebackup")), "-h", str(ground.data.sockets), "-U", "postgres"]
    assert launch(*copy, "-D", str(cluster), "-c", "fast", "-R").wait() == 0, log.read_text()
    standby = Kept(partial(launch, *argv, "-D", str(cluster), "-p", str(_STANDBY)), log)
    with _server(ground, 5432) as connection:
        connection.execute("alter system set synchronous_standby_names = '*'")
        connection.execute("select pg_reload_conf()")
        follows = "select from pg_stat_replication where sync_state = 'sync'"
        until(lambda: connection.execute(follows).fetchone() is not None, log.read_text, seconds=PATIENCE)
    return standby


@pytest.mark.long
def test_a_standby_takes_over_with_all_that_was_acknowledged() -> None:
    moments: list[float] = []

    def fail_over(ground: Ground, _: object) -> None:
        standby, folder = _start_standby(ground), str(ground.data.sockets)
        for name in LOGINS:
            both = ground.environment[name].replace(folder, f"{folder},{folder}")
            ground.environment[name] = f"{both},{_STANDBY}&target_session_attrs=read-write"
        for name in _product(ground):
            _replace(ground, name)
        time.sleep(5)
        moments.append(now())
        ground.kill("postgres")
        ground.kept["postgres"] = standby
        with _server(ground, _STANDBY) as connection:
            connection.execute("select pg_promote()")
        ground.await_serving()
        moments.append(now())
        time.sleep(5)

    history = _while(fail_over, "web", "database", seed=20261201)
    killed, serves = moments
    assert [call for call in history.calls if call.ok and call.begin < killed]
    assert [call for call in history.calls if call.ok and call.begin > serves]


# As docs/scaling.md says.
_POOLER: Final = """
[databases]
gatehouse = host={folder} connect_query='set plan_cache_mode = force_generic_plan; set search_path = public; \
set lock_timeout = 2000; set statement_timeout = 30000; set idle_in_transaction_session_timeout = 60000; \
set hnsw.iterative_scan = strict_order; set hnsw.ef_search = 200'
[pgbouncer]
pool_mode = transaction
max_prepared_statements = 1000
ignore_startup_parameters = options
default_pool_size = 8
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
"""

_LEFT_LOCKED: Final = """
select from pg_locks join pg_stat_activity using (pid)
where locktype = 'advisory' and usename = 'gatehouse_app' and state = 'idle'
"""


def _pooler_is_new_enough() -> bool:
    path = shutil.which("pgbouncer")
    told = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout if path else "0.0"
    major, minor = re.findall(r"\d+", told)[:2]
    return (int(major), int(minor)) >= (1, 21)


@pytest.mark.long
@pytest.mark.skipif(not _pooler_is_new_enough(), reason="needs the Debian package pgbouncer, 1.21 or newer")
def test_requests_go_through_a_pooler_of_transactions() -> None:
    def put_between(ground: Ground, _: object) -> None:
        folder, primary, log = ground.data.sockets, ground.kept["postgres"].child, ground.data.log("pooler")
        (folder / "pooler.ini").write_text(_POOLER.format(folder=folder))
        (folder / "users").write_text('"gatehouse_app" ""\n"gatehouse_system" ""\n"postgres" ""\n')
        argv = (str(shutil.which("pgbouncer")), str(folder / "pooler.ini"))
        ground.kept["pooler"] = Kept(partial(processes.launch, *argv, env=primary.environ(), log=log, server=True), log)
        ground.environment["DATABASE_URL"] = ground.environment["DATABASE_URL"].replace("port=5432", "port=6432")
        for name in _product(ground):
            _replace(ground, name)
        time.sleep(20)
        assert "gatehouse/gatehouse_app@" in log.read_text()
        # What is locked for a session would never be let go.
        until(lambda: not ground.ask_database(_LEFT_LOCKED, "postgres"), "a lock is left", seconds=PATIENCE)

    history = _while(put_between, "web", seed=20261203)
    assert min(len(history.accepted), len(history.receipts)) > 300


# Loaded ahead of a program, it moves the time of day and nothing that waits. (libfaketime fails the sleeps of Python.)
_CLOCK: Final = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *told) {
    int failed = syscall(SYS_clock_gettime, clock, told);
    if (!failed && clock == CLOCK_REALTIME) told->tv_sec += atol(getenv("AHEAD"));
    return failed;
}
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs the Debian package gcc")
@pytest.mark.parametrize("ahead", [("web", "worker-core", "beat"), ("web-2", "worker-deliver")])
def test_clocks_that_differ_by_twenty_minutes_break_no_promise(ahead: tuple[str, ...], tmp_path: Path) -> None:
    library = tmp_path / "clock.so"
    build = ["cc", "-x", "c", "-", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run(build, input=_CLOCK.encode(), check=True)
    moved = {**os.environ, "LD_PRELOAD": str(library), "AHEAD": "600"}
    told = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"], env=moved, capture_output=True, check=True
    )
    assert float(told.stdout) > time.time() + 500

    def move(ground: Ground, _: object) -> None:
        _add_web(ground)
        for name in _product(ground):
            ground.environment |= {"LD_PRELOAD": str(library), "AHEAD": "600" if name in ahead else "-600"}
            _replace(ground, name)
        time.sleep(20)

    # Clocks stay as they are until everything has come to an end.
    history = _while(move, "web", seed=20261202)
    assert min(len(history.accepted), len(history.receipts)) > 300
