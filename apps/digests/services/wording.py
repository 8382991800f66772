"""What a snapshot says: in the words of its source where it has any, else in ours.

This runs while the inbox is held, so it is bounded: a hook sees the newest receipts only, and of their metadata only
short texts that the database cuts out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from apps.digests import compose, hooks, selectors
from apps.digests.hooks import Context, Fact

_MOST_OF_A_THREAD: Final = 50
_MOST_IN_ALL: Final = 1000
_FEWEST_OF_A_THREAD: Final = 3


@dataclass(frozen=True, slots=True)
class Members:
    """What a snapshot of a thread would hold at this moment."""

    thread_id: int
    tenant_id: int
    inbox_id: int
    source_system: str
    resource_ref: str
    event_family: str
    revision: int
    receipt_ids: list[int]
    first_at: datetime
    last_at: datetime
    latest_titles: list[str]
    hint: str | None
    delivery_handle: str | None
    pending: int


def words(threads: Sequence[Members]) -> dict[int, tuple[str, str]]:
    """Title and summary for a snapshot of each thread, by thread."""
    facts = _facts([one for one in threads if hooks.hook_of(one.source_system) is not None])
    return {one.thread_id: _say(one, facts.get(one.thread_id, [])) for one in threads}


def _say(one: Members, facts: Sequence[Fact]) -> tuple[str, str]:
    count = len(one.receipt_ids)
    context = Context(resource_ref=one.resource_ref, event_family=one.event_family, count=count)
    said = hooks.summarize_thread(one.source_system, facts, context) if facts else None
    if said is not None:
        return compose.fitting(*said)
    return (
        compose.title(count=count, event_family=one.event_family, resource_ref=one.resource_ref),
        compose.summary(
            count=count,
            event_family=one.event_family,
            resource_ref=one.resource_ref,
            latest_titles=one.latest_titles,
            hint=one.hint or _hint_of_source(facts),
        ),
    )


def _hint_of_source(facts: Sequence[Fact]) -> str | None:
    for fact in reversed(facts):
        group = hooks.group_of(fact)
        if group is not None and group.summary_hint:
            return group.summary_hint
    return None


def _facts(threads: Sequence[Members]) -> dict[int, list[Fact]]:
    """The newest receipts of each thread, oldest of them first; one statement per source."""
    if not threads:
        return {}
    most = max(_FEWEST_OF_A_THREAD, min(_MOST_OF_A_THREAD, _MOST_IN_ALL // len(threads)))
    shown = {one.thread_id: one.receipt_ids[-most:] for one in threads}
    found: dict[int, Fact] = {}
    for source in sorted({one.source_system for one in threads}):
        wanted = [pk for one in threads if one.source_system == source for pk in shown[one.thread_id]]
        found |= selectors.facts(source, wanted)
    return {thread: [found[pk] for pk in receipts if pk in found] for thread, receipts in shown.items()}
