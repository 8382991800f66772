"""What a suite is handed: how much to do, who acts, the processes of the product, and clients of its HTTP."""

import http.client
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil
import psycopg
from django.conf import settings

from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller
from benchmarks.measure import ClientFailed, Measure, Operation, Row, Work, drive
from config.stack.processes import last_lines, runs
from config.stack.supervisor import CELERY_WORKERS, WEB, Supervisor, listen, readiness
from tests.factories import make_caller, make_tenant, make_token
from tests.waiters import until

SOURCE: Final = "bench"
AGENTS: Final = 64
PATIENCE: Final = 60.0
_AT_REST: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much a run does: turns and their seconds, and how many memories and tools there are at most."""

    rounds: int
    seconds: float
    memories: int
    tools: int
    clients: int = 8


# The figures of a tiny run mean nothing; it shows that a suite works.
SCALES: Final = {
    "tiny": Scale(rounds=1, seconds=0.2, memories=200, tools=100, clients=2),
    "quick": Scale(rounds=3, seconds=0.5, memories=10_000, tools=10_000),
    "full": Scale(rounds=5, seconds=4, memories=100_000, tools=100_000),
}


@dataclass(slots=True, kw_only=True)
class Bench:
    """The run that a suite is a part of. One tenant, a service that posts, and agents that read."""

    servers: Supervisor
    scale: Scale
    file: Path | None
    poster: Caller
    agents: list[Caller]
    tokens: list[str]
    """The agents' tokens: each may do everything that an agent may, and post as the source."""
    machine: dict[str, Any]
    _webs: dict[int, tuple[str, list[psutil.Process]]] = field(default_factory=dict)

    @classmethod
    def begin(cls, servers: Supervisor, scale: Scale, file: Path | None) -> "Bench":
        """Begin on a migrated database that nobody else uses."""
        tenant = make_tenant("bench")
        agents = [make_caller(tenant, f"agent-{number}") for number in range(AGENTS)]
        return cls(
            servers=servers,
            scale=scale,
            file=file,
            poster=make_caller(tenant, "poster", Kind.SERVICE),
            agents=agents,
            tokens=[make_token(tenant, agent.name, source_systems=[SOURCE]) for agent in agents],
            machine=_machine(),
        )

    def driving(self, work: Work, clients: int = 1) -> Measure:
        """Clients that work as fast as they can, for one turn."""
        return partial(drive, work, clients=clients, seconds=self.scale.seconds)

    def row(self, case: str, work: Work, peer: Work, peer_is: str, *, clients: int = 1, **about: Any) -> Row:
        """Work and a peer's, measured in turns."""
        peers = {peer_is: self.driving(peer, clients)}
        (row,) = self.compare(case, self.driving(work, clients), peers, clients=clients, **about)
        return row

    def compare(self, case: str, ours: Measure, peers: Mapping[str, Measure], **about: Any) -> list[Row]:
        """Ours and its peers in turns, so that what disturbs one disturbs the other; a row for each peer."""
        sides = {"": ours, **peers}
        turns = [{name: measure() for name, measure in sides.items()} for _ in range(self.scale.rounds)]
        mine = [turn[""] for turn in turns]
        return [Row.of(case, mine, [turn[name] for turn in turns], peer_is=name, **about) for name in peers]

    def asking(self, method: str, path: str, body: Callable[[], Any] | None = None, webs: int = 1) -> Work:
        """The same request to so many web processes again and again, with a new body each time."""
        url, _ = self.webs(webs)

        def work(_number: int) -> Operation:
            client = Client(url, self.tokens[0])
            return lambda: client.ask(method, path, None if body is None else body()) and None

        return work

    def web(self) -> str:
        """Where the web process answers, ready and at rest; it is started once."""
        return self.webs(1)[0]

    def webs(self, count: int) -> tuple[str, list[psutil.Process]]:
        """Where so many web processes answer together, and they; others are started in place of some that ended."""
        if count not in self._webs or not all(map(runs, self._webs[count][1])):
            with listen(None, None) as listener:
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                # Every process of the product logs as it does everywhere.
                environ = {"GATEHOUSE_LOG_LEVEL": "INFO", "GATEHOUSE_URL": url, "GATEHOUSE_PROCESS": "web"}
                argv = WEB.format(fd=listener.fileno()).split()
                started = [self.start(f"web-{len(self.servers.kept)}", *argv, **environ) for _ in range(count)]
            until(
                lambda: readiness(url)[0] == HTTPStatus.OK and all(map(_is_at_rest, started)),
                lambda: last_lines([*self.servers.kept.values()][-1].log),
                seconds=PATIENCE,
            )
            self._webs[count] = url, started
        return self._webs[count]

    def celery(self, *names: str) -> None:
        """Start these Celery workers of the product, or all, once: they sweep, flush and execute."""
        for name in names or CELERY_WORKERS:
            if name not in self.servers.kept:
                self.start(name, *CELERY_WORKERS[name].split(), GATEHOUSE_PROCESS="worker")

    def executors(self, count: int) -> list[psutil.Process]:
        """Start so many Celery workers that execute, beside one that sweeps; they are at rest."""
        self.celery("worker-core")
        line, names = CELERY_WORKERS["worker-execute"], [f"execute-{nth}-of-{count}" for nth in range(count)]
        argv = {name: line.replace("execute@", f"{name}@").split() for name in names}
        started = [self.start(name, *argv[name], GATEHOUSE_PROCESS="worker") for name in names]
        until(lambda: all(map(_is_at_rest, started)), lambda: "They are not at rest.", seconds=PATIENCE)
        return started

    def start(self, name: str, *argv: str, **environ: str) -> psutil.Process:
        """Start another Python program that ends with the run."""
        self.servers.add(name, *argv, **environ)
        return self.servers.kept[name].child


class Client:
    """One who asks over a kept connection."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The JSON that is answered; None for an answer without content.

        :param body: JSON, or its bytes.
        :raises ClientFailed: if the answer is no success: no measurement may count it.
        """
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        self._connection.request(method, path, content, headers or self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise ClientFailed(f"{method} {path} was answered {answer.status} {text[:500]!r}")
        return json.loads(text) if text else None


def _is_at_rest(process: psutil.Process) -> bool:
    """Whether the process does nothing: after its start it reads what it will need."""
    before = sum(process.cpu_times()[:2])
    time.sleep(0.5)
    return sum(process.cpu_times()[:2]) - before < 0.5 * _AT_REST


def _machine() -> dict[str, Any]:
    """The machine that the figures are true of."""
    with psycopg.connect(settings.DATABASE_URL_OWNER, autocommit=True) as connection:
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < 1:
            connection.execute("select pg_logical_emit_message(true, 'bench', 'x')", prepare=True)
            done += 1
        return {
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30),
            "load_before": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
            "postgresql": connection.info.parameter_status("server_version"),
            "commits_per_second": done,
        }
