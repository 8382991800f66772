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
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import psycopg
import redis

from config.stack import loaded, programs
from config.stack.folders import DataFolder, RuntimeFolder, Secrets, servers_home, sweep_abandoned, write_private
from config.stack.processes import (
    MARK,
    POLITE,
    Child,
    Farewell,
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
from config.stack.provision import REFUSED
from config.stack.servers import Postgres, Valkey

DEFAULT_PORT = 8080

_READY_WITHIN = 120.0
# How long to wait, once it serves, for the first signs of life of beat and of the Celery workers.
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
class _Tended:
    """A program that is kept running; it is described anew at each start."""

    describe: Callable[[], Program]
    program: Program
    child: Child
    started: float
    failures: int = 0
    again_at: float | None = None

    def running(self) -> bool:
        return self.child.poll() is None


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Runs the stack of one data folder, which the caller has claimed."""

    data: DataFolder
    port: int | None = None
    with_workers: bool = True
    stopping: threading.Event = field(default_factory=threading.Event)
    farewell: Farewell = POLITE
    url: str = ""
    _secrets: Secrets
    _environment: dict[str, str] = field(default_factory=dict)
    _tended: dict[str, _Tended] = field(default_factory=dict)
    _runtime: RuntimeFolder | None = None
    # Held open, so that the address stays ours while the web process is away.
    _listener: socket.socket | None = None
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, data: DataFolder, *, port: int | None, with_workers: bool) -> "Supervisor":
        return cls(data=data, port=port, with_workers=with_workers, _secrets=data.secrets())

    def start(self) -> None:
        """Bring everything up and return when it is ready; whatever happens, `stop` ends what was started.

        :raises StackError: if something does not start.
        """
        end_leftovers(self.data)
        self._listener = listen(self.port, self.data.last_port())
        port = self._listener.getsockname()[1]
        self.data.keep_port(port)
        self.url = f"http://127.0.0.1:{port}"
        self._environment = {
            **os.environ,
            MARK: self.data.mark,
            "GATEHOUSE_DATA": str(self.data.path),
            "GATEHOUSE_URL": self.url,
            "GATEHOUSE_SECRET_KEY": os.environ.get("GATEHOUSE_SECRET_KEY") or self._secrets.secret_key,
            "GATEHOUSE_LEASE_KEYS": os.environ.get("GATEHOUSE_LEASE_KEYS") or self._secrets.lease_keys,
            "GATEHOUSE_SEALING_KEYS": os.environ.get("GATEHOUSE_SEALING_KEYS") or self._secrets.sealing_keys,
            "PROMETHEUS_MULTIPROC_DIR": str(self.data.metrics_folder()),
            "PYTHONUNBUFFERED": "1",
        }
        self._start_servers()
        self._write_stack_file(ready=False)
        tokens = self._provision()
        self._start_processes(self._listener.fileno(), tokens)
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
        """Tend the programs until the condition holds or a signal asks to stop."""
        while not self.stopping.is_set() and not until():
            self._tend()
            time.sleep(0.1)

    def stop(self) -> None:
        """End everything: first what uses the servers, then the servers."""
        self.data.stack_file.unlink(missing_ok=True)
        servers = [self._tended.pop(name) for name in ("valkey", "postgres") if name in self._tended]
        end_children([one.child for one in self._tended.values()], self.farewell)
        for server in servers:
            end_children([server.child], server.program.farewell)
        # A worker's own children, should it have been killed before them.
        end_leftovers(self.data)
        if self._listener is not None:
            self._listener.close()
        if self._runtime is not None:
            self._runtime.remove()

    # Bringing up

    def _start_servers(self) -> None:
        account = server_account()
        sweep_abandoned(account)
        servers: list[Postgres | Valkey] = []
        for variable, kind in (("DATABASE_URL", Postgres), ("REDIS_URL", Valkey)):
            if os.environ.get(variable):
                _reach(variable, os.environ[variable])
                self._ok(f"the server that {variable} names")
                continue
            self._runtime = self._runtime or RuntimeFolder(account)
            server = kind(
                home=servers_home(self.data.path, account),
                sockets=self._runtime.folder("sockets"),
                log=self.data.log(kind.__name__.lower()),
                mark=self.data.mark,
                account=account,
            )
            self._environment[variable] = server.url
            self._launch(server.program)
            servers.append(server)
        if sys.platform == "linux":
            loaded.load(self._environment)
        for server in servers:
            self._ok(server.wait_ready(self._tended[type(server).__name__.lower()].running))

    def _provision(self) -> dict[str, str]:
        """Migrate and issue what is missing; returns the tokens by name."""
        if not self.data.password_file.exists():
            write_private(self.data.password_file, secrets.token_urlsafe(12) + "\n")
        # Tokens are facts of a database: another database, other tokens.
        database = os.environ.get("DATABASE_URL", "embedded")
        tokens = self._secrets.tokens.setdefault(hashlib.sha256(database.encode()).hexdigest()[:12], {})
        scripts = programs.bundled_worker_scripts() if self.with_workers else []
        wanted = {name: how for name, how in programs.wanted_tokens(scripts).items() if name not in tokens}
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answer:
            given.write(json.dumps(wanted).encode())
            given.seek(0)
            log = self.data.log("provision")
            with log.open("wb") as errors:
                program = programs.provision(
                    self.data, self._environment, streams=(given.fileno(), answer.fileno(), errors.fileno())
                )
                code = start_program(program).wait()
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

    def _start_processes(self, listener: int, tokens: dict[str, str]) -> None:
        self._keep(programs.web(self.data, self._environment, fd=listener))
        for worker in programs.celery_workers(self.data, self._environment):
            self._keep(worker)
        self._keep(programs.beat(self.data, self._environment))
        if self.with_workers:
            for script in programs.bundled_worker_scripts():
                token = tokens[programs.worker_name(script)]
                self._keep(programs.bundled_worker(script, self.data, self._environment, token=token))
        self._write_stack_file(ready=False)

    def _wait_ready(self) -> None:
        """Wait until the product says that it is ready, and everything it stands on runs."""
        deadline = time.monotonic() + _READY_WITHIN
        verdict = ""
        while not self.stopping.is_set():
            self._tend()
            failing = next((one.program for one in self._tended.values() if one.failures >= _ENOUGH_FAILURES), None)
            if failing is not None:
                raise StackError(f"{failing.name} keeps ending ({failing.log}):\n{last_lines(failing.log)}")
            status, verdict = readiness(self.url)
            settled = '"degraded"' not in verdict or time.monotonic() > deadline - _READY_WITHIN + _SETTLED_WITHIN
            if status == HTTPStatus.OK and settled and self._all_running() and self._workers_registered():
                names = [name for name in self._tended if name not in {"postgres", "valkey"}]
                self._ok(" / ".join(names))
                return
            if time.monotonic() > deadline:
                raise StackError(
                    f"Not ready after {_READY_WITHIN:.0f} s, logs are in {self.data.path / 'log'}:\n{verdict}"
                )
            time.sleep(0.25)

    def _all_running(self) -> bool:
        return all(one.running() for one in self._tended.values())

    def _workers_registered(self) -> bool:
        """Whether the hub lists the bundled workers, which register themselves a moment after they start."""
        if not self.with_workers:
            return True
        token = self.data.token_file.read_text(encoding="utf-8").strip()
        status, body = ask(f"{self.url}/api/v1/workers", token=token)
        names = map(programs.worker_name, programs.bundled_worker_scripts())
        return status != HTTPStatus.OK or all(f'"{name}"' in body for name in names)

    def _write_stack_file(self, *, ready: bool) -> None:
        environment = self._environment
        written = {
            "database_url": environment["DATABASE_URL"],
            "redis_url": environment["REDIS_URL"],
            "gatehouse_secret_key": environment["GATEHOUSE_SECRET_KEY"],
            "gatehouse_lease_keys": environment["GATEHOUSE_LEASE_KEYS"],
            "gatehouse_sealing_keys": environment["GATEHOUSE_SEALING_KEYS"],
            "url": self.url,
            "ready": ready,
            "with_workers": self.with_workers,
            "processes": {name: one.child.pid for name, one in self._tended.items()},
        }
        write_private(self.data.stack_file, json.dumps(written, indent=2))

    def _ok(self, what: str) -> None:
        say(f"[{time.monotonic() - self._began:4.1f}s] ok {what}")

    # Keeping up

    def _keep(self, program: Program) -> None:
        self._launch(lambda: program)

    def _launch(self, describe: Callable[[], Program]) -> None:
        program = describe()
        self._tended[program.name] = _Tended(describe, program, start_program(program), time.monotonic())

    def _tend(self) -> None:
        """Notice what ended, and start it again when its pause is over."""
        now = time.monotonic()
        changed = False
        for one in self._tended.values():
            bound_log(one.program.log)
            if one.again_at is None and not one.running():
                steady = now - one.started > _STEADY_AFTER
                one.failures = 1 if steady else one.failures + 1
                pause = min(0.25 * 2**one.failures, _LONGEST_BACKOFF)
                one.again_at = now + pause
                say(f"{one.program.name} ended ({_how(one.child.returncode)}), starting it again in {pause:.1f} s")
            elif one.again_at is not None and now >= one.again_at:
                one.program = one.describe()
                one.child, one.started, one.again_at = start_program(one.program), now, None
                changed = True
        if changed and self.data.stack().get("ready"):
            self._write_stack_file(ready=True)


def start_program(program: Program) -> Child:
    """Fork what is Python, where the product is loaded; execute all else."""
    forks = loaded.ready() and program.argv[0] == sys.executable
    return loaded.fork(program) if forks else spawn(program)


def end_leftovers(data: DataFolder) -> None:
    """End what an earlier supervisor of this folder left running when it was killed."""
    end_all(marked(data.mark), _LEFTOVERS)


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
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it; uvicorn does not set it on a socket that it is handed.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            listener.bind(("127.0.0.1", wish))
            listener.listen(512)
        except OSError as failure:
            listener.close()
            if failure.errno not in {errno.EADDRINUSE, errno.EACCES}:
                raise
        else:
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


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
