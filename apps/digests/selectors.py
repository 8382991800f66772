"""Queries on inboxes: what is shown, what is pending, what is due."""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from time import monotonic
from typing import Any, Final

from django.conf import settings
from django.db.models import OuterRef, QuerySet, Subquery

from apps.core.errors import NotFound
from apps.core.ids import encode_cursor
from apps.core.sql import fetch
from apps.digests import formats, grouping, hooks, sql
from apps.digests.formats import Bound, Through
from apps.digests.grouping import Key, Policies, Policy, Received, count_entries
from apps.digests.hooks import VALUE_LENGTH, Fact
from apps.digests.models import Entry, Inbox, ReceiptState, Source, SourceHour
from apps.digests.shapes import (
    EntryOutput,
    ExpandedOutput,
    HistoryOutput,
    InboxOutput,
    PastEntryOutput,
    PolicyOutput,
    ReceiptOutput,
    ReplayOutput,
    SourcePolicyOutput,
)
from apps.receipts import selectors as receipts
from apps.receipts.models import Receipt
from apps.receipts.services import Group, ReceiptDraft


def read_inbox(
    principal_id: int,
    *,
    after: int = 0,
    shown_after: int | None = None,
    source_system: str | None = None,
    limit: int = 50,
    max_tokens: int | None = None,
) -> InboxOutput:
    """The visible entries, oldest first, each with a token that acks exactly what this read showed up to it.

    `max_tokens` ends the page before the entry that would exceed it; the first entry is always there. A reader that
    continues a read gives its start in `shown_after`: the tokens reach back to there.
    """
    bound = Bound(after=after if shown_after is None else shown_after, source=source_system)
    return _read(principal_id, bound, after=after, limit=limit, max_tokens=max_tokens)


def newest_entries(principal_id: int, *, limit: int = 10) -> InboxOutput:
    """The newest visible entries, newest first; their tokens reach these entries only."""
    return _read(principal_id, Bound(), limit=limit, newest=True)


def newest_sequence(principal_id: int) -> int:
    """The `as_of` that a read would have; 0 if there is no inbox yet."""
    newest = Inbox.objects.filter(principal_id=principal_id).values_list("last_seq", flat=True).first()
    return newest or 0


# With a limit that is a parameter the planner expects a tenth of the inbox.
_LONGEST_PAGE: Final = 500
_OF_ENTRY: Final = (
    *("pk", "kind", "thread_id", "revision", "sequence", "count", "source_system", "first_at", "last_at"),
    *("flush_reason", "delivery_handle", "supersedes_id"),
)
# As sql.READ returns them.
_COLUMNS: Final = (*_OF_ENTRY, "title", "summary", "receipt_pks", "resource_ref", "event_family", "receipt_ids")


def _read(
    principal_id: int,
    bound: Bound,
    *,
    after: int = 0,
    limit: int,
    max_tokens: int | None = None,
    newest: bool = False,
) -> InboxOutput:
    statement = sql.READ.format(
        source=sql.OF_SOURCE if bound.source is not None else "",
        direction="desc" if newest else "asc",
        most=max(limit, _LONGEST_PAGE),
    )
    rows = fetch(
        statement, {"principal": principal_id, "after": after, "source": bound.source, "limit": limit}, hot=True
    )
    if not rows:
        return InboxOutput(as_of=0, entries=[], visible=0, pending=0, more_waiting=0)
    as_of, visible, pending = rows[0][:3]
    shown = [dict(zip(_COLUMNS, row[3:], strict=True)) for row in rows if row[3] is not None]
    if newest:
        bound = Bound(ids=tuple(sorted(one["pk"] for one in shown)))
    entries = [
        EntryOutput(
            token=formats.format_token(Through(entry_id=one["pk"], as_of=as_of, bound=bound)), **_members(**one)
        )
        for one in shown
    ]
    if max_tokens is not None:
        fitting = sum(spent <= max_tokens for spent in accumulate(entry.tokens_estimate for entry in entries))
        entries = entries[: max(1, fitting)]
    return InboxOutput(
        as_of=as_of,
        entries=entries,
        visible=visible,
        pending=pending,
        more_waiting=visible + pending - sum(entry.count for entry in entries),
    )


