"""Questions about inboxes: what is shown, what waits, what is due, and whether all of it adds up."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate
from time import monotonic
from typing import Any, Final

from django.db import connection

from apps.core.sql import hot_cursor
from apps.digests import compose, formats, grouping, hooks, sql
from apps.digests.errors import UnknownEntry
from apps.digests.formats import Bound, Through
from apps.digests.gathering import Arrival, Policy, count_entries
from apps.digests.grouping import Key
from apps.digests.hooks import Fact
from apps.digests.hooks.registry import VALUE_LENGTH
from apps.digests.models import Entry, Inbox, ReceiptState, Source, SourcePolicy, Sweep
from apps.receipts import selectors as receipts
from apps.receipts.models import Receipt
from apps.receipts.services import Group, ReceiptDraft


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
    pruned: int = 0
    """How many of the receipts that it counts retention has removed since."""
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
    shown_after: int | None = None,
    source_system: str | None = None,
    limit: int = 50,
    max_tokens: int | None = None,
) -> InboxPage:
    """The visible entries, oldest first, each with a token that acks exactly what this read showed up to it.

    `max_tokens` ends the page before the entry that would exceed it; the first entry is always there. A reader that
    reads on says with `shown_after` where it began: the tokens reach back to there.
    """
    bound = Bound(after=after if shown_after is None else shown_after, source=source_system)
    page = _read(principal_id, bound, after=after, limit=limit, newest=False)
    return page if max_tokens is None else replace(page, entries=_within(page.entries, max_tokens))


def newest_sequence(principal_id: int) -> int:
    """The `as_of` that a read would have; 0 where there is no inbox yet."""
    newest = Inbox.objects.filter(principal_id=principal_id).values_list("last_seq", flat=True).first()
    return newest or 0


def newest_entries(principal_id: int, *, limit: int = 10) -> InboxPage:
    """The newest visible entries, newest first; their tokens reach these entries only."""
    page = _read(principal_id, Bound(), after=0, limit=limit, newest=True)
    bound = Bound(ids=tuple(sorted(entry.id for entry in page.entries)))
    return replace(page, entries=[replace(entry, bound=bound) for entry in page.entries])


def _read(principal_id: int, bound: Bound, *, after: int, limit: int, newest: bool) -> InboxPage:
    statement = sql.READ.format(
        source=sql.OF_SOURCE if bound.source is not None else "",
        direction="desc" if newest else "asc",
        most=max(limit, _LONGEST_PAGE),
    )
    with hot_cursor() as cursor:
        cursor.execute(statement, {"principal": principal_id, "after": after, "source": bound.source, "limit": limit})
        rows = cursor.fetchall()
    if not rows:
        return InboxPage(as_of=0, entries=[], visible=0, pending=0)
    as_of, visible, pending = rows[0][:3]
    views = [_view(row[3:], as_of=as_of, bound=bound) for row in rows if row[3] is not None]
    return InboxPage(as_of=as_of, entries=views, visible=visible, pending=pending)


# Of a limit that is a parameter the planner expects a tenth of the inbox.
_LONGEST_PAGE: Final = 500


def _view(row: Sequence[Any], *, as_of: int, bound: Bound) -> EntryView:
    (pk, kind, thread_id, revision, sequence, count, title, summary, receipt_pks, source) = row[:10]
    first_at, last_at, reason, supersedes_id, handle, resource_ref, family, receipt_ids = row[10:]
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
        receipt_ids=receipt_ids,
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
    names = (
        dict(Receipt.objects.filter(pk__in=wanted, pruned_at=None).values_list("pk", "receipt_id")) if wanted else {}
    )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Some of all that an inbox has ever shown."""

    entries: list[EntryView]
    following: int | None
    """The sequence that the next page comes before; None on the last."""


MOST_NAMED: Final = 5_000
"""So many receipts are named on a page of the history: each revision of a digest names all that it held."""


