"""What is worked on: queues, types of tasks, and what becomes of each."""

from typing import Final

from apps.chaos.history import Json

Plans = list[tuple[int, list[str]]]

QUEUE: Final = "chaos"
FAIR: Final = "chaos_fair"
"""Serves its requesters by turns."""
LEASE_SECONDS: Final = 2
PLAIN, STRICT, LIMITED, RATED = "chaos_plain", "chaos_strict", "chaos_limited", "chaos_rated"
TURNS: Final = "chaos_turns"
EXECUTED: Final = "chaos_executed"
_POLICY: Final[Json] = {"max_attempts": 3, "max_expiries": 3, "queue": QUEUE}
TYPES: Final[dict[str, Json]] = {
    PLAIN: _POLICY,
    STRICT: {**_POLICY, "strict": True},
    LIMITED: {**_POLICY, "concurrency": 5},
    RATED: {**_POLICY, "rate": {"leases": 12, "per_seconds": 2}},
    TURNS: {**_POLICY, "queue": FAIR},
}
"""The policy of each; that of what executors do is in code."""
OFTEN: Final = {PLAIN: 70, STRICT: 8, LIMITED: 4, RATED: 4, TURNS: 8, EXECUTED: 6}
"""Of a hundred tasks."""

# What becomes of a task's first runs; whatever comes after them completes it. How often, of a hundred.
PLANS: Final[Plans] = [
    (52, ["complete"]),
    (10, ["fail", "complete"]),
    (3, ["fail"] * 3),
    (3, ["final"]),
    (6, ["release", "complete"]),
    (8, ["expire", "complete"]),
    (2, ["expire"] * 3),
    (10, ["late", "slow"]),
    (2, ["slow"]),
    (4, ["expire", "slow"]),
]
