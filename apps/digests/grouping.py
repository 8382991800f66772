"""Which thread a receipt belongs to: what its poster says, else its source, else its dedupe key; else none."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from apps.digests import hooks
from apps.digests.hooks import Fact
from apps.receipts.models import FlushClass
from apps.receipts.services import Group

_LONGEST_RESOURCE: Final = 200
_LONGEST_FAMILY: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a receipt is gathered by, and how it concerns the thread that it joins."""

    source_system: str
    resource_ref: str
    event_family: str
    is_immediate: bool = False
    breaks_thread: bool = False


def key_of(group: Group | None, fact: Fact, *, opted_in: Callable[[str], bool]) -> Key | None:
    """The group of a receipt; None where it is an entry of its own.

    What the poster says stands: half a group, or an opt-out, is no group, whatever its source would say.

    :param opted_in: whether a source's receipts are gathered by their dedupe keys.
    """
    if group is None or group == _NOTHING_SAID:
        group = _group_of_source(fact, opted_in)
    return _key(fact.source_system, group) if group is not None else None


_NOTHING_SAID: Final = Group()


def _group_of_source(fact: Fact, opted_in: Callable[[str], bool]) -> Group | None:
    found = hooks.group_of(fact)
    if found is not None:
        return found
    usual = read_key(fact.source_system, fact.dedupe_key)
    if usual is None or not opted_in(fact.source_system):
        return None
    return Group(resource_ref=usual.entity, event_family=usual.event_type)


def _key(source_system: str, group: Group) -> Key | None:
    resource, family = group.resource_ref, group.event_family
    if group.groupable is False or not resource or not family:
        return None
    # Cut to fit, two groups could become one.
    if len(resource) > _LONGEST_RESOURCE or len(family) > _LONGEST_FAMILY or "\x00" in resource + family:
        return None
    return Key(
        source_system=source_system,
        resource_ref=resource,
        event_family=family,
        is_immediate=group.flush_class == FlushClass.IMMEDIATE,
        breaks_thread=group.break_thread,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualKey:
    """What a dedupe key of the usual form says."""

    event_type: str
    entity: str


_FEWEST_PARTS: Final = 3


def read_key(source_system: str, dedupe_key: str) -> UsualKey | None:
    """A key of the form `{source}:{event_type}:{entity}:{version}`; an entity may hold colons."""
    if not dedupe_key.startswith(f"{source_system}:"):
        return None
    parts = dedupe_key.removeprefix(f"{source_system}:").split(":")
    if len(parts) < _FEWEST_PARTS or not all(parts):
        return None
    return UsualKey(event_type=parts[0], entity=":".join(parts[1:-1]))
