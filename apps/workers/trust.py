"""How far a worker is trusted and what that allows: decisions on values alone.

A tier that a manifest claims is a claim. It counts up to the ceiling of the enrolled key that signed the manifest, and not at all
without one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

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
"""What counts where a worker states no limit: leaving it out must not evade the tier's share of it."""

RENEW_BEFORE: Final = timedelta(minutes=5)
"""So long before its signature ends a worker is told to register anew."""

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
_UNSAID: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset().union(*levels.values()) for kind, levels in _EFFECTS.items()
}


@dataclass(frozen=True, slots=True)
class Grant:
    """The tier a worker has, and why."""

    tier: Tier
    reason: str


def effective_tier(claimed: Tier, *, ceiling: Tier | None, because: str) -> Grant:
    """Return the lower of what is claimed and what the signing key may grant; no ceiling, no trust.

    :param because: how the ceiling was found, or why there is none.
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
    """Return what one call takes of an hour, rounded down, so that the hour has room for all of them."""
    return timedelta(microseconds=int(_HOUR / per_hour))


def effects_of(side_effects: Mapping[str, str] | None) -> frozenset[str]:
    """Return the effects that a declaration admits to. What it leaves unsaid counts as all there is."""
    declared = side_effects or {}
    return frozenset().union(*(levels.get(declared.get(kind, ""), _UNSAID[kind]) for kind, levels in _EFFECTS.items()))


def forbidden_effects(effects: frozenset[str], tier: Tier) -> frozenset[str]:
    """Return the effects that a tier does not allow."""
    return effects - ALLOWED[tier]
