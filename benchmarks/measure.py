"""Measuring: clients are forked processes, each with a connection of its own; what they did is a row of a table."""

import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any, Final, Self

from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

Operation = Callable[[], int | None]
"""Does it once and returns how many units that were; None for one."""
Work = Callable[[int], Operation]
"""Prepares a client, in its own process, by its number."""

_WARM_UPS: Final = 3
_PATIENCE: Final = 120.0
FORK: Final = multiprocessing.get_context("fork")


class ClientFailed(Exception):
    """A client ended with an exception, and its traceback is the message; or it got no answer that may count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One stretch of measuring. A unit is what the case counts; an operation may do several."""

    units: int
    seconds: float
    latencies: Sequence[float] = ()
    """Seconds of each operation."""
    began: float = 0.0
    """When the first client began, by `time.perf_counter`, which all processes share."""

    @classmethod
    def of(cls, latencies: Sequence[float]) -> Self:
        """Operations that were timed one by one."""
        return cls(units=len(latencies), seconds=sum(latencies), latencies=latencies)


Measure = Callable[[], Slice]


def drive(work: Work, *, clients: int = 1, seconds: float | None = None, times: int | None = None) -> Slice:
    """Let clients work side by side, each as fast as it can, for some seconds or a number of times each."""
    barrier = FORK.Barrier(clients)

    def live(number: int) -> Slice:
        operation = work(number)
        for _ in range(_WARM_UPS if times is None else 0):
            operation()
        barrier.wait(_PATIENCE)
        units, latencies = 0, []
        began = before = time.perf_counter()
        while (times is None or len(latencies) < times) and (seconds is None or before - began < seconds):
            units += operation() or 1
            now = time.perf_counter()
            latencies.append(now - before)
            before = now
        return Slice(units=units, seconds=before - began, latencies=latencies, began=began)

    done = side_by_side(*[partial(live, number) for number in range(clients)])
    return Slice(
        units=sum(one.units for one in done),
        seconds=max(one.seconds for one in done),
        latencies=[latency for one in done for latency in one.latencies],
        began=min(one.began for one in done),
    )


def apart(question: Callable[[], Any]) -> Any:
    """Answer a question in a process of its own, so that this one keeps neither connections nor threads."""
    return side_by_side(question)[0]


def side_by_side(*lives: Callable[[], Any], watch: Callable[[Any], Any] | None = None) -> Sequence[Any]:
    """Several at once, each in a process of its own; what each returns.

    :param watch: one more, which is handed an event that is set when all others have ended. Its answer is the first.
    :raises ClientFailed: if one of them raises something.
    """
    # Two processes must not share a connection.
    connections.close_all()
    # A garbage collection in a client would copy every object of this process.
    gc.freeze()
    over = FORK.Event()
    watching = [partial(watch, over)] if watch else []
    running = [_start(life) for life in (*lives, *watching)]
    try:
        told = [_heard(receiver) for _, receiver in running[: len(lives)]]
        over.set()
        return [_heard(receiver) for _, receiver in running[len(lives) :]] + told
    finally:
        for process, _ in running:
            process.join(timeout=5)
            process.kill()
            process.join()
        gc.unfreeze()


def _start(life: Callable[[], Any]) -> tuple[Any, Connection]:
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_answer, args=(life, sender), daemon=True)
    process.start()
    sender.close()
    return process, receiver


def statements(work: Work) -> int:
    """How many statements one operation costs once everything is warm."""

    def count() -> int:
        operation = work(0)
        for _ in range(_WARM_UPS):
            operation()
        with CaptureQueriesContext(connection) as captured:
            operation()
        return len(captured)

    return apart(count)


def _answer(life: Callable[[], Any], sender: Connection) -> None:
    try:
        outcome = life()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report. `ratio` is ours over the peer's: the median of the rounds."""

    case: str
    unit: str
    ours: float
    peer: float | None = None
    peer_is: str = ""
    ratio: float | None = None
    p50: float | None = None
    """Milliseconds of an operation."""
    p99: float | None = None
    statements: int | None = None
    """SQL statements of one operation, transaction control included."""
    clients: int = 1
    batch: int = 1
    goal: str = ""
    met: bool | None = None
    note: str = ""
    suite: str = ""

    @classmethod
    def of(
        cls, case: str, ours: Sequence[Slice], peer: Sequence[Slice] = (), *, unit: str = "ms", **about: Any
    ) -> Self:
        """The median of the slices: milliseconds of an operation, or units per second."""

        def value(one: Slice) -> float:
            return 1e3 * median(one.latencies) if unit == "ms" else one.units / one.seconds

        mine, theirs = [value(one) for one in ours], [value(one) for one in peer]
        ratios = [one / other for one, other in zip(mine, theirs, strict=False) if other]
        about |= percentiles([latency for one in ours for latency in one.latencies])
        sides = {"ours": median(mine), "peer": median(theirs) if theirs else None}
        return cls(case=case, unit=unit, ratio=median(ratios) if ratios else None, **sides, **about)

    def judged(self, goal: str, *, met: bool) -> Self:
        """The same row, held to a goal."""
        return replace(self, goal=goal, met=met)

    def at_most(self, times: float) -> Self:
        """The same row, held to so many times its peer or less."""
        return self.judged(f"{times:g} or less", met=self.ratio is not None and self.ratio <= times)

    def __str__(self) -> str:
        numbers = (self.ours, self.peer, self.ratio, self.p50, self.p99, self.statements, self.clients, self.batch)
        cells = [f"{self.suite} {self.case}", self.unit, *map(_number, numbers), self.peer_is]
        verdict = {True: "met", False: "missed", None: ""}[self.met]
        return f"{_line(cells)} {self.goal} {verdict} {self.note}".rstrip()


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """The percentiles of a row, in milliseconds; empty if nothing was timed."""
    if len(seconds) < 2:  # noqa: PLR2004  # quantiles need two
        return dict.fromkeys(("p50", "p99"), seconds[0] * 1e3) if seconds else {}
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3}


def _line(cells: Sequence[str]) -> str:
    return f"{cells[0]:47} {cells[1]:10}" + "".join(f" {cell:>7}" for cell in cells[2:-1]) + f"  {cells[-1]:22}"


_COLUMNS: Final = "suite and case,unit,ours,peer,ratio,p50 ms,p99 ms,SQL,clients,batch,the peer"
HEADER: Final = f"{_line(_COLUMNS.split(','))} goal"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004