def history(principal_id: int, *, before: int | None = None, limit: int = 50) -> History:
    """All entries, acked and superseded ones too, newest first, before a sequence.

    A page ends early where its entries would name too many receipts; its first entry is always there.
    """
    entries = Entry.objects.filter(inbox_id=_inbox_of(principal_id)).select_related("thread").order_by("-sequence")
    if before is not None:
        entries = entries.filter(sequence__lt=before)
    found = list(entries[:limit])
    fitting = sum(named <= MOST_NAMED for named in accumulate(entry.count for entry in found))
    page = found[: max(1, fitting)]
    has_more = len(page) < len(found) or len(found) == limit
    return History(
        entries=_with_receipt_ids(_with_content(page)),
        following=page[-1].sequence if page and has_more else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A state of an inbox that somebody was told of."""

    tenant_id: int
    principal_id: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What an inbox shows that it did not show at a mark."""

    mark: Mark
    visible: int
    """Unacked receipts in visible entries, old ones too."""
    leftover: bool
    """Of what it showed at the mark, something is still unacked."""


def news(marks: Sequence[Mark]) -> list[News]:
    """Those of these inboxes that show an unacked receipt which they did not show at the mark.

    What still waits in a burst buffer is none, nor is what an ack left over of something shown before. One look by
    index into each inbox that is named, and into no other.
    """
    given = {
        "tenants": [mark.tenant_id for mark in marks],
        "principals": [mark.principal_id for mark in marks],
        "marks": [mark.sequence for mark in marks],
    }
    with connection.cursor() as cursor:
        cursor.execute(sql.NEWS, given)
        return [
            News(mark=marks[place - 1], visible=visible, leftover=leftover)
            for place, visible, leftover in cursor.fetchall()
        ]


def any_news(entries: Collection[EntryView], mark: Mark) -> bool:
    """Whether any of these entries of an inbox holds a receipt that it did not show at a mark."""
    given: dict[str, Any] = {
        "entries": [entry.id for entry in entries],
        "tenant": mark.tenant_id,
        "mark": mark.sequence,
    }
    with connection.cursor() as cursor:
        cursor.execute(sql.ANY_NEWS, given)
        row = cursor.fetchone()
    return bool(row and row[0])


def anything_left(mark: Mark) -> bool:
    """Whether anything that an inbox showed at a mark is still unacked."""
    given = {"tenant": mark.tenant_id, "principal": mark.principal_id, "mark": mark.sequence}
    with connection.cursor() as cursor:
        cursor.execute(sql.LEFT, given)
        row = cursor.fetchone()
    return bool(row and row[0])


def all_acked_by(receipt_pks: Collection[int], moment: datetime) -> bool:
    """Whether each of these receipts had been acked at a moment, by the word of whoever acked it."""
    states = ReceiptState.objects.filter(pk__in=receipt_pks)
    return not states.exclude(acked_at__lte=moment).exists()


_NO_INBOX: Final = 0
# Behind every key that can be: the largest of its type.
_PAST_ALL: Final = 2**63 - 1


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
        pruned=row.pruned,
        acked_at=row.acked_at,
        superseded_at=row.superseded_at,
        superseded_by_seq=row.superseded_by_seq,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """Some of the receipts inside an entry."""

    receipts: list["ReceiptView"]
    following: int | None
    """The position of the next page; None on the last."""
    count: int
    pruned: int
    """How many of those that it counts retention has removed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptView:
    """A receipt with its lifecycle, as its recipient sees it."""

    receipt: Receipt
    delivered_at: datetime | None
    read_at: datetime | None
    archived_at: datetime | None


def expand(principal_id: int, entry_id: int, *, start: int = 0, limit: int = 50) -> Expanded:
    """The receipts inside an entry from a position on; of acked and superseded entries too.

    :raises UnknownEntry: if that inbox has none of this number.
    """
    found = entry(principal_id, entry_id)
    members = found.receipt_pks
    return Expanded(
        receipts=with_lifecycle(receipts.in_order(members[start : start + limit])),
        following=start + limit if start + limit < len(members) else None,
        count=found.count,
        pruned=found.pruned,
    )


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
    # The page is cut off inside one index before the facts are fetched.
    given: dict[str, int | str] = {"before": _PAST_ALL if before is None else before, "limit": limit}
    if source_system is not None:
        given |= {"recipient": principal_id, "source": source_system, "walked": _WALKED}
        statement = sql.UNREAD_OF_SOURCE if unread_only else sql.LISTED_OF_SOURCE
        return with_lifecycle(receipts.in_order(_keys(statement, given)))
    given["inbox"] = _inbox_of(principal_id)
    page = {row.pk: row for row in ReceiptState.objects.raw(sql.UNREAD if unread_only else sql.LISTED, given)}
    return [_seen(fact, page[fact.pk]) for fact in receipts.in_order(list(page))]


_WALKED: Final = 2_000
"""So many of a source's newest receipts are looked at one by one for unread ones."""


def unread_of_source(principal_id: int, source_system: str) -> int:
    """How many receipts of a source wait, those still being gathered too; a thousand at most."""
    given = {"recipient": principal_id, "source": source_system, "before": _PAST_ALL, "limit": 1000, "walked": _WALKED}
    return len(_keys(sql.UNREAD_OF_SOURCE, given))


def _keys(statement: str, given: dict[str, Any]) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        return [pk for (pk,) in cursor.fetchall()]


_DEFAULTS: Final = Inbox()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """How an inbox gathers: its own policy, and what single sources have instead."""

    default: Policy
    of_sources: dict[str, Policy]

    def of(self, source_system: str) -> Policy:
        return self.of_sources.get(source_system, self.default)


def policies(principal_id: int) -> Policies:
    """The policies of an inbox; the default where there is no inbox yet."""
    inbox = Inbox.objects.filter(principal_id=principal_id).first() or _DEFAULTS
    default = Policy(
        enabled=inbox.enabled,
        window=inbox.window,
        max_items=inbox.max_items,
        max_thread_age=inbox.max_thread_age,
    )
    own = SourcePolicy.objects.filter(inbox_id=inbox.pk or _NO_INBOX).order_by("source_system")
    return Policies(
        default=default,
        of_sources={
            row.source_system: default.overridden(row.enabled, row.window, row.max_items, row.max_thread_age)
            for row in own
        },
    )


def facts(source_system: str, receipt_pks: Sequence[int]) -> dict[int, Fact]:
    """Stored receipts of one source as its hook sees them, by primary key."""
    hook = hooks.hook_of(source_system)
    given: dict[str, Any] = {
        "receipts": list(receipt_pks),
        "paths": list(hook.reads) if hook is not None else [],
        "length": VALUE_LENGTH,
    }
    with connection.cursor() as cursor:
        cursor.execute(sql.FACTS, given)
        return {
            pk: Fact(
                source_system=source_system,
                event_type=event_type,
                dedupe_key=dedupe_key,
                title=title,
                summary=summary,
                values=json.loads(values),
            )
            for pk, event_type, dedupe_key, title, summary, values in cursor.fetchall()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What other policies would have made of an inbox's past."""

    receipts: int
    """How many were looked at."""
    gathered: int
    """Those of them that have a group."""
    entries_then: int
    """Under the policies that the inbox has."""
    entries_now: int
    """Under the policy that is asked about."""
    since: datetime
    truncated: bool
    """There are more receipts than are looked at; the oldest of these came at `since`."""

    @property
    def wakes_saved(self) -> int:
        return self.entries_then - self.entries_now


MOST_REPLAYED: Final = 10_000


def replay(
    principal_id: int,
    *,
    since: datetime,
    window: timedelta | None = None,
    max_items: int | None = None,
    source_system: str | None = None,
    limit: int = MOST_REPLAYED,
) -> Replay:
    """What another window or size would have made of the receipts that came since a moment, of the newest at most.

    Sources are asked for their groups as they are today. Nothing changes.
    """
    held = policies(principal_id)
    asked = held.of(source_system or "").overridden(True, window, max_items, None)  # noqa: FBT003  # by position
    arrivals, since, truncated = _arrivals(principal_id, since, limit)
    concerned = [one for one in arrivals if source_system in {None, one.source_system}]
    return Replay(
        receipts=len(concerned),
        gathered=sum(one.key is not None for one in concerned),
        entries_then=count_entries(concerned, held.of),
        entries_now=count_entries(concerned, lambda _: asked),
        since=since,
        truncated=truncated,
    )


def _arrivals(principal_id: int, since: datetime, limit: int) -> tuple[list[Arrival], datetime, bool]:
    """The newest receipts since a moment, oldest first, since when they are all, and whether that is later."""
    inbox = Inbox.objects.filter(principal_id=principal_id).values_list("pk", "tenant_id").first()
    if inbox is None:
        return [], since, False
    with connection.cursor() as cursor:
        cursor.execute(sql.ARRIVALS, {"inbox": inbox[0], "since": since, "before": _PAST_ALL, "limit": limit + 1})
        rows = cursor.fetchall()
    truncated = len(rows) > limit
    rows = rows[:limit][::-1]
    hooked = {source for _, _, source, *_ in rows if hooks.hook_of(source) is not None}
    seen: dict[int, Fact] = {}
    for source in sorted(hooked):
        seen |= facts(source, [row[0] for row in rows if row[2] == source])
    arrivals = [_arrival(row, seen.get(row[0]), _opted_in(inbox[1])) for row in rows]
    return arrivals, arrivals[0].at if truncated else since, truncated


def _arrival(row: Sequence[Any], seen: Fact | None, opted_in: Callable[[str], bool]) -> Arrival:
    _, at, source, dedupe_key, groupable, resource_ref, event_family, flush_class, hint, breaks = row
    said = Group(
        resource_ref=resource_ref,
        event_family=event_family,
        flush_class=flush_class,
        summary_hint=hint,
        break_thread=breaks,
        groupable=groupable,
    )
    fact = seen or Fact(source_system=source, event_type="", dedupe_key=dedupe_key, title=None, summary="")
    return Arrival(at=at, source_system=source, key=grouping.key_of(said, fact, opted_in=opted_in))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRule:
    """What operators have set for a source; the defaults are those of a source that nobody has spoken of."""

    rate_per_hour: int | None = None
    groups_by_dedupe_key: bool = False


_NO_RULE: Final = SourceRule()
# Every post asks. A rule may take effect this much later in other processes; nothing depends on the moment.
_RULES_HOLD_SECONDS: Final = 30.0
_rules: Final[dict[int, tuple[float, dict[str, SourceRule]]]] = {}


def source_rule(tenant_id: int, name: str) -> SourceRule:
    """What holds for a source, as of half a minute ago at most."""
    until, rules = _rules.get(tenant_id, (0.0, {}))
    if monotonic() >= until:
        rows = Source.objects.filter(tenant_id=tenant_id)
        rules = {
            row.name: SourceRule(rate_per_hour=row.rate_per_hour, groups_by_dedupe_key=row.groups_by_dedupe_key)
            for row in rows
        }
        _rules[tenant_id] = (monotonic() + _RULES_HOLD_SECONDS, rules)
    return rules.get(name, _NO_RULE)


def sources(*, after: int, limit: int) -> list[Source]:
    """The sources for which something is set, in the order of their keys, after one of these."""
    return list(Source.objects.filter(pk__gt=after).order_by("pk")[:limit])


def group_of(tenant_id: int, draft: ReceiptDraft) -> Key | None:
    """Which thread a receipt is gathered into; None where it is an entry of its own. To be asked before any lock."""
    return grouping.key_of(draft.group, hooks.fact_of(draft), opted_in=_opted_in(tenant_id))


def _opted_in(tenant_id: int) -> Callable[[str], bool]:
    return lambda source: source_rule(tenant_id, source).groups_by_dedupe_key


def forget_source_rules(tenant_id: int) -> None:
    """Have this process ask again."""
    _rules.pop(tenant_id, None)


@dataclass(frozen=True, slots=True)
class DueInbox:
    """An inbox of which some buffers should be published now."""

    inbox_id: int
    tenant_id: int
    overdue: bool
    """Several ticks have passed one of them over."""


# In the order of the due times before anything else: all of them are later than when the table was last counted, so the
# planner takes all that waits for due. Index: digests_thread_due, alone.
_DUE_INBOXES: Final = """
select inbox_id, tenant_id, min(flush_due_at) <= gatehouse_now() - interval '3 seconds'
from (
    select inbox_id, tenant_id, flush_due_at from digests_thread where flush_due_at <= gatehouse_now()
    order by flush_due_at
) due
group by inbox_id, tenant_id order by min(flush_due_at), inbox_id
"""
# In the order of the inbox too, lest digests_thread_due serve, which has those of all. Index: digests_thread_pending.
_DUE_THREADS: Final = """
select id from digests_thread where inbox_id = any(array[%s::bigint]) and flush_due_at <= (select gatehouse_now())
order by inbox_id, flush_due_at limit %s
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


def last_retention() -> datetime | None:
    """When the oldest of the last full sweeps of retention ended; None until each kind has had one."""
    sweeps = Sweep.objects.filter(name__startswith="retention.").values_list("ended_at", flat=True)
    ended = [moment for moment in sweeps if moment is not None]
    return min(ended) if ended and len(ended) == len(sweeps) else None
