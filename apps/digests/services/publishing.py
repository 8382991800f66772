"""Making snapshots: the one way in which threads become visible."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from apps.digests import compose, sql
from apps.digests.models import Entry
from apps.digests.services.locking import LockedInbox
from apps.digests.states import FlushReason, Kind


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


def members(thread_ids: Collection[int], *, with_pending: bool) -> list[Members]:
    """The unacked receipts of each thread that has any, by thread."""
    with connection.cursor() as cursor:
        cursor.execute(sql.MEMBERS, {"threads": list(thread_ids), "with_pending": with_pending})
        return [Members(*row) for row in cursor.fetchall()]


def publish_pending(
    inbox: LockedInbox, thread_ids: Collection[int], *, reason: FlushReason, now: datetime
) -> list[Entry]:
    """One snapshot of each of these threads that has something pending: all its unacked receipts."""
    due = [one for one in members(thread_ids, with_pending=True) if one.pending]
    if not due:
        return []
    moved = sum(one.pending for one in due)
    last = inbox.advance(sequences=len(due), visible=moved, pending=-moved)
    entries = _write(inbox, due, last=last, reason=reason, now=now)
    with connection.cursor() as cursor:
        cursor.execute(sql.SURFACE, {"threads": [one.thread_id for one in due]})
    inbox.announce()
    return entries


def publish_narrowed(inbox: LockedInbox, remainders: Sequence[Members], *, last: int, now: datetime) -> None:
    """Snapshots of what an ack left over, under the sequences that end with `last`."""
    if not remainders:
        return
    _write(inbox, remainders, last=last, reason=FlushReason.NARROW, now=now)
    with connection.cursor() as cursor:
        cursor.execute(sql.NARROWED, [[one.thread_id for one in remainders]])


def _write(
    inbox: LockedInbox, snapshots: Sequence[Members], *, last: int, reason: FlushReason, now: datetime
) -> list[Entry]:
    sequences = range(last - len(snapshots) + 1, last + 1)
    threads = [one.thread_id for one in snapshots]
    with connection.cursor() as cursor:
        cursor.execute(
            sql.SUPERSEDE,
            {"threads": threads, "sequences": list(sequences), "tenant": inbox.tenant_id, "now": now},
        )
        superseded = dict(cursor.fetchall())
    return Entry.objects.bulk_create(
        _snapshot(one, sequence=sequence, supersedes=superseded.get(one.thread_id), reason=reason, now=now)
        for one, sequence in zip(snapshots, sequences, strict=True)
    )


def _snapshot(one: Members, *, sequence: int, supersedes: int | None, reason: FlushReason, now: datetime) -> Entry:
    count = len(one.receipt_ids)
    return Entry(
        tenant_id=one.tenant_id,
        inbox_id=one.inbox_id,
        kind=Kind.DIGEST_SNAPSHOT,
        sequence=sequence,
        thread_id=one.thread_id,
        revision=one.revision + 1,
        source_system=one.source_system,
        receipt_ids=one.receipt_ids,
        count=count,
        title=compose.title(count=count, event_family=one.event_family, resource_ref=one.resource_ref),
        summary=compose.summary(
            count=count,
            event_family=one.event_family,
            resource_ref=one.resource_ref,
            latest_titles=one.latest_titles,
            hint=one.hint,
        ),
        first_at=one.first_at,
        last_at=one.last_at,
        flush_reason=reason,
        delivery_handle=one.delivery_handle,
        published_at=now,
        supersedes_id=supersedes,
    )
