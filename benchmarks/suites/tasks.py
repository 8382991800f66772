"""Tasks: queued, leased and completed in process, over HTTP and by the client's worker, beside Celery and procrastinate."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import count, islice
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from apps.core.errors import DomainError
from apps.principals.tenancy import Caller
from apps.tasks.services import ending, leasing, queueing, types
from apps.tasks.services.types import TypeDraft
from apps.tasks.shapes import Completion, Delivery, QueueRequest
from benchmarks import measure
from benchmarks.bench import AGENTS, Bench, Client
from benchmarks.measure import Countdown, Measure, Operation, Row, Slice, Work
from benchmarks.peers import CELERY, PROCRASTINATE, CeleryPeer, Procrastinate

BATCH: Final = 50
_WAKING: Final = "wake"
_ABANDONED: Final = "abandoned"
_OUT_OF_THE_BOX: Final = "out_of_the_box"
# For one task at a time, and for batches.
_OF_PROCRASTINATE: Final = {1: 0.25, BATCH: 4.5}
_OF_CELERY: Final = {1: 0.13, BATCH: 1.5}
_OVER_HTTP: Final = {1: 0.12, BATCH: 2.3}
# More than any machine does in a second.
_CYCLES_A_SECOND: Final = {1: 600, BATCH: 40}
_LONGEST: Final = 2.0
_WARM_UPS: Final = 3
_AT_ONCE: Final = 500
_WAITERS: Final = 8
_LEASE: Final = "/api/v1/tasks/lease"


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    owner = bench.agents[0]
    measure.apart(partial(_make_lines, owner, bench.scale.clients))
    celery = CeleryPeer(bench)
    procrastinate = Procrastinate() if find_spec("procrastinate") else None
    yield from _producers(bench, owner, celery, procrastinate)
    yield from _in_process(bench, owner, celery, procrastinate)
    yield from _over_http(bench, celery)
    yield from _out_of_the_box(bench, owner, celery)
    yield _wake_ups(bench, owner)
    yield _abandoned(bench, owner)


def _sides(bench: Bench, batch: int) -> list[int]:
    """How many clients work side by side."""
    several = bench.scale.clients if batch == 1 else min(bench.scale.clients, 4)
    return [several] if bench.scale.rounds == 1 else [1, several]


def _producers(bench: Bench, owner: Caller, celery: CeleryPeer, procrastinate: Procrastinate | None) -> Iterator[Row]:
    """Queueing alone: in process, and over HTTP."""
    for batch in (1, BATCH):
        at_once = {"clients": _sides(bench, batch)[-1], "seconds": bench.scale.seconds}
        peers: dict[str, Measure] = {CELERY: partial(celery.producing, **at_once)}
        if procrastinate is not None:
            peers[PROCRASTINATE] = partial(procrastinate.producing, batch=batch, **at_once)
        about = {"unit": "tasks/s", "clients": at_once["clients"], "batch": batch}
        for case, work in (
            ("queue", _queues(owner, batch)),
            ("queue over HTTP", _queues_over_http(bench.web(), bench.tokens, batch)),
        ):
            yield from bench.compare(case, bench.driving(work, at_once["clients"]), peers, **about)


def _in_process(bench: Bench, owner: Caller, celery: CeleryPeer, procrastinate: Procrastinate | None) -> Iterator[Row]:
    """Whole lives of tasks, and a worker's part of them."""
    seconds, spell = bench.scale.seconds, min(bench.scale.seconds, _LONGEST)
    for batch in (1, BATCH):
        whole = _whole(owner, batch)
        counted = measure.statements(whole)
        times = max(1, round(spell * _CYCLES_A_SECOND[batch]))
        goals = {CELERY: _OF_CELERY[batch], PROCRASTINATE: _OF_PROCRASTINATE[batch]}
        for clients in _sides(bench, batch):
            lives: dict[str, Measure] = {CELERY: partial(celery.whole, clients=clients)}
            parts: dict[str, Measure] = {CELERY: celery.consuming}
            if procrastinate is not None:
                at_once = {"batch": batch, "clients": clients}
                lives[PROCRASTINATE] = partial(procrastinate.whole, **at_once, seconds=seconds)
                parts[PROCRASTINATE] = partial(procrastinate.finishing, **at_once, seconds=spell, times=times)
            about: dict[str, Any] = {"unit": "tasks/s", "clients": clients, "batch": batch}
            ours = bench.driving(whole, clients)
            yield from bench.compare("queue, lease, complete", ours, lives, statements=counted, **about)
            ours = partial(_from_stock, owner, batch=batch, clients=clients, seconds=spell, times=times)
            for row in bench.compare("lease, complete", ours, parts, **about):
                yield row.at_least(goals[row.peer_is])


