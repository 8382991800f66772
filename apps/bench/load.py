"""Putting load on something: clients are processes of their own, as the product's are."""

import gc
import math
import multiprocessing
import resource
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from apps.bench.rows import Comparison, Slice

Operation = Callable[[], int]
"""Does it once and answers how many units that were."""
Work = Callable[[int], Operation]
"""Prepares a client, in its own process, by its number."""

_WARM_UPS: Final = 3
_WARM_UP: Final = 0.3
_PATIENCE: Final = 120.0
_FORK: Final = multiprocessing.get_context("fork")


class ClientFailed(Exception):
    """A client ended with an exception; its traceback is the message."""


class Countdown:
    """How many of the clients that run side by side have not finished; made before they start."""

    def __init__(self, clients: int) -> None:
        self._left = _FORK.Value("i", clients)

    @property
    def over(self) -> bool:
        with self._left:
            return bool(self._left.value <= 0)

    @contextmanager
    def one(self) -> Iterator[None]:
        """One of them at work; it is done when this ends, however it ends."""
        try:
            yield
        finally:
            with self._left:
                self._left.value -= 1


class Moment:
    """When the first of the clients that run side by side began; made before they start."""

    def __init__(self) -> None:
        self._at = _FORK.Value("d", math.inf)

    @property
    def at(self) -> float:
        """On the monotonic clock, which all processes share."""
        return float(self._at.value)

    def note(self) -> None:
        """It is now, unless it was before."""
        if self._at.value == math.inf:
            with self._at:
                self._at.value = min(self._at.value, time.monotonic())


def drive(work: Work, *, clients: int = 1, seconds: float | None = None, times: int | None = None) -> Slice:
    """Let clients work side by side, each as fast as it can, for some seconds or a number of times each."""
    barrier = _FORK.Barrier(clients)
    warm_ups = _WARM_UPS if times is None else 0

    def live(number: int) -> tuple[int, float, list[float], float]:
        operation = work(number)
        _warm_up(operation, warm_ups)
        return _timed(operation, barrier, seconds, times)

    outcomes = _in_processes(live, clients)
    return Slice(
        units=sum(units for units, *_ in outcomes),
        seconds=max(elapsed for _, elapsed, *_ in outcomes),
        latencies=[latency for _, _, latencies, _ in outcomes for latency in latencies],
        cpu=sum(cpu for *_, cpu in outcomes),
    )


def in_turns(ours: Callable[[], Slice], baseline: Callable[[], Slice], *, rounds: int) -> Comparison:
    """Measure both alternately, so that what disturbs one disturbs the other."""
    return beside_each(ours, [baseline], rounds=rounds)[0]


def beside_each(
    ours: Callable[[], Slice], baselines: Sequence[Callable[[], Slice]], *, rounds: int
) -> Sequence[Comparison]:
    """Measure all of them in turns: ours once a round, beside each of the baselines."""
    slices: list[Slice] = []
    others: list[list[Slice]] = [[] for _ in baselines]
    for _ in range(rounds):
        slices.append(ours())
        for measured, baseline in zip(others, baselines, strict=True):
            measured.append(baseline())
    return [Comparison(ours=slices, baseline=measured) for measured in others]


def apart(question: Callable[[], Any]) -> Any:
    """Answer a question in a process of its own, so that this one keeps neither connections nor threads."""
    return _in_processes(lambda _: question(), 1)[0]


def side_by_side(lives: Sequence[Callable[[], Any]]) -> Sequence[Any]:
    """Several at once, each in a process of its own; what each answers."""
    return _in_processes(lambda number: lives[number](), len(lives))


def statements(work: Work) -> int:
    """How many statements one operation costs, once everything is warm."""

    def count() -> int:
        operation = work(0)
        _warm_up(operation, _WARM_UPS)
        with CaptureQueriesContext(connection) as captured:
            operation()
        return len(captured)

    counted: int = apart(count)
    return counted


def _warm_up(operation: Operation, times: int) -> None:
    """Once at least, and no longer than a moment."""
    began = time.monotonic()
    for _ in range(times):
        operation()
        if time.monotonic() - began > _WARM_UP:
            return


def _timed(
    operation: Operation, barrier: Barrier, seconds: float | None, times: int | None
) -> tuple[int, float, list[float], float]:
    latencies: list[float] = []
    units = 0
    barrier.wait(_PATIENCE)
    cpu, began = _cpu(), time.perf_counter()
    before = began
    while (times is None or len(latencies) < times) and (seconds is None or before - began < seconds):
        units += operation()
        now = time.perf_counter()
        latencies.append(now - before)
        before = now
    return units, before - began, latencies, _cpu() - cpu


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _in_processes(live: Callable[[int], Any], count: int) -> Sequence[Any]:
    # A connection must not be shared by two processes.
    connections.close_all()
    # A collection in a client would touch, and so copy, every object that it has from here.
    gc.freeze()
    ends = [_FORK.Pipe(duplex=False) for _ in range(count)]
    processes = [
        _FORK.Process(target=_answer, args=(live, number, sender), daemon=True)
        for number, (_, sender) in enumerate(ends)
    ]
    for process in processes:
        process.start()
    for _, sender in ends:
        sender.close()
    try:
        return [_heard(receiver) for receiver, _ in ends]
    finally:
        for process in processes:
            process.join(timeout=5)
            process.kill()
            process.join()
        gc.unfreeze()


def _answer(live: Callable[[int], Any], number: int, sender: Connection) -> None:
    try:
        outcome = live(number)
    except Exception:  # noqa: BLE001  # told to the parent, which raises it
        sender.send((False, traceback.format_exc()))
    else:
        sender.send((True, outcome))
    finally:
        connections.close_all()


def _heard(receiver: Connection) -> Any:
    try:
        well, outcome = receiver.recv()
    except EOFError:
        raise ClientFailed("A client ended without a word.") from None
    if not well:
        raise ClientFailed(outcome)
    return outcome
