"""The product's own processes under load: the web as it is started everywhere, a worker, and clients of HTTP."""

import http.client
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import psutil

from apps.bench import load
from apps.bench.rows import Slice
from config.stack import programs
from config.stack.folders import DataFolder
from config.stack.processes import Program, end_children, last_lines, spawn
from config.stack.supervisor import listen, readiness

_PATIENCE: Final = 60.0
_MOMENT: Final = 0.5
_RESTING: Final = 0.05


class NotServed(Exception):
    """An answer that no measurement may count."""


@dataclass(slots=True)
class Processes:
    """Starts what a suite needs once, and ends it with the run."""

    data: DataFolder
    _stack: ExitStack = field(default_factory=ExitStack)
    _web: "Web | None" = None
    _worker: bool = False

    def web(self) -> "Web":
        """The web process, ready and at rest."""
        if self._web is None:
            listener = listen(None, None)
            self._stack.callback(listener.close)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            environment = {**_environment(), "GATEHOUSE_URL": url}
            child = self.start(programs.web(self.data, environment, fd=listener.fileno()))
            self._web = Web(url, child.pid)
            _await(lambda: readiness(url)[0] == HTTPStatus.OK, child, self.data)
            _await(self._web.rests, child, self.data)
        return self._web

    def worker(self) -> None:
        """The Celery worker that neither delivers nor executes, whose threads drive the ticks."""
        if not self._worker:
            self.start(programs.celery_workers(self.data, _environment())[0])
            self._worker = True

    def end(self) -> None:
        """End them; who asks again gets new ones."""
        self._stack.close()
        self._web, self._worker = None, False

    def start(self, program: Program) -> "subprocess.Popen[bytes]":
        """Start a program that ends with the run."""
        child = spawn(program)
        self._stack.callback(end_children, [child], program.farewell)
        return child


@dataclass(frozen=True, slots=True)
class Web:
    url: str
    pid: int

    def slices(self, asking: "Request | load.Work", *, clients: int, seconds: float) -> Callable[[], Slice]:
        """Clients with kept connections, one request after the other."""
        work = asking.against(self.url) if isinstance(asking, Request) else asking

        def measure() -> Slice:
            before = self.cpu()
            done = load.drive(work, clients=clients, seconds=seconds)
            return replace(done, cpu=self.cpu() - before)

        return measure

    def rests(self) -> bool:
        """Whether it does nothing for a moment: after its start it reads what it will need, which no request asked for."""
        before = self.cpu()
        time.sleep(_MOMENT)
        return self.cpu() - before < _MOMENT * _RESTING

    def cpu(self) -> float:
        """Seconds that the process and its children have used."""
        web = psutil.Process(self.pid)
        times = [process.cpu_times() for process in (web, *web.children(recursive=True))]
        return sum(used.user + used.system for used in times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the clients ask, as whom, and which answer counts."""

    method: str
    path: str
    token: str
    body: Callable[[int], Mapping[str, Any]] | None = None
    """By the client's number; called for each request."""
    status: int = 200

    def against(self, url: str) -> load.Work:
        def work(number: int) -> load.Operation:
            client = Client(url, self.token)

            def ask() -> int:
                body = None if self.body is None else self.body(number)
                client.ask(self.method, self.path, body, status=self.status)
                return 1

            return ask

        return work


class Client:
    """One who asks over a kept connection."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_PATIENCE)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, status: int = 200) -> Any:
        """What is answered, from JSON.

        :raises NotServed: if it is not answered with this status.
        """
        self.begin(method, path, body)
        return self.hear(status)

    def begin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Ask, and leave the answer for later."""
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)

    def is_answered(self) -> bool:
        """Whether there is something to hear of what was asked last."""
        return bool(select.select([self._connection.sock], [], [], 0)[0])

    def hear(self, *statuses: int) -> Any:
        """The answer to what was asked last, from JSON, as soon as it is there; None where it has no content.

        :raises NotServed: if its status is none of these.
        """
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status not in statuses:
            raise NotServed(f"{answer.status} {text[:500]!r}")
        return json.loads(text) if text else None


def _environment() -> dict[str, str]:
    """The product logs as it does everywhere; what this process says is another matter."""
    return {name: value for name, value in os.environ.items() if name != "GATEHOUSE_LOG_LEVEL"}


def _await(ready: Callable[[], bool], child: "subprocess.Popen[bytes]", data: DataFolder) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not ready():
        if child.poll() is not None or time.monotonic() > deadline:
            raise NotServed(f"The web did not start:\n{last_lines(data.log('web'))}")
        time.sleep(0.1)