def _over_http(bench: Bench, celery: CeleryPeer) -> Iterator[Row]:
    """A life takes three requests, whatever the batch."""
    clients = bench.scale.clients
    for batch, goal in _OVER_HTTP.items():
        ours = bench.driving(_lives(bench.web(), bench.tokens, batch), clients)
        peers = {CELERY: partial(celery.whole, clients=clients)}
        about: dict[str, Any] = {"unit": "tasks/s", "clients": clients, "batch": batch}
        for row in bench.compare("queue, lease, complete over HTTP", ours, peers, **about):
            yield row.at_least(goal)


def _out_of_the_box(bench: Bench, owner: Caller, celery: CeleryPeer) -> Iterator[Row]:
    """The client's worker with its defaults, and one process: from its first task to the end of the last."""
    for capacity in (4, 16):
        ours = partial(_worked_off, bench, owner, tasks=celery.messages, capacity=capacity)
        case = f"out-of-the-box worker, {capacity} at once"
        yield from bench.compare(case, ours, {CELERY: celery.consuming}, unit="tasks/s")


def _worked_off(bench: Bench, owner: Caller, *, tasks: int, capacity: int) -> Slice:
    url = bench.web()
    measure.apart(partial(_queue_up, owner, _OUT_OF_THE_BOX, tasks))
    environ = {"GATEHOUSE_URL": url, "GATEHOUSE_TOKEN": bench.tokens[1], "PYTHONPATH": "clients/python/src"}
    program = _WORKER.format(task_type=_OUT_OF_THE_BOX, capacity=capacity)
    child = bench.python(f"worker-{time.monotonic_ns()}", "-c", program, **environ)
    try:
        client = Client(url, bench.tokens[0])
        began = _await_open(client, lambda left: left < tasks)
        ended = _await_open(client, lambda left: left == 0)
    finally:
        child.terminate()
        child.wait()
    return Slice(units=tasks, seconds=ended - began)


_WORKER: Final = """
from gatehouse_client import Client, Worker
worker = Worker(Client.from_environment(), capacity={capacity}, wait_seconds=1)
worker.handles("{task_type}")(lambda task: None)
worker.run()
"""


def _await_open(client: Client, enough: Callable[[int], bool]) -> float:
    """The moment at which so many of the worker's tasks are open."""
    deadline = time.monotonic() + 120
    while True:
        queues = client.ask("GET", "/api/v1/queues")["queues"]
        (line,) = [one for one in queues if one["queue"] == _OUT_OF_THE_BOX]
        if enough(line["queued"] + line["leased"]):
            return time.monotonic()
        if time.monotonic() > deadline:
            raise measure.ClientFailed("The worker has not done its tasks in two minutes.")
        time.sleep(0.1)


# What the cases do with tasks: each verb is a transaction of its own.


def _make_lines(owner: Caller, clients: int) -> None:
    """Make all types and queues, and the inboxes of those who receive the ends."""
    own = [f"{name}_{number}" for number in range(clients) for name in ("line", "stock")]
    for name in (_WAKING, _OUT_OF_THE_BOX, *own, *(f"{_ABANDONED}_{number}" for number in range(_WAITERS))):
        with owner.acting():
            types.register_type(caller=owner, draft=TypeDraft(name=name, queue=name), now=timezone.now())
    _queue_up(owner, "line_0", AGENTS)
    _lease_and_complete(owner, "line_0", AGENTS)


