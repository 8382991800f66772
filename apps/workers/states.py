"""The states of a worker's health, and which follows which."""

from collections.abc import Mapping
from typing import Final

from django.db.models import TextChoices


class State(TextChoices):
    READY = "ready"
    DEGRADED = "degraded"
    MAINTENANCE = "maintenance"
    OFFLINE = "offline"
    QUARANTINED = "quarantined"


class SourceKind(TextChoices):
    """How a source says where workers are."""

    PULL = "pull", "one known MCP endpoint"
    STATIC = "static", "a YAML file"
    ETCD = "etcd"
    CONSUL = "consul", "Consul"


# Quarantine is left by an operator's word alone; a heartbeat does not end it.
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.READY: frozenset({State.DEGRADED, State.MAINTENANCE, State.OFFLINE, State.QUARANTINED}),
    State.DEGRADED: frozenset({State.READY, State.MAINTENANCE, State.OFFLINE, State.QUARANTINED}),
    State.MAINTENANCE: frozenset({State.READY, State.DEGRADED, State.OFFLINE, State.QUARANTINED}),
    State.OFFLINE: frozenset({State.READY, State.DEGRADED, State.MAINTENANCE, State.QUARANTINED}),
    State.QUARANTINED: frozenset({State.OFFLINE}),
}

ROUTABLE: Final = frozenset({State.READY})
"""States in which a worker is planned for."""

REPORTED: Final[Mapping[str, State]] = {
    "healthy": State.READY,
    "degraded": State.DEGRADED,
    "maintenance": State.MAINTENANCE,
    "offline": State.OFFLINE,
}
"""What a heartbeat's word for its status means."""
