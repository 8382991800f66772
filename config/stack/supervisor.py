"""The supervisor: starts everything in order, brings back what ends, and ends everything in order."""

import json
import os
import secrets
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path

import psutil
import psycopg
import redis

from config.stack import loaded, programs
from config.stack.folders import KEYS, DataFolder, data_of_a_run, write_private
from config.stack.processes import (
    MARK,
    Program,
    StackError,
    bound_log,
    end_all,
    exit_code,
    last_lines,
    marked,
    spawn,
)
from config.stack.servers import Postgres, Valkey

DEFAULT_PORT = 8080
_READY_WITHIN = 120.0
# How long to wait, once it serves, for the first heartbeats of beat and of the Celery workers.
_SETTLED_WITHIN = 30.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
say: Callable[[str], None] = partial(print, flush=True)


@dataclass(slots=True)
class Kept:
    """A program that is kept running."""

    start: Callable[[], psutil.Process]
    log: Path
    child: psutil.Process
    started: float
    pause: float = _SHORTEST_PAUSE
    """Before it is started again: doubled each time that it ends soon."""
    again_at: float | None = None

    def running(self) -> bool:
        return exit_code(self.child) is None


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Runs the stack of one data folder, which the caller has claimed."""

    data: DataFolder
    port: int | None = None
    web: int = 1
    """How many web processes."""
    with_workers: bool = True
    durable: bool = True
    """Whether PostgreSQL waits for the disk at each commit."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """What its processes inherit. It may name servers to use instead of embedded ones."""
    wanted: dict[str, list[str]] = field(default_factory=dict)
    """Tokens to issue besides those of every stack, by name, each as the arguments of ``issue_token``."""
    tokens: dict[str, str] = field(default_factory=dict)
    forks: bool = sys.platform == "linux"
    """Whether the product is loaded here once, and its processes are forked."""
    tell: Callable[[str], None] = say
    url: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    servers: dict[str, Postgres | Valkey] = field(default_factory=dict)
    # Held open, so that the address stays ours while a web process is away.
    _listener: socket.socket | None = None
    _began: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Bring everything up, and return when it is ready. `stop` ends what was started.

        :raises StackError: if something does not start.
        """
        kept = self.data.secrets()
        self._listener = listen(self.port, kept.get("port"))
        port = self._listener.getsockname()[1]
        self.data.keep_secrets(kept | {"port": port})
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            **self.environ,
            **{name: self.environ.get(name) or kept[name] for name in KEYS},
            MARK: self.data.mark,
            "GATEHOUSE_DATA": str(self.data.path),
            "GATEHOUSE_URL": self.url,
            "PROMETHEUS_MULTIPROC_DIR": str(self.data.path / "metrics"),
            "PYTHONUNBUFFERED": "1",
        }
        self.start_servers()
        scripts = programs.bundled_worker_scripts() if self.with_workers else []
        self._provision(programs.wanted_tokens(scripts) | self.wanted)
        web = programs.web(self.data, self.environment, fd=self._listener.fileno(), count=self.web)
        for program in web + programs.celery_workers(self.data, self.environment):
            self.add(program)
        self.add(programs.beat(self.data, self.environment))
        for script in scripts:
            token = self.tokens[programs.worker_name(script)]
            self.add(programs.bundled_worker(script, self.data, self.environment, token=token))
        self._wait_ready()
        self._write_stack_file()

    def start_servers(self) -> None:
        """Start the servers that the environment does not name, and wait until all answer.

        :raises StackError: if one does not.
        """
        self.data.prepare()
        for kind in (Postgres, Valkey):
            if self.environ.get(kind.variable):
                self._ok(f"{self.await_server(kind)} ({kind.variable})")
            else:
                server = self.servers[kind.name] = kind(data=self.data, durable=self.durable)
                self.environment[kind.variable] = server.url
        for name, server in self.servers.items():
            self._keep(name, server.start)
        if self.forks:
            loaded.load(self.environment)
        for server in self.servers.values():
            self._ok(f"{self.await_server(server)} (embedded, unix socket)")

    def run(self, until: Callable[[], bool]) -> None:
        """Restart what ends, until the condition holds."""
        while not until():
            self._restart_ended()
            time.sleep(0.1)

    def stop(self, *, sign: signal.Signals = signal.SIGINT, patience: float = 15) -> None:
        """End everything: first what uses the servers, then the servers."""
        self.data.stack_file.unlink(missing_ok=True)
        children = {name: one.child for name, one in self.kept.items()}
        end_all([child for name, child in children.items() if name not in self.servers], patience=patience)
        end_all([child for name, child in children.items() if name in self.servers], sign=sign)
        # The children of a Celery worker that was killed before them.
        end_all(marked(self.data.mark))
        if self._listener is not None:
            self._listener.close()
        shutil.rmtree(self.data.sockets, ignore_errors=True)

    def launch(self, program: Program) -> psutil.Process:
        """Start a program: fork what is Python where the product is loaded, execute all else."""
        forks = self.forks and program.argv[0] == sys.executable
        return loaded.fork(program, locked=self.data.lock) if forks else spawn(program)

    def add(self, program: Program) -> None:
        """Start a program and keep it running."""
        self._keep(program.name, partial(self.launch, program))

    def _keep(self, name: str, start: Callable[[], psutil.Process]) -> None:
        self.kept[name] = Kept(start, self.data.log(name), start(), time.monotonic())

    def restart(self, name: str) -> None:
        """Start a program again that has ended."""
        one = self.kept[name]
        one.child, one.started, one.again_at = one.start(), time.monotonic(), None

    def await_server(self, server: Postgres | Valkey | type[Postgres | Valkey]) -> str:
        """Wait until a server answers; return which it is. One that the environment names must answer at once.

        :raises StackError: if it ends, or does not answer in time.
        """
        one = self.kept.get(server.name)
        deadline = time.monotonic() + _READY_WITHIN
        while True:
            try:
                return server.version(self.environment[server.variable])
            except (psycopg.Error, redis.RedisError, ValueError) as failure:
                if one is None:
                    reason = str(failure).strip().splitlines()[0]
                    raise StackError(f"The server that {server.variable} names can't be used: {reason}") from failure
                if not one.running() or time.monotonic() > deadline:
                    raise StackError(f"{server.name} did not start ({one.log}):\n{last_lines(one.log)}") from failure
            time.sleep(0.02)

    def _provision(self, wanted: dict[str, list[str]]) -> None:
        """Migrate and issue what is missing."""
        program = programs.provision(self.data, self.environment, wanted)
        if self.launch(program).wait():
            log = self.data.log(program.name)
            raise StackError(f"The database could not be prepared ({log}):\n{last_lines(log, 1).strip()}")
        self.tokens = self.data.secrets()["tokens"][self.environment["DATABASE_URL"]]
        self._ok("migrations")

    def _wait_ready(self) -> None:
        """Wait until the product says that it is ready."""
        began = time.monotonic()
        while True:
            for name, one in self.kept.items():
                if not one.running():
                    raise StackError(f"{name} ended ({one.log}):\n{last_lines(one.log)}")
            status, verdict = readiness(self.url)
            waited = time.monotonic() - began
            settled = '"degraded"' not in verdict or waited > _SETTLED_WITHIN
            if status == HTTPStatus.OK and settled:
                self._ok(" / ".join(name for name in self.kept if name not in self.servers))
                return
            if waited > _READY_WITHIN:
                logs = self.data.path / "log"
                raise StackError(f"Not ready after {_READY_WITHIN:.0f} s, logs are in {logs}:\n{verdict}")
            time.sleep(0.25)

    def _write_stack_file(self) -> None:
        written = {
            **{name.lower(): self.environment[name] for name in ("DATABASE_URL", "REDIS_URL", *KEYS)},
            "url": self.url,
            "with_workers": self.with_workers,
            "processes": {name: one.child.pid for name, one in self.kept.items()},
        }
        write_private(self.data.stack_file, json.dumps(written, indent=2))

    def _ok(self, what: str) -> None:
        self.tell(f"[{time.monotonic() - self._began:4.1f}s] ok {what}")

    def _restart_ended(self) -> None:
        """Notice what ended, and start it again when its pause is over."""
        now = time.monotonic()
        for name, one in self.kept.items():
            bound_log(one.log)
            if one.again_at is None and not one.running():
                soon = now - one.started < _LONGEST_PAUSE
                one.pause = min(2 * one.pause, _LONGEST_PAUSE) if soon else _SHORTEST_PAUSE
                one.again_at = now + one.pause
                code = exit_code(one.child)
                how = f"signal {-code}" if code and code < 0 else f"exit code {code}"
                self.tell(f"{name} ended ({how}), starting it again in {one.pause:.1f} s")
            elif one.again_at is not None and now >= one.again_at:
                self.restart(name)
                self._write_stack_file()


