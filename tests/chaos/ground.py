"""The product's own processes on servers of their own, and every way to break them.

It ends only processes that it has started. Everything listens on the loopback address or on Unix sockets in a private
folder, and ends with the process that started it, however that ends.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from multiprocessing.connection import Connection, Pipe
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg
import redis
from django.conf import settings as loaded

from config.stack.processes import StackError, end_all, last_lines, runs
from config.stack.supervisor import Supervisor, readiness

_PATIENCE: Final = 60.0
# A server that was killed may hold its memory for a moment.
_STARTS: Final = 20


@dataclass(slots=True, kw_only=True)
class Ground(Supervisor):
    """What runs, by name. Only `run` would restart what ends, and nothing calls it."""

    _stem: Connection | None = None

    def _launch(self, *argv: str, log: Path | None, **more: str) -> psutil.Process:
        """Start a program of the product. Actors are threads, so a process without threads forks it."""
        if not self.forks:
            return Supervisor._launch(self, *argv, log=log, **more)
        if self._stem is None:
            self._stem, theirs = Pipe()
            ForkProcess(target=self._fork_for, args=(theirs,), daemon=True).start()
            theirs.close()
        self._stem.send((self.environment, argv, log, more))
        return psutil.Process(self._stem.recv())

    def _fork_for(self, caller: Connection) -> None:
        assert self._stem is not None
        self._stem.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(EOFError):
            while True:
                if caller.poll(0.05):
                    self.environment, argv, log, more = caller.recv()
                    caller.send(Supervisor._launch(self, *argv, log=log, **more).pid)
                with suppress(ChildProcessError):
                    os.waitpid(-1, os.WNOHANG)

    def kill(self, name: str) -> None:
        """End a process and its children as the loss of a machine would."""
        with suppress(psutil.NoSuchProcess):
            self.kept[name].child.suspend()  # it starts no more of them
            end_all(self.family(name), sign=signal.SIGKILL)

    def pause(self, name: str, seconds: float) -> None:
        """Stop a process and its children for a while, as on a machine that sleeps."""
        family = self.family(name)
        try:
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.suspend()
            time.sleep(seconds)
        finally:
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.resume()

    def family(self, name: str) -> list[psutil.Process]:
        """A process and all that it has started."""
        child = self.kept[name].child
        return [child, *child.children(recursive=True)]

    def ended(self) -> list[str]:
        """What has ended without having been asked."""
        return [name for name, one in self.kept.items() if not runs(one.child)]

    def logs(self) -> dict[str, str]:
        """The end of each program's log."""
        return {name: last_lines(one.log) for name, one in self.kept.items()}

    def await_serving(self) -> None:
        """Wait until the web is ready."""
        deadline = time.monotonic() + _PATIENCE
        while readiness(self.url)[0] != HTTPStatus.OK:
            if time.monotonic() > deadline:
                raise StackError(f"The web does not serve:\n{self.logs()['web']}")
            time.sleep(0.05)

    def start_server(self, name: str) -> None:
        """Start a server until it stands: what was killed may still be in its way."""
        for _ in range(_STARTS):
            self.kept[name].restart()
            with suppress(StackError):
                self.await_server(name)
                return
            self.kept[name].child.wait(timeout=_PATIENCE)
            time.sleep(0.1)
        raise StackError(f"{name} does not start again:\n{self.logs()[name]}")

    def ask_database(self, query: str, user: str = "gatehouse_system") -> list[tuple[Any, ...]]:
        """The rows of a query, by default with sight of all tenants."""
        url = self.environment["DATABASE_URL"]
        with psycopg.connect(url, user=user, autocommit=True, connect_timeout=10) as connection:
            return connection.execute(query).fetchall()


@contextmanager
def prepared(
    *, settings: str, tokens: Mapping[str, list[str]], tell: Callable[[str], None] = print
) -> Iterator[Ground]:
    """The whole product, ready, on servers of its own; nothing of it is left when the block ends.

    :param settings: the Django settings of the product's processes.
    :param tokens: the tokens to issue, by name, each as the arguments of ``issue_token``.
    :raises StackError: if something does not start.
    """
    servers = {"DATABASE_URL", "REDIS_URL"}
    environ = {name: value for name, value in os.environ.items() if name not in servers} | {
        "DJANGO_SETTINGS_MODULE": settings,
        "GATEHOUSE_LOG_LEVEL": "WARNING",
        "SOURCE_RATE_LIMITS": '{"default": 1000000000}',
    }
    # Forks are quick. This process can load the product if it has not done so with other settings.
    forks = sys.platform == "linux" and not loaded.configured
    with Ground.of_a_run(environment=environ, wanted=tokens, tell=tell, forks=forks) as ground:
        ground.start()
        yield ground