def _requests(name: str, numbers: Sequence[int]) -> list[QueueRequest]:
    """Tasks of which the agents receive the ends in turn."""
    return [QueueRequest(task_type=name, params={"n": 1}, recipient=f"agent-{nth % AGENTS}") for nth in numbers]


def _queue_up(owner: Caller, name: str, tasks: int) -> None:
    for start in range(0, tasks, _AT_ONCE):
        with owner.acting():
            requests = _requests(name, range(start, min(start + _AT_ONCE, tasks)))
            queueing.queue_many(requester=owner, requests=requests)


def _queues(owner: Caller, batch: int) -> Work:
    def work(number: int) -> Operation:
        turns = count(number * batch)

        def queue() -> int:
            with owner.acting():
                queueing.queue_many(requester=owner, requests=_requests(f"line_{number}", list(islice(turns, batch))))
            return batch

        return queue

    return work


def _whole(owner: Caller, batch: int) -> Work:
    def work(number: int) -> Operation:
        queue = _queues(owner, batch)(number)
        return lambda: queue() and _lease_and_complete(owner, f"line_{number}", batch)

    return work


def _from_stock(owner: Caller, *, batch: int, clients: int, seconds: float, times: int) -> Slice:
    """Lease and complete tasks that were queued before the clock runs."""
    tasks = (times + _WARM_UPS) * batch
    measure.side_by_side([partial(_queue_up, owner, f"stock_{number}", tasks) for number in range(clients)])

    def work(number: int) -> Operation:
        cycle = partial(_lease_and_complete, owner, f"stock_{number}", batch)
        for _ in range(_WARM_UPS):
            cycle()
        return cycle

    return measure.drive(work, clients=clients, seconds=seconds, times=times)


def _lease_and_complete(worker: Caller, name: str, batch: int) -> int:
    with worker.acting():
        grants = leasing.lease(worker=worker, queues=[name], capacity=batch)
    _complete(worker, [(grant.task_id, grant.lease_token) for grant in grants])
    return len(grants)


def _complete(worker: Caller, held: Sequence[tuple[int, str]]) -> None:
    """:raises DomainError: if one is refused: what was not done must not count."""
    completions = [Completion(task_id=task_id, lease_token=token, delivery=Delivery()) for task_id, token in held]
    with worker.acting():
        answers = ending.complete_many(worker=worker, completions=completions).answers
    for answer in answers:
        if isinstance(answer, DomainError):
            raise answer


def _queues_over_http(url: str, tokens: Sequence[str], batch: int) -> Work:
    def work(number: int) -> Operation:
        client, asked = Client(url, tokens[number]), {"task_type": f"line_{number}", "params": {"n": 1}}

        def queue() -> int:
            if batch == 1:
                client.ask("POST", "/api/v1/tasks", asked)
            else:
                client.ask("POST", "/api/v1/tasks/batch", {"tasks": [asked] * batch})
            return batch

        return queue

    return work


def _lives(url: str, tokens: Sequence[str], batch: int) -> Work:
    """Each client in a line of its own, with an agent of its own."""

    def work(number: int) -> Operation:
        client, queue = Client(url, tokens[number]), _queues_over_http(url, tokens, batch)(number)
        asked = {"queues": [f"line_{number}"], "capacity": batch}

        def live() -> int:
            queue()
            leased = client.ask("POST", _LEASE, asked)["tasks"]
            ends = [{"task_id": task["task_id"], "lease_token": task["lease_token"]} for task in leased]
            if batch == 1:
                client.ask(
                    "POST", f"/api/v1/tasks/{ends[0]['task_id']}/complete", {"lease_token": ends[0]["lease_token"]}
                )
            else:
                client.ask("POST", "/api/v1/tasks/complete", {"completions": ends})
            return len(leased)

        return live

    return work


# Waiting


