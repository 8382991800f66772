"""The supervisor: starts everything in order, brings back what ends, and ends everything in order."""

import errno
import hashlib
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import psutil
import psycopg
import redis

from config.stack import loaded, programs
from config.stack.folders import DataFolder, RuntimeFolder, Secrets, servers_home, sweep_abandoned, write_private
from config.stack.processes import (
    MARK,
    POLITE,
    Farewell,
    Program,
    StackError,
    bound_log,
    end_all,
    exit_code,
    last_lines,
    marked,
    server_account,
    spawn,
)
from config.stack.provision import REFUSED
from config.stack.servers import EMBEDDED, Postgres, Valkey

DEFAULT_PORT = 8080

_READY_WITHIN = 120.0
# How long to wait, once it serves, for the first heartbeats of beat and of the Celery workers.
_SETTLED_WITHIN = 30.0
_LONGEST_BACKOFF = 30.0
_STEADY_AFTER = 30.0
_ENOUGH_FAILURES = 4
# SIGINT asks a database for its fast shutdown, a broker to save, and a Python process to end.
_LEFTOVERS: Farewell = ((signal.SIGINT, 10), (signal.SIGTERM, 5), (signal.SIGKILL, 5))


def say(line: str) -> None:
    """Tell the person at the terminal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Kept:
    """A program that is kept running. It is described anew at each start."""

    describe: Callable[[], Program]
    program: Program
    child: psutil.Process
    started: float
    failures: int = 0
    again_at: float | None = None

    def running(self) -> bool:
        return exit_code(self.child) is None


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Runs the stack of one data folder, which the caller has claimed."""

    data: DataFolder
    port: int | None = None
    with_workers: bool = True
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """What its processes inherit. It may name servers to use instead of embedded ones."""
    mark: str = ""
    wanted: dict[str, list[str]] = field(default_factory=dict)
    """Tokens to issue besides those of every stack, by name, each as the arguments of ``issue_token``."""
    tokens: dict[str, str] = field(default_factory=dict)
    forks: bool = sys.platform == "linux"
    """Whether the product is loaded here once, and its processes are forked."""
    tell: Callable[[str], None] = say
    stopping: threading.Event = field(default_factory=threading.Event)
    farewell: Farewell = POLITE
    url: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    servers: dict[str, Postgres | Valkey] = field(default_factory=dict)
    _secrets: Secrets = field(init=False)
    _runtime: RuntimeFolder | None = None
    # Held open, so that the address stays ours while the web process is away.
    _listener: socket.socket | None = None
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._secrets = self.data.secrets()
        self.mark = self.mark or self.data.mark

    def start(self) -> None:
        """Bring everything up, and return when it is ready. `stop` ends what was started.

        :raises StackError: if something does not start.
        """
        end_leftovers(self.mark)
        self._listener = listen(self.port, self._secrets.port)
        self._secrets.port = self._listener.getsockname()[1]
        self._secrets.save()
        self.url = f"http://127.0.0.1:{self._secrets.port}"
        keys = {f"GATEHOUSE_{name.upper()}": getattr(self._secrets, name) for name in Secrets.MADE}
        self.environment = {
            **self.environ,
            **{name: self.environ.get(name) or key for name, key in keys.items()},
            MARK: self.mark,
            "GATEHOUSE_DATA": str(self.data.path),
            "GATEHOUSE_URL": self.url,
            "PROMETHEUS_MULTIPROC_DIR": str(self.data.metrics_folder()),
            "PYTHONUNBUFFERED": "1",
        }
        self._start_servers()
        self._write_stack_file(ready=False)
        self.tokens = self._provision()
        self._start_processes(self._listener.fileno())
        self._wait_ready()
        self._write_stack_file(ready=True)

    def password(self) -> str | None:
        """The operator's password, once."""
        if self._secrets.password_shown:
            return None
        self._secrets.password_shown = True
        self._secrets.save()
        return self.data.password_file.read_text(encoding="utf-8").strip()

    def run(self, until: Callable[[], bool]) -> None:
        """Restart what ends, until the condition holds or a signal asks to stop."""
        while not self.stopping.is_set() and not until():
            self._restart_ended()
            time.sleep(0.1)

    def stop(self) -> None:
        """End everything: first what uses the servers, then the servers."""
        self.data.stack_file.unlink(missing_ok=True)
        servers = [self.kept.pop(name) for name in ("valkey", "postgres") if name in self.kept]
        end_all([one.child for one in self.kept.values()], self.farewell)
        for server in servers:
            end_all([server.child], server.program.farewell)
        # The children of a Celery worker that was killed before them.
        end_leftovers(self.mark)
        if self._listener is not None:
            self._listener.close()
        if self._runtime is not None:
            self._runtime.remove()

    def launch(self, program: Program) -> psutil.Process:
        """Start a program: fork what is Python where the product is loaded, execute all else."""
        forks = self.forks and program.argv[0] == sys.executable
        return loaded.fork(program) if forks else spawn(program)

    def keep(self, describe: Callable[[], Program]) -> None:
        """Start a program and keep it running."""
        program = describe()
        self.kept[program.name] = Kept(describe, program, self.launch(program), time.monotonic())

    def add(self, program: Program) -> None:
        """Start a program, the same at each start, and keep it running."""
        self.keep(lambda: program)

    def restart(self, name: str) -> None:
        """Start a program again that has ended."""
        one = self.kept[name]
        one.program = one.describe()
        one.child, one.started, one.again_at = self.launch(one.program), time.monotonic(), None

    def await_server(self, name: str) -> str:
        """Wait until an embedded server answers; return what to call it.

        :raises StackError: if it ends, or does not answer in time.
        """
        return self.servers[name].wait_ready(self.kept[name].running)

    # Starting

    def _start_servers(self) -> None:
        account = server_account()
        sweep_abandoned(account)
        for variable, kind in EMBEDDED.items():
            if self.environ.get(variable):
                _reach(variable, self.environ[variable])
                self._ok(f"the server that {variable} names")
                continue
            self._runtime = self._runtime or RuntimeFolder(account)
            server = kind(
                home=servers_home(self.data.path, account),
                sockets=self._runtime.folder("sockets"),
                log=self.data.log(kind.name),
                mark=self.mark,
                account=account,
            )
            self.environment[variable] = server.url
            self.keep(server.program)
            self.servers[kind.name] = server
        if self.forks:
            loaded.load(self.environment)
        for name in self.servers:
            self._ok(self.await_server(name))

    def _provision(self) -> dict[str, str]:
        """Migrate and issue what is missing; returns the tokens by name."""
        if not self.data.password_file.exists():
            write_private(self.data.password_file, secrets.token_urlsafe(12) + "\n")
        # Tokens are facts of a database: another database, other tokens.
        database = self.environ.get("DATABASE_URL", "embedded")
        tokens = self._secrets.tokens.setdefault(hashlib.sha256(database.encode()).hexdigest()[:12], {})
        scripts = programs.bundled_worker_scripts() if self.with_workers else []
        wanted = programs.wanted_tokens(scripts) | self.wanted
        log = self.data.log("provision")
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answer, log.open("wb") as errors:
            given.write(json.dumps({name: how for name, how in wanted.items() if name not in tokens}).encode())
            given.seek(0)
            streams = (given.fileno(), answer.fileno(), errors.fileno())
            code = self.launch(programs.provision(self.data, self.environment, streams=streams)).wait()
            if code == REFUSED:
                raise StackError(log.read_text().strip().splitlines()[-1])
            if code:
                raise StackError(f"The database could not be brought up to date:\n{last_lines(log)}")
            answer.seek(0)
            outcome = json.load(answer)
        tokens.update(outcome["tokens"])
        self._secrets.save()
        write_private(self.data.token_file, tokens["agent"] + "\n")
        self._ok(f"{outcome['migrations']} migrations")
        return tokens

    def _start_processes(self, listener: int) -> None:
        started = [
            programs.web(self.data, self.environment, fd=listener),
            *programs.celery_workers(self.data, self.environment),
            programs.beat(self.data, self.environment),
        ]
        for script in programs.bundled_worker_scripts() if self.with_workers else ():
            token = self.tokens[programs.worker_name(script)]
            started.append(programs.bundled_worker(script, self.data, self.environment, token=token))
        for program in started:
            self.add(program)
        self._write_stack_file(ready=False)

    def _wait_ready(self) -> None:
        """Wait until the product says that it is ready, and everything runs that it needs."""
        deadline = time.monotonic() + _READY_WITHIN
        while not self.stopping.is_set():
            self._restart_ended()
            failing = next((one.program for one in self.kept.values() if one.failures >= _ENOUGH_FAILURES), None)
            if failing is not None:
                raise StackError(f"{failing.name} keeps ending ({failing.log}):\n{last_lines(failing.log)}")
            status, verdict = readiness(self.url)
            settled = '"degraded"' not in verdict or time.monotonic() > deadline - _READY_WITHIN + _SETTLED_WITHIN
            running = all(one.running() for one in self.kept.values())
            if status == HTTPStatus.OK and settled and running and self._workers_registered():
                self._ok(" / ".join(name for name in self.kept if name not in self.servers))
                return
            if time.monotonic() > deadline:
                raise StackError(
                    f"Not ready after {_READY_WITHIN:.0f} s, logs are in {self.data.path / 'log'}:\n{verdict}"
                )
            time.sleep(0.25)

    def _workers_registered(self) -> bool:
        """Whether the hub lists the bundled workers, which register themselves a moment after they start."""
        if not self.with_workers:
            return True
        token = self.data.token_file.read_text(encoding="utf-8").strip()
        status, body = ask(f"{self.url}/api/v1/workers", token=token)
        names = map(programs.worker_name, programs.bundled_worker_scripts())
        return status != HTTPStatus.OK or all(f'"{name}"' in body for name in names)

    def _write_stack_file(self, *, ready: bool) -> None:
        shared = ("DATABASE_URL", "REDIS_URL", *(f"GATEHOUSE_{name.upper()}" for name in Secrets.MADE))
        written = {
            **{name.lower(): self.environment[name] for name in shared},
            "url": self.url,
            "ready": ready,
            "with_workers": self.with_workers,
            "processes": {name: one.child.pid for name, one in self.kept.items()},
        }
        write_private(self.data.stack_file, json.dumps(written, indent=2))

    def _ok(self, what: str) -> None:
        self.tell(f"[{time.monotonic() - self._began:4.1f}s] ok {what}")

    def _restart_ended(self) -> None:
        """Notice what ended, and start it again when its pause is over."""
        now = time.monotonic()
        changed = False
        for name, one in self.kept.items():
            bound_log(one.program.log)
            if one.again_at is None and not one.running():
                steady = now - one.started > _STEADY_AFTER
                one.failures = 1 if steady else one.failures + 1
                pause = min(0.25 * 2**one.failures, _LONGEST_BACKOFF)
                one.again_at = now + pause
                self.tell(f"{name} ended ({_how(exit_code(one.child))}), starting it again in {pause:.1f} s")
            elif one.again_at is not None and now >= one.again_at:
                self.restart(name)
                changed = True
        if changed and self.data.stack().get("ready"):
            self._write_stack_file(ready=True)