LEASE_SECONDS: Final = 2
# After this a session that was ended has been missed by its user.
_NOTICED: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """A kind of fault. `apply` breaks something, waits as it likes, and mends it."""

    name: str
    apply: Callable[[Ground, random.Random], None]
    harms: tuple[str, ...] = ()
    """What a caller may feel to be away meanwhile."""


def _kill(*names: str) -> Callable[[Ground, random.Random], None]:
    def apply(ground: Ground, chance: random.Random) -> None:
        for name in names:
            ground.kill(name)
        time.sleep(chance.choice([0, 0, 0.5, 2]))
        for name in names:
            ground.kept[name].restart()
        ground.await_serving()

    return apply


def _pause(name: str, longest: float, ground: Ground, chance: random.Random) -> None:
    ground.pause(name, chance.uniform(LEASE_SECONDS, longest))


def _end_sessions(ground: Ground, chance: random.Random) -> None:
    """Terminate some of the product's database sessions, whatever they do."""
    for _ in range(chance.randint(1, 5)):
        query = "select pid from pg_stat_activity where application_name like 'gatehouse-%' order by pid"
        pids = [pid for (pid,) in ground.ask_database(query, "postgres")]
        ended = chance.sample(pids, min(chance.randint(1, 6), len(pids)))
        ground.ask_database(f"select pg_terminate_backend(pid) from unnest(array{ended}::int[]) pid", "postgres")
        time.sleep(chance.uniform(0, 0.2))
    time.sleep(_NOTICED)


def _stop_database(ground: Ground, chance: random.Random, *, immediate: bool = False) -> None:
    """PostgreSQL's immediate stop; or its server and sessions are gone at once."""
    child = ground.kept["postgres"].child
    if immediate:
        child.send_signal(signal.SIGQUIT)
        child.wait(timeout=_PATIENCE)
    ground.kill("postgres")
    time.sleep(chance.choice([0, 0, 1]))
    ground.start_server("postgres")
    time.sleep(_NOTICED)


def _kill_slow_database(ground: Ground, chance: random.Random) -> None:
    """The server is gone while every commit waits a tenth of a second for the disk."""
    slow = {"commit_delay": 100_000, "commit_siblings": 0}
    with psycopg.connect(ground.environment["DATABASE_URL"], user="postgres", autocommit=True) as connection:
        for name, value in slow.items():
            connection.execute(f"alter system set {name} = {value}")
        connection.execute("select pg_reload_conf()")
        for name in slow:  # for the server that starts again
            connection.execute(f"alter system reset {name}")
    time.sleep(_NOTICED)
    _stop_database(ground, chance)


def _flush(ground: Ground, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 10)):
        with redis.Redis.from_url(ground.environment["REDIS_URL"], socket_timeout=10) as client:
            client.flushall()
        time.sleep(chance.uniform(0, 0.5))


def _double_messages(ground: Ground, chance: random.Random) -> None:
    """What waits for Celery's workers and what they are at arrives once more, some times over."""
    with redis.Redis.from_url(ground.environment["REDIS_URL"], socket_timeout=10) as client:
        for _ in range(chance.randint(3, 6)):
            for message, _, queue in map(json.loads, client.hvals("unacked")):
                client.lpush(queue, json.dumps(message))
            for queue in client.scan_iter(_type="list"):
                if waiting := client.lrange(queue, 0, -1):
                    client.rpush(queue, *waiting)
            time.sleep(chance.uniform(0, 0.5))


def _kill_broker(ground: Ground, chance: random.Random) -> None:
    ground.kill("valkey")
    time.sleep(chance.choice([0, 1, 5]))
    ground.start_server("valkey")


_CELERY: Final = ("worker-core", "worker-deliver", "worker-execute", "beat")
BREAKAGES: Final = [
    Breakage(name="kill web", apply=_kill("web"), harms=("web",)),
    *(Breakage(name=f"kill {name}", apply=_kill(name)) for name in _CELERY),
    Breakage(name="kill all of Celery", apply=_kill(*_CELERY)),
    Breakage(name="pause worker-execute", apply=partial(_pause, "worker-execute", LEASE_SECONDS + 2)),
    Breakage(name="end database sessions", apply=_end_sessions, harms=("database",)),
    Breakage(name="stop database", apply=partial(_stop_database, immediate=True), harms=("database",)),
    Breakage(name="kill database", apply=_stop_database, harms=("database",)),
    Breakage(name="kill slow database", apply=_kill_slow_database, harms=("database",)),
    Breakage(name="flush broker", apply=_flush),
    Breakage(name="double messages", apply=_double_messages),
    Breakage(name="pause broker", apply=partial(_pause, "valkey", 8)),
    Breakage(name="kill broker", apply=_kill_broker),
]
