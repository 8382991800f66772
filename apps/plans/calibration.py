"""How well promises are kept: the expected calibration error."""

from collections.abc import Sequence
from typing import Final

_BINS: Final = 10


def calibration_error(told: Sequence[tuple[float, bool]]) -> float:
    """How far, on average over ten bins, what was promised lies from what came true.

    :param told: probabilities, each with whether it came.
    """
    bins: dict[int, list[tuple[float, bool]]] = {}
    for p, came in told:
        bins.setdefault(min(int(p * _BINS), _BINS - 1), []).append((p, came))
    gaps = (abs(sum(p for p, _ in one) - sum(came for _, came in one)) for one in bins.values())
    return sum(gaps) / max(len(told), 1)
