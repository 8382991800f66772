"""What past plans have in common, as sentences a person or a model can read."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from apps.plans.history import Past

_FEWEST: Final = 5
_SHARE: Final = 0.3
_MOST: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """That one tool is often followed by another: how often, out of how many."""

    name: str
    text: str
    confidence: float


def habits(plans: Sequence[Past], names: Mapping[str, str]) -> list[Habit]:
    """The most frequent steps from one tool to the next, each backed by at least five plans and three in ten of their kind."""
    follows = Counter(pair for plan in plans for pair in set(pairwise(plan.tools)))
    times = Counter(uid for plan in plans for uid in set(plan.tools))
    found = []
    for (before, after), count in sorted(follows.items(), key=lambda one: (-one[1], one[0])):
        share = count / times[before]
        if count < _FEWEST or share < _SHARE or before not in names or after not in names:
            continue
        text = (
            f"Often {names[before]} is followed by {names[after]}: in {count} of {times[before]} plans with"
            f" {names[before]}."
        )
        name = f"{names[before]} then {names[after]}"[:200]
        found.append(Habit(name=name, text=text, confidence=round(min(share, 1.0), 2)))
    return found[:_MOST]
