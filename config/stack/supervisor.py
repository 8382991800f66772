"""The supervisor: starts everything in order, brings back what ends, and ends everything in order."""

import gc
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
import redis

from config.stack.folders import KEYS, DataFolder
from config.stack.processes import MARK, StackError, bound_log, end_all, exit_code, last_lines, launch, marked, runs
from config.stack.servers import LOGINS, SERVERS, addresses
from config.typed import PRODUCT, typed

DEFAULT_PORT = 8080
_READY_WITHIN = 120.0
# How long to wait, once it serves, for the first heartbeats of beat and of the Celery workers.
_SETTLED_WITHIN = 30.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
say: Callable[[str], None] = partial(print, flush=True)

# Loaded once and forked: Django and the product take some seconds of processor time, and a dozen processes would each
# take them again. The largest first; a worker of the examples imports the last two.
_LOADED = (
    *("config.asgi", "config.celery", "celery.bin.celery", "celery.apps.worker", "celery.apps.beat"),
    *("mcp", "uvicorn"),
)
# The web processes share a socket that the supervisor holds: a restart refuses no connection. uvicorn itself would believe
# any client that connects from this machine what it says of its address.
WEB = "-m uvicorn config.asgi:application --no-access-log --no-proxy-headers --timeout-graceful-shutdown 5 --fd {fd}"
_WORKER = "-m celery -A config worker --loglevel info --without-gossip --without-mingle"
# Executions may be slow: they have a worker of their own, so that they never delay a flush or a delivery. Both wait for
# others most of the time: in threads, so that a slow one costs a connection and no process.
CELERY_WORKERS = {
    "worker-core": f"{_WORKER} --hostname core@%h --queues notify,sweep --concurrency 2",
    "worker-deliver": f"{_WORKER} --hostname deliver@%h --queues deliver --pool threads --concurrency 32",
    "worker-execute": f"{_WORKER} --hostname execute@%h --queues execute --pool threads --concurrency 8",
}
# Its schedules are rows, so that a second beat does no harm.
_BEAT = "-m celery -A config beat --pidfile= --loglevel info"
# The MCP workers that come with the product.
BUNDLED_WORKERS = {
    path.stem.replace("_", "-"): path
    for path in sorted((PRODUCT / "examples" / "workers").glob("*.py"))
    if path.stem != "worker_kit"
}
# The tokens that a stack issues once, as the arguments of `issue_token`: for the person at the keyboard, for the agent
# of the demo, and for each bundled worker.
_WORKS = "--tenant default --principal {0} --source-system {0} --scope workers:register --scope tasks:work --kind"
_AGENT = f"{_WORKS} ai --scope receipts:write --scope inbox --scope tasks:queue --scope plans --scope memory"
_TOKENS = {"agent": _AGENT.format("agent").split(), "kee": _AGENT.format("Kee").split()}
_TOKENS |= {name: f"{_WORKS} worker".format(name).split() for name in BUNDLED_WORKERS}


