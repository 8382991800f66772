"""The product's own processes on servers of their own, and every way to break them.

It ends only processes that it has started. Everything listens on the loopback address or on Unix sockets in a private
folder, and ends with the process that started it, however that ends.
"""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import psutil
import psycopg
import redis

from config.stack import programs
from config.stack.folders import DataFolder, RuntimeFolder, sweep_abandoned
from config.stack.processes import (
    MARK,
    Program,
    StackError,
    end_all,
    end_children,
    last_lines,
    marked,
    server_account,
    spawn,
)
from config.stack.servers import Postgres, Valkey
from config.stack.supervisor import listen, readiness

_PATIENCE: Final = 60.0
# A server that was killed may hold its memory for a moment.
_STARTS: Final = 20
SERVERS: Final = ("postgres", "valkey")


class Broken(Exception):
    """The ground itself gave way: there is nothing to judge."""


@dataclass(slots=True, kw_only=True)
class Ground:
    """What runs, by name."""

    folder: RuntimeFolder
    data: DataFolder
    postgres: Postgres
    valkey: Valkey
    tokens: Mapping[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    described: dict[str, Program] = field(default_factory=dict)
    port: int = 0

    @property
    def url(self) -> str:
        """Where the web answers."""
        return f"http://127.0.0.1:{self.port}"

    def describe(self, program: Program) -> None:
        """Know how to start a program."""
        self.described[program.name] = program

    def start(self, name: str) -> None:
        """Start what is described under this name, or start it again."""
        self.children[name] = spawn(self.described[name])

    def kill(self, name: str) -> None:
        """End a process and its children as the loss of a machine would."""
        child = self.children[name]
        if child.poll() is None:
            with suppress(psutil.NoSuchProcess):
                family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
                for one in family:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                psutil.wait_procs(family[1:], timeout=5)
        child.wait()

    def pause(self, name: str, seconds: float) -> None:
        """Stop a process and its children for a while, as on a machine that sleeps."""
        process = psutil.Process(self.children[name].pid)
        family = [process, *process.children(recursive=True)]
        try:
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.suspend()
            time.sleep(seconds)
        finally:
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.resume()

    def ended(self) -> list[str]:
        """What has ended without having been asked."""
        return [name for name, child in self.children.items() if child.poll() is not None]

    def await_serving(self) -> None:
        """Wait until the web is ready."""
        deadline = time.monotonic() + _PATIENCE
        while readiness(self.url)[0] != HTTPStatus.OK:
            if time.monotonic() > deadline:
                raise Broken(f"The web does not serve:\n{last_lines(self.data.log('web'))}")
            time.sleep(0.05)

    def stop_database(self, number: signal.Signals) -> None:
        """SIGQUIT is the immediate stop; with SIGKILL the server and its sessions are gone at once."""
        if number == signal.SIGKILL:
            self.kill("postgres")
        else:
            self.children["postgres"].send_signal(number)
            self.children["postgres"].wait(timeout=_PATIENCE)

    def start_database(self) -> None:
        """Start the database until it stands: what was killed may still be in its way."""
        for _ in range(_STARTS):
            self.described["postgres"] = self.postgres.program()
            self.start("postgres")
            try:
                self.postgres.wait_ready(lambda: self.children["postgres"].poll() is None)
            except StackError:
                self.children["postgres"].wait(timeout=_PATIENCE)
                time.sleep(0.1)
            else:
                return
        raise Broken(f"PostgreSQL does not start again:\n{last_lines(self.postgres.log)}")

    def ask_database(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query that sees all tenants."""
        with psycopg.connect(self.postgres.url, autocommit=True, connect_timeout=10) as connection:
            connection.execute("set role gatehouse_system")
            return connection.execute(query).fetchall()

    def end_sessions(self, chance: random.Random, count: int) -> None:
        """Terminate some of the product's database sessions, whatever they do."""
        with psycopg.connect(self.postgres.url, autocommit=True, connect_timeout=10) as connection:
            connection.execute("set role none")
            query = "select pid from pg_stat_activity where application_name like 'gatehouse-%'"
            pids = sorted(pid for (pid,) in connection.execute(query))
            for pid in chance.sample(pids, min(count, len(pids))):
                connection.execute("select pg_terminate_backend(%s::int)", [pid])

    def flush_broker(self) -> None:
        """Empty the broker."""
        with redis.Redis(unix_socket_path=str(self.valkey.socket), socket_timeout=10) as client:
            client.flushall()

    def start_broker(self) -> None:
        """Start the broker."""
        self.start("valkey")
        self.valkey.wait_ready(lambda: self.children["valkey"].poll() is None)


@contextmanager
def prepared(*, settings: str, tokens: Mapping[str, list[str]]) -> Iterator[Ground]:
    """The whole product, ready, on a ground of its own; nothing of it is left when the block ends.

    :param settings: the Django settings of the product's processes.
    :param tokens: the tokens to issue, by name, each as the arguments of ``issue_token``.
    :raises StackError: if a server does not start.
    """
    account = server_account()
    sweep_abandoned(account)
    with ExitStack() as stack:
        folder = RuntimeFolder(account)
        stack.callback(folder.remove)
        # The children of a killed process carry the folder's name.
        stack.callback(lambda: end_all(marked(folder.path.name)))
        data = DataFolder(folder.path / "data")
        data.path.mkdir(mode=0o700)
        data.log("web").parent.mkdir()
        where: dict[str, Any] = {"mark": folder.path.name, "account": account}
        where |= {"home": folder.folder("servers"), "sockets": folder.folder("sockets")}
        postgres, valkey = Postgres(**where, log=data.log("postgres")), Valkey(**where, log=data.log("valkey"))
        ground = Ground(folder=folder, data=data, postgres=postgres, valkey=valkey)
        stack.callback(_end_everything, ground)
        ground.start_database()
        ground.describe(ground.valkey.program())
        ground.start_broker()
        listener = listen(0, None)
        stack.callback(listener.close)
        ground.port = listener.getsockname()[1]
        ground.environment = _environment(ground, settings)
        ground.tokens = _provision(ground, tokens)
        ground.describe(programs.web(data, ground.environment, fd=listener.fileno()))
        for program in (*programs.celery_workers(data, ground.environment), programs.beat(data, ground.environment)):
            ground.describe(program)
        for name in ground.described.keys() - set(SERVERS):
            ground.start(name)
        ground.await_serving()
        yield ground


def _end_everything(ground: Ground) -> None:
    for names in ([name for name in ground.children if name not in SERVERS], ["valkey"], ["postgres"]):
        if ending := [ground.children.pop(name) for name in names if name in ground.children]:
            end_children(ending, ground.described[names[0]].farewell)


def _environment(ground: Ground, settings: str) -> dict[str, str]:
    keys = ("GATEHOUSE_SECRET_KEY", "GATEHOUSE_LEASE_KEYS", "GATEHOUSE_SEALING_KEYS")
    return {
        **os.environ,
        **{name: secrets.token_urlsafe(48) for name in keys},
        "DATABASE_URL": ground.postgres.url,
        "REDIS_URL": ground.valkey.url,
        "DJANGO_SETTINGS_MODULE": settings,
        MARK: ground.folder.path.name,
        "GATEHOUSE_DATA": str(ground.data.path),
        "GATEHOUSE_URL": ground.url,
        "GATEHOUSE_LOG_LEVEL": "WARNING",
        "SOURCE_RATE_LIMITS": '{"default": 1000000000}',
        "PROMETHEUS_MULTIPROC_DIR": str(ground.data.metrics_folder()),
        "PYTHONUNBUFFERED": "1",
    }


def _provision(ground: Ground, tokens: Mapping[str, list[str]]) -> dict[str, str]:
    """Bring the database up to date and issue tokens, as the supervisor does."""
    ground.data.password_file.write_text(secrets.token_urlsafe(12), encoding="utf-8")
    files = [str(ground.data.password_file), str(ground.data.worker_key_file)]
    done = subprocess.run(
        [sys.executable, "-m", "config.stack.provision", *files],
        input=json.dumps(tokens),
        env=ground.environment,
        cwd=programs.PRODUCT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise StackError(f"The database could not be brought up to date:\n{done.stderr[-2000:]}")
    issued: dict[str, str] = json.loads(done.stdout)["tokens"]
    return issued
