"""Acks: each adds exactly what its boundary named."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from apps.digests import sql
from apps.digests.errors import BadToken, UnknownEntry
from apps.digests.formats import Through, entry_ref
from apps.digests.models import Entry, Inbox
from apps.digests.services import locking
from apps.digests.services.locking import LockedInbox
from apps.digests.services.publishing import members, publish_narrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """What an ack added; zeros when all of it was acked before."""

    acked_entries: int
    acked_receipts: int


@dataclass(frozen=True, slots=True)
class _Place:
    """What was acked in one thread, or among the items (no thread)."""

    thread_id: int | None
    pending: int
    published: int
    item_entries: list[int]


@transaction.atomic
def ack(*, principal_id: int, entry_ids: Collection[int], now: datetime) -> Acked:
    """Ack these entries, all or none.

    :raises UnknownEntry: if the inbox lacks one of them.
    """
    inbox = locking.lock(principal_id=principal_id)
    wanted = set(entry_ids)
    known = set(Entry.objects.filter(inbox_id=inbox.id, pk__in=wanted).values_list("pk", flat=True)) if inbox else set()
    if inbox is None or known != wanted:
        raise _unknown(min(wanted - known))
    return _ack_entries(inbox, wanted, now)


@transaction.atomic
def ack_through(*, principal_id: int, through: Through, now: datetime) -> Acked:
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
    places = _mark(sql.ACK_THROUGH, given)
    with connection.cursor() as cursor:
        cursor.execute(sql.ENTRIES_ACKED_THROUGH, given)
        return _settle(inbox, places, cursor.rowcount, now)


@transaction.atomic
def ack_receipt(*, principal_id: int, receipt_pk: int, now: datetime) -> Acked:
    """Ack one receipt, in whatever entry or buffer it is; a digest around it narrows."""
    return _ack_receipts(principal_id, [receipt_pk], now, archive=False)


@transaction.atomic
def ack_receipts(*, principal_id: int, receipt_pks: Collection[int], now: datetime) -> Acked:
    """As :func:`ack_receipt`, for several."""
    return _ack_receipts(principal_id, receipt_pks, now, archive=False)


@transaction.atomic
def archive_receipt(*, principal_id: int, receipt_pk: int, now: datetime) -> Acked:
    """Archive one receipt, which acks it."""
    return _ack_receipts(principal_id, [receipt_pk], now, archive=True)


def _unknown(entry_id: int) -> UnknownEntry:
    return UnknownEntry(f"This inbox has no entry {entry_ref(entry_id)}.")


def _ack_receipts(principal_id: int, receipt_pks: Collection[int], now: datetime, *, archive: bool) -> Acked:
    inbox = locking.lock(principal_id=principal_id)
    if inbox is None:
        return Acked(acked_entries=0, acked_receipts=0)
    given = {"inbox": inbox.id, "receipts": list(receipt_pks), "archive": archive, "now": now}
    places = _mark(sql.ACK_RECEIPTS, given)
    return _settle(inbox, places, _mark_entries(places, set(), now), now)


def _ack_entries(inbox: LockedInbox, entry_ids: set[int], now: datetime) -> Acked:
    if not entry_ids:
        return Acked(acked_entries=0, acked_receipts=0)
    given = {"inbox": inbox.id, "entries": list(entry_ids), "archive": False, "now": now}
    places = _mark(sql.ACK_ENTRIES, given)
    return _settle(inbox, places, _mark_entries(places, entry_ids, now), now)


def _mark_entries(places: Sequence[_Place], entry_ids: set[int], now: datetime) -> int:
    """Ack these entries, and those of the items that were acked; answers how many were not."""
    items = {entry for place in places for entry in place.item_entries}
    with connection.cursor() as cursor:
        cursor.execute(sql.ENTRIES_ACKED, [now, sorted(entry_ids | items)])
        marked: int = cursor.rowcount
    return marked


def _mark(statement: str, given: dict[str, Any]) -> list[_Place]:
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        return [_Place(*row) for row in cursor.fetchall()]


def _settle(inbox: LockedInbox, places: list[_Place], entries: int, now: datetime) -> Acked:
    """Bring threads and counters in line with the receipts that were just acked, in so many entries."""
    pending = sum(place.pending for place in places)
    published = sum(place.published for place in places)
    if pending or published:
        touched = {place.thread_id: place for place in places if place.thread_id is not None}
        _settle_threads(inbox, touched, pending, published, now)
        inbox.announce()
    return Acked(acked_entries=entries, acked_receipts=pending + published)


def _settle_threads(
    inbox: LockedInbox, touched: dict[int, _Place], pending: int, published: int, now: datetime
) -> None:
    remainders = members(touched, with_pending=False) if touched else []
    # A thread of which only pending receipts were acked keeps its live snapshot.
    narrowed = [one for one in remainders if touched[one.thread_id].published]
    last = inbox.advance(sequences=len(narrowed), visible=-published, pending=-pending)
    if not touched:
        return
    empty = sorted(touched.keys() - {one.thread_id for one in remainders})
    drained = {thread: place.pending for thread, place in touched.items() if place.pending}
    with connection.cursor() as cursor:
        cursor.execute(sql.HEADS_ACKED, {"threads": empty, "tenant": inbox.tenant_id, "now": now})
        if drained:
            cursor.execute(sql.THREADS_DRAINED, [list(drained), list(drained.values())])
        cursor.execute(sql.CLOSE_FINISHED, [now, empty])
    publish_narrowed(inbox, narrowed, last=last, now=now)
