"""Which thread a receipt belongs to: its poster says, else the hook of its source, else its dedupe key; else none."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from apps.digests import hooks
from apps.digests.hooks import Fact
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

    The poster's group stands: half a group, or an opt-out, is no group, whatever the source's hook would say.

    :param opted_in: whether a source's receipts are grouped by their dedupe keys.
    """
    if group is None or group == _EMPTY:
        group = hooks.group_of(fact)
        usual = read_key(fact.source_system, fact.dedupe_key) if group is None else None
        if usual is not None and opted_in(fact.source_system):
            group = Group(resource_ref=usual.entity, event_family=usual.event_type)
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