def _wake_ups(bench: Bench, owner: Caller) -> Row:
    """From the commit of a queue call to the answer of a long poll, at a moderate rate."""
    url, seconds, rate = bench.web(), bench.scale.seconds * bench.scale.rounds, 60
    pending = Countdown(1)
    committed, *polls = measure.side_by_side(
        [
            partial(_queue_steadily, owner, rate, max(seconds, 1), pending),
            *[partial(_lease_until_over, url, bench.tokens[0], pending)] * _WAITERS,
        ]
    )
    answered = {task: at for poll in polls for task, at in poll.items()}
    latencies = [answered[task] - at for task, at in committed.items()]
    row = Row.of(f"wake-up at {rate} tasks/s", [Slice.of(latencies)], clients=_WAITERS)
    return row.judged("p50 25 ms, p99 100 ms or less", met=(row.p50 or 0) <= 25 and (row.p99 or 0) <= 100)  # noqa: PLR2004


def _queue_steadily(owner: Caller, rate: float, seconds: float, pending: Countdown) -> dict[str, float]:
    """When each task was committed."""
    committed: dict[str, float] = {}
    with pending.one():
        began = time.monotonic()
        for nth in range(round(rate * seconds)):
            time.sleep(max(0.0, began + nth / rate - time.monotonic()))
            moments: list[float] = []
            with owner.acting():
                transaction.on_commit(lambda moments=moments: moments.append(time.monotonic()))  # type: ignore[misc]
                queued = queueing.queue(requester=owner, request=QueueRequest(task_type=_WAKING, params={"n": 1}))
            committed[queued.task_id] = moments[0]
    return committed


def _lease_until_over(url: str, token: str, pending: Countdown) -> dict[str, float]:
    """When each task came. It ends when nobody queues and nothing comes."""
    client, answered = Client(url, token), dict[str, float]()
    while True:
        # Asked before the poll: what was committed until then is in it.
        is_over = pending.over
        leased = _lease(client, {"queues": [_WAKING], "capacity": 10, "wait_seconds": 1, "lease_seconds": 600})
        answered |= dict.fromkeys((task["task_id"] for task in leased), time.monotonic())
        if is_over and not leased:
            return answered


def _lease(client: Client, asked: dict[str, Any]) -> list[dict[str, Any]]:
    return (client.ask("POST", _LEASE, asked) or {"tasks": []})["tasks"]


def _abandoned(bench: Bench, owner: Caller) -> Row:
    """From the end of a lease whose worker is dead to the answer that gives the task to another one."""
    url = bench.web()
    bench.celery()
    polls = [partial(_lease_again, url, bench.tokens[0], number) for number in range(_WAITERS)]
    # Once to see that the sweeps have begun.
    measure.apart(partial(_lease_and_die, owner))
    measure.side_by_side(polls)
    deadlines = measure.apart(partial(_lease_and_die, owner))
    latencies = [
        answered - max(asked, deadline)
        for (asked, answered), deadline in zip(measure.side_by_side(polls), deadlines, strict=True)
    ]
    row = Row.of("a dead worker's task, leased again", [Slice.of(latencies)], clients=_WAITERS)
    return row.judged("2 s at worst", met=max(latencies) <= 2)  # noqa: PLR2004


def _lease_and_die(owner: Caller) -> list[float]:
    """The deadlines of leases of a process that ends."""
    deadlines = []
    for number in range(_WAITERS):
        name = f"{_ABANDONED}_{number}"
        _queue_up(owner, name, 1)
        with owner.acting():
            (grant,) = leasing.lease(worker=owner, queues=[name], lease_seconds=2)
        deadlines.append(time.monotonic() + grant.lease_ms / 1000)
    return deadlines


def _lease_again(url: str, token: str, number: int) -> tuple[float, float]:
    """When it was asked for, and when it came."""
    client, began = Client(url, token), time.monotonic()
    while not (leased := _lease(client, {"queues": [f"{_ABANDONED}_{number}"], "wait_seconds": 20})):
        if time.monotonic() - began > 60:  # noqa: PLR2004
            raise measure.ClientFailed("The task of a dead worker was never leased again.")
    came = time.monotonic()
    for task in leased:
        client.ask("POST", f"/api/v1/tasks/{task['task_id']}/complete", {"lease_token": task["lease_token"]})
    return began, came
