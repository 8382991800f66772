"""How long an item stands in envelopes, and how sure of it one is meanwhile. Pure."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from apps.memory.states import ItemType

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """For how many whole days after it was said an item of each type counts."""

    fact_days: int = 30
    pattern_days: int = 14
    narrative_days: int = 7

    def days(self, type_: ItemType) -> int:
        match type_:
            case ItemType.USER_FACT:
                return self.fact_days
            case ItemType.USER_PATTERN:
                return self.pattern_days
            case ItemType.SHARED_NARRATIVE:
                return self.narrative_days


def lasts(days: int) -> timedelta:
    """From when an item was said to when it counts no more: the day with the window's number is whole."""
    return (days + 1) * _DAY


def faded(confidence: float, age: timedelta, days: int) -> float:
    """A confidence after this age: it falls evenly, to half of it at the end of the window, and stays there."""
    return confidence * (1 - min(max(age / (days * _DAY), 0.0), 1.0) / 2)