def end_leftovers(mark: str) -> None:
    """End what an earlier supervisor left running when it was killed."""
    end_all(marked(mark), _LEFTOVERS)


def readiness(url: str) -> tuple[int, str]:
    """What ``/readyz`` answers: the status and the body; status 0 when there is no answer."""
    return ask(f"{url}/readyz")


def ask(url: str, *, token: str | None = None) -> tuple[int, str]:
    """GET from the product, on our own loopback address whatever proxies the environment names."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode(errors="replace")
    except OSError as failure:
        return 0, str(failure)


def listen(port: int | None, last: int | None) -> socket.socket:
    """The web's socket: at the port that was asked for, else at the last one, the default, or any that is free.

    :raises StackError: if the port that was asked for is taken.
    """
    wishes = [last or DEFAULT_PORT, DEFAULT_PORT, 0] if port is None else [port]
    for wish in wishes:
        try:
            listener = socket.create_server(("127.0.0.1", wish), backlog=512)
        except OSError as failure:
            if failure.errno not in {errno.EADDRINUSE, errno.EACCES}:
                raise
        else:
            # Accepted connections inherit it; uvicorn does not set it on a socket that it is handed.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return listener
    raise StackError(f"Port {port} is taken; leave --port out to have a free one found.")


def _reach(variable: str, url: str) -> None:
    """
    :raises StackError: if no server answers at this address.
    """
    try:
        if variable == "REDIS_URL":
            with redis.Redis.from_url(url, socket_connect_timeout=5, socket_timeout=5) as client:
                client.ping()
        else:
            psycopg.connect(url, connect_timeout=5).close()
    except (redis.RedisError, psycopg.Error, ValueError) as failure:
        reason = str(failure).strip().splitlines()[0]
        raise StackError(f"The server that {variable} names can't be used: {reason}") from failure


def _how(code: int | None) -> str:
    return f"signal {-code}" if code and code < 0 else f"exit code {code}"
