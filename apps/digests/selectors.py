"""Questions about inboxes: what is shown, what waits, what is due, and whether all of it adds up."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection

from apps.digests import compose, formats, sql
from apps.digests.errors import UnknownEntry
from apps.digests.formats import Bound, Through
from apps.digests.models import Entry, Inbox, ReceiptState
from apps.receipts import selectors as receipts
from apps.receipts.models import Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryView:
    """An entry as one read showed it. `receipt_pks` are primary keys of receipts."""

    id: int
    kind: str
    thread_id: int | None
    revision: int | None
    sequence: int
    count: int
    title: str | None
    summary: str
    receipt_pks: list[int]
    receipt_ids: list[str] = field(default_factory=list)
    source_systems: list[str]
    first_at: datetime
    last_at: datetime
    flush_reason: str | None
    supersedes_id: int | None
    delivery_handle: str | None
    group_key: str | None
    as_of: int | None = None
    """The state of the inbox that the read saw; None where it gives no right to ack through."""
    bound: Bound = field(default_factory=Bound)
    acked_at: datetime | None = None
    superseded_at: datetime | None = None
    superseded_by_seq: int | None = None

    @property
    def ref(self) -> str:
        return formats.entry_ref(self.id)

    @property
    def token(self) -> str | None:
        """What the reader hands back to ack through this entry; None where the read was not as of a state."""
        if self.as_of is None:
            return None
        return formats.format_token(Through(entry_id=self.id, as_of=self.as_of, bound=self.bound))

    @property
    def thread(self) -> str | None:
        return formats.thread_ref(self.thread_id) if self.thread_id is not None else None

    @property
    def supersedes(self) -> str | None:
        return formats.entry_ref(self.supersedes_id) if self.supersedes_id is not None else None

    @property
    def tokens_estimate(self) -> int:
        return compose.tokens_estimate(self.title, self.summary, *self.receipt_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxPage:
    """What an inbox showed at one moment."""

    as_of: int
    entries: list[EntryView]
    visible: int
    """Unacked receipts in visible entries."""
    pending: int
    """Unacked receipts still gathered in burst buffers."""

    @property
    def unread(self) -> int:
        return self.visible + self.pending

    @property
    def more_waiting(self) -> int:
        """Unread receipts that are not in these entries."""
        return self.unread - sum(entry.count for entry in self.entries)


def read_inbox(
    principal_id: int,
    *,
    after: int = 0,
    source_system: str | None = None,
    limit: int = 50,
    max_tokens: int | None = None,
) -> InboxPage:
    """The visible entries, oldest first, each with a token that acks exactly what this read showed up to it.

    `max_tokens` ends the page before the entry that would exceed it; the first entry is always there.
    """
    bound = Bound(after=after, source=source_system)
    page = _read(principal_id, bound, limit=limit, newest=False)
    return page if max_tokens is None else replace(page, entries=_within(page.entries, max_tokens))


def newest_entries(principal_id: int, *, limit: int = 10) -> InboxPage:
    """The newest visible entries, newest first; their tokens reach these entries only."""
    page = _read(principal_id, Bound(), limit=limit, newest=True)
    bound = Bound(ids=tuple(sorted(entry.id for entry in page.entries)))
    return replace(page, entries=[replace(entry, bound=bound) for entry in page.entries])


def _read(principal_id: int, bound: Bound, *, limit: int, newest: bool) -> InboxPage:
    statement = sql.READ.format(
        source=sql.OF_SOURCE if bound.source is not None else "", direction="desc" if newest else "asc"
    )
    with connection.cursor() as cursor:
        cursor.execute(
            statement, {"principal": principal_id, "after": bound.after, "source": bound.source, "limit": limit}
        )
        rows = cursor.fetchall()
    if not rows:
        return InboxPage(as_of=0, entries=[], visible=0, pending=0)
    as_of, visible, pending = rows[0][:3]
    views = [_view(row[3:], as_of=as_of, bound=bound) for row in rows if row[3] is not None]
    return InboxPage(as_of=as_of, entries=_with_receipt_ids(views), visible=visible, pending=pending)


def _view(row: Sequence[Any], *, as_of: int, bound: Bound) -> EntryView:
    (pk, kind, thread_id, revision, sequence, count, title, summary, receipt_pks, source) = row[:10]
    first_at, last_at, reason, supersedes_id, handle, resource_ref, family = row[10:]
    return EntryView(
        id=pk,
        kind=kind,
        thread_id=thread_id,
        revision=revision,
        sequence=sequence,
        count=count,
        title=title,
        summary=summary or "",
        receipt_pks=receipt_pks,
        source_systems=[source],
        first_at=first_at,
        last_at=last_at,
        flush_reason=reason,
        supersedes_id=supersedes_id,
        delivery_handle=handle,
        group_key=_group_key(source, resource_ref, family),
        as_of=as_of,
        bound=bound,
    )


def _group_key(source: str, resource_ref: str | None, family: str | None) -> str | None:
    return None if resource_ref is None else f"{source}:{resource_ref}:{family}"


def _with_receipt_ids(views: list[EntryView]) -> list[EntryView]:
    wanted = {pk for view in views for pk in view.receipt_pks}
    names = dict(Receipt.objects.filter(pk__in=wanted).values_list("pk", "receipt_id")) if wanted else {}
    return [replace(view, receipt_ids=[names[pk] for pk in view.receipt_pks if pk in names]) for view in views]


def _within(entries: list[EntryView], max_tokens: int) -> list[EntryView]:
    spent, fitting = 0, 0
    for fitting, entry in enumerate(entries, start=1):
        spent += entry.tokens_estimate
        if spent > max_tokens:
            return entries[: max(1, fitting - 1)]
    return entries[:fitting]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """How many receipts are unacked: in visible entries, and still gathered."""

    visible: int
    pending: int

    @property
    def total(self) -> int:
        return self.visible + self.pending


def unread_counts(principal_id: int) -> Unread:
    """How much a principal has not acked; one row's counters, whatever the inbox holds."""
    row = Inbox.objects.filter(principal_id=principal_id).values_list("visible_unread", "pending_unread").first()
    return Unread(visible=row[0], pending=row[1]) if row else Unread(visible=0, pending=0)


