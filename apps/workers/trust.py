"""Trust tiers of MCP workers and what they allow. Pure functions.

A manifest only claims a tier. The claim counts up to the ceiling of the enrolled key that signed the manifest; without such
a key it does not count.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from django.db.models import TextChoices


class Tier(TextChoices):
    TRUSTED = "trusted"
    VERIFIED = "verified"
    SANDBOX = "sandbox"
    UNTRUSTED = "untrusted"


READ: Final = "read"
WRITE: Final = "write"
NETWORK: Final = "network"
EXEC: Final = "exec"
BIDIRECTIONAL: Final = "bidirectional"

ALL_EFFECTS: Final = frozenset({READ, WRITE, NETWORK, EXEC, BIDIRECTIONAL})

ALLOWED: Final[Mapping[Tier, frozenset[str]]] = {
    Tier.TRUSTED: ALL_EFFECTS,
    Tier.VERIFIED: frozenset({READ, NETWORK}),
    Tier.SANDBOX: frozenset({READ}),
    Tier.UNTRUSTED: frozenset(),
}

RATE_MULTIPLIER: Final[Mapping[Tier, float]] = {
    Tier.TRUSTED: 1.0,
    Tier.VERIFIED: 0.5,
    Tier.SANDBOX: 0.1,
    Tier.UNTRUSTED: 0.01,
}

CALLS_PER_HOUR: Final = 10_000
"""The limit of a worker that states none. The tier's multiplier applies to it too."""

RENEW_BEFORE: Final = timedelta(minutes=5)
"""A worker is asked to register again this long before its signature ends."""

_HOUR: Final = 3_600 * 1_000_000

_RANK: Final = {Tier.UNTRUSTED: 0, Tier.SANDBOX: 1, Tier.VERIFIED: 2, Tier.TRUSTED: 3}

_EFFECTS: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "filesystem": {"none": frozenset(), "read": frozenset({READ}), "write": frozenset({READ, WRITE})},
    "network": {
        "none": frozenset(),
        "outbound": frozenset({NETWORK}),
        "bidirectional": frozenset({NETWORK, BIDIRECTIONAL}),
    },
    "execution": {"none": frozenset(), "subprocess": frozenset({EXEC}), "container": frozenset({EXEC})},
}
_UNDECLARED: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset().union(*levels.values()) for kind, levels in _EFFECTS.items()
}


class Grant(NamedTuple):
    """The tier a worker has, and why."""

    tier: Tier
    reason: str


def effective_tier(claimed: Tier, *, ceiling: Tier | None, because: str) -> Grant:
    """Return the lower one of the claimed tier and the ceiling of the signing key; untrusted without a ceiling.

    :param because: the reason for the ceiling, or for its absence.
    """
    if ceiling is None:
        return Grant(Tier.UNTRUSTED, because)
    if _RANK[claimed] <= _RANK[ceiling]:
        return Grant(claimed, because)
    return Grant(ceiling, f"{because}; the key grants no more than {ceiling}")


def calls_per_hour(stated: int | None, tier: Tier) -> float:
    """Return how many calls an hour a worker of this tier may be sent."""
    return (CALLS_PER_HOUR if stated is None else stated) * RATE_MULTIPLIER[tier]


def share_of_an_hour(per_hour: float) -> timedelta:
    """Return the time that one call takes of an hour, rounded down, so that all calls fit."""
    return timedelta(microseconds=int(_HOUR / per_hour))


def effects_of(side_effects: Mapping[str, str] | None) -> frozenset[str]:
    """Return the declared effects. A kind that is not declared counts as all effects of its kind."""
    declared = side_effects or {}
    return frozenset().union(
        *(levels.get(declared.get(kind, ""), _UNDECLARED[kind]) for kind, levels in _EFFECTS.items())
    )


def forbidden_effects(effects: frozenset[str], tier: Tier) -> frozenset[str]:
    """Return the effects that a tier does not allow."""
    return effects - ALLOWED[tier]
