"""Lives of tasks over the real web process, beside Celery's and beside a view that does nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from apps.bench import load
from apps.bench.bench import Bench
from apps.bench.load import Operation, Work
from apps.bench.rivals.celery import CeleryWithRedis
from apps.bench.rows import Comparison, Row
from apps.bench.suites.tasks import verbs
from apps.bench.suites.tasks.cycles import BATCH, messages
from apps.bench.web import Client, Request

_FLOORS: Final = {1: 0.12, BATCH: 2.3}
_REQUESTS: Final = 3


def rows(bench: Bench, celery: CeleryWithRedis) -> Iterator[Row]:
    """One at a time and in batches; a life takes three requests whatever the batch."""
    scale, web = bench.scale, bench.processes.web()
    tokens = bench.world.tokens
    hello = Request(
        method="POST", path="/api/v1/hello", token=bench.world.token, body=lambda _: _asked("echo"), status=201
    )
    for batch in _FLOORS:
        queued_by_celery, greeted = load.beside_each(
            web.slices(_lives(web.url, tokens, batch), clients=scale.clients, seconds=scale.seconds),
            [
                celery.slices(tasks=messages(bench), clients=scale.clients),
                web.slices(hello, clients=scale.clients, seconds=scale.seconds),
            ],
            rounds=scale.rounds,
        )
        row = Row.of_rates(
            queued_by_celery,
            case="queue, lease, complete over HTTP",
            unit="tasks/s",
            baseline_is=celery.name,
            clients=scale.clients,
            batch=batch,
        )
        yield row.at_least(_FLOORS[batch])
        yield Row.of_rates(
            _in_requests(greeted, batch),
            case="a request of these",
            unit="requests/s",
            baseline_is="hello view",
            clients=scale.clients,
            batch=batch,
        )


def _in_requests(compared: Comparison, batch: int) -> Comparison:
    ours = [
        replace(
            slice_, units=slice_.units * _REQUESTS // batch, latencies=[one / _REQUESTS for one in slice_.latencies]
        )
        for slice_ in compared.ours
    ]
    return replace(compared, ours=ours)


def _asked(name: str) -> dict[str, Any]:
    return {"task_type": name, "params": {"n": 1}}


def _lives(url: str, tokens: Sequence[str], batch: int) -> Work:
    """Each client in a line of its own, and an agent of its own, which is told."""

    def work(number: int) -> Operation:
        client, name = Client(url, tokens[number]), verbs.line(number)
        queueing = _asked(name) if batch == 1 else {"tasks": [_asked(name)] * batch}
        leasing = {"queues": [name], "capacity": batch}

        def one() -> int:
            client.ask("POST", "/api/v1/tasks", queueing, status=201)
            (leased,) = client.ask("POST", "/api/v1/tasks/lease", leasing)["tasks"]
            client.ask("POST", f"/api/v1/tasks/{leased['task_id']}/complete", {"lease_token": leased["lease_token"]})
            return 1

        def many() -> int:
            client.ask("POST", "/api/v1/tasks/batch", queueing)
            leased = client.ask("POST", "/api/v1/tasks/lease", leasing)["tasks"]
            completions = [{"task_id": task["task_id"], "lease_token": task["lease_token"]} for task in leased]
            ended = client.ask("POST", "/api/v1/tasks/complete", {"completions": completions})["results"]
            return sum(one["status"] == "succeeded" for one in ended)

        return one if batch == 1 else many

    return work
