"""Tasks: queued, leased and completed in process, over HTTP and by the client's worker, beside Celery and procrastinate."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain, count, islice
from typing import Any, Final

from django.db import transaction
from django.db.models import Count, Max, Min
from django.utils import timezone

import gatehouse_client
from apps.core.errors import DomainError
from apps.principals.tenancy import Caller
from apps.tasks.lease_tokens import task_of
from apps.tasks.models import FinishedTask, Run, run_key
from apps.tasks.services import queueing, running
from apps.tasks.shapes import Completion, Delivery, QueueTask, RegisterTaskType
from benchmarks import PYTHON_CLIENT, measure
from benchmarks.bench import AGENTS, Bench, Client
from benchmarks.measure import Measure, Operation, Row, Slice, Work
from benchmarks.peers import CELERY, PROCRASTINATE, CeleryPeer, Procrastinate, by_threads

BATCH: Final = 50
_WAKING: Final = "wake"
_ABANDONED: Final = "abandoned"
_OUT_OF_THE_BOX: Final = "out_of_the_box"
_WHOLE: Final = "queue, lease, complete"
_PART: Final = "lease, complete"
_HTTP: Final = "queue, lease, complete over HTTP"
_PRODUCER: Final = "queue over HTTP by 16 threads"
_BOX: Final = "out-of-the-box worker, {} at once"
# By case, peer and tasks at a time.
_FLOORS: Final = {
    (_WHOLE, CELERY, 1): 0.4,
    (_WHOLE, PROCRASTINATE, BATCH): 12,
    (_PART, PROCRASTINATE, 1): 1.2,
    (_HTTP, CELERY, 1): 0.6,
    (_HTTP, CELERY, BATCH): 3,
    (_PRODUCER, CELERY, 1): 1,
    (_BOX.format(16), CELERY, 1): 1.5,
}
_THREADS: Final = 16
# More than any machine does in a second.
_CYCLES_A_SECOND: Final = {1: 600, BATCH: 40}
_LONGEST: Final = 2.0
_WARM_UPS: Final = 3
_AT_ONCE: Final = 500
_WAITERS: Final = 8
_POLL_SECONDS: Final = 20
_LEASE: Final = "/api/v1/tasks/lease"


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    owner = bench.agents[0]
    measure.apart(partial(_make_lines, owner, bench.scale.clients))
    celery = CeleryPeer(bench)
    procrastinate = Procrastinate() if find_spec("procrastinate") else None
    for row in chain(_over_http(bench, owner, celery), _in_process(bench, owner, celery, procrastinate)):
        floor = _FLOORS.get((row.case, row.peer_is, row.batch))
        yield row if floor is None else row.judged(f"{floor:g} or more", met=(row.ratio or 0) >= floor)
    yield _wake_ups(bench, owner)
    yield _abandoned(bench, owner)


def _sides(bench: Bench, batch: int) -> list[int]:
    """How many clients work side by side."""
    several = bench.scale.clients if batch == 1 else min(bench.scale.clients, 4)
    return [several] if bench.scale.rounds == 1 else [1, several]


def _in_process(bench: Bench, owner: Caller, celery: CeleryPeer, procrastinate: Procrastinate | None) -> Iterator[Row]:
    """Whole lives of tasks, and a worker's part of them."""
    seconds, spell = bench.scale.seconds, min(bench.scale.seconds, _LONGEST)
    for batch in (1, BATCH):
        whole = _whole(owner, batch)
        counted = measure.statements(whole)
        times = max(1, round(spell * _CYCLES_A_SECOND[batch]))
        for clients in _sides(bench, batch):
            lives: dict[str, Measure] = {CELERY: partial(celery.whole, clients=clients)}
            parts: dict[str, Measure] = {CELERY: celery.consuming}
            if procrastinate is not None:
                at_once = {"batch": batch, "clients": clients}
                lives[PROCRASTINATE] = partial(procrastinate.whole, **at_once, seconds=seconds)
                parts[PROCRASTINATE] = partial(procrastinate.finishing, **at_once, seconds=spell, times=times)
            about: dict[str, Any] = {"unit": "tasks/s", "clients": clients, "batch": batch}
            ours = bench.driving(whole, clients)
            yield from bench.compare(_WHOLE, ours, lives, statements=counted, **about)
            ours = partial(_from_stock, owner, batch=batch, clients=clients, seconds=spell, times=times)
            yield from bench.compare(_PART, ours, parts, **about)


def _over_http(bench: Bench, owner: Caller, celery: CeleryPeer) -> Iterator[Row]:
    """Queueing alone; lives of three requests, whatever the batch; and the client's worker with its defaults."""
    clients, about = bench.scale.clients, {"unit": "tasks/s"}
    ours = bench.driving(partial(_queues_by_client, bench.web(), bench.tokens[0]))
    peer = partial(celery.producing, threads=_THREADS, seconds=bench.scale.seconds)
    yield from bench.compare(_PRODUCER, ours, {CELERY: peer}, **about)
    for batch in (1, BATCH):
        ours = bench.driving(_lives(bench.web(), bench.tokens, batch), clients)
        peer = partial(celery.whole, clients=clients)
        yield from bench.compare(_HTTP, ours, {CELERY: peer}, clients=clients, batch=batch, **about)
    for capacity in (4, 16):
        ours = partial(_by_a_worker, bench, owner, tasks=celery.messages, capacity=capacity)
        yield from bench.compare(_BOX.format(capacity), ours, {CELERY: celery.consuming}, **about)


