"""Load: clients are forked processes, each with a connection of its own."""

import gc
import math
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from benchmarks.report import Comparison, Slice

Operation = Callable[[], int]
"""Does it once and returns how many units that were."""
Work = Callable[[int], Operation]
"""Prepares a client, in its own process, by its number."""

_WARM_UPS: Final = 3
_PATIENCE: Final = 120.0
_FORK: Final = multiprocessing.get_context("fork")


class ClientFailed(Exception):
    """A client ended with an exception; its traceback is the message."""


class Countdown:
    """How many of the clients that run side by side have not finished. Make it before they start."""

    def __init__(self, clients: int) -> None:
        self._left = _FORK.Value("i", clients)

    @property
    def over(self) -> bool:
        """Whether all of them have finished."""
        return bool(self._left.value <= 0)

    @contextmanager
    def one(self) -> Iterator[None]:
        """One of them at work, until the block ends."""
        try:
            yield
        finally:
            with self._left:
                self._left.value -= 1


class Moment:
    """When the first of the clients that run side by side began. Make it before they start."""

    def __init__(self) -> None:
        self._at = _FORK.Value("d", math.inf)

    @property
    def at(self) -> float:
        """Seconds of the monotonic clock, which all processes share."""
        return float(self._at.value)

    def note(self) -> None:
        """Note that it is now, unless it was noted before."""
        with self._at:
            self._at.value = min(self._at.value, time.monotonic())


def drive(work: Work, *, clients: int = 1, seconds: float | None = None, times: int | None = None) -> Slice:
    """Let clients work side by side, each as fast as it can, for some seconds or a number of times each."""
    barrier = _FORK.Barrier(clients)

    def live(number: int) -> Slice:
        operation = work(number)
        for _ in range(_WARM_UPS if times is None else 0):
            operation()
        barrier.wait(_PATIENCE)
        units, latencies = 0, []
        began = before = time.perf_counter()
        while (times is None or len(latencies) < times) and (seconds is None or before - began < seconds):
            units += operation()
            now = time.perf_counter()
            latencies.append(now - before)
            before = now
        return Slice(units=units, seconds=before - began, latencies=latencies)

    done = _in_processes(live, clients)
    return Slice(
        units=sum(one.units for one in done),
        seconds=max(one.seconds for one in done),
        latencies=[latency for one in done for latency in one.latencies],
    )


def beside(ours: Callable[[], Slice], *peers: Callable[[], Slice], rounds: int) -> list[Comparison]:
    """Measure ours and its peers in turns; one comparison for each peer."""
    slices: list[Slice] = []
    others: list[list[Slice]] = [[] for _ in peers]
    for _ in range(rounds):
        slices.append(ours())
        for measured, peer in zip(others, peers, strict=True):
            measured.append(peer())
    return [Comparison(ours=slices, peer=measured) for measured in others]


def apart(question: Callable[[], Any]) -> Any:
    """Answer a question in a process of its own, so that this one keeps neither connections nor threads."""
    return _in_processes(lambda _: question(), 1)[0]


def side_by_side(lives: Sequence[Callable[[], Any]]) -> Sequence[Any]:
    """Several at once, each in a process of its own; what each returns."""
    return _in_processes(lambda number: lives[number](), len(lives))


def statements(work: Work) -> int:
    """How many statements one operation costs once everything is warm."""

    def count() -> int:
        operation = work(0)
        for _ in range(_WARM_UPS):
            operation()
        with CaptureQueriesContext(connection) as captured:
            operation()
        return len(captured)

    counted: int = apart(count)
    return counted


def _in_processes(live: Callable[[int], Any], count: int) -> Sequence[Any]:
    # Two processes must not share a connection.
    connections.close_all()
    # A garbage collection in a client would copy every object of this process.
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
    except Exception:  # noqa: BLE001  # the parent raises it
        sender.send((False, traceback.format_exc()))
    else:
        sender.send((True, outcome))
    finally:
        connections.close_all()


def _heard(receiver: Connection) -> Any:
    try:
        well, outcome = receiver.recv()
    except EOFError:
        raise ClientFailed("A client ended without an answer.") from None
    if not well:
        raise ClientFailed(outcome)
    return outcome
