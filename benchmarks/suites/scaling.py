"""What a unit costs over HTTP: CPU of web and of PostgreSQL, with one, two and four web processes."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import psutil
import psycopg
from django.conf import settings
from django.utils import timezone

from apps.memory import services
from benchmarks.bench import Bench, Client
from benchmarks.measure import Row, apart, drive
from benchmarks.suites.inbox import receipt
from benchmarks.suites.memory import SUBJECT, remember

_WEBS: Final = (1, 2, 4)
_CLIENTS: Final = 8
_MEMORIES: Final = 50


def run(bench: Bench) -> Iterator[Row]:
    """Each request from eight clients, as fast as they can."""
    bench.web()
    apart(partial(_prepare, bench))
    for (case, request), count in itertools.product(_REQUESTS.items(), _WEBS):
        work, (_, webs) = bench.asking(*request, webs=count), bench.webs(count)
        before = [_cpu(webs), _cpu(_postgresql())]
        done = drive(work, clients=_CLIENTS, seconds=bench.scale.seconds)
        web, database = (after - was for was, after in zip(before, [_cpu(webs), _cpu(_postgresql())], strict=True))
        cost = f"{1e6 * web / done.units:,.0f} µs of web's CPU and {1e6 * database / done.units:,.0f} of PostgreSQL's"
        yield Row.of(f"{case}, {count} web", [done], unit="calls/s", clients=_CLIENTS, note=cost)


_REQUESTS: Final[dict[str, tuple[str, str, Callable[[], Any] | None]]] = {
    "queue a task": ("POST", "/api/v1/tasks", lambda: {"task_type": "scaled", "params": {}}),
    "a lease that finds nothing": ("POST", "/api/v1/tasks/lease", lambda: {"queues": ["empty"]}),
    "post a receipt": ("POST", "/api/v1/receipts", partial(receipt, "agent-0")),
    "read a page of an inbox": ("GET", "/api/v1/inbox?limit=10", None),
    "an envelope of 45 items": ("GET", f"/api/v1/subjects/{SUBJECT}/envelope", None),
    "recall among 50 memories": ("POST", "/api/v1/memory/recall", lambda: {"query": "which build is red on Mondays"}),
}


def _prepare(bench: Bench) -> None:
    client = Client(bench.web(), bench.tokens[0])
    for queue in ("scaled", "empty"):
        client.ask("POST", "/api/v1/task-types", {"name": queue, "queue": queue})
    remember(bench.agents[0])
    with bench.agents[0].acting():
        for number in range(_MEMORIES):
            text = f"Build {number} is red, as on most Mondays."
            services.store_observation(author=bench.agents[0], text=text, now=timezone.now())


def _postgresql() -> Sequence[psutil.Process]:
    with psycopg.connect(settings.DATABASE_URL_OWNER) as connection:
        server = psutil.Process(connection.info.backend_pid).parents()[0]
    return [server, *server.children()]


def _cpu(processes: Sequence[psutil.Process]) -> float:
    """Seconds of these, and of the children that they have waited for."""
    return sum(sum(process.cpu_times()[:4]) for process in processes if process.is_running())
