"""Acks: each adds exactly what its boundary named. Also the stamp of what was shown."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from apps.core.metrics import once_committed
from apps.core.sql import hot_cursor
from apps.digests import metrics, sql
from apps.digests.errors import BadToken, UnknownEntry
from apps.digests.formats import Through, entry_ref
from apps.digests.models import Entry, Inbox, Thread
from apps.digests.services import locking
from apps.digests.services.flushing import members, narrow
from apps.digests.services.locking import LockedInbox, Move, advance
from apps.digests.shapes import AckedOutput


# No savepoint: one statement, which changes all or nothing.
@transaction.atomic(savepoint=False)
def mark_delivered(*, receipt_pks: Collection[int], now: datetime) -> None:
    """Stamp receipts as shown for the first time. Needs no inbox lock and waits for nobody."""
    if not receipt_pks:
        return
    with hot_cursor() as cursor:
        cursor.execute(sql.DELIVERED, {"receipts": sorted(receipt_pks), "now": now})
        for (waited,) in cursor.fetchall():
            once_committed(metrics.DELIVERY.observe, waited.total_seconds())


@transaction.atomic
def ack(*, principal_id: int, entry_ids: Collection[int], now: datetime) -> AckedOutput:
    """Ack these entries, all or none.

    :raises UnknownEntry: if the inbox lacks one of them.
    """
    inbox = locking.lock(principal_id=principal_id)
    wanted = set(entry_ids)
    known = set(Entry.objects.filter(inbox_id=inbox.id, pk__in=wanted).values_list("pk", flat=True)) if inbox else set()
    if inbox is None or known != wanted:
        raise _unknown(min(wanted - known))
    if not wanted:
        return AckedOutput()
    acked = _mark(sql.ACK_ENTRIES, {"inbox": inbox.id, "entries": list(wanted), "archive": False, "now": now})
    return _settle(inbox, acked, _mark_entries(acked, wanted, now), now)


@transaction.atomic
def ack_through(*, principal_id: int, through: Through, now: datetime) -> AckedOutput:
    """Ack the entries up to this one that its reader was shown.

    With a state of the inbox: what was visible then, within what the read was bound to, and nothing else. Without:
    what is visible now up to the entry, and the entry itself even if it has been superseded.

    :raises UnknownEntry: if the inbox has no such entry.
    :raises BadToken: if the inbox has never been in that state.
    """
    inbox = locking.lock(principal_id=principal_id)
    anchor = Entry.objects.filter(inbox_id=inbox.id, pk=through.entry_id).first() if inbox else None
    if inbox is None or anchor is None:
        raise _unknown(through.entry_id)
    last_seq = Inbox.objects.values_list("last_seq", flat=True).get(pk=inbox.id)
    if through.as_of is not None and through.as_of > last_seq:
        raise BadToken(f"This inbox has no state {through.as_of}; its newest is {last_seq}.")
    as_of = last_seq if through.as_of is None else through.as_of
    bound = through.bound
    given: dict[str, Any] = {
        "inbox": inbox.id,
        "as_of": as_of,
        "upto": min(anchor.sequence, as_of),
        "after": bound.after,
        "source": bound.source,
        "ids": list(bound.ids) if bound.ids is not None else None,
        "anchor": anchor.pk if through.as_of is None else None,
        "archive": False,
        "now": now,
    }
    acked = _mark(sql.ACK_THROUGH, given)
    with connection.cursor() as cursor:
        cursor.execute(sql.ENTRIES_ACKED_THROUGH, given)
        return _settle(inbox, acked, cursor.rowcount, now)


@transaction.atomic
def ack_receipts(
    *, principal_id: int, receipt_pks: Collection[int], now: datetime, archive: bool = False
) -> AckedOutput:
    """Ack single receipts, in whatever entry or buffer they are; a digest around them narrows.

    :param archive: put them away too.
    """
    inbox = locking.lock(principal_id=principal_id)
    if inbox is None:
        return AckedOutput()
    given = {"inbox": inbox.id, "receipts": list(receipt_pks), "archive": archive, "now": now}
    acked = _mark(sql.ACK_RECEIPTS, given)
    return _settle(inbox, acked, _mark_entries(acked, set(), now), now)


def _unknown(entry_id: int) -> UnknownEntry:
    return UnknownEntry(f"This inbox has no entry {entry_ref(entry_id)}.")


@dataclass(frozen=True, slots=True)
class _Acked:
    """The receipts that were acked in one thread, or among the items (no thread)."""

    thread_id: int | None
    pending: int
    published: int
    item_entries: list[int]


def _mark(statement: str, given: dict[str, Any]) -> list[_Acked]:
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        return [_Acked(*row) for row in cursor.fetchall()]


def _mark_entries(acked: Collection[_Acked], entry_ids: set[int], now: datetime) -> int:
    """Ack these entries, and those of the items that were acked; returns how many were not acked before."""
    items = {entry for one in acked for entry in one.item_entries}
    return Entry.objects.filter(pk__in=entry_ids | items, acked_at=None).update(acked_at=now)


def _settle(inbox: LockedInbox, acked: Collection[_Acked], entries: int, now: datetime) -> AckedOutput:
    """Bring threads and counters in line with the receipts that were just acked, in so many entries."""
    pending, published = sum(one.pending for one in acked), sum(one.published for one in acked)
    if not pending and not published:
        return AckedOutput(acked_entries=entries)
    touched = {one.thread_id: one for one in acked if one.thread_id is not None}
    remainders = members(touched, with_pending=False) if touched else []
    # A thread of which only pending receipts were acked keeps its live snapshot.
    narrowed = [one for one in remainders if touched[one.thread_id].published]
    move = Move(sequences=len(narrowed), visible=-published, pending=-pending)
    last = advance({inbox.id: move})[inbox.id]
    if touched:
        empty = touched.keys() - {one.thread_id for one in remainders}
        live = Entry.objects.filter(tenant_id=inbox.tenant_id, acked_at=None, superseded_by_seq=None)
        live.filter(thread_id__in=empty).update(acked_at=now)
        drained = {thread: one.pending for thread, one in touched.items() if one.pending}
        if drained:
            with connection.cursor() as cursor:
                cursor.execute(sql.THREADS_DRAINED, [list(drained), list(drained.values())])
        Thread.objects.filter(pk__in=empty, closed_at=None, pending_count=0).update(closed_at=now)
        narrow(inbox, narrowed, last=last, now=now)
    inbox.notify()
    return AckedOutput(acked_entries=entries, acked_receipts=pending + published)