@dataclass(slots=True)
class Kept:
    """A program that is kept running."""

    start: Callable[[], psutil.Process]
    log: Path
    child: psutil.Process = field(init=False)
    started: float = field(init=False)
    pause: float = _SHORTEST_PAUSE
    """Before it is started again: doubled each time that it ends soon."""
    again_at: float | None = None

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.child, self.started, self.again_at = self.start(), time.monotonic(), None


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Runs the stack of one data folder, which the caller has claimed."""

    data: DataFolder
    port: int | None = None
    web: int = 1
    """How many web processes."""
    workers: Iterable[str] = ()
    """Which of the bundled MCP workers."""
    durable: bool = True
    """Whether PostgreSQL waits for the disk at each commit."""
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    """What its processes inherit. It may name servers to use instead of embedded ones; a start adds all else."""
    wanted: Mapping[str, list[str]] = field(default_factory=dict)
    """Tokens to issue besides those of every stack, by name, each as the arguments of ``issue_token``."""
    tokens: dict[str, str] = field(default_factory=dict)
    forks: bool = sys.platform == "linux"
    """Whether the product is loaded here once, and its processes are forked."""
    tell: Callable[[str], None] = say
    url: str = ""
    kept: dict[str, Kept] = field(default_factory=dict)
    # Held open, so that the address stays ours while a web process is away.
    _listener: socket.socket | None = None
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    @contextmanager
    def of_a_run(cls, **options: Any) -> Iterator[Self]:
        """The supervisor of a test run or a measurement. Nothing of it is left afterwards.

        Its data folder is one that no other run uses. What it starts ends with this process, even when it is killed.
        """
        folders = (DataFolder(PRODUCT / "var" / f"run-{number}") for number in count())
        data = next(folder for folder in folders if folder.claim())
        data.clear()
        # This process may have loaded the product with other settings.
        supervisor = cls(data=data, **{"forks": False, "tell": lambda _line: None, **options})
        try:
            yield supervisor
        finally:
            supervisor.stop()
            data.clear()
            data.release()

    def start(self) -> None:
        """Bring everything up, and return when it is ready. `stop` ends what was started.

        :raises StackError: if something does not start.
        """
        kept = self.data.secrets()
        if "restoring" in kept:
            backup, path = shlex.quote(kept["restoring"]), shlex.quote(str(self.data.path))
            again = f"{typed('reset')} --data {path}, then {typed('restore')} {backup} --data {path}"
            raise StackError(f"A restore into {self.data.path} did not come to its end. Type {again}")
        self._listener = listen(self.port, kept.get("port"))
        # Forks have it anyway; the servers, which are executed, have no use for it.
        self._listener.set_inheritable(not self.forks)
        port = self._listener.getsockname()[1]
        self.data.write(self.data.secrets_file, kept | {"port": port})
        self.url = f"http://127.0.0.1:{port}"
        self.environment |= {
            MARK: self.data.mark,
            "GATEHOUSE_URL": self.url,
            "PROMETHEUS_MULTIPROC_DIR": str(self.data.path / "metrics"),
            "PYTHONUNBUFFERED": "1",
        }
        self.start_servers()
        log = self.data.log("prepare")
        tokens = json.dumps({**_TOKENS, **self.wanted})
        if self._launch("manage.py", "prepare", "-v0", "--tokens", tokens, log=log).wait():
            raise StackError(f"The database could not be prepared ({log}):\n{last_lines(log, 1).strip()}")
        self.tokens = self.data.secrets()["tokens"][self.environment["DATABASE_URL"]]
        self._ok("migrations")
        for number in range(1, self.web + 1):
            line = WEB.format(fd=self._listener.fileno())
            self.add("web" if number == 1 else f"web-{number}", *line.split(), GATEHOUSE_PROCESS="web")
        for name, line in CELERY_WORKERS.items():
            self.add(name, *line.split(), GATEHOUSE_PROCESS="worker")
        self.add("beat", *_BEAT.split(), GATEHOUSE_PROCESS="beat")
        for name in self.workers:
            self.add_bundled(name, self.tokens[name])
        self._wait_ready()
        self._write_stack_file()

    def start_servers(self) -> None:
        """Start the servers that the environment does not name, and wait until all answer.

        :raises StackError: if one does not.
        """
        self.data.prepare()
        kept = self.data.secrets()
        self.environment |= {name: self.environment.get(name) or kept[name] for name in KEYS}
        self.environment["GATEHOUSE_DATA"] = str(self.data.path)
        for name, server in SERVERS.items():
            if self.environment.get(server.variable):
                self._ok(f"{self.await_server(name)} ({server.variable})")
            else:
                self.environment[server.variable] = server.url.format(sockets=self.data.sockets)
                self.environment |= addresses(self.data) if name == "postgres" else {}
                self.kept[name] = Kept(partial(server.start, self.data, self.durable), self.data.log(name))
        if self.forks:
            os.environ.update(self.environment)
            for module in _LOADED:
                import_module(module)
            gc.freeze()
        for name in self.kept:
            self._ok(f"{self.await_server(name)} (embedded, unix socket)")

    def await_server(self, name: str) -> str:
        """Wait until a server answers; return which it is. One that the environment names must answer at once.

        :raises StackError: if it ends, or does not answer in time.
        """
        server, one = SERVERS[name], self.kept.get(name)
        deadline = time.monotonic() + _READY_WITHIN
        while True:
            try:
                return server.version(self.environment[server.variable])
            except (psycopg.Error, redis.RedisError, ValueError) as failure:
                if one is None:
                    reason = str(failure).strip().splitlines()[0]
                    raise StackError(f"The server that {server.variable} names can't be used: {reason}") from failure
                if not runs(one.child) or time.monotonic() > deadline:
                    raise StackError(f"{name} did not start ({one.log}):\n{last_lines(one.log)}") from failure
            time.sleep(0.02)

    def add(self, name: str, *argv: str, **more: str) -> None:
        """Start a Python program, and keep it running. `more` stands in its environment."""
        log = self.data.log(name)
        log.touch()  # for whoever reads it before the program has begun
        self.kept[name] = Kept(partial(self._launch, *argv, log=log, **more), log)

    def add_bundled(self, name: str, token: str, *script: str) -> None:
        """Keep a bundled MCP worker running, on any free port; it tells the hub which.

        :param script: what to run in place of the worker's own script.
        """
        key = self.data.worker_key_file.read_text(encoding="utf-8")
        argv = script or (str(BUNDLED_WORKERS[name]),)
        self.add(name, *argv, "--port", "0", GATEHOUSE_TOKEN=token, GATEHOUSE_WORKER_KEY=key)

    def run(self, *argv: str, **more: str) -> int:
        """Run a Python program that has the terminal, and restart what ends meanwhile; its exit code."""
        child = self._launch(*argv, log=None, **more)
        try:
            self.watch(until=lambda: exit_code(child) is not None)
        except KeyboardInterrupt:
            end_all([child])
            raise
        return exit_code(child) or 0

    def watch(self, until: Callable[[], bool] = lambda: False) -> None:
        """Start again what ends, each after its pause, until the condition holds."""
        while not until():
            now = time.monotonic()
            for name, one in self.kept.items():
                bound_log(one.log)
                if one.again_at is None and (code := exit_code(one.child)) is not None:
                    soon = now - one.started < _LONGEST_PAUSE
                    one.pause = min(2 * one.pause, _LONGEST_PAUSE) if soon else _SHORTEST_PAUSE
                    one.again_at = now + one.pause
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    self.tell(f"{name} ended ({how}), starting it again in {one.pause:.1f} s")
                elif one.again_at is not None and now >= one.again_at:
                    one.restart()
                    try:
                        self._write_stack_file()
                    except OSError as failure:  # a full disk
                        self.tell(f"What runs could not be noted: {failure}")
            time.sleep(0.1)

    def stop(self, *, patience: float = 15) -> None:
        """End everything: first what uses the servers, then the servers. Where another process runs the stack: nothing."""
        if self.data.lock is None:
            return
        self.data.stack_file.unlink(missing_ok=True)
        end_all([one.child for name, one in self.kept.items() if name not in SERVERS], patience=patience)
        # Also the children of a Celery worker that was killed before them.
        remaining = {*(one.child for one in self.kept.values()), *marked(self.data.mark)}
        end_all(remaining, sign=signal.SIGINT if self.durable else signal.SIGQUIT)
        if self._listener is not None:
            self._listener.close()
        shutil.rmtree(self.data.sockets, ignore_errors=True)

    def _launch(self, *argv: str, log: Path | None, **more: str) -> psutil.Process:
        env, loaded = self.environment | more, self.forks and _LOADED[0] in sys.modules
        return launch(sys.executable, *argv, env=env, log=log, loaded=loaded, lock=self.data.lock)

    def _wait_ready(self) -> None:
        """Wait until the product says that it is ready."""
        began = time.monotonic()
        while True:
            for name, one in self.kept.items():
                if not runs(one.child):
                    raise StackError(f"{name} ended ({one.log}):\n{last_lines(one.log)}")
            status, verdict = readiness(self.url)
            waited = time.monotonic() - began
            if status == HTTPStatus.OK and ('"degraded"' not in verdict or waited > _SETTLED_WITHIN):
                self._ok(" / ".join(name for name in self.kept if name not in SERVERS))
                return
            if waited > _READY_WITHIN:
                logs = self.data.path / "log"
                raise StackError(f"Not ready after {_READY_WITHIN:.0f} s, logs are in {logs}:\n{verdict}")
            time.sleep(0.25)

    def _write_stack_file(self) -> None:
        written = {
            **{
                name.lower(): self.environment[name]
                for name in (*LOGINS, "REDIS_URL", *KEYS)
                if name in self.environment
            },
            "url": self.url,
            "processes": {name: one.child.pid for name, one in self.kept.items()},
        }
        self.data.write(self.data.stack_file, written)

    def _ok(self, what: str) -> None:
        self.tell(f"[{time.monotonic() - self._began:4.1f}s] ok {what}")


def readiness(url: str) -> tuple[int, str]:
    """What ``/readyz`` answers: the status and the body; status 0 when there is no answer."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as failure:
        return 0, str(failure)
    finally:
        connection.close()


def listen(port: int | None, last: int | None) -> socket.socket:
    """The web's socket: at the port that was asked for, else at the last one, the default, or any that is free.

    :raises StackError: if there is none.
    """
    reason: str | None = None
    for wish in [last or DEFAULT_PORT, DEFAULT_PORT, 0] if port is None else [port]:
        try:
            listener = socket.create_server(("127.0.0.1", wish), backlog=512)
        except OSError as failure:
            reason = failure.strerror
        else:
            # Accepted connections inherit it; uvicorn does not set it on a socket that it is handed.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.set_inheritable(True)
            return listener
    raise StackError(f"Port {port} can't be had: {reason}. Leave --port out to have a free one found.")