def entry(principal_id: int, entry_id: int) -> EntryView:
    """One entry of a principal's inbox, visible or not.

    :raises UnknownEntry: if that inbox has none of this number.
    """
    inbox = _inbox_of(principal_id)
    found = Entry.objects.filter(pk=entry_id, inbox_id=inbox).select_related("thread").first()
    if found is None:
        raise UnknownEntry(f"This inbox has no entry {formats.entry_ref(entry_id)}.")
    return _with_receipt_ids(_with_content([found]))[0]


def history(principal_id: int, *, before: int | None = None, limit: int = 50) -> list[EntryView]:
    """All entries, acked and superseded ones too, newest first, before a sequence."""
    rows = Entry.objects.filter(inbox_id=_inbox_of(principal_id)).select_related("thread").order_by("-sequence")
    if before is not None:
        rows = rows.filter(sequence__lt=before)
    return _with_receipt_ids(_with_content(list(rows[:limit])))


_NO_INBOX: Final = 0


def _inbox_of(principal_id: int) -> int:
    """The inbox's key, found first: the indexes that end an ordered walk early begin with a known inbox."""
    return Inbox.objects.filter(principal_id=principal_id).values_list("pk", flat=True).first() or _NO_INBOX


def _with_content(rows: list[Entry]) -> list[EntryView]:
    alone = [row.receipt_ids[0] for row in rows if row.thread is None]
    items = Receipt.objects.in_bulk(alone) if alone else {}
    return [_stored(row, items.get(row.receipt_ids[0])) for row in rows]


