"""In which order chosen tools run: as they were mentioned, unless past plans know better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
_EXACT: Final = 7


def best_path(items: Sequence[T], gain: Callable[[T, T], float], opening: Callable[[T], float]) -> list[T]:
    """Order items so that the gains from each to the next, and that of the first, sum up highest; ties keep the given order."""
    if len(items) > _EXACT:
        return _greedy(items, gain, opening)
    gains = [[gain(one, other) for other in items] for one in items]
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {
        (1 << place, place): (opening(item), (place,)) for place, item in enumerate(items)
    }
    for _ in range(len(items) - 1):
        longer: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        for (mask, last), (value, path) in best.items():
            for place in range(len(items)):
                if mask >> place & 1:
                    continue
                found = (round(value + gains[last][place], 9), (*path, place))
                key = (mask | 1 << place, place)
                if key not in longer or _is_better(found, longer[key]):
                    longer[key] = found
        best = longer
    _, path = max(best.values(), key=lambda one: (one[0], tuple(-place for place in one[1])), default=(0.0, ()))
    return [items[place] for place in path]


def _is_better(found: tuple[float, tuple[int, ...]], other: tuple[float, tuple[int, ...]]) -> bool:
    return found[0] > other[0] or (found[0] == other[0] and found[1] < other[1])


def _greedy(items: Sequence[T], gain: Callable[[T, T], float], opening: Callable[[T], float]) -> list[T]:
    left = list(range(len(items)))
    first = max(left, key=lambda place: (opening(items[place]), -place))
    path = [first]
    left.remove(first)
    while left:
        last = items[path[-1]]
        following = max(left, key=lambda place: (gain(last, items[place]), -place))
        path.append(following)
        left.remove(following)
    return [items[place] for place in path]
