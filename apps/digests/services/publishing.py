"""Making snapshots: the one way in which threads become visible."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from django.db import connection

from apps.core.metrics import once_committed
from apps.digests import metrics, sql
from apps.digests.models import Entry
from apps.digests.services.locking import LockedInbox, Move, advance
from apps.digests.services.wording import Members, words
from apps.digests.states import FlushReason, Kind


def members(thread_ids: Collection[int], *, with_pending: bool) -> list[Members]:
    """The unacked receipts of each thread that has any, by thread."""
    with connection.cursor() as cursor:
        cursor.execute(sql.MEMBERS, {"threads": list(thread_ids), "with_pending": with_pending})
        return [Members(*row) for row in cursor.fetchall()]


def publish_pending(
    inbox: LockedInbox, thread_ids: Collection[int], *, reason: FlushReason, now: datetime
) -> list[Entry]:
    """One snapshot of each of these threads that has something pending: all its unacked receipts."""
    return publish({inbox.id: inbox}, dict.fromkeys(thread_ids, reason), now=now)


def publish(inboxes: Mapping[int, LockedInbox], reasons: Mapping[int, FlushReason], *, now: datetime) -> list[Entry]:
    """As :func:`publish_pending`, for threads of several inboxes that are held, each thread for a reason of its own."""
    due = [one for one in members(reasons, with_pending=True) if one.pending]
    if not due:
        return []
    places = Counter(one.inbox_id for one in due)
    moved = Counter[int]()
    for one in due:
        moved[one.inbox_id] += one.pending
    last = advance(
        {
            inbox_id: Move(sequences=number, visible=moved[inbox_id], pending=-moved[inbox_id])
            for inbox_id, number in places.items()
        }
    )
    entries = _write(due, _sequences(due, last), reasons, now)
    with connection.cursor() as cursor:
        cursor.execute(sql.SURFACE, {"threads": [one.thread_id for one in due]})
    for inbox_id in places:
        inboxes[inbox_id].announce()
    return entries


def publish_narrowed(inbox: LockedInbox, remainders: Sequence[Members], *, last: int, now: datetime) -> None:
    """Snapshots of what an ack left over, under the sequences that end with `last`."""
    if not remainders:
        return
    threads = [one.thread_id for one in remainders]
    _write(remainders, _sequences(remainders, {inbox.id: last}), dict.fromkeys(threads, FlushReason.NARROW), now)
    with connection.cursor() as cursor:
        cursor.execute(sql.NARROWED, [threads])


def _sequences(snapshots: Sequence[Members], last: Mapping[int, int]) -> list[int]:
    """A sequence for each snapshot: in their order, those of each inbox end with its last."""
    following = dict(last)
    sequences = []
    for one in reversed(snapshots):
        sequences.append(following[one.inbox_id])
        following[one.inbox_id] -= 1
    return sequences[::-1]


def _write(
    snapshots: Sequence[Members], sequences: Sequence[int], reasons: Mapping[int, FlushReason], now: datetime
) -> list[Entry]:
    threads = [one.thread_id for one in snapshots]
    with connection.cursor() as cursor:
        cursor.execute(
            sql.SUPERSEDE,
            {"threads": threads, "sequences": list(sequences), "tenant": snapshots[0].tenant_id, "now": now},
        )
        superseded = dict(cursor.fetchall())
    said = words(snapshots)
    for reason, number in Counter(reasons[one.thread_id] for one in snapshots).items():
        once_committed(metrics.SNAPSHOTS.labels(reason).inc, number)
    once_committed(metrics.MERGES.inc, len(superseded))
    for one in snapshots:
        once_committed(metrics.GROUP_SIZE.observe, len(one.receipt_ids))
    return Entry.objects.bulk_create(
        _snapshot(
            one,
            said[one.thread_id],
            sequence,
            superseded.get(one.thread_id),
            reason=reasons[one.thread_id],
            now=now,
        )
        for one, sequence in zip(snapshots, sequences, strict=True)
    )


def _snapshot(
    one: Members,
    said: tuple[str, str],
    sequence: int,
    supersedes: int | None,
    *,
    reason: FlushReason,
    now: datetime,
) -> Entry:
    title, summary = said
    return Entry(
        tenant_id=one.tenant_id,
        inbox_id=one.inbox_id,
        kind=Kind.DIGEST_SNAPSHOT,
        sequence=sequence,
        thread_id=one.thread_id,
        revision=one.revision + 1,
        source_system=one.source_system,
        receipt_ids=one.receipt_ids,
        count=len(one.receipt_ids),
        title=title,
        summary=summary,
        first_at=one.first_at,
        last_at=one.last_at,
        flush_reason=reason,
        delivery_handle=one.delivery_handle,
        published_at=now,
        supersedes_id=supersedes,
    )
