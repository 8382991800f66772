"""When what probes see counts as up or down: a decision on values alone.

One lost probe says little, and so does one that comes through to a worker that was gone. A verdict changes when as many
in a row say so, and nothing else changes it.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db.models import TextChoices

DOWN_AFTER: Final = 3
UP_AFTER: Final = 2


class Reach(TextChoices):
    UNKNOWN = "unknown", "not probed yet"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Standing:
    """The verdict on an endpoint, and how many probes in a row have contradicted it."""

    reach: Reach
    against: int = 0

    def after(self, *, answered: bool) -> "Standing":
        """The verdict after one more probe. Nobody doubts the first answer of a worker that was never seen down."""
        if answered and self.reach == Reach.UNKNOWN:
            return Standing(Reach.UP)
        says = Reach.UP if answered else Reach.DOWN
        if says == self.reach:
            return Standing(self.reach)
        against = self.against + 1
        if against < (UP_AFTER if answered else DOWN_AFTER):
            return Standing(self.reach, against)
        return Standing(says)

    @property
    def doubted(self) -> bool:
        """Whether the last probe spoke against the verdict, so that the next should come soon."""
        return self.against > 0


def pause_after(faults: int) -> timedelta:
    """How long to leave alone what has failed so often in a row: five seconds at first, five minutes at last."""
    return timedelta(seconds=min(5 * 2.0 ** min(faults - 1, 10), 300))
