"""The group of a receipt, the policy of an inbox, and how many entries both make of receipts that came at known times.

The group comes from the poster, else from the hook of the source, else from the dedupe key, else there is none.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

from apps.digests import hooks
from apps.digests.hooks import Fact
from apps.digests.models import THREAD_LIMIT
from apps.receipts.models import FlushClass
from apps.receipts.services import Group

_LONGEST_RESOURCE: Final = 200
_LONGEST_FAMILY: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The group of a receipt, and what the receipt does to its thread."""

    source_system: str
    resource_ref: str
    event_family: str
    is_immediate: bool = False
    breaks_thread: bool = False

    @property
    def of_thread(self) -> Self:
        """The group alone, the same for all receipts of a thread."""
        return replace(self, is_immediate=False, breaks_thread=False)


def key_of(group: Group | None, fact: Fact, *, opted_in: Callable[[str], bool]) -> Key | None:
    """The group of a receipt; None where it is an entry of its own.

    The poster's group is final: half a group, or an opt-out, is no group, whatever the source's hook would give.

    :param opted_in: whether a source's receipts are grouped by their dedupe keys.
    """
    if group is None or group == _EMPTY:
        group = hooks.group_of(fact)
        named = read_key(fact.source_system, fact.dedupe_key) if group is None else None
        if named is not None and opted_in(fact.source_system):
            group = Group(event_family=named[0], resource_ref=named[1])
    if group is None or group.groupable is False:
        return None
    resource, family = group.resource_ref, group.event_family
    # If they were cut to fit, two groups could become one.
    if not resource or not family or len(resource) > _LONGEST_RESOURCE or len(family) > _LONGEST_FAMILY:
        return None
    if "\x00" in resource + family:
        return None
    return Key(
        source_system=fact.source_system,
        resource_ref=resource,
        event_family=family,
        is_immediate=group.flush_class == FlushClass.IMMEDIATE,
        breaks_thread=group.break_thread,
    )


_EMPTY: Final = Group()


def read_key(source_system: str, dedupe_key: str) -> tuple[str, str] | None:
    """Event type and entity in a key of the form `{source}:{event_type}:{entity}:{version}`; an entity may hold colons."""
    source, _, rest = dedupe_key.partition(f"{source_system}:")
    event_type, _, rest = rest.partition(":")
    entity, _, version = rest.rpartition(":")
    parts = [event_type, *entity.split(":"), version]
    return (event_type, entity) if not source and all(parts) else None


@dataclass(frozen=True, slots=True)
class Policy:
    """How an inbox buffers receipts that have a group."""

    enabled: bool
    window: timedelta
    max_items: int
    max_thread_age: timedelta

    def overridden(self, own: Mapping[str, Any]) -> Self:
        """This policy with other values, named and counted as on the wire; None leaves a value as it is."""
        values = {name: value for name, value in own.items() if value is not None}
        for name in values.keys() & {"window_ms", "max_thread_age_ms"}:
            values[name.removesuffix("_ms")] = timedelta(milliseconds=values.pop(name))
        return replace(self, **values)


@dataclass(frozen=True, slots=True)
class Policies:
    """The policy of an inbox, and the values that single sources have of their own, as on the wire."""

    default: Policy
    own: Mapping[str, Mapping[str, Any]]

    def of(self, source_system: str | None) -> Policy:
        own = self.own.get(source_system or "")
        return self.default if own is None else self.default.overridden(own)


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
