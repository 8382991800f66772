"""The policy of an inbox, and how many entries it would make of receipts that came at known times."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from apps.digests.grouping import Key
from apps.digests.models import THREAD_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How an inbox buffers receipts that have a group."""

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
        """This policy with the values that a source has of its own."""
        return type(self)(
            enabled=self.enabled if enabled is None else enabled,
            window=self.window if window is None else window,
            max_items=self.max_items if max_items is None else max_items,
            max_thread_age=self.max_thread_age if max_thread_age is None else max_thread_age,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """When a receipt came, and its group; None: it has none."""

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
        """The number of entries that a flush makes: one, or none if the buffer is empty."""
        entries = 1 if self.pending else 0
        self.pending, self.due_at = 0, None
        return entries


def count_entries(received: Iterable[Received], policy_of: Callable[[str], Policy]) -> int:
    """How many entries these receipts, in the order of their coming, make under the policies of their sources.

    Each buffer is flushed the moment it is due; what is pending at the end is one more entry of its thread. Nobody acks.
    """
    threads: dict[Key, _Thread] = {}
    entries = 0
    for one in received:
        policy, key = policy_of(one.source_system), one.key
        if key is None or not policy.enabled:
            entries += 1
            continue
        thread = threads.get(key.of_thread)
        if thread is not None and thread.due_at is not None and one.at >= thread.due_at:
            entries += thread.flush()
        is_over = thread is not None and (
            key.breaks_thread or thread.receipts >= THREAD_LIMIT or one.at - thread.opened_at >= policy.max_thread_age
        )
        if thread is None or is_over:
            entries += thread.flush() if thread is not None else 0
            thread = threads[key.of_thread] = _Thread(opened_at=one.at)
        thread.receipts += 1
        thread.pending += 1
        thread.due_at = thread.due_at or one.at + policy.window
        if key.is_immediate or thread.pending >= policy.max_items:
            entries += thread.flush()
    return entries + sum(thread.flush() for thread in threads.values())
