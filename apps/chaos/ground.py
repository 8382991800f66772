"""The product's own processes on servers of their own, and every way to break them.

Nothing here ends a process that it has not started: it keeps each one's handle, and a killed server's children are
those of that server. Everything is on the loopback address or on Unix sockets in a private folder, and ends with the
process that started it, however that ends.
"""

import asyncio
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
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
import redis

from apps.chaos.client import PATIENCE
from apps.chaos.history import Json
from apps.chaos.proxies import HalfOpen, Loop, Swallower
from config.stack import programs
from config.stack.folders import DataFolder, RuntimeFolder, sweep_abandoned
from config.stack.processes import (
    MARK,
    Program,
    StackError,
    bound_log,
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
# What a server leaves behind may hold its memory for a moment after it was killed.
_STARTS: Final = 20
# Who waits for an answer when it is asked to end waits for it as ever, and then for those of its copies.
_FAREWELL: Final = ((signal.SIGTERM, 4 * PATIENCE), (signal.SIGKILL, 5.0))
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
    loop: Loop
    tokens: Mapping[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    described: dict[str, Program] = field(default_factory=dict)
    broker: HalfOpen = field(init=False)
    port: int = 0
    swallowing_port: int = 0

    # Starting and ending

    def start(self, name: str) -> None:
        """Start what is described under this name, or start it again."""
        bound_log(self.described[name].log)
        self.children[name] = spawn(self.described[name])

    def describe(self, program: Program) -> None:
        self.described[program.name] = program

    def kill(self, name: str) -> None:
        """End it and its own children as the loss of a machine would."""
        child = self.children[name]
        if child.poll() is None:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(child.pid)
                family = process.children(recursive=True)
                for one in (process, *family):
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                psutil.wait_procs(family, timeout=5)
        child.wait()

    def pause(self, name: str, seconds: float) -> None:
        """Stop it and its own children for a while, as a machine that sleeps."""
        with self.held_still(name):
            time.sleep(seconds)

    @contextmanager
    def held_still(self, *names: str) -> Iterator[None]:
        """Stop these and their own children meanwhile; what is killed meanwhile stays so."""
        processes = [psutil.Process(self.children[name].pid) for name in names]
        family = [one for process in processes for one in (process, *process.children(recursive=True))]
        try:
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.suspend()
            yield
        finally:
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.resume()

    def ended(self) -> list[str]:
        """What has ended without having been asked."""
        return [name for name, child in self.children.items() if child.poll() is not None]

    def end(self, *names: str) -> None:
        """Ask these to end, and wait for it."""
        ending = [self.children.pop(name) for name in names if name in self.children]
        for child, name in zip(ending, names, strict=False):
            if child.poll() is None and name not in SERVERS:
                child.send_signal(signal.SIGCONT)
        if ending:
            end_children(ending, self.described[names[0]].farewell)

    def is_serving(self) -> bool:
        """Whether the web answers; it need not be ready."""
        return readiness(f"http://127.0.0.1:{self.port}")[0] != 0

    def await_serving(self) -> None:
        """Wait until the web answers."""
        deadline = time.monotonic() + _PATIENCE
        while readiness(f"http://127.0.0.1:{self.port}")[0] != HTTPStatus.OK:
            if time.monotonic() > deadline:
                raise Broken(f"The web does not serve:\n{last_lines(self.data.log('web'))}")
            time.sleep(0.05)

    # The database

    def stop_database(self, number: signal.Signals) -> None:
        """SIGQUIT: the immediate stop. SIGKILL: the server and its sessions are gone at once."""
        if number == signal.SIGKILL:
            self.kill("postgres")
        else:
            self.children["postgres"].send_signal(number)
            self.children["postgres"].wait(timeout=_PATIENCE)

    def start_database(self) -> None:
        """Start it until it stands: what was killed may still be in its way."""
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

    @contextmanager
    def system(self) -> Iterator[psycopg.Connection]:
        """A session that sees every tenant's rows."""
        with self._connected() as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("set role gatehouse_system")
            yield connection

    def _connected(self) -> psycopg.Connection:
        """A session, as soon as the server takes one: it may have crashed by itself, which its log tells."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return psycopg.connect(self.postgres.url, autocommit=True, connect_timeout=10)
            except psycopg.OperationalError as failure:
                if time.monotonic() > deadline:
                    raise Broken(f"PostgreSQL does not answer:\n{last_lines(self.postgres.log)}") from failure
                time.sleep(0.1)

    def end_sessions(self, chance: random.Random, count: int) -> int:
        """Terminate some of the product's sessions at whatever they do."""
        with psycopg.connect(self.postgres.url, autocommit=True, connect_timeout=10) as connection:
            connection.execute("set role none")
            pids = [
                pid
                for (pid,) in connection.execute(
                    "select pid from pg_stat_activity where application_name like 'gatehouse-%'"
                )
            ]
            chosen = chance.sample(sorted(pids), min(count, len(pids)))
            connection.execute("select pg_terminate_backend(pid) from unnest(%s::int[]) as pid", [chosen])
        return len(chosen)

    # The broker

    def flush_broker(self) -> None:
        with redis.Redis(unix_socket_path=str(self.valkey.socket), socket_timeout=10) as client:
            client.flushall()

    def start_broker(self) -> None:
        self.start("valkey")
        self.valkey.wait_ready(lambda: self.children["valkey"].poll() is None)


@contextmanager
def prepared(*, settings: str, clock_of_executors: float, tokens: Mapping[str, list[str]]) -> Iterator[Ground]:
    """The whole product, ready, on a ground of its own; nothing of it is left when the block ends.

    :param settings: the Django settings of the product's processes.
    :param clock_of_executors: by how many seconds the clock of one group of Celery workers is off.
    :param tokens: the tokens to issue, by name, each as the arguments of ``issue_token``.
    :raises StackError: if a server does not start.
    """
    account = server_account()
    sweep_abandoned(account)
    with ExitStack() as stack:
        folder = RuntimeFolder(account)
        stack.callback(folder.remove)
        # A killed worker's own children, should any be left; they carry the folder's name.
        stack.callback(lambda: end_all(marked(folder.path.name)))
        data = DataFolder(folder.path / "data")
        data.path.mkdir(mode=0o700)
        data.log("web").parent.mkdir()
        servers, sockets = folder.folder("servers"), folder.folder("sockets")
        loop = Loop()
        stack.callback(loop.stop)
        where: dict[str, Any] = {"home": servers, "sockets": sockets, "mark": folder.path.name, "account": account}
        postgres = Postgres(**where, log=data.log("postgres"))
        ground = Ground(
            folder=folder, data=data, postgres=postgres, valkey=Valkey(**where, log=data.log("valkey")), loop=loop
        )
        stack.callback(_end_everything, ground)
        _start_servers(ground)
        _set_up(ground, stack, settings)
        ground.tokens = _provision(ground, tokens)
        _start_product(ground, clock_of_executors)
        yield ground


def _end_everything(ground: Ground) -> None:
    names = [name for name in ground.children if name not in SERVERS]
    ground.end(*names)
    ground.end("valkey")
    ground.end("postgres")


def _start_servers(ground: Ground) -> None:
    ground.start_database()
    ground.describe(ground.valkey.program())
    ground.start_broker()
    path = str(ground.valkey.socket)
    ground.broker = HalfOpen(ground.loop, lambda: asyncio.open_unix_connection(path))


def _set_up(ground: Ground, stack: ExitStack, settings: str) -> None:
    """The web's address, what stands before it, and what every process of the product is told."""
    listener = listen(0, None)
    stack.callback(listener.close)
    ground.port = port = listener.getsockname()[1]
    ground.swallowing_port = Swallower(ground.loop, lambda: asyncio.open_connection("127.0.0.1", port)).port
    ground.environment = {
        **os.environ,
        "DATABASE_URL": ground.postgres.url,
        "REDIS_URL": f"redis://127.0.0.1:{ground.broker.port}/0",
        "DJANGO_SETTINGS_MODULE": settings,
        MARK: ground.folder.path.name,
        "GATEHOUSE_DATA": str(ground.data.path),
        "GATEHOUSE_URL": f"http://127.0.0.1:{port}",
        "GATEHOUSE_SECRET_KEY": secrets.token_urlsafe(48),
        "GATEHOUSE_LEASE_KEYS": secrets.token_urlsafe(48),
        "GATEHOUSE_SEALING_KEYS": secrets.token_urlsafe(48),
        "GATEHOUSE_LOG_LEVEL": "WARNING",
        "PROMETHEUS_MULTIPROC_DIR": str(ground.data.metrics_folder()),
        "PYTHONUNBUFFERED": "1",
    }
    ground.describe(programs.web(ground.data, ground.environment, fd=listener.fileno()))


def _start_product(ground: Ground, clock_of_executors: float) -> None:
    for worker in programs.celery_workers(ground.data, ground.environment):
        off = clock_of_executors if worker.name == "worker-execute" else 0.0
        ground.describe(replace(worker, env={**worker.env, "GATEHOUSE_CHAOS_CLOCK": str(off)}))
    ground.describe(programs.beat(ground.data, ground.environment))
    for name in ground.described.keys() - set(SERVERS):
        ground.start(name)
    ground.await_serving()


def _provision(ground: Ground, tokens: Mapping[str, list[str]]) -> dict[str, str]:
    """Bring the database up to date and issue tokens, as the supervisor does."""
    password = ground.data.password_file
    password.write_text(secrets.token_urlsafe(12), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "config.stack.provision", str(password), str(ground.data.worker_key_file)],
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


def actor(ground: Ground, history: Path, given: Json) -> Program:
    """An actor's process."""
    document = {
        **given,
        "history": str(history),
        "port": ground.port,
        "swallowing_port": ground.swallowing_port,
    }
    program = programs.python_program(
        given["name"], "-m", "apps.chaos.actors", json.dumps(document), data=ground.data, env=ground.environment
    )
    return replace(program, farewell=_FAREWELL)
