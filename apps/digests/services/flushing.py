"""Flushing: the pending receipts of a thread become visible in one immutable snapshot.

`flush_due` runs each second. A post flushes what it fills, and some of what is due in the same inbox. An ack that
leaves a part of a snapshot makes a `narrow` one of the rest.
"""

import logging
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import connection
from django.db.models import F

from apps.core.metrics import once_committed
from apps.core.sql import database_now
from apps.digests import hooks, metrics, selectors, sql
from apps.digests.hooks import Context, Fact
from apps.digests.models import Entry, FlushReason, Kind, Thread
from apps.digests.selectors import DueInbox
from apps.digests.services import locking
from apps.digests.services.locking import LockedInbox, Move, advance
from apps.principals.tenancy import acting_as_system, acting_in

logger = logging.getLogger(__name__)

_WHY: Final = "flush due threads"
_MOST_WAITED_FOR: Final = 4
_PATIENCE: Final = "500ms"


def flush_due(*, limit: int = 500) -> int:
    """Flush whatever is due, in all tenants, each inbox in a transaction of its own; returns the number of snapshots.

    Locked inboxes are passed over. After all others a few of those that are overdue are waited for, briefly. At most
    `limit` threads of an inbox are flushed at a time, then the next inbox follows. Running it twice, or twice at
    once, is harmless.
    """
    with acting_as_system(_WHY):
        due = selectors.due_inboxes()
    flushed = 0
    held: list[DueInbox] = []
    while due:
        unfinished = []
        for inbox in due:
            snapshots = _try_to_flush(inbox, limit=limit, wait=False)
            flushed += snapshots or 0
            if snapshots is None:
                held.append(inbox)
            elif snapshots == limit:
                unfinished.append(inbox)
        due = unfinished
    overdue = [inbox for inbox in held if inbox.overdue]
    # Drawn at random, so that inboxes held for long don't keep the tick from the others.
    for inbox in random.sample(overdue, min(len(overdue), _MOST_WAITED_FOR)):
        flushed += _try_to_flush(inbox, limit=limit, wait=True) or 0
    return flushed


def _try_to_flush(inbox: DueInbox, *, limit: int, wait: bool) -> int | None:
    """The number of snapshots; None if somebody else holds the inbox."""
    try:
        with acting_in(inbox.tenant_id, _WHY):
            if wait:
                with connection.cursor() as cursor:
                    cursor.execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
            held = locking.lock_by_id(inbox.inbox_id, wait=wait)
            if held is None:
                return None
            # Asked again under the lock.
            due = selectors.due_threads(held.id, limit=limit)
            return len(flush_threads({held.id: held}, dict.fromkeys(due, FlushReason.WINDOW), now=database_now()))
    except Exception:
        # A failing inbox must not keep the others from their readers; it stays due.
        logger.exception("inbox %s could not be flushed", inbox.inbox_id)
        return 0


def flush_sources(
    inbox: LockedInbox, source_systems: Collection[str], *, reason: FlushReason, now: datetime
) -> list[Entry]:
    """Flush all that is pending of these sources in a locked inbox."""
    pending = Thread.objects.filter(inbox_id=inbox.id, flush_due_at__isnull=False, source_system__in=source_systems)
    threads = pending.order_by("pk").values_list("pk", flat=True) if source_systems else []
    return flush_threads({inbox.id: inbox}, dict.fromkeys(threads, reason), now=now)


def flush_threads(
    inboxes: Mapping[int, LockedInbox], reasons: Mapping[int, FlushReason], *, now: datetime
) -> list[Entry]:
    """One snapshot of each of these threads of locked inboxes that has something pending: all its unacked receipts.

    :param reasons: why each thread is flushed, by thread.
    """
    due = [one for one in members(reasons, with_pending=True) if one.pending] if reasons else []
    if not due:
        return []
    sequences = Counter(one.inbox_id for one in due)
    moved = Counter[int]()
    for one in due:
        moved[one.inbox_id] += one.pending
    last = advance(
        {
            inbox_id: Move(sequences=number, visible=moved[inbox_id], pending=-moved[inbox_id])
            for inbox_id, number in sequences.items()
        }
    )
    entries = _write(due, last, reasons, now)
    with connection.cursor() as cursor:
        cursor.execute(sql.SURFACE, {"threads": [one.thread_id for one in due]})
    for inbox_id in sequences:
        inboxes[inbox_id].notify()
    return entries