def _members(
    *,
    thread_id: int | None,
    source_system: str,
    resource_ref: str | None,
    event_family: str | None,
    supersedes_id: int | None,
    pk: int,
    title: str | None,
    summary: str | None,
    receipt_ids: Sequence[str],
    **same: Any,
) -> dict[str, Any]:
    """The members of an entry on the wire, from its columns."""
    texts = (title, summary, *receipt_ids)
    return {
        **same,
        "id": pk,
        "ref": formats.entry_ref(pk),
        "thread": formats.thread_ref(thread_id) if thread_id is not None else None,
        "title": title,
        "summary": summary or "",
        "receipt_ids": list(receipt_ids),
        "source_systems": [source_system],
        "group_key": None if resource_ref is None else f"{source_system}:{resource_ref}:{event_family}",
        "supersedes": formats.entry_ref(supersedes_id) if supersedes_id is not None else None,
        # About four characters are a token of a model's context; the frame of an entry takes forty.
        "tokens_estimate": 40 + sum(len(text) for text in texts if text) // 4,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """How many receipts are unacked: in visible entries, and in buffers."""

    visible: int
    pending: int

    @property
    def total(self) -> int:
        return self.visible + self.pending


def unread_counts(principal_id: int) -> Unread:
    """How much a principal has not acked; one row's counters, whatever the inbox holds."""
    row = Inbox.objects.filter(principal_id=principal_id).values_list("visible_unread", "pending_unread").first()
    return Unread(visible=row[0], pending=row[1]) if row else Unread(visible=0, pending=0)


def entry(principal_id: int, entry_id: int) -> PastEntryOutput:
    """One entry of a principal's inbox, visible or not.

    :raises NotFound: `unknown_entry`, if that inbox has none of this number.
    """
    found = _entries(principal_id).filter(pk=entry_id).first()
    if found is None:
        raise NotFound(f"This inbox has no entry {formats.entry_ref(entry_id)}.", code="unknown_entry")
    return _past([found])[0]


MOST_NAMED: Final = 5_000
"""So many receipts are named on a page of the history: each revision of a digest names all that it held."""


def history(principal_id: int, *, before: int | None = None, limit: int = 50) -> HistoryOutput:
    """All entries, acked and superseded ones too, newest first, before a sequence.

    A page ends early where its entries would name too many receipts; its first entry is always there.
    """
    entries = _entries(principal_id).order_by("-sequence")
    if before is not None:
        entries = entries.filter(sequence__lt=before)
    found = list(entries[:limit])
    fitting = sum(named <= MOST_NAMED for named in accumulate(entry.count for entry in found))
    page = found[: max(1, fitting)]
    has_more = bool(page) and (len(page) < len(found) or len(found) == limit)
    return HistoryOutput(entries=_past(page), next=encode_cursor(page[-1].sequence) if has_more else None)


def _entries(principal_id: int) -> "QuerySet[Entry]":
    """All entries of an inbox, each with its thread and with the snapshot that it superseded."""
    of_thread = Entry.objects.filter(tenant=OuterRef("tenant"), thread=OuterRef("thread"))
    before = of_thread.filter(revision=OuterRef("revision") - 1, superseded_by_seq=OuterRef("sequence"))
    found = Entry.objects.filter(inbox_id=_inbox_of(principal_id)).select_related("thread")
    return found.annotate(supersedes_id=Subquery(before.values("pk")))


def _past(rows: Sequence[Entry]) -> list[PastEntryOutput]:
    """Stored entries with the ids of their receipts; the title and summary of an item are those of its receipt."""
    wanted = {pk for row in rows for pk in row.receipt_ids}
    named = Receipt.objects.filter(pk__in=wanted, pruned_at=None) if wanted else Receipt.objects.none()
    names = dict(named.values_list("pk", "receipt_id"))
    items = Receipt.objects.in_bulk([row.receipt_ids[0] for row in rows if row.thread_id is None])
    entries = []
    for row in rows:
        item = items.get(row.receipt_ids[0]) if row.thread_id is None else None
        members = _members(
            **{name: getattr(row, name) for name in _OF_ENTRY},
            title=item.title if item else row.title,
            summary=item.summary if item else row.summary,
            receipt_pks=row.receipt_ids,
            receipt_ids=[names[pk] for pk in row.receipt_ids if pk in names],
            resource_ref=row.thread.resource_ref if row.thread else None,
            event_family=row.thread.event_family if row.thread else None,
        )
        past = PastEntryOutput(
            **members,
            pruned=row.pruned,
            token=None,
            truncated=row.pruned > 0,
            acked_at=row.acked_at,
            superseded_at=row.superseded_at,
            superseded_by_seq=row.superseded_by_seq,
        )
        entries.append(past)
    return entries


def expand(principal_id: int, entry_id: int, *, start: int = 0, limit: int = 50) -> ExpandedOutput:
    """The receipts inside an entry from a position on; of acked and superseded entries too.

    :raises NotFound: `unknown_entry`, if that inbox has none of this number.
    """
    found = entry(principal_id, entry_id)
    end = start + limit
    return ExpandedOutput(
        receipts=with_lifecycle(receipts.in_order(found.receipt_pks[start:end])),
        count=found.count,
        pruned=found.pruned,
        truncated=found.truncated,
        next=encode_cursor(end) if end < len(found.receipt_pks) else None,
    )


def with_lifecycle(facts: Sequence[Receipt]) -> list[ReceiptOutput]:
    """Receipts with their lifecycle; receipts of the ledger have none."""
    states = ReceiptState.objects.in_bulk([fact.pk for fact in facts])
    return [ReceiptOutput.of(fact, states.get(fact.pk)) for fact in facts]


def inbox_receipts(
    principal_id: int,
    *,
    unread_only: bool = True,
    source_system: str | None = None,
    before: int | None = None,
    limit: int = 10,
) -> list[ReceiptOutput]:
    """Single receipts of an inbox, buffered ones too, newest first, before the one with this key."""
    # The page is cut off inside one index before the facts are fetched.
    given: dict[str, Any] = {"before": _PAST_ALL if before is None else before, "limit": limit}
    if source_system is not None:
        given |= {"recipient": principal_id, "source": source_system}
        statement = sql.UNREAD_OF_SOURCE if unread_only else sql.LISTED_OF_SOURCE
    else:
        given["inbox"] = _inbox_of(principal_id)
        statement = sql.UNREAD if unread_only else sql.LISTED
    return with_lifecycle(receipts.in_order(_keys(statement, given)))


def unread_of_source(principal_id: int, source_system: str) -> int:
    """How many receipts of a source are unread, buffered ones too; a thousand at most."""
    given = {"recipient": principal_id, "source": source_system, "before": _PAST_ALL, "limit": 1000}
    return len(fetch(sql.UNREAD_OF_SOURCE, given, hot=True))


def _keys(statement: str, given: dict[str, Any]) -> list[int]:
    return [pk for (pk,) in fetch(statement, given)]


_NO_INBOX: Final = 0
# Behind every key that can be: the largest of its type.
_PAST_ALL: Final = 2**63 - 1


def _inbox_of(principal_id: int) -> int:
    """The inbox's key, found first: the indexes that end an ordered walk early begin with a known inbox."""
    return Inbox.objects.filter(principal_id=principal_id).values_list("pk", flat=True).first() or _NO_INBOX


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A state of an inbox that somebody was notified of."""

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

    What is in a buffer is no news, nor is the rest of something shown before that an ack left. One look by index into
    each inbox that is named, and into no other.
    """
    given = {
        "tenants": [mark.tenant_id for mark in marks],
        "principals": [mark.principal_id for mark in marks],
        "marks": [mark.sequence for mark in marks],
    }
    return [
        News(mark=marks[nth - 1], visible=visible, leftover=leftover)
        for nth, visible, leftover in fetch(sql.NEWS, given)
    ]


def any_news(entries: Collection[EntryOutput], mark: Mark) -> bool:
    """Whether any of these entries of an inbox holds a receipt that it did not show at a mark."""
    given = {"entries": [entry.id for entry in entries], "tenant": mark.tenant_id, "mark": mark.sequence}
    return _is_so(sql.ANY_NEWS, given)


def anything_left(mark: Mark) -> bool:
    """Whether anything that an inbox showed at a mark is still unacked."""
    given = {"tenant": mark.tenant_id, "principal": mark.principal_id, "mark": mark.sequence}
    return _is_so(sql.LEFT, given)


def _is_so(statement: str, given: dict[str, Any]) -> bool:
    return any(so for (so,) in fetch(statement, given))


def all_acked_by(receipt_pks: Collection[int], moment: datetime) -> bool:
    """Whether each of these receipts had been acked at a moment, by the word of whoever acked it."""
    states = ReceiptState.objects.filter(pk__in=receipt_pks)
    return not states.exclude(acked_at__lte=moment).exists()


_DEFAULTS: Final = Inbox()


def policies(principal_id: int) -> Policies:
    """The policies of an inbox; the default where there is no inbox yet."""
    inbox = Inbox.objects.filter(principal_id=principal_id).first() or _DEFAULTS
    default = Policy(inbox.enabled, inbox.window, inbox.max_items, inbox.max_thread_age)
    return Policies(default, inbox.source_policies)


def policy(principal_id: int, source_system: str | None) -> PolicyOutput:
    """The policy of an inbox, or of one source in it."""
    held = policies(principal_id)
    sources = [SourcePolicyOutput(source_system=name, **_members_of(held.of(name))) for name in sorted(held.own)]
    return PolicyOutput(source_system=source_system, sources=sources, **_members_of(held.of(source_system)))


def _members_of(policy: Policy) -> dict[str, Any]:
    millisecond = timedelta(milliseconds=1)
    return {
        "enabled": policy.enabled,
        "window_ms": policy.window // millisecond,
        "max_items": policy.max_items,
        "max_thread_age_ms": policy.max_thread_age // millisecond,
    }


def facts(source_system: str, receipt_pks: Sequence[int]) -> dict[int, Fact]:
    """Stored receipts of one source as its hook sees them, by primary key."""
    hook = hooks.hook_of(source_system)
    given: dict[str, Any] = {
        "receipts": list(receipt_pks),
        "paths": list(hook.reads) if hook is not None else [],
        "length": VALUE_LENGTH,
    }
    return {
        pk: Fact(
            source_system=source_system,
            event_type=event_type,
            dedupe_key=dedupe_key,
            title=title,
            summary=summary,
            values=json.loads(values),
        )
        for pk, event_type, dedupe_key, title, summary, values in fetch(sql.FACTS, given)
    }


MOST_REPLAYED: Final = 10_000


def replay(
    principal_id: int,
    *,
    since: datetime,
    window_ms: int | None = None,
    max_items: int | None = None,
    source_system: str | None = None,
    limit: int = MOST_REPLAYED,
) -> ReplayOutput:
    """What another window or size would have made of the receipts that came since a moment, of the newest at most.

    Hooks group the receipts as they do today. Nothing changes.
    """
    held = policies(principal_id)
    asked = held.of(source_system).overridden({"enabled": True, "window_ms": window_ms, "max_items": max_items})
    received, since, truncated = _received(principal_id, since, limit)
    concerned = [one for one in received if source_system in {None, one.source_system}]
    entries_then, entries_now = count_entries(concerned, held.of), count_entries(concerned, lambda _: asked)
    return ReplayOutput(
        receipts=len(concerned),
        grouped=sum(one.key is not None for one in concerned),
        entries_then=entries_then,
        entries_now=entries_now,
        wakes_saved=entries_then - entries_now,
        since=since,
        truncated=truncated,
    )


def entries_by_window(
    principal_id: int, windows: Iterable[timedelta], *, since: datetime, limit: int = 1_000
) -> tuple[int, list[int]]:
    """How many entries the newest receipts since a moment make by the policies, and would make with each window."""
    held = policies(principal_id)
    received, _, _ = _received(principal_id, since, limit)

    def under(window: timedelta) -> int:
        asked = replace(held.default, enabled=True, window=window)
        return count_entries(received, lambda _: asked)

    return count_entries(received, held.of), [under(window) for window in windows]


def _received(principal_id: int, since: datetime, limit: int) -> tuple[list[Received], datetime, bool]:
    """The newest receipts since a moment, oldest first; the moment since which they are all; whether that is later."""
    inbox = Inbox.objects.filter(principal_id=principal_id).first()
    if inbox is None:
        return [], since, False
    given = {"inbox": inbox.pk, "before": _PAST_ALL, "limit": limit + 1}
    concerned = Receipt.objects.filter(pk__in=_keys(sql.LISTED, given), created_at__gte=since)
    columns = ("created_at", "source_system", "dedupe_key", *Group.__dataclass_fields__)
    newest = list(concerned.only(*columns).order_by("-pk"))
    truncated = len(newest) > limit
    rows = newest[:limit][::-1]
    by_hook: dict[int, Fact] = {}
    for source in sorted({row.source_system for row in rows if hooks.hook_of(row.source_system) is not None}):
        by_hook |= facts(source, [row.pk for row in rows if row.source_system == source])
    received = [
        Received(
            at=row.created_at,
            source_system=row.source_system,
            key=grouping.key_of(
                Group(**{name: getattr(row, name) for name in Group.__dataclass_fields__}),
                by_hook.get(row.pk) or Fact(source_system=row.source_system, dedupe_key=row.dedupe_key),
                opted_in=_opted_in(inbox.tenant_id),
            ),
        )
        for row in rows
    ]
    return received, received[0].at if truncated else since, truncated


_NO_RULE: Final = Source()
# Every post asks. A rule may take effect this much later in other processes; nothing depends on the moment.
_RULES_HOLD_SECONDS: Final = 30.0
_rules: Final[dict[int, tuple[float, dict[str, Source]]]] = {}


def source_rule(tenant_id: int, name: str) -> Source:
    """The rule of a source, as of half a minute ago at most; a source without a row has the defaults."""
    until, rules = _rules.get(tenant_id, (0.0, {}))
    if monotonic() >= until:
        rules = {row.name: row for row in Source.objects.filter(tenant_id=tenant_id)}
        _rules[tenant_id] = (monotonic() + _RULES_HOLD_SECONDS, rules)
    return rules.get(name, _NO_RULE)


def forget_source_rules(tenant_id: int) -> None:
    """Have this process ask again."""
    _rules.pop(tenant_id, None)


# The hour of this process's latest post of a source, and what it had posted in that hour by then.
_seen: Final[dict[tuple[int, str], tuple[datetime, int]]] = {}


def room_for(tenant_id: int, source: str, wanted: int, now: datetime) -> int:
    """How many of so many receipts a source may still post in this hour.

    What is under way is not seen: a limit may be passed by as much.
    """
    own = source_rule(tenant_id, source).rate_per_hour
    limit = settings.SOURCE_RATE_LIMITS.get(source, settings.SOURCE_RATE_LIMITS["default"]) if own is None else own
    hour = hour_of(now)
    seen_hour, posted = _seen.get((tenant_id, source), (hour, 0))
    # Far from the limit, what this process has seen will do.
    if seen_hour != hour or posted + wanted > limit // 2:
        rows = SourceHour.objects.filter(tenant_id=tenant_id, name=source, hour=hour)
        posted = rows.values_list("posted", flat=True).first() or 0
    return max(0, min(wanted, limit - posted))


def see_posts(tenant_id: int, source: str, hour: datetime, posted: int) -> None:
    """Have this process know it."""
    _seen[tenant_id, source] = (hour, posted)


def hour_of(now: datetime) -> datetime:
    return now.replace(minute=0, second=0, microsecond=0)


def group_of(tenant_id: int, draft: ReceiptDraft) -> Key | None:
    """The group of a receipt; None where it is an entry of its own. To be asked before any lock."""
    return grouping.key_of(draft.group, hooks.fact_of(draft), opted_in=_opted_in(tenant_id))


def _opted_in(tenant_id: int) -> Callable[[str], bool]:
    return lambda source: source_rule(tenant_id, source).groups_by_dedupe_key


@dataclass(frozen=True, slots=True)
class DueInbox:
    """An inbox of which some buffers should be flushed now."""

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


def due_inboxes() -> list[DueInbox]:
    """All inboxes with buffers that are due, the longest due first; asked by the system."""
    return [DueInbox(*row) for row in fetch(_DUE_INBOXES)]


def due_threads(inbox_ids: Collection[int], *, limit: int) -> list[int]:
    """Some threads of each inbox whose buffer is due, the longest due first."""
    return _keys(sql.DUE_THREADS, {"inboxes": list(inbox_ids), "due": limit})
