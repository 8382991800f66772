"""The states of an MCP worker's health: which follows which, and how often probes must agree to change one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db.models import TextChoices


class State(TextChoices):
    READY = "ready"
    DEGRADED = "degraded"
    MAINTENANCE = "maintenance"
    OFFLINE = "offline"
    QUARANTINED = "quarantined"


class Reach(TextChoices):
    """The verdict of the probes on a worker's endpoint."""

    UNKNOWN = "unknown", "not probed yet"
    UP = "up"
    DOWN = "down"


class SourceKind(TextChoices):
    """How a source lists workers."""

    PULL = "pull", "one known MCP endpoint"
    STATIC = "static", "a YAML file"
    ETCD = "etcd"
    CONSUL = "consul", "Consul"


# Only an operator ends a quarantine; a heartbeat does not.
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    **{state: frozenset(State) - {state} for state in (State.READY, State.DEGRADED, State.MAINTENANCE, State.OFFLINE)},
    State.QUARANTINED: frozenset({State.OFFLINE}),
}

ROUTABLE: Final = frozenset({State.READY})
"""States in which plans may use a worker."""

REPORTED: Final[Mapping[str, State]] = {
    "healthy": State.READY,
    "degraded": State.DEGRADED,
    "maintenance": State.MAINTENANCE,
    "offline": State.OFFLINE,
}
"""The state that each status of a heartbeat stands for."""

DOWN_AFTER: Final = 3
UP_AFTER: Final = 2


@dataclass(frozen=True, slots=True)
class Reachability:
    """The verdict on an endpoint, and how many probes in a row have contradicted it."""

    reach: Reach
    against: int = 0

    def after(self, *, answered: bool) -> "Reachability":
        """Return the verdict after one more probe. The first answer of an unknown endpoint counts at once."""
        if answered and self.reach == Reach.UNKNOWN:
            return Reachability(Reach.UP)
        seen = Reach.UP if answered else Reach.DOWN
        against = self.against + 1
        if seen != self.reach and against < (UP_AFTER if answered else DOWN_AFTER):
            return Reachability(self.reach, against)
        return Reachability(seen)


def pause_after(faults: int) -> timedelta:
    """Return how long to wait after so many faults in a row: five seconds at first, five minutes at most."""
    return timedelta(seconds=min(5 * 2.0 ** min(faults - 1, 10), 300))