def _stored(row: Entry, item: Receipt | None) -> EntryView:
    thread = row.thread
    title, summary = (item.title, item.summary) if item and thread is None else (row.title, row.summary)
    return EntryView(
        id=row.pk,
        kind=row.kind,
        thread_id=row.thread_id,
        revision=row.revision,
        sequence=row.sequence,
        count=row.count,
        title=title,
        summary=summary or "",
        receipt_pks=row.receipt_ids,
        source_systems=[row.source_system],
        first_at=row.first_at,
        last_at=row.last_at,
        flush_reason=row.flush_reason,
        supersedes_id=row.supersedes_id,
        delivery_handle=row.delivery_handle,
        group_key=_group_key(row.source_system, thread.resource_ref, thread.event_family) if thread else None,
        acked_at=row.acked_at,
        superseded_at=row.superseded_at,
        superseded_by_seq=row.superseded_by_seq,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptView:
    """A receipt with its lifecycle, as its recipient sees it."""

    receipt: Receipt
    delivered_at: datetime | None
    read_at: datetime | None
    archived_at: datetime | None


def expand(
    principal_id: int, entry_id: int, *, start: int = 0, limit: int = 50
) -> tuple[list[ReceiptView], int | None]:
    """The receipts inside an entry from a position on, and the next position; acked and superseded entries too.

    :raises UnknownEntry: if that inbox has none of this number.
    """
    members = entry(principal_id, entry_id).receipt_pks
    keys = members[start : start + limit]
    following = start + limit if start + limit < len(members) else None
    return with_lifecycle(receipts.in_order(keys)), following


def with_lifecycle(facts: Sequence[Receipt]) -> list[ReceiptView]:
    """Receipts with how far they have come; those of the ledger have come nowhere."""
    states = ReceiptState.objects.in_bulk([fact.pk for fact in facts])
    return [_seen(fact, states.get(fact.pk)) for fact in facts]


def _seen(fact: Receipt, state: ReceiptState | None) -> ReceiptView:
    return ReceiptView(
        receipt=fact,
        delivered_at=state.delivered_at if state else None,
        read_at=state.read_at if state else None,
        archived_at=state.archived_at if state else None,
    )


def inbox_receipts(
    principal_id: int,
    *,
    unread_only: bool = True,
    source_system: str | None = None,
    before: int | None = None,
    limit: int = 10,
) -> list[ReceiptView]:
    """The raw path: single receipts, gathered ones too, newest first, before the one with this key."""
    states = ReceiptState.objects.filter(inbox_id=_inbox_of(principal_id))
    states = states.filter(acked_at=None) if unread_only else states
    states = states.filter(receipt__source_system=source_system) if source_system is not None else states
    states = states.filter(receipt_id__lt=before) if before is not None else states
    # The page is cut off inside its own index before the facts are fetched.
    page = {row.pk: row for row in states.order_by("-receipt_id")[:limit]}
    return [_seen(fact, page[fact.pk]) for fact in receipts.in_order(list(page))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How an inbox gathers receipts that carry a group."""

    enabled: bool
    window: timedelta
    max_items: int
    max_thread_age: timedelta


_DEFAULTS: Final = Inbox()


def policy(principal_id: int) -> Policy:
    """The inbox's policy; the default where there is no inbox yet."""
    inbox = Inbox.objects.filter(principal_id=principal_id).first() or _DEFAULTS
    return Policy(
        enabled=inbox.enabled,
        window=inbox.window,
        max_items=inbox.max_items,
        max_thread_age=inbox.max_thread_age,
    )


@dataclass(frozen=True, slots=True)
class DueInbox:
    """An inbox of which some buffers should be published now."""

    inbox_id: int
    tenant_id: int
    overdue: bool
    """Several ticks have passed one of them over."""


# Index: digests_thread_due, alone.
_DUE_INBOXES: Final = """
select inbox_id, tenant_id, min(flush_due_at) <= gatehouse_now() - interval '3 seconds'
from digests_thread where flush_due_at <= gatehouse_now()
group by inbox_id, tenant_id order by min(flush_due_at), inbox_id
"""
# Index: digests_thread_pending.
_DUE_THREADS: Final = """
select id from digests_thread where inbox_id = %s and flush_due_at <= gatehouse_now() order by flush_due_at limit %s
"""


def due_inboxes() -> list[DueInbox]:
    """All inboxes with buffers that are due, the longest due first; asked by the system."""
    with connection.cursor() as cursor:
        cursor.execute(_DUE_INBOXES)
        return [DueInbox(*row) for row in cursor.fetchall()]


def due_threads(inbox_id: int, *, limit: int) -> list[int]:
    """Threads of one inbox whose buffer is due, the longest due first."""
    with connection.cursor() as cursor:
        cursor.execute(_DUE_THREADS, [inbox_id, limit])
        return [pk for (pk,) in cursor.fetchall()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck:
    """What must be empty, always. Keys of receipts, threads and inboxes."""

    lost_receipts: list[int]
    """Inbox receipts that are in none of acked, visible, pending."""
    overdue_threads: list[int]
    """Buffers that should have been published a minute ago."""
    missing_heads: list[int]
    """Threads with published unacked receipts and no live snapshot, or one of other receipts."""
    miscounted_inboxes: list[int]
    """Inboxes whose counters differ from counting."""

    @property
    def is_sound(self) -> bool:
        return not (self.lost_receipts or self.overdue_threads or self.missing_heads or self.miscounted_inboxes)


_LOST: Final = """
select r.id from receipts_receipt r
left join digests_receiptstate s on s.receipt_id = r.id
left join digests_entry e on e.id = s.entry_id
left join digests_thread t on t.id = s.thread_id
where r.surface = 'inbox' and (
    s.receipt_id is null
    or (s.acked_at is null and s.entry_id is not null
        and (e.acked_at is not null or e.superseded_by_seq is not null or not r.id = any(e.receipt_ids)))
    or (s.acked_at is null and s.pending and t.flush_due_at is null)
    or (s.acked_at is null and not s.pending and s.thread_id is not null and not exists (
            select from digests_entry h
            where h.thread_id = s.thread_id and h.acked_at is null and h.superseded_by_seq is null
                  and r.id = any(h.receipt_ids)))
)
order by r.id limit 1000
"""
_OVERDUE: Final = """
select id from digests_thread where flush_due_at <= gatehouse_now() - interval '1 minute' order by id limit 1000
"""
_HEADS: Final = """
select thread.id from (
    select t.id, t.pending_count,
           array_agg(s.receipt_id order by s.receipt_id) filter (where not s.pending) as published,
           count(s.receipt_id) filter (where s.pending) as pending
    from digests_thread t left join digests_receiptstate s on s.thread_id = t.id and s.acked_at is null
    group by t.id
) thread
left join digests_entry h on h.thread_id = thread.id and h.acked_at is null and h.superseded_by_seq is null
where h.receipt_ids is distinct from thread.published or thread.pending <> thread.pending_count
order by thread.id limit 1000
"""
_COUNTS: Final = """
select i.id from digests_inbox i
left join digests_receiptstate s on s.inbox_id = i.id and s.acked_at is null
group by i.id
having i.visible_unread <> count(s.receipt_id) filter (where not s.pending)
       or i.pending_unread <> count(s.receipt_id) filter (where s.pending)
       or i.last_seq <> coalesce((select max(sequence) from digests_entry e where e.inbox_id = i.id), 0)
order by i.id limit 1000
"""


def self_check() -> SelfCheck:
    """Look for what the rules of the inbox forbid, in everything that the caller may see."""
    return SelfCheck(
        lost_receipts=_keys(_LOST),
        overdue_threads=_keys(_OVERDUE),
        missing_heads=_keys(_HEADS),
        miscounted_inboxes=_keys(_COUNTS),
    )


def _keys(statement: str) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return [pk for (pk,) in cursor.fetchall()]