def narrow(inbox: LockedInbox, rest: Sequence["Members"], *, last: int, now: datetime) -> None:
    """Snapshots of what an ack has left of these threads, under the sequences that end with `last`."""
    if rest:
        threads = [one.thread_id for one in rest]
        _write(rest, {inbox.id: last}, dict.fromkeys(threads, FlushReason.NARROW), now)
        Thread.objects.filter(pk__in=threads).update(revision=F("revision") + 1)


@dataclass(frozen=True, slots=True)
class Members:
    """What a snapshot of a thread would hold now."""

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


def members(thread_ids: Collection[int], *, with_pending: bool) -> list[Members]:
    """The unacked receipts of each thread that has any, by thread."""
    with connection.cursor() as cursor:
        cursor.execute(sql.MEMBERS, {"threads": list(thread_ids), "with_pending": with_pending})
        return [Members(*row) for row in cursor.fetchall()]


def _write(
    snapshots: Sequence[Members], last: Mapping[int, int], reasons: Mapping[int, FlushReason], now: datetime
) -> list[Entry]:
    """Write the snapshots in their order: the sequences of each inbox end with its last one."""
    following, sequences = dict(last), list[int]()
    for one in reversed(snapshots):
        sequences.insert(0, following[one.inbox_id])
        following[one.inbox_id] -= 1
    given = {"threads": [one.thread_id for one in snapshots], "sequences": sequences}
    with connection.cursor() as cursor:
        cursor.execute(sql.SUPERSEDE, given | {"tenant": snapshots[0].tenant_id, "now": now})
        superseded: dict[int, int] = dict(cursor.fetchall())
    texts = _texts(snapshots)
    for reason, number in Counter(reasons[one.thread_id] for one in snapshots).items():
        once_committed(metrics.SNAPSHOTS.labels(reason).inc, number)
    once_committed(metrics.MERGES.inc, len(superseded))
    for one in snapshots:
        once_committed(metrics.GROUP_SIZE.observe, len(one.receipt_ids))
    return Entry.objects.bulk_create(
        Entry(
            tenant_id=one.tenant_id,
            inbox_id=one.inbox_id,
            kind=Kind.DIGEST_SNAPSHOT,
            sequence=sequence,
            thread_id=one.thread_id,
            revision=one.revision + 1,
            source_system=one.source_system,
            receipt_ids=one.receipt_ids,
            count=len(one.receipt_ids),
            title=texts[one.thread_id][0],
            summary=texts[one.thread_id][1],
            first_at=one.first_at,
            last_at=one.last_at,
            flush_reason=reasons[one.thread_id],
            delivery_handle=one.delivery_handle,
            published_at=now,
            supersedes_id=superseded.get(one.thread_id),
        )
        for one, sequence in zip(snapshots, sequences, strict=True)
    )


# A hook runs while the inbox is locked, so it sees a bounded number of the newest receipts, and of their metadata only
# short texts that the database cuts out.
_MOST_OF_A_THREAD: Final = 50
_MOST_IN_ALL: Final = 1000
_FEWEST_OF_A_THREAD: Final = 3
_TITLE: Final = 200
_SUMMARY: Final = 1000


def _texts(snapshots: Sequence[Members]) -> dict[int, tuple[str, str]]:
    """Title and summary of a snapshot of each thread: by the hook of its source, else by the default."""
    hooked = [one for one in snapshots if hooks.hook_of(one.source_system) is not None]
    most = max(_FEWEST_OF_A_THREAD, min(_MOST_OF_A_THREAD, _MOST_IN_ALL // len(hooked))) if hooked else 0
    found: dict[int, Fact] = {}
    for source in sorted({one.source_system for one in hooked}):
        wanted = [pk for one in hooked if one.source_system == source for pk in one.receipt_ids[-most:]]
        found |= selectors.facts(source, wanted)
    return {
        one.thread_id: _text(one, [found[pk] for pk in one.receipt_ids[-most:] if pk in found]) for one in snapshots
    }


def _text(one: Members, facts: Sequence[Fact]) -> tuple[str, str]:
    """:param facts: the newest receipts, oldest first; none if the source has no hook."""
    count = len(one.receipt_ids)
    context = Context(resource_ref=one.resource_ref, event_family=one.event_family, count=count)
    texts = hooks.summarize_thread(one.source_system, facts, context) if facts else None
    if texts is None:
        title = f"{count} {one.event_family} on {one.resource_ref}"
        hints = (group.summary_hint for fact in reversed(facts) if (group := hooks.group_of(fact)) is not None)
        hint = one.hint or next(filter(None, hints), None)
        latest = "; ".join(_cut(text, 120) for text in one.latest_titles)
        texts = title, hint or f"{title}. Latest: {latest}"
    return _cut(texts[0], _TITLE), _cut(texts[1], _SUMMARY)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
