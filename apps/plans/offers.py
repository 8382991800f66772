"""Which worker runs a chosen tool, in which mode, and what that will take: gates first, then a utility with a lower bound."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from apps.plans.shapes import StepType
from apps.workers.shapes import OfferView as Offer

DIRECT_SECONDS: Final = 10.0
"""A call that takes longer is queued."""

_TRUSTED_RUNS: Final = 20
_MEDIAN_RUNS: Final = 5
_RUNTIME_SECONDS: Final = {"fast": 2.0, "medium": 30.0, "long": 300.0}
_LATENCY_SECONDS: Final = {"fast": 2.0, "medium": 30.0, "slow": 120.0}
_UNKNOWN_SECONDS: Final = 30.0
_TIERS: Final = {"trusted": 3, "verified": 2, "sandbox": 1, "untrusted": 0}
_Z10: Final = 1.2816


def lacks_room(offer: Offer, *, payload_bytes: int, calls: int) -> str | None:
    """Why an offer can't take a call, or None.

    :param calls: how many calls of its worker a plan makes, this one among them. One is always let through, if it must wait.
    """
    if offer.max_payload_bytes is not None and payload_bytes > offer.max_payload_bytes:
        return f"{offer.worker_id} takes {offer.max_payload_bytes} bytes a call, not {payload_bytes}"
    if offer.calls_per_hour is not None and calls > max(offer.calls_per_hour, 1):
        return f"{offer.worker_id} takes {offer.calls_per_hour:g} calls an hour, not {calls}"
    return None


def payload_bytes(params: Mapping[str, Any]) -> int:
    """How long params are as compact JSON, which is what a worker's limit counts."""
    return len(json.dumps(params, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


_WEIGHTS: Final = {
    "balanced": (0.5, 0.2, 0.1),
    "cheap": (2.0, 0.1, 0.05),
    "fast": (0.2, 0.8, 0.05),
    "safe": (0.2, 0.1, 0.5),
}
"""What cost, latency and tier weigh, by what the asker cares for most."""


def choose(offers: Sequence[Offer], *, salt: str, prefer: str = "balanced") -> Offer:
    """Return the best of some open offers; equal ones are spread by the salt, always the same way for the same salt."""

    def spread(offer: Offer) -> bytes:
        return hashlib.blake2b(f"{salt}\0{offer.worker_id}".encode(), digest_size=16).digest()

    return min(offers, key=lambda offer: (-round(_utility(offer, prefer), 9), spread(offer)))


def mode(offer: Offer) -> StepType:
    """Call what is fast, queue the rest. What was observed overrides what was promised; what neither tells is called."""
    promises = offer.latency_band is not None or offer.expected_runtime is not None
    if offer.p95_seconds is not None and offer.runs >= (_TRUSTED_RUNS if promises else 1):
        return StepType.CALL_WORKER if offer.p95_seconds < DIRECT_SECONDS else StepType.QUEUE_EXECUTION
    if not promises:
        return StepType.CALL_WORKER
    slow = offer.latency_band == "slow" or _promised_seconds(offer) > DIRECT_SECONDS
    return StepType.QUEUE_EXECUTION if slow else StepType.CALL_WORKER


def expected_seconds(offer: Offer) -> float:
    """Return the observed median, else what the worker's hints promise."""
    if offer.runs >= _MEDIAN_RUNS and offer.p50_seconds is not None:
        return round(offer.p50_seconds, 3)
    return _promised_seconds(offer)


def _promised_seconds(offer: Offer) -> float:
    if offer.expected_runtime in _RUNTIME_SECONDS:
        return _RUNTIME_SECONDS[offer.expected_runtime]
    return _LATENCY_SECONDS.get(offer.latency_band or "", _UNKNOWN_SECONDS)


def _utility(offer: Offer, prefer: str) -> float:
    cost, latency, tier = _WEIGHTS[prefer]
    # About the tenth percentile of Beta(1 + successes, 1 + failures): new workers start modest.
    tries = offer.runs + 2
    mean = (offer.successes + 1) / tries
    floor = max(mean - _Z10 * math.sqrt(mean * (1 - mean) / (tries + 1)), 0.01)
    return (
        math.log(floor)
        - cost * math.log1p(offer.cost * 100)
        - latency * math.log1p(expected_seconds(offer))
        + tier * _TIERS.get(offer.tier, 0)
    )
