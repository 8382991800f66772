"""How well promises are kept: the expected calibration error."""

import math
from collections.abc import Sequence
from typing import Final

_BINS: Final = 10


def calibration_error(told: Sequence[tuple[float, bool]]) -> float:
    """How far, on average over ten bins, what was promised lies from what came true.

    :param told: probabilities, each with whether it came.
    """
    gaps = (abs(sum(p for p, _ in one) - sum(came for _, came in one)) for one in _binned(told))
    return sum(gaps) / max(len(told), 1)


def error_by_chance(told: Sequence[tuple[float, bool]]) -> float:
    """About how large the calibration error of so many promises is on average where every one of them is true."""
    spreads = (math.sqrt(2 / math.pi * sum(p * (1 - p) for p, _ in one)) for one in _binned(told))
    return sum(spreads) / max(len(told), 1)


def _binned(told: Sequence[tuple[float, bool]]) -> list[list[tuple[float, bool]]]:
    bins: dict[int, list[tuple[float, bool]]] = {}
    for p, came in told:
        bins.setdefault(min(int(p * _BINS), _BINS - 1), []).append((p, came))
    return list(bins.values())