def start_servers(environ: MutableMapping[str, str], *, durable: bool = False) -> Callable[[], None]:
    """Start servers for a test run or a measurement; they end with this process, even when it is killed.

    Servers that the environment names are used as they are. The environment gets the addresses of the others.

    :returns: what ends the servers.
    """
    data = data_of_a_run()
    supervisor = Supervisor(
        data=data, environ=environ, environment=dict(environ), durable=durable, forks=False, tell=lambda _line: None
    )

    def stop() -> None:
        supervisor.stop(sign=signal.SIGINT if durable else signal.SIGQUIT)
        data.clear()
        data.release()

    try:
        supervisor.start_servers()
    except BaseException:
        stop()
        raise
    environ.update(supervisor.environment | {"GATEHOUSE_DATA": str(data.path)})
    # The same in every process of the run, so that a token of one is good in another.
    for name in KEYS:
        environ.setdefault(name, secrets.token_urlsafe(48))
    return stop


def readiness(url: str) -> tuple[int, str]:
    """What ``/readyz`` answers: the status and the body; status 0 when there is no answer."""
    # The address is our own, whatever proxies the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/readyz", timeout=5) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode(errors="replace")
    except OSError as failure:
        return 0, str(failure)


def listen(port: int | None, last: int | None) -> socket.socket:
    """The web's socket: at the port that was asked for, else at the last one, the default, or any that is free.

    :raises StackError: if there is none.
    """
    for wish in [last or DEFAULT_PORT, DEFAULT_PORT, 0] if port is None else [port]:
        with suppress(OSError):
            listener = socket.create_server(("127.0.0.1", wish), backlog=512)
            # Accepted connections inherit it; uvicorn does not set it on a socket that it is handed.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return listener
    raise StackError(f"Port {port} is taken; leave --port out to have a free one found.")
