"""How receipts become entries: the policy of an inbox, and what it makes of receipts that come at known times."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

from apps.digests.grouping import Key

# A thread rolls over when it has held this many receipts, which bounds a snapshot.
THREAD_LIMIT: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How an inbox gathers receipts that carry a group."""

    enabled: bool
    window: timedelta
    max_items: int
    max_thread_age: timedelta

    def overridden(
        self,
        enabled: bool | None,  # noqa: FBT001  # in the order of the columns
        window: timedelta | None,
        max_items: int | None,
        max_thread_age: timedelta | None,
    ) -> Self:
        """This policy with what a source has of its own."""
        return type(self)(
            enabled=self.enabled if enabled is None else enabled,
            window=self.window if window is None else window,
            max_items=self.max_items if max_items is None else max_items,
            max_thread_age=self.max_thread_age if max_thread_age is None else max_thread_age,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """When a receipt came, and what it is gathered by; None: by nothing."""

    at: datetime
    source_system: str
    key: Key | None


@dataclass(slots=True)
class _Thread:
    opened_at: datetime
    due_at: datetime | None = None
    receipts: int = 0
    pending: int = 0

    def flush(self) -> int:
        """How many entries that makes: one, or none where nothing waits."""
        published = 1 if self.pending else 0
        self.pending, self.due_at = 0, None
        return published


def count_entries(arrivals: Iterable[Arrival], policy_of: Callable[[str], Policy]) -> int:
    """How many entries these receipts, in the order of their coming, make under these policies of their sources.

    Each buffer is flushed the moment it is due; what waits at the end is one more entry of its thread. Nobody acks.
    """
    threads: dict[tuple[str, str, str], _Thread] = {}
    entries = 0
    for one in arrivals:
        policy = policy_of(one.source_system)
        if one.key is None or not policy.enabled:
            entries += 1
            continue
        place = (one.source_system, one.key.resource_ref, one.key.event_family)
        thread = threads.get(place)
        if thread is not None and thread.due_at is not None and one.at >= thread.due_at:
            entries += thread.flush()
        if thread is None or _rolls_over(thread, one.key, one.at, policy):
            entries += thread.flush() if thread is not None else 0
            thread = threads[place] = _Thread(opened_at=one.at)
        entries += _join(thread, one.key, one.at, policy)
    return entries + sum(thread.flush() for thread in threads.values())


def _rolls_over(thread: _Thread, key: Key, at: datetime, policy: Policy) -> bool:
    return key.breaks_thread or thread.receipts >= THREAD_LIMIT or at - thread.opened_at >= policy.max_thread_age


def _join(thread: _Thread, key: Key, at: datetime, policy: Policy) -> int:
    thread.receipts += 1
    thread.pending += 1
    thread.due_at = thread.due_at or at + policy.window
    return thread.flush() if key.is_immediate or thread.pending >= policy.max_items else 0
