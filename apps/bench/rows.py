"""What is measured, and what is told of it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median, quantiles
from typing import Any, Self

_MILLI = 1e3
_MICRO = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One stretch of measuring. A unit is what the case counts; an operation may do several."""

    units: int
    seconds: float
    latencies: Sequence[float] = ()
    """Seconds of each operation."""
    cpu: float = 0.0
    """CPU seconds of the product's own processes; the database's are not in it."""

    @property
    def rate(self) -> float:
        return self.units / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Slices of ours and of a baseline, taken in turns: what is beside each other met the same weather."""

    ours: Sequence[Slice]
    baseline: Sequence[Slice] = ()

    @property
    def latencies(self) -> list[float]:
        return [latency for slice_ in self.ours for latency in slice_.latencies]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `ratio` is ours over the baseline's, the median of the rounds."""

    case: str
    unit: str
    ours: float
    baseline: float | None = None
    baseline_is: str = ""
    ratio: float | None = None
    p50: float | None = None
    """Milliseconds of an operation, as the other percentiles."""
    p95: float | None = None
    p99: float | None = None
    statements: int | None = None
    """SQL statements of one operation, transaction control included."""
    cpu_us: float | None = None
    """Microseconds of CPU for one unit, the database's not included."""
    clients: int = 1
    batch: int = 1
    goal: str = ""
    met: bool | None = None
    """None where there is no goal, or where this machine is too slow for it to say anything."""
    note: str = ""
    suite: str = ""

    @classmethod
    def of_rates(cls, compared: Comparison, **about: Any) -> Self:
        """Units per second."""
        ours, baseline = _rates(compared.ours), _rates(compared.baseline)
        return cls(
            ours=median(ours),
            baseline=median(baseline) if baseline else None,
            ratio=_median_ratio(ours, baseline),
            **percentiles(compared.latencies),
            cpu_us=_cpu(compared.ours),
            **about,
        )

    @classmethod
    def of_latencies(cls, compared: Comparison, **about: Any) -> Self:
        """Milliseconds of an operation: the median."""
        ours, baseline = _medians(compared.ours), _medians(compared.baseline)
        return cls(
            unit="ms",
            ours=median(ours),
            baseline=median(baseline) if baseline else None,
            ratio=_median_ratio(ours, baseline),
            **percentiles(compared.latencies),
            cpu_us=_cpu(compared.ours),
            **about,
        )

    def judged(self, goal: str, *, met: bool | None) -> Self:
        """The same with the goal that it is held to."""
        return replace(self, goal=goal, met=met)

    def at_least(self, times: float) -> Self:
        """The same, held to so many times its baseline."""
        return self.judged(f"{times:g} times or more", met=self.ratio is not None and self.ratio >= times)

    def at_most(self, times: float, *, aim: str = "") -> Self:
        """The same, held to so many times its baseline, or less; `aim` is what is worked towards besides."""
        goal = f"{times:g} times or less" + (f", aims at {aim}" if aim else "")
        return self.judged(goal, met=self.ratio is not None and self.ratio <= times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All rows of a run, and the machine that they are true of."""

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def objects(self) -> list[dict[str, Any]]:
        return [{**asdict(row), "machine": self.machine} for row in self.rows]


def percentiles(seconds: Sequence[float]) -> dict[str, Any]:
    """The percentiles of a row, in milliseconds; nothing where nothing was timed."""
    if not seconds:
        return {}
    if len(seconds) == 1:
        return dict.fromkeys(("p50", "p95", "p99"), seconds[0] * _MILLI)
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {f"p{share}": cuts[share - 1] * _MILLI for share in (50, 95, 99)}


def _rates(slices: Sequence[Slice]) -> list[float]:
    return [slice_.rate for slice_ in slices]


def _medians(slices: Sequence[Slice]) -> list[float]:
    return [median(slice_.latencies) * _MILLI for slice_ in slices]


def _median_ratio(ours: Sequence[float], baseline: Sequence[float]) -> float | None:
    ratios = [one / other for one, other in zip(ours, baseline, strict=False) if other]
    return median(ratios) if ratios else None


def _cpu(slices: Sequence[Slice]) -> float | None:
    units = sum(slice_.units for slice_ in slices)
    cpu = sum(slice_.cpu for slice_ in slices)
    return cpu * _MICRO / units if units and cpu else None
