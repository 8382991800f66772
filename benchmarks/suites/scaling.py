"""What a unit costs: CPU of web or of Celery's workers, and of PostgreSQL, with one, two and four processes."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import psutil
import psycopg
from django.conf import settings
from django.utils import timezone

from apps.memory import services
from apps.principals.tenancy import Caller
from benchmarks.bench import Bench, Client
from benchmarks.measure import Measure, Row, Slice, apart, drive
from benchmarks.suites.inbox import receipt
from benchmarks.suites.memory import SUBJECT, remember
from benchmarks.suites.tasks import BATCH, queue_up, worked_off
from tests.chaos import EXECUTED

_PROCESSES: Final = (1, 2, 4)
_CLIENTS: Final = 8
_MEMORIES: Final = 50


def run(bench: Bench) -> Iterator[Row]:
    """Each request from eight clients, as fast as they can; and what Celery executes."""
    bench.web()
    apart(partial(_prepare, bench))
    for (case, request), count in itertools.product(_REQUESTS.items(), _PROCESSES):
        work, (_, webs) = bench.asking(*request, webs=count), bench.webs(count)
        ask = partial(drive, work, clients=_CLIENTS, seconds=bench.scale.seconds)
        yield _costs(f"{case}, {count} web", "web", webs, ask, unit="calls/s", clients=_CLIENTS)
    for count in _PROCESSES:
        workers = bench.executors(count)
        execute = partial(_executing, bench.agents[0], round(8 * bench.scale.seconds))
        case = f"a task that Celery executes, {count} of its workers"
        yield _costs(case, "Celery", workers, partial(apart, execute), unit="tasks/s")
        for worker in workers:
            worker.terminate()
            worker.wait()


def _costs(case: str, whose: str, processes: Sequence[psutil.Process], measure: Measure, **about: Any) -> Row:
    before = [_cpu(processes), _cpu(_postgresql())]
    done = measure()
    ours, database = (after - was for was, after in zip(before, [_cpu(processes), _cpu(_postgresql())], strict=True))
    cost = f"{1e6 * ours / done.units:,.0f} µs of {whose}'s CPU and {1e6 * database / done.units:,.0f} of PostgreSQL's"
    return Row.of(case, [done], note=cost, **about)


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


def _executing(owner: Caller, batches: int) -> Slice:
    """Each runs once, beats once and is done."""
    queued = (queue_up(owner, EXECUTED, BATCH) for _ in range(batches))
    return worked_off(owner, [*itertools.chain.from_iterable(queued)])


def _postgresql() -> Sequence[psutil.Process]:
    with psycopg.connect(settings.DATABASE_URL_OWNER) as connection:
        server = psutil.Process(connection.info.backend_pid).parents()[0]
    return [server, *server.children()]


def _cpu(processes: Sequence[psutil.Process]) -> float:
    """Seconds of these, and of the children that they have waited for."""
    return sum(sum(process.cpu_times()[:4]) for process in processes if process.is_running())
