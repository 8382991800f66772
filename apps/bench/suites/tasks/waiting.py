"""What waiting costs and how soon it ends: workers that long-poll the real web process."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from django.db import transaction
from django.db.models import Max

from apps.bench import load
from apps.bench.bench import Bench
from apps.bench.rows import Comparison, Row, Slice
from apps.bench.suites.tasks import verbs
from apps.bench.web import Client, NotServed, Web
from apps.core.sql import database_now
from apps.principals.tenancy import Caller
from apps.tasks import services
from apps.tasks.fences import task_of
from apps.tasks.models import HotTask
from apps.tasks.services import QueueRequest

_LEASE: Final = "/api/v1/tasks/lease"
_PATIENCE: Final = 60.0

_RATES: Final = (500, 250, 125, 60, 30)
_WAKE_FLOORS: Final = (25.0, 100.0)
_QUEUERS: Final = 4
_WAITERS: Final = 8
_CAPACITY: Final = 10
# Tasks a round, for percentiles to say something.
_ENOUGH: Final = 50
# A machine holds a rate while its queuers keep the pace and nothing is left so long after the last.
_LATE: Final = 1.1
_LEFT: Final = 1.0

_LEASED_FOR: Final = 2
_APART: Final = 0.12
_AGAIN_FLOOR: Final = 2_000.0

_POLLS: Final = 200
_SETTLING: Final = 3.0
# Who waits looks by itself about every twenty-five seconds, and waits for thirty.
_ROUND: Final = 24.0
_IDLE_FLOOR: Final = 3.0


def rows(bench: Bench, owner: Caller) -> Iterator[Row]:
    """All of them with the worker that production runs: its ticks sweep."""
    web, token = bench.processes.web(), bench.world.token
    bench.processes.worker()
    yield _wake_ups(bench, owner, web)
    load.apart(partial(_until_swept, owner))
    yield _abandoned(owner, web, token)
    yield _idle(bench, web)


def _wake_ups(bench: Bench, owner: Caller, web: Web) -> Row:
    """From the commit of a queue call to the answer that a long poll gets, at the highest of the rates that is held."""
    seconds, enough = bench.scale.seconds * bench.scale.rounds, _ENOUGH * bench.scale.rounds
    rates = list(_RATES)

    def tried(rate: int) -> _Woken:
        return _woken(owner, web, bench.world.token, rate=rate, seconds=max(seconds, enough / rate))

    woken = tried(rates.pop(0))
    while rates and not woken.held:
        # What the queuers could not do at that pace they need not try at a higher one.
        rates = [rate for rate in rates if rate <= woken.pace] or rates[-1:]
        woken = tried(rates.pop(0))
    row = Row.of_latencies(
        Comparison(ours=[Slice(units=len(woken.latencies), seconds=seconds, latencies=woken.latencies)]),
        case=f"wake-up at {woken.rate} tasks/s",
        clients=_WAITERS,
        note=f"{len(woken.latencies)} tasks, queued one by one by {_QUEUERS} processes; {_WAITERS} long polls take up to "
        f"{_CAPACITY} each. "
        + ("The machine held that rate." if woken.held else "The machine did not even hold that rate."),
    )
    p50, p99 = _WAKE_FLOORS
    met = row.p50 is not None and row.p99 is not None and row.p50 <= p50 and row.p99 <= p99
    return row.judged(f"p50 {p50:g} ms, p99 {p99:g} ms or less", met=met)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Woken:
    rate: int
    pace: float
    """How many were queued a second."""
    held: bool
    latencies: list[float]


def _woken(owner: Caller, web: Web, token: str, *, rate: int, seconds: float) -> _Woken:
    queueing = load.Countdown(_QUEUERS)
    queuers = [partial(_queue_steadily, owner, rate / _QUEUERS, seconds, queueing)] * _QUEUERS
    waiters = [partial(_lease_until_over, web.url, token, queueing)] * _WAITERS
    outcomes = load.side_by_side([*queuers, *waiters])
    committed: dict[str, float] = {}
    slowest = 0.0
    for moments, lasted in outcomes[:_QUEUERS]:
        committed |= moments
        slowest = max(slowest, lasted)
    answered: dict[str, tuple[float, str]] = {}
    for leased in outcomes[_QUEUERS:]:
        answered |= leased
    load.apart(partial(verbs.complete, owner, [(task_of(ref), held) for ref, (_, held) in answered.items()]))
    if lost := committed.keys() - answered.keys():
        raise load.ClientFailed(f"{len(lost)} tasks were queued and never leased.")
    left = max(answered[ref][0] for ref in committed) - max(committed.values())
    return _Woken(
        rate=rate,
        pace=len(committed) / slowest,
        held=slowest <= seconds * _LATE + 1 / rate and left <= _LEFT,
        latencies=[answered[ref][0] - at for ref, at in committed.items()],
    )


def _queue_steadily(
    owner: Caller, rate: float, seconds: float, queueing: load.Countdown
) -> tuple[dict[str, float], float]:
    """When each task was committed; and how long it took to queue them at a pace that waits for nobody."""
    committed: dict[str, float] = {}
    with queueing.one():
        _queue_one(owner, {})
        began = time.monotonic()
        for nth in range(max(1, round(rate * seconds))):
            time.sleep(max(0.0, began + nth / rate - time.monotonic()))
            _queue_one(owner, committed)
        return committed, time.monotonic() - began


def _queue_one(owner: Caller, committed: dict[str, float]) -> None:
    moments: list[float] = []
    with owner.acting():
        # Before the hooks that tell the waiting.
        transaction.on_commit(lambda: moments.append(time.monotonic()))
        queued = services.queue(requester=owner, request=QueueRequest(task_type=verbs.WAKING, params={"n": 1}))
    committed[queued.task_id] = moments[0]


def _lease_until_over(url: str, token: str, queueing: load.Countdown) -> dict[str, tuple[float, str]]:
    """When each task came, and with which token; ends when nobody queues and nothing comes."""
    client = Client(url, token)
    answered: dict[str, tuple[float, str]] = {}
    asked = {"queues": [verbs.WAKING], "capacity": _CAPACITY, "wait_seconds": 1, "lease_seconds": 600}
    while True:
        # Asked before the poll: what was committed until then is in it.
        ending = queueing.over
        leased = _lease(client, asked)
        now = time.monotonic()
        answered |= {task["task_id"]: (now, task["lease_token"]) for task in leased}
        if ending and not leased:
            return answered


def _lease(client: Client, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    client.begin("POST", _LEASE, asked)
    answer = client.hear(HTTPStatus.OK, HTTPStatus.NO_CONTENT)
    return [] if answer is None else list(answer["tasks"])


def _until_swept(owner: Caller) -> None:
    """Return when an expired lease was brought back though nobody asked: the sweeps have begun."""
    patient_until = time.monotonic() + _PATIENCE
    task_id, _ = _leased(owner, verbs.abandoned(0), seconds=1)
    while True:
        with owner.acting():
            if HotTask.objects.filter(task_id=task_id, holder=None).exists():
                break
        if time.monotonic() > patient_until:
            raise load.ClientFailed("The worker does not sweep.")
        time.sleep(0.1)
    with owner.acting():
        services.cancel(caller=owner, task_id=task_id)


def _leased(owner: Caller, name: str, *, seconds: int) -> tuple[int, float]:
    """A task of this line that has been leased, and the moment when the lease ends."""
    verbs.queue_up(owner, name, 1)
    with owner.acting():
        (grant,) = services.lease(worker=owner, queues=[name], lease_seconds=seconds)
    with owner.acting():
        before = time.monotonic()
        left = (
            HotTask.objects.filter(task_id=grant.task_id).aggregate(at=Max("lease_expires_at"))["at"] - database_now()
        )
    return grant.task_id, before + left.total_seconds()


def _abandoned(owner: Caller, web: Web, token: str) -> Row:
    """From the end of a lease whose worker is dead to the answer that gives the task to another, who waits for it."""
    deadlines = load.apart(partial(_lease_and_die, owner))
    came = load.side_by_side([partial(_lease_again, web.url, token, number) for number in range(verbs.ABANDONED)])
    latencies = [answered - max(asked, deadline) for (asked, answered), deadline in zip(came, deadlines, strict=True)]
    row = Row.of_latencies(
        Comparison(ours=[Slice(units=len(latencies), seconds=sum(latencies), latencies=latencies)]),
        case="a dead worker's task, leased again",
        clients=len(latencies),
        note=f"Since its deadline; the worst of {len(latencies)} took {max(latencies) * 1000:,.0f} ms.",
    )
    return row.judged(f"{_AGAIN_FLOOR:,.0f} ms at worst", met=max(latencies) * 1000 <= _AGAIN_FLOOR)


def _lease_and_die(owner: Caller) -> list[float]:
    """When each lease ends: of a process that leases, and ends without a word."""
    deadlines = []
    for number in range(verbs.ABANDONED):
        deadlines.append(_leased(owner, verbs.abandoned(number), seconds=_LEASED_FOR)[1])
        # Not all in the same moment between two sweeps.
        time.sleep(_APART)
    return deadlines


def _lease_again(url: str, token: str, number: int) -> tuple[float, float]:
    """When it was asked for, and when it came."""
    client = Client(url, token)
    began = time.monotonic()
    leased: list[dict[str, Any]] = []
    while not leased:
        if time.monotonic() - began > _PATIENCE:
            raise load.ClientFailed("The task of a dead worker was never to be had again.")
        leased = _lease(client, {"queues": [verbs.abandoned(number)], "wait_seconds": 20})
    came = time.monotonic()
    for task in leased:
        client.ask("POST", f"/api/v1/tasks/{task['task_id']}/complete", {"lease_token": task["lease_token"]})
    return began, came


def _idle(bench: Bench, web: Web) -> Row:
    """What the web process uses while many wait for what does not come."""
    polls = min(_POLLS, 25 * bench.scale.clients)
    seconds = min(48 * bench.scale.seconds, _ROUND)
    without = _share(web, _SETTLING)
    within = load.apart(partial(_while_waiting, web, bench.world.token, polls, seconds))
    row = Row(
        case=f"idle, {polls} long polls",
        unit="% of a core",
        ours=within,
        baseline=without,
        baseline_is="none",
        clients=polls,
        note=f"CPU of the web process in {seconds:g} s.",
    )
    return row.judged(f"{_IDLE_FLOOR:g} or less", met=within <= _IDLE_FLOOR)


def _while_waiting(web: Web, token: str, polls: int, seconds: float) -> float:
    clients = [Client(web.url, token) for _ in range(polls)]
    for client in clients:
        client.begin("POST", _LEASE, {"queues": ["idle"], "wait_seconds": 30})
    time.sleep(_SETTLING)
    used = _share(web, seconds)
    for client in clients:
        if client.is_answered():
            raise NotServed(f"One who was to wait got an answer: {client.hear(HTTPStatus.NO_CONTENT)}")
    return used


def _share(web: Web, seconds: float) -> float:
    """Of one core, in percent."""
    before, began = web.cpu(), time.monotonic()
    time.sleep(seconds)
    return 100 * (web.cpu() - before) / (time.monotonic() - began)