def _queues_by_client(url: str, token: str, _number: int) -> Operation:
    """By the threads of one process, one call each."""
    client = gatehouse_client.Client(url, token)
    return by_threads(lambda: client.queue(task_type="line_0", params={"n": 1}), _THREADS)


def _by_a_worker(bench: Bench, owner: Caller, *, tasks: int, capacity: int) -> Slice:
    """A worker of the client is started, and works off what is queued already."""
    ids = measure.apart(partial(queue_up, owner, _OUT_OF_THE_BOX, tasks))
    environ = {"GATEHOUSE_URL": bench.web(), "GATEHOUSE_TOKEN": bench.tokens[1], "PYTHONPATH": PYTHON_CLIENT}
    program = _WORKER.format(task_type=_OUT_OF_THE_BOX, capacity=capacity)
    child = bench.start(f"worker-{time.monotonic_ns()}", "-c", program, **environ)
    try:
        return measure.apart(partial(worked_off, owner, ids))
    finally:
        child.terminate()
        child.wait()


_WORKER: Final = """
from gatehouse_client import Client, Worker
worker = Worker(Client.from_environment(), capacity={capacity}, wait_seconds=1)
worker.handles("{task_type}")(lambda task: None)
worker.run()
"""


def worked_off(owner: Caller, ids: Sequence[int]) -> Slice:
    """From the first lease of these tasks to the last end, once all have ended."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with owner.acting():
            found = FinishedTask.objects.filter(pk__in=ids).aggregate(number=Count("pk"), ended=Max("finished_at"))
            if found["number"] == len(ids):
                leased = Run.objects.filter(pk__in=[run_key(task_id, 1) for task_id in ids])
                took = found["ended"] - leased.aggregate(began=Min("started_at"))["began"]
                return Slice(units=len(ids), seconds=took.total_seconds())
        time.sleep(0.1)
    raise measure.ClientFailed("The tasks have not ended in two minutes.")


# What the cases do with tasks: each verb is a transaction of its own.


def _make_lines(owner: Caller, clients: int) -> None:
    """Make all types and queues, and the inboxes of those who receive the ends."""
    own = [f"{name}_{number}" for number in range(clients) for name in ("line", "stock")]
    for name in (_WAKING, _OUT_OF_THE_BOX, _ABANDONED, *own):
        with owner.acting():
            given = RegisterTaskType(name=name, queue=name)
            queueing.register_type(tenant_id=owner.tenant_id, given=given, now=timezone.now())
    queue_up(owner, "line_0", AGENTS)
    _lease_and_complete(owner, "line_0", AGENTS)


def _requests(name: str, numbers: Sequence[int]) -> list[QueueTask]:
    """Tasks of which the agents receive the ends in turn."""
    return [QueueTask(task_type=name, params={"n": 1}, recipient_ai=f"agent-{nth % AGENTS}") for nth in numbers]


def queue_up(owner: Caller, name: str, tasks: int) -> list[int]:
    """Queue so many tasks of a type; their ids."""
    ids = list[int]()
    for start in range(0, tasks, _AT_ONCE):
        requests = _requests(name, range(start, min(start + _AT_ONCE, tasks)))
        with owner.acting():
            queued: Any = queueing.queue_many(requester=owner, requests=requests)
        ids += [task_of(one.task_id) for one in queued]
    return ids


def _whole(owner: Caller, batch: int) -> Work:
    def work(number: int) -> Operation:
        turns, line = count(number * batch), f"line_{number}"

        def live() -> int:
            with owner.acting():
                queueing.queue_many(requester=owner, requests=_requests(line, list(islice(turns, batch))))
            return _lease_and_complete(owner, line, batch)

        return live

    return work


def _from_stock(owner: Caller, *, batch: int, clients: int, seconds: float, times: int) -> Slice:
    """Lease and complete tasks that were queued before the clock runs."""
    tasks = (times + _WARM_UPS) * batch
    measure.side_by_side(*[partial(queue_up, owner, f"stock_{number}", tasks) for number in range(clients)])

    def work(number: int) -> Operation:
        cycle = partial(_lease_and_complete, owner, f"stock_{number}", batch)
        for _ in range(_WARM_UPS):
            cycle()
        return cycle

    return measure.drive(work, clients=clients, seconds=seconds, times=times)


def _lease_and_complete(worker: Caller, name: str, batch: int) -> int:
    """:raises DomainError: if one is refused: what was not done must not count."""
    with worker.acting():
        grants = running.lease(worker=worker, queues=[name], capacity=batch)
    completions = [
        Completion(task_id=task_of(one.task_id), lease_token=one.lease_token, delivery=Delivery()) for one in grants
    ]
    with worker.acting():
        answers = running.complete_many([(worker, one) for one in completions]).answers
    for answer in answers:
        if isinstance(answer, DomainError):
            raise answer
    return len(grants)


def _lives(url: str, tokens: Sequence[str], batch: int) -> Work:
    """Each client in a line of its own, with an agent of its own."""

    def work(number: int) -> Operation:
        client, line = Client(url, tokens[number]), f"line_{number}"
        task = {"task_type": line, "params": {"n": 1}}

        def live() -> int:
            if batch == 1:
                client.ask("POST", "/api/v1/tasks", task)
            else:
                client.ask("POST", "/api/v1/tasks/batch", {"tasks": [task] * batch})
            leased = client.ask("POST", _LEASE, {"queues": [line], "capacity": batch})["tasks"]
            ends = [{"task_id": one["task_id"], "lease_token": one["lease_token"]} for one in leased]
            if batch == 1:
                client.ask("POST", f"/api/v1/tasks/{ends[0].pop('task_id')}/complete", ends[0])
            else:
                client.ask("POST", "/api/v1/tasks/complete", {"completions": ends})
            return len(leased)

        return live

    return work


# Waiting


def _wake_ups(bench: Bench, owner: Caller) -> Row:
    """From the commit of a queue call to the answer of a long poll, at a moderate rate."""
    url, seconds, rate = bench.web(), bench.scale.seconds * bench.scale.rounds, 250
    over = measure.FORK.Event()
    committed, *polls = measure.side_by_side(
        partial(_queue_steadily, owner, rate, max(seconds, 1), over),
        *[partial(_lease_until_over, url, bench.tokens[0], over)] * _WAITERS,
    )
    answered = {task: at for poll in polls for task, at in poll.items()}
    latencies = [answered[task] - at for task, at in committed.items()]
    row = Row.of(f"wake-up at {rate} tasks/s", [Slice.of(latencies)], clients=_WAITERS)
    return row.judged("p50 10 ms, p99 50 ms or less", met=(row.p50 or 0) <= 10 and (row.p99 or 0) <= 50)  # noqa: PLR2004


def _queue_steadily(owner: Caller, rate: float, seconds: float, over: Any) -> dict[str, float]:
    """When each task was committed."""
    committed, began = dict[str, float](), time.monotonic()
    for nth in range(round(rate * seconds)):
        time.sleep(max(0.0, began + nth / rate - time.monotonic()))
        moments: list[float] = []
        with owner.acting():
            transaction.on_commit(lambda moments=moments: moments.append(time.monotonic()))
            queued = queueing.queue(requester=owner, request=QueueTask(task_type=_WAKING, params={"n": 1}))
        committed[queued.task_id] = moments[0]
    over.set()
    return committed


def _lease_until_over(url: str, token: str, over: Any) -> dict[str, float]:
    """When each task came. It ends when nobody queues and nothing comes."""
    client, answered = Client(url, token), dict[str, float]()
    while True:
        # Asked before the poll: what was committed until then is in it.
        is_over = over.is_set()
        leased = _lease(client, {"queues": [_WAKING], "capacity": 10, "wait_seconds": 1, "lease_seconds": 600})
        answered |= dict.fromkeys((task["task_id"] for task in leased), time.monotonic())
        if is_over and not leased:
            return answered


def _lease(client: Client, asked: dict[str, Any]) -> list[dict[str, Any]]:
    return (client.ask("POST", _LEASE, asked) or {"tasks": []})["tasks"]


def _abandoned(bench: Bench, owner: Caller) -> Row:
    """From the end of leases whose worker is dead to the answer that gives their tasks to another one."""
    client = Client(bench.web(), bench.tokens[0])
    bench.celery()
    # Before the sweeps have begun, a poll takes them back when it gives up.
    for _ in range(5):
        if min(_leased_again(client, owner)) < _POLL_SECONDS / 2:
            break
    late = _leased_again(client, owner)
    row = Row.of("a dead worker's task, leased again", [Slice.of([max(0, seconds) for seconds in late])])
    return row.judged("2 s at worst", met=max(late) <= 2)  # noqa: PLR2004


def _leased_again(client: Client, owner: Caller) -> list[float]:
    """How long after its lease's end each task of a dead worker came."""
    deadline, came = measure.apart(partial(_lease_and_die, owner)), list[float]()
    asked = {"queues": [_ABANDONED], "capacity": _WAITERS, "wait_seconds": _POLL_SECONDS}
    while len(came) < _WAITERS:
        for task in _lease(client, asked):
            came.append(time.monotonic() - deadline)
            client.ask("POST", f"/api/v1/tasks/{task['task_id']}/complete", {"lease_token": task["lease_token"]})
    return came


def _lease_and_die(owner: Caller) -> float:
    """The deadline of leases of a process that ends."""
    queue_up(owner, _ABANDONED, _WAITERS)
    with owner.acting():
        grants = running.lease(worker=owner, queues=[_ABANDONED], capacity=_WAITERS, lease_seconds=2)
    return time.monotonic() + grants[0].lease_ms / 1000
