"""The product's own processes under load, and clients of its HTTP."""

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import psutil
from django.conf import settings

from benchmarks import load
from benchmarks.report import Slice
from config.stack import programs
from config.stack.folders import DataFolder
from config.stack.processes import Program, end_children, last_lines, spawn
from config.stack.supervisor import listen, readiness

PATIENCE: Final = 60.0
_AT_REST: Final = 0.05


class NotServed(Exception):
    """An answer that no measurement may count."""


@dataclass(slots=True)
class Processes:
    """Starts what a suite needs once, and ends it with the run."""

    data: DataFolder
    _stack: ExitStack = field(default_factory=ExitStack)
    _web: "Web | None" = None
    _celery: bool = False

    def web(self) -> "Web":
        """The web process, ready and at rest."""
        if self._web is None:
            listener = listen(None, None)
            self._stack.callback(listener.close)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            # Every process of the product logs as it does everywhere.
            environ = {name: text for name, text in os.environ.items() if name != "GATEHOUSE_LOG_LEVEL"}
            child = self.start(programs.web(self.data, {**environ, "GATEHOUSE_URL": url}, fd=listener.fileno()))
            deadline = time.monotonic() + PATIENCE
            while readiness(url)[0] != HTTPStatus.OK or not _is_at_rest(child.pid):
                if child.poll() is not None or time.monotonic() > deadline:
                    raise NotServed(f"The web did not start:\n{last_lines(self.data.log('web'))}")
            self._web = Web(url)
        return self._web

    def celery(self) -> None:
        """The Celery workers of the product: they sweep, flush and execute."""
        if not self._celery:
            for program in programs.celery_workers(self.data, os.environ):
                self.start(program)
            self._celery = True

    def python(self, name: str, *argv: str, **environ: str) -> "subprocess.Popen[bytes]":
        """Start another Python program that ends with the run."""
        argv = (sys.executable, *argv)
        env = {**os.environ, **environ}
        return self.start(Program(name=name, argv=argv, env=env, cwd=settings.BASE_DIR, log=self.data.log(name)))

    def start(self, program: Program) -> "subprocess.Popen[bytes]":
        """Start a program that ends with the run."""
        child = spawn(program)
        self._stack.callback(end_children, [child], program.farewell)
        return child

    def end(self) -> None:
        """End all of them."""
        self._stack.close()
        self._web, self._celery = None, False


@dataclass(frozen=True, slots=True)
class Web:
    """The web process: where it is, and how it is asked."""

    url: str

    def slices(self, work: load.Work, *, clients: int, seconds: float) -> Callable[[], Slice]:
        """Clients with kept connections, one request after the other."""
        return partial(load.drive, work, clients=clients, seconds=seconds)

    def asking(self, method: str, path: str, token: str, body: Callable[[], Any] | None = None) -> load.Work:
        """The same request again and again, with a new body each time."""

        def work(_number: int) -> load.Operation:
            client = Client(self.url, token)

            def ask() -> int:
                client.ask(method, path, None if body is None else body())
                return 1

            return ask

        return work


class Client:
    """One who asks over a kept connection."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON that is answered; None for an answer without content.

        :raises NotServed: if the answer is no success.
        """
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise NotServed(f"{method} {path} was answered {answer.status} {text[:500]!r}")
        return json.loads(text) if text else None


def _is_at_rest(pid: int) -> bool:
    """Whether the process does nothing: after its start it reads what it will need."""
    process = psutil.Process(pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(0.5)
    return sum(process.cpu_times()[:2]) - before < 0.5 * _AT_REST
