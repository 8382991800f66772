"""Latencies, counted by class: a class is at most a fifth wider than the one before it."""

from collections.abc import Mapping, Sequence
from typing import Final

# A class's upper bound is 2 ** (class / 4) milliseconds: the last one begins after a century.
CLASSES_PER_DOUBLING: Final = 4
LAST_CLASS: Final = 167


def bound_of(latency_class: int) -> float:
    """The seconds that a latency of this class takes at most."""
    return float(2.0 ** (latency_class / CLASSES_PER_DOUBLING) / 1000)


def quantiles(counts: Mapping[int, int], wanted: Sequence[float]) -> list[float | None]:
    """The latencies, in seconds, that these shares of all stay within; None of nothing."""
    total = sum(counts.values())
    if not total:
        return [None for _ in wanted]
    return [_quantile(counts, share * total) for share in wanted]


def _quantile(counts: Mapping[int, int], rank: float) -> float:
    passed = 0
    for latency_class in sorted(counts):
        passed += counts[latency_class]
        if passed >= rank:
            return bound_of(latency_class)
    return bound_of(max(counts))
