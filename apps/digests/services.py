"""Commands on inboxes: buffer, flush, post, ack, retain, wake, and the policies behind them.

Each command locks the row of the inbox first, in a statement of its own, and neither calls out nor waits while it holds
it. The sections stand in this order: the lock, policies, flushing, posting, acking, retention, wakes.
"""

import json
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, Final, Self

import psycopg
from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.dispatch import Signal

from apps.core.errors import Conflict, DomainError, Malformed, NotFound
from apps.core.metrics import once_committed
from apps.core.notifications import send_on_commit
from apps.core.outbound import Answer, CallFailed
from apps.core.sql import database_now, execute, fetch
from apps.delivery.models import Delivery, State, Target
from apps.delivery.models import Kind as TargetKind
from apps.delivery.notifications import MOST_AT_ONCE, notify_on_commit
from apps.delivery.notifications import notify as notify_delivery
from apps.delivery.senders import Delivered, Payload, Refused, Sender, Verdict, webhook_body
from apps.digests import formats, hooks, metrics, selectors, sql
from apps.digests.formats import Through, entry_ref
from apps.digests.grouping import Key, Policies, Policy
from apps.digests.hooks import Context, Fact
from apps.digests.models import (
    THREAD_LIMIT,
    Entry,
    FlushReason,
    Inbox,
    Kind,
    ReceiptState,
    Source,
    Thread,
)
from apps.digests.shapes import AckedOutput
from apps.principals.tenancy import acting_as_system, acting_in
from apps.receipts import services as receipts
from apps.receipts.models import Receipt, Surface
from apps.receipts.services import Extension, Group, Poster, ReceiptDraft, Recorded

logger = logging.getLogger(__name__)

_PATIENCE: Final = "500ms"
"""How long a tick waits for the lock of an inbox."""

# Sent on commit with `principal_ids` and `tenant_id` when inboxes have changed. Losing one costs latency only.
inbox_changed = Signal()


def inbox_topic(principal_id: int) -> str:
    """The topic that is notified when the inbox of a principal changes."""
    return f"inbox:{principal_id}"


# The lock: one mutex per inbox. Whatever changes an inbox locks its row first.


@dataclass(frozen=True, slots=True)
class LockedInbox:
    """Proof that this transaction holds the inbox. What it carries can't change while it does."""

    id: int
    tenant_id: int
    principal_id: int
    policies: Policies

    @classmethod
    def of(cls, row: Sequence[Any]) -> Self:
        """From the columns that `sql.LOCK` returns."""
        return cls(row[0], row[1], row[2], Policies(Policy(*row[4:]), json.loads(row[3])))

    def notify(self) -> None:
        """Notify on commit that a reader would now see another inbox."""
        send_on_commit(inbox_changed, principal_ids=[self.principal_id], tenant_id=self.tenant_id)


def advance(moves: Mapping[int, tuple[int, int, int]]) -> dict[int, int]:
    """Take sequences and move the unread counters of locked inboxes; returns the last sequence of each.

    :param moves: by inbox, how many sequences it takes, and how far its counters of visible and of pending receipts go.
    """
    columns = [[move[place] for move in moves.values()] for place in range(3)]
    return dict(fetch(sql.ADVANCE, [list(moves), *columns]))


def lock(*, principal_id: int) -> LockedInbox | None:
    """The principal's inbox, held until the transaction ends; None if it has none yet."""
    return _first(sql.LOCK, [principal_id])


def lock_or_create(*, tenant_id: int, principal_id: int) -> LockedInbox:
    """As :func:`lock`; the first receipt makes the inbox."""
    found = lock(principal_id=principal_id)
    while found is None:
        Inbox.objects.bulk_create([Inbox(tenant_id=tenant_id, principal_id=principal_id)], ignore_conflicts=True)
        found = lock(principal_id=principal_id)
    return found


def lock_several(*, tenant_id: int, principal_ids: Collection[int]) -> dict[int, LockedInbox]:
    """Several inboxes in the order of their ids, by principal; missing ones are made."""
    wanted = sorted(set(principal_ids))
    if len(wanted) == 1:
        return {wanted[0]: lock_or_create(tenant_id=tenant_id, principal_id=wanted[0])}
    missing = set(wanted) - set(Inbox.objects.filter(principal_id__in=wanted).values_list("principal_id", flat=True))
    Inbox.objects.bulk_create(
        [Inbox(tenant_id=tenant_id, principal_id=principal) for principal in sorted(missing)], ignore_conflicts=True
    )
    held = [LockedInbox.of(row) for row in fetch(sql.LOCK_SEVERAL, [wanted])]
    return {inbox.principal_id: inbox for inbox in held}


def lock_by_id(inbox_id: int, *, wait: bool) -> LockedInbox | None:
    """One inbox; None if it is gone, or if somebody holds it and we don't wait."""
    return _first(sql.LOCK_BY_ID if wait else sql.LOCK_BY_ID_UNLESS_BUSY, [inbox_id])


def _first(statement: str, parameters: list[Any]) -> LockedInbox | None:
    return next(map(LockedInbox.of, fetch(statement, parameters, hot=True)), None)


# Policies

MOST_SOURCE_POLICIES: Final = 100


@transaction.atomic
def set_policy(
    *,
    tenant_id: int,
    principal_id: int,
    changes: Mapping[str, Any],
    source_system: str | None = None,
    now: datetime,
) -> Policy:
    """Change the policy of an inbox, or of one source in it; returns the policy that holds then.

    Due times that are set stay. What is pending of sources that are not buffered any more is flushed.

    :param changes: members of the policy as on the wire; None leaves one as it is.
    :raises Conflict: `too_many_policies`, if a hundred other sources have policies of their own here.
    """
    inbox = lock_or_create(tenant_id=tenant_id, principal_id=principal_id)
    held = inbox.policies
    if source_system is None:
        held = replace(held, default=held.default.overridden(changes))
    elif source_system not in held.own and len(held.own) >= MOST_SOURCE_POLICIES:
        raise Conflict(f"An inbox has room for policies of {MOST_SOURCE_POLICIES} sources.", code="too_many_policies")
    else:
        given = {name: value for name, value in changes.items() if value is not None}
        held = replace(held, own={**held.own, source_system: {**held.own.get(source_system, {}), **given}})
    Inbox.objects.filter(pk=inbox.id).update(source_policies=held.own, **asdict(held.default))
    pending = Thread.objects.filter(inbox_id=inbox.id, flush_due_at__isnull=False)
    disabled = {source for source in pending.values_list("source_system", flat=True) if not held.of(source).enabled}
    flush_sources(inbox, disabled, reason=FlushReason.LIFECYCLE, now=now)
    return held.of(source_system)


@transaction.atomic
def remove_source_policy(*, principal_id: int, source_system: str, now: datetime) -> None:
    """Return a source to the inbox's own policy; what is pending of it is flushed.

    :raises NotFound: `unknown_policy`, if the source has no policy of its own here.
    """
    inbox = lock(principal_id=principal_id)
    if inbox is None or source_system not in inbox.policies.own:
        raise NotFound(f"There is no policy of its own for {source_system!r} in this inbox.", code="unknown_policy")
    left = {source: own for source, own in inbox.policies.own.items() if source != source_system}
    Inbox.objects.filter(pk=inbox.id).update(source_policies=left)
    flush_sources(inbox, [source_system], reason=FlushReason.LIFECYCLE, now=now)


@transaction.atomic
def set_source(*, tenant_id: int, name: str, rate_per_hour: int | None, groups_by_dedupe_key: bool) -> Source:
    """Set all that holds for the receipts of a source. Other processes follow within half a minute."""
    source, _ = Source.objects.update_or_create(
        tenant_id=tenant_id,
        name=name,
        defaults={"rate_per_hour": rate_per_hour, "groups_by_dedupe_key": groups_by_dedupe_key},
    )
    selectors.forget_source_rules(tenant_id)
    transaction.on_commit(partial(selectors.forget_source_rules, tenant_id), robust=True)
    return source


# Flushing: the pending receipts of a thread become visible in one immutable snapshot.


_MOST_WAITED_FOR: Final = 4


def flush_due(*, limit: int = 500) -> int:
    """Flush whatever is due, in all tenants, each inbox in a transaction of its own; returns the number of snapshots.

    Locked inboxes are passed over. After all others a few of those that are overdue are waited for, briefly. At most
    `limit` threads of an inbox are flushed at a time, then the next inbox follows. Running it twice, or twice at
    once, is harmless.
    """
    with acting_as_system("flush due threads"):
        due = selectors.due_inboxes()
    flushed = 0
    held: list[selectors.DueInbox] = []
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


def _try_to_flush(inbox: selectors.DueInbox, *, limit: int, wait: bool) -> int | None:
    """The number of snapshots; None if somebody else holds the inbox."""
    try:
        with acting_in(inbox.tenant_id, "flush due threads"):
            if wait:
                execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
            held = lock_by_id(inbox.inbox_id, wait=wait)
            if held is None:
                return None
            # Asked again under the lock.
            due = selectors.due_threads([held.id], limit=limit)
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
    last = advance({inbox_id: (number, moved[inbox_id], -moved[inbox_id]) for inbox_id, number in sequences.items()})
    entries = _write(due, last, reasons, now)
    execute(sql.SURFACE, {"threads": [one.thread_id for one in due]})
    for inbox_id in sequences:
        inboxes[inbox_id].notify()
    return entries


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
    return [Members(*row) for row in fetch(sql.MEMBERS, {"threads": list(thread_ids), "with_pending": with_pending})]


def narrow(inbox: LockedInbox, rest: Sequence[Members], *, last: int, now: datetime) -> None:
    """Snapshots of what an ack has left of these threads, under the sequences that end with `last`."""
    if rest:
        threads = [one.thread_id for one in rest]
        _write(rest, {inbox.id: last}, dict.fromkeys(threads, FlushReason.NARROW), now)
        Thread.objects.filter(pk__in=threads).update(revision=F("revision") + 1)


def _write(
    snapshots: Sequence[Members], last: Mapping[int, int], reasons: Mapping[int, FlushReason], now: datetime
) -> list[Entry]:
    """Write the snapshots in their order: the sequences of each inbox end with its last one."""
    following, sequences = dict(last), list[int]()
    for one in reversed(snapshots):
        sequences.insert(0, following[one.inbox_id])
        following[one.inbox_id] -= 1
    given = {"threads": [one.thread_id for one in snapshots], "sequences": sequences}
    superseded = execute(sql.SUPERSEDE, given | {"tenant": snapshots[0].tenant_id, "now": now})
    texts = _texts(snapshots)
    for reason, number in Counter(reasons[one.thread_id] for one in snapshots).items():
        once_committed(metrics.SNAPSHOTS.labels(reason).inc, number)
    once_committed(metrics.MERGES.inc, superseded)
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
            visible_at=now,
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
        title = f"{one.event_family} on {one.resource_ref}: {count} receipt{'s' * (count != 1)}"
        hints = (group.summary_hint for fact in reversed(facts) if (group := hooks.group_of(fact)) is not None)
        hint = one.hint or next(filter(None, hints), None)
        latest = "; ".join(_cut(text, 120) for text in one.latest_titles)
        texts = title, hint or f"{title}. Latest: {latest}"
    return _cut(texts[0], _TITLE), _cut(texts[1], _SUMMARY)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# Posting: the fact, and its place in the recipient's inbox, in one transaction.


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted(Recorded):
    """A receipt that is stored. `entry_ref` is there if its transaction made the receipt visible in an entry."""

    entry_ref: str | None


def post(*, poster: Poster, draft: ReceiptDraft, now: datetime) -> Posted:
    """Post one receipt.

    :raises DomainError: as a verdict of :func:`apps.receipts.services.record_many`.
    """
    answer = post_many(poster=poster, drafts=[draft], now=now)[0]
    if isinstance(answer, DomainError):
        raise answer
    return answer


# No savepoint: a refusal is an answer, and changes nothing.
@transaction.atomic(savepoint=False)
def count_posts(tenant_id: int, numbers: Mapping[str, int], now: datetime) -> None:
    """Count what each source has posted in this transaction, as the last thing in it: rivals wait for its end."""
    given = {"tenant": tenant_id, "names": list(numbers), "numbers": list(numbers.values())}
    for name, hour, posted in fetch(sql.COUNT_POSTS, {**given, "hour": selectors.hour_of(now)}, hot=True):
        selectors.see_posts(tenant_id, name, hour, posted)


def post_many(*, poster: Poster, drafts: Sequence[ReceiptDraft], now: datetime) -> list[Posted | DomainError]:
    """Post receipts in one transaction; returns for each draft, in order, what became of it.

    Verdicts and facts are those of drafts posted one after another. A refused draft changes nothing and does not
    affect the others. Receipts without a group become entries first, in their order. Then each thread that is due, by
    its size or by an immediate receipt, shows all of the batch in one snapshot. A thread that is full, or broken,
    rolls over at that receipt, as it does between posts.
    """
    keys = [selectors.group_of(poster.tenant_id, draft) for draft in drafts]
    # The entries are made while the facts are written, unless one of them has a group.
    extension = None if any(keys) else _ONE if len(keys) == 1 else _SEVERAL
    # Facts first: rivals of one key meet there, before anybody holds an inbox.
    verdicts = receipts.record_many(poster=poster, drafts=drafts, now=now, extension=extension)
    new = [
        (_New(verdict.id, draft, key), verdict)
        for draft, verdict, key in zip(drafts, verdicts, keys, strict=True)
        if isinstance(verdict, Recorded)
    ]
    for source, count in Counter(one.draft.source_system for one, _ in new).items():
        once_committed(metrics.POSTED.labels(source).inc, count)
    shown = [(one, verdict.extra) for one, verdict in new if verdict.surface == Surface.INBOX]
    placed = [(one, extra) for one, extra in shown if any(extra)]
    entries = {one.id: extra[0] for one, extra in placed}
    due = {one.draft.recipient_id for one, extra in placed if extra[1]}
    _follow(poster.tenant_id, {one.draft.recipient_id for one, _ in placed}, due, now)
    if rest := [one for one, extra in shown if not any(extra)]:
        entries |= _place(poster.tenant_id, rest, now)
    return [
        Posted(
            **{name: getattr(verdict, name) for name in Recorded.__dataclass_fields__},
            entry_ref=formats.entry_ref(entries[verdict.id]) if verdict.id in entries else None,
        )
        if isinstance(verdict, Recorded)
        else verdict
        for verdict in verdicts
    ]


@dataclass(frozen=True, kw_only=True)
class Making:
    """Receipts that a statement of a layer above makes of what it writes, as if they were posted."""

    parts: str
    """Of its WITH: `made`, which has `nth`, `at` and the columns of drafts. These are of one source and of what happens once,
    have new ids, and refer to known receipts. The parameters `tenant` and `poster` say whose they are and who posts
    them; `given` are the rows that it reads by `jsonb_to_recordset`."""
    writes: str = ""
    """Further parts, which read `stored`: it has the columns of `made`."""
    source: str
    answer: str
    """The columns that it answers for each receipt, of `stored`."""
    is_shown: bool
    """Whether the receipts go to inboxes, and close what they pair with; else they are of the ledger alone."""

    @cached_property
    def statements(self) -> Mapping[bool, str]:
        """By whether there may be several receipts."""
        # Of a set the planner expects a hundred.
        one = self.parts.replace("jsonb_to_recordset", "jsonb_to_record")
        return {False: self._statement(one, _ONE), True: self._statement(self.parts, _SEVERAL)}

    def _statement(self, parts: str, extension: Extension) -> str:
        statements, placed, join = self.writes, "null, null", ""
        if self.is_shown:
            statements += ", " + extension.statements.replace("shown = 'inbox'", sql.SINGLE)
            placed, join = extension.answer, extension.join
        return receipts.recording_made(
            parts,
            closing=self.is_shown,
            statements=statements,
            columns=f", stored.at, stored.recipient, {placed}, {self.answer}",
            join=join,
        )


def post_made(
    making: Making, given: Sequence[Mapping[str, Any]], *, tenant_id: int, poster_id: int
) -> list[tuple[Any, ...]]:
    """Write what the statement writes and its receipts, and place them; returns the answer for each receipt.

    A part of its caller's transaction.
    """
    several = len(given) > 1
    parameters = {
        "tenant": tenant_id,
        "poster": poster_id,
        "given": json.dumps(given if several else given[0]),
        "grouped": making.is_shown and selectors.source_rule(tenant_id, making.source).groups_by_dedupe_key,
    }
    rows = fetch(making.statements[several], parameters, hot=True)
    if not rows:
        return []
    now = rows[0][5]
    once_committed(metrics.POSTED.labels(making.source).inc, len(rows))
    if any(row[4] is not None for row in rows):
        notify_on_commit()
    placed = {row[1]: (row[6], row[8]) for row in rows if row[7] is not None}
    due = {recipient_id for recipient_id, is_due in placed.values() if is_due}
    _follow(tenant_id, {recipient_id for recipient_id, _ in placed.values()}, due, now)
    if rest := [row[1] for row in rows if row[3] == Surface.INBOX and row[1] not in placed]:
        found = Receipt.objects.filter(pk__in=rest).order_by("pk")
        _place(tenant_id, [_new(receipt) for receipt in found], now)
    return [row[9:] for row in rows]


def _new(receipt: Receipt) -> "_New":
    """A fact that was written without its entry."""
    same = ("recipient_id", "source_system", "event_type", "dedupe_key", "summary", "title", "metadata")
    draft = ReceiptDraft(
        **{name: getattr(receipt, name) for name in same},
        delivery_handle=receipt.delivery_handle,
        group=Group(**{name: getattr(receipt, name) for name in Group.__dataclass_fields__}),
    )
    return _New(receipt.pk, draft, selectors.group_of(receipt.tenant_id, draft))


_ONE: Final = Extension(
    statements=sql.PLACE_ONE,
    answer="entry.id, inbox.is_due",
    join="left join entry on entry.receipt = stored.id left join inbox on inbox.id = entry.inbox_id",
)
_SEVERAL: Final = replace(_ONE, statements=sql.PLACE_SEVERAL)


@dataclass(frozen=True, slots=True)
class _New:
    """A new fact, and its group."""

    id: int
    draft: ReceiptDraft
    key: Key | None


def _follow(tenant_id: int, recipients: Collection[int], due: Collection[int], now: datetime) -> None:
    """Notify these recipients of facts that were written with their entries, and flush what is due of them."""
    if recipients:
        send_on_commit(inbox_changed, principal_ids=recipients, tenant_id=tenant_id)
    if due:
        _flush_due(lock_several(tenant_id=tenant_id, principal_ids=due).values(), now)


def _place(tenant_id: int, new: Sequence[_New], now: datetime) -> dict[int, int]:
    """Put each fact into its inbox; returns the entries of those that are visible now, by receipt."""
    inboxes = lock_several(tenant_id=tenant_id, principal_ids={one.draft.recipient_id for one in new})
    items: list[_New] = []
    groups: dict[tuple[int, Key], _Group] = {}
    for one in new:
        inbox, key = inboxes[one.draft.recipient_id], one.key
        policy = inbox.policies.of(one.draft.source_system)
        if key is None or not policy.enabled:
            items.append(one)
        else:
            group = groups.setdefault((inbox.id, key.of_thread), _Group(inbox, policy, key))
            group.receipts.append(one)
    entries, due = _place_items(tenant_id, items, inboxes, now) if items else ({}, [])
    if groups:
        entries |= _buffer(tenant_id, list(groups.values()), inboxes.values(), now)
    elif due:
        _flush_due(due, now)
    return entries


def _place_items(
    tenant_id: int, items: Sequence[_New], inboxes: Mapping[int, LockedInbox], now: datetime
) -> tuple[dict[int, int], list[LockedInbox]]:
    """The entry of each, by receipt; and the inboxes in which something is due. `inboxes` are by principal."""
    of_draft = ("source_system", "delivery_handle")
    rows = [
        {
            "id": one.id,
            "recipient": one.draft.recipient_id,
            **{name: getattr(one.draft, name) for name in of_draft},
        }
        for one in items
    ]
    placed = fetch(sql.POST_ITEMS, {"tenant": tenant_id, "items": json.dumps(rows), "now": now}, hot=True)
    touched = [inboxes[principal_id] for principal_id in sorted({one.draft.recipient_id for one in items})]
    for inbox in touched:
        inbox.notify()
    due = {inbox_id for _, _, inbox_id, is_due in placed if is_due}
    return {receipt: entry_id for receipt, entry_id, *_ in placed}, [inbox for inbox in touched if inbox.id in due]


# Threads of one inbox that one post flushes: its poster waits for them.
_DUE_AT_ONCE: Final = 20


# The tick passes over a locked inbox: without the help of its posters an inbox without a pause would never be flushed.
def _flush_due(inboxes: Iterable[LockedInbox], now: datetime) -> None:
    """Flush some of what is due in these inboxes, the longest due first."""
    held = {inbox.id: inbox for inbox in inboxes}
    due = selectors.due_threads(held, limit=_DUE_AT_ONCE)
    flush_threads(held, dict.fromkeys(due, FlushReason.WINDOW), now=now)


@dataclass(frozen=True, slots=True)
class _Group:
    """What a batch brings to one group of an inbox."""

    inbox: LockedInbox
    policy: Policy
    key: Key
    receipts: list[_New] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    """The part of a group that goes into one thread: an open one, or one that is opened for it."""

    group: _Group
    thread_id: int | None
    room: int
    rolls_over: bool = False
    receipts: list[_New] = field(default_factory=list)

    def reason(self, pending: int) -> FlushReason | None:
        """Why the thread must be flushed now, with so many pending; None if it may wait."""
        if self.rolls_over:
            return FlushReason.ROLLOVER
        if any(one.key is not None and one.key.is_immediate for one in self.receipts):
            return FlushReason.IMMEDIATE
        return FlushReason.SIZE if pending >= self.group.policy.max_items else None


def _buffer(
    tenant_id: int, groups: Sequence[_Group], inboxes: Collection[LockedInbox], now: datetime
) -> dict[int, int]:
    """Fill the buffers of these groups; flush those that are due then, and some of what else is due in the inboxes."""
    held = {inbox.id: inbox for inbox in inboxes}
    threads, overdue = _open_threads(tenant_id, groups, held)
    runs = [run for group, thread in zip(groups, threads, strict=True) for run in _runs(group, thread)]
    reasons = dict.fromkeys(overdue, FlushReason.WINDOW)
    filled: list[tuple[_Run, int]] = []
    # Threads that roll over close before others of their group open.
    for statement, chosen in (
        (sql.APPEND, [run for run in runs if run.thread_id is not None]),
        (sql.OPEN, [run for run in runs if run.thread_id is None]),
    ):
        for run, thread_id, pending in _fill(statement, tenant_id, chosen, now):
            filled.append((run, thread_id))
            if (reason := run.reason(pending)) is not None:
                reasons[thread_id] = reason
    once_committed(metrics.THREADS_OPENED.inc, sum(run.thread_id is None for run in runs))
    snapshots = {entry.thread_id: entry.pk for entry in flush_threads(held, reasons, now=now)}
    return {one.id: snapshots[thread_id] for run, thread_id in filled if thread_id in snapshots for one in run.receipts}


def _open_threads(
    tenant_id: int, groups: Sequence[_Group], inbox_ids: Iterable[int]
) -> tuple[list[tuple[int, int] | None], list[int]]:
    """For each group the open thread, and for how many more receipts it has room; and some threads that are due."""
    asked = [
        _asked(nth, group) | {"max_age": group.policy.max_thread_age.total_seconds()}
        for nth, group in enumerate(groups)
    ]
    rows = fetch(
        sql.OPEN_THREADS,
        {"asked": json.dumps(asked), "tenant": tenant_id, "inboxes": list(inbox_ids), "due": _DUE_AT_ONCE},
    )
    found = {
        nth: (thread_id, 0 if aged else max(THREAD_LIMIT - count, 0))
        for nth, thread_id, count, aged in rows
        if nth is not None
    }
    return [found.get(nth) for nth in range(len(groups))], [thread_id for nth, thread_id, *_ in rows if nth is None]


def _asked(nth: int, group: _Group) -> dict[str, Any]:
    return {
        "nth": nth,
        "inbox": group.inbox.id,
        "source_system": group.key.source_system,
        "resource_ref": group.key.resource_ref,
        "event_family": group.key.event_family,
    }


def _runs(group: _Group, thread: tuple[int, int] | None) -> list[_Run]:
    """The receipts of a group, thread by thread."""
    runs = [_Run(group, *thread) if thread is not None else _Run(group, None, THREAD_LIMIT)]
    for one in group.receipts:
        last = runs[-1]
        breaks = one.key is not None and one.key.breaks_thread and (last.thread_id is not None or last.receipts)
        if breaks or last.room == 0:
            last.rolls_over = True
            runs.append(_Run(group, None, THREAD_LIMIT))
        runs[-1].receipts.append(one)
        runs[-1].room -= 1
    return runs


def _fill(statement: str, tenant_id: int, runs: Sequence[_Run], now: datetime) -> list[tuple[_Run, int, int]]:
    """Put the receipts of these runs into their threads; returns each with its thread and the number pending there."""
    if not runs:
        return []
    rows = [
        _asked(nth, run.group)
        | {
            "thread": run.thread_id,
            "receipts": [one.id for one in run.receipts],
            "rolls_over": run.rolls_over,
            "window": run.group.policy.window.total_seconds(),
        }
        for nth, run in enumerate(runs)
    ]
    return [
        (runs[nth], thread_id, pending)
        for nth, thread_id, pending in fetch(statement, {"tenant": tenant_id, "runs": json.dumps(rows), "now": now})
    ]


# Acking: each ack adds exactly what its boundary names.


# No savepoint: one statement, which changes all or nothing.
@transaction.atomic(savepoint=False)
def mark_delivered(*, receipt_pks: Collection[int], now: datetime) -> None:
    """Stamp receipts as shown for the first time. Needs no inbox lock and waits for nobody."""
    if not receipt_pks:
        return
    for (waited,) in fetch(sql.DELIVERED, {"receipts": sorted(receipt_pks), "now": now}, hot=True):
        once_committed(metrics.DELIVERY.observe, waited.total_seconds())


@transaction.atomic
def ack(*, principal_id: int, entry_ids: Collection[int], now: datetime) -> AckedOutput:
    """Ack these entries, all or none.

    :raises NotFound: `unknown_entry`, if the inbox lacks one of them.
    """
    inbox = lock(principal_id=principal_id)
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

    :raises NotFound: `unknown_entry`, if the inbox has no such entry.
    :raises Malformed: `bad_token`, if the inbox has never been in that state.
    """
    inbox = lock(principal_id=principal_id)
    anchor = Entry.objects.filter(inbox_id=inbox.id, pk=through.entry_id).first() if inbox else None
    if inbox is None or anchor is None:
        raise _unknown(through.entry_id)
    last_seq = Inbox.objects.values_list("last_seq", flat=True).get(pk=inbox.id)
    if through.as_of is not None and through.as_of > last_seq:
        raise Malformed(f"This inbox has no state {through.as_of}; its newest is {last_seq}.", code="bad_token")
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
    return _settle(inbox, acked, execute(sql.ENTRIES_ACKED_THROUGH, given), now)


@transaction.atomic
def ack_receipts(
    *, principal_id: int, receipt_pks: Collection[int], now: datetime, archive: bool = False
) -> AckedOutput:
    """Ack single receipts, in whatever entry or buffer they are; a digest around them narrows.

    :param archive: put them away too.
    """
    inbox = lock(principal_id=principal_id)
    if inbox is None:
        return AckedOutput()
    given = {"inbox": inbox.id, "receipts": list(receipt_pks), "archive": archive, "now": now}
    acked = _mark(sql.ACK_RECEIPTS, given)
    return _settle(inbox, acked, _mark_entries(acked, set(), now), now)


def _unknown(entry_id: int) -> NotFound:
    return NotFound(f"This inbox has no entry {entry_ref(entry_id)}.", code="unknown_entry")


@dataclass(frozen=True, slots=True)
class _Acked:
    """The receipts that were acked in one thread, or among the items (no thread)."""

    thread_id: int | None
    pending: int
    visible: int
    item_entries: list[int]


def _mark(statement: str, given: dict[str, Any]) -> list[_Acked]:
    return [_Acked(*row) for row in fetch(statement, given)]


def _mark_entries(acked: Collection[_Acked], entry_ids: set[int], now: datetime) -> int:
    """Ack these entries, and those of the items that were acked; returns how many were not acked before."""
    items = {entry for one in acked for entry in one.item_entries}
    return Entry.objects.filter(pk__in=entry_ids | items, acked_at=None).update(acked_at=now)


def _settle(inbox: LockedInbox, acked: Collection[_Acked], entries: int, now: datetime) -> AckedOutput:
    """Bring threads and counters in line with the receipts that were just acked, in so many entries."""
    pending, visible = sum(one.pending for one in acked), sum(one.visible for one in acked)
    if not pending and not visible:
        return AckedOutput(acked_entries=entries)
    touched = {one.thread_id: one for one in acked if one.thread_id is not None}
    remainders = members(touched, with_pending=False) if touched else []
    # A thread of which only pending receipts were acked keeps its live snapshot.
    narrowed = [one for one in remainders if touched[one.thread_id].visible]
    last = advance({inbox.id: (len(narrowed), -visible, -pending)})[inbox.id]
    if touched:
        empty = touched.keys() - {one.thread_id for one in remainders}
        live = Entry.objects.filter(tenant_id=inbox.tenant_id, acked_at=None, superseded_by_seq=None)
        live.filter(thread_id__in=empty).update(acked_at=now)
        drained = {thread: one.pending for thread, one in touched.items() if one.pending}
        if drained:
            execute(sql.THREADS_DRAINED, [list(drained), list(drained.values())])
        Thread.objects.filter(pk__in=empty, closed_at=None, pending_count=0).update(closed_at=now)
        narrow(inbox, narrowed, last=last, now=now)
    inbox.notify()
    return AckedOutput(acked_entries=entries, acked_receipts=pending + visible)


# Retention: delete what was acked long enough ago. What is unacked is never deleted.


_RANGE: Final = 2_000
# Rows of one transaction: whoever posts to the inbox, or refers to one of the receipts, waits for its end.
_AT_ONCE: Final = 250
_REST: Final = 600.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


_Step = Callable[[int], tuple[int | None, Counter[str]]]
"""Deletes among the next rows after a key; answers the last one's key, None at the end, and the numbers by kind."""


class Walk:
    """How far one process has come in its sweep. Two processes at once are harmless."""

    def __init__(self) -> None:
        self._ranges: Iterator[Counter[str]] | None = None
        self._due = -math.inf

    def go_on(self, *, seconds: float) -> Counter[str]:
        """Continue the sweep for a time, or begin one if the last began ten minutes ago; the rows deleted, by kind."""
        now = time.monotonic()
        if self._ranges is None and now >= self._due:
            self._ranges, self._due = _sweep(), now + _REST
        found: Counter[str] = Counter()
        for deleted in self._ranges or ():
            found.update(deleted)
            if time.monotonic() > now + seconds:
                return found
        self._ranges = None
        return found


def retain() -> Counter[str]:
    """Delete what has been kept long enough, in all tenants; returns the number of rows by kind.

    These are superseded snapshots whose receipts are all acked; acked receipts with their entries and threads;
    receipts of the ledger without an open obligation; and later tombstones and dedupe keys.
    Idempotent; two calls at once are harmless.
    """
    return Walk().go_on(seconds=math.inf)


def _sweep() -> Iterator[Counter[str]]:
    """Walk through each kind of row, a range at a time. Each range opens its own transactions."""
    for step in (_superseded, _receipts, _keys):
        position: int | None = 0
        while position is not None:
            try:
                position, deleted = step(position)
            except DatabaseError as exc:
                where = f"{step.__name__} after {position}"
                logger.warning("retention stopped in %s; the next sweep tries again", where, exc_info=exc)
                position, deleted = None, Counter(left=1)
            yield deleted


def _superseded(after: int) -> tuple[int | None, Counter[str]]:
    """Superseded snapshots in the order in which they were superseded; the key is that moment in microseconds."""
    since = _EPOCH + timedelta(microseconds=after)
    given = {"after": since, "kept": settings.SUPERSEDED_ENTRIES_KEPT, "limit": _RANGE}
    with _pruning():
        ((last, deleted),) = fetch(sql.DROP_SUPERSEDED, given)
    return None if last is None else (last - _EPOCH) // timedelta(microseconds=1), Counter(entries=deleted)


def _receipts(after: int) -> tuple[int | None, Counter[str]]:
    """Receipts in the order of their posting, up to the first that no tenant has kept long enough."""
    given: dict[str, Any] = {"after": after, "limit": _RANGE, "kept": settings.RECEIPTS_KEPT}
    found: Counter[str] = Counter()
    with acting_as_system("retention"):
        rows = fetch(sql.NEXT_RECEIPTS, given)
        if not rows:
            return None, found
        due = fetch(sql.RECEIPTS_DUE, {**given, "receipts": [pk for pk, *_ in rows]})
    for tenant_id, inbox_id, receipt_pks in due:
        found += _in_parts(inbox_id, receipt_pks, partial(_delete_receipts, tenant_id, inbox_id))
    kept = {"traces": settings.RECEIPT_TRACES_KEPT, "kept": settings.RECEIPTS_KEPT}
    found += _in_parts(
        None,
        [pk for pk, is_tombstone, _ in rows if is_tombstone],
        lambda part: Counter(tombstones=receipts.prune_tombstones(receipt_pks=part, **kept)),
    )
    last, _, is_old = rows[-1]
    return last if is_old else None, found


def _delete_receipts(tenant_id: int, inbox_id: int | None, receipt_pks: Collection[int]) -> Counter[str]:
    held = receipts.hold_for_pruning(receipt_pks=receipt_pks)
    found: Counter[str] = Counter()
    if inbox_id is not None:
        held, found = _delete_states(tenant_id, inbox_id, held)
    deleted, stripped = receipts.prune(receipt_pks=held)
    return found + Counter(receipts=deleted, stripped=stripped)


def _delete_states(tenant_id: int, inbox_id: int, receipt_pks: Collection[int]) -> tuple[list[int], Counter[str]]:
    """Take receipts out of their inbox: their states, their own entries, their part in snapshots."""
    # An item entry is deleted with its receipt, so the entry must be acked too.
    is_free = Q(entry=None) | Q(entry__acked_at__isnull=False)
    acked = ReceiptState.objects.filter(is_free, pk__in=receipt_pks, inbox_id=inbox_id, acked_at__isnull=False)
    states: list[tuple[int, int | None, int | None]] = list(acked.values_list("pk", "entry_id", "thread_id"))
    deleted = [pk for pk, *_ in states]
    ReceiptState.objects.filter(pk__in=deleted).delete()
    emptied = [entry for _, entry, _ in states if entry is not None]
    threads = sorted({thread for *_, thread in states if thread is not None})
    if threads:
        emptied += [pk for (pk,) in fetch(sql.TRIM, {"tenant": tenant_id, "threads": threads})]
    Entry.objects.filter(pk__in=emptied).delete()
    if threads:
        snapshots = Entry.objects.filter(tenant_id=tenant_id, thread=OuterRef("pk"))
        left = ReceiptState.objects.filter(thread=OuterRef("pk"))
        closed = Thread.objects.filter(pk__in=threads, closed_at__isnull=False)
        closed.filter(~Exists(snapshots), ~Exists(left)).delete()
    return deleted, Counter(entries=len(emptied))


def _keys(after: int) -> tuple[int | None, Counter[str]]:
    with _pruning():
        position, deleted = receipts.prune_keys(
            after=after, limit=_RANGE, traces=settings.RECEIPT_TRACES_KEPT, kept=settings.RECEIPTS_KEPT
        )
    return position, Counter(keys=deleted)


def _in_parts(
    inbox_id: int | None, keys: Sequence[int], delete: Callable[[Sequence[int]], Counter[str]]
) -> Counter[str]:
    """Delete part by part, each under the lock of the inbox; stop at an inbox that is busy or fails."""
    found: Counter[str] = Counter()
    for start in range(0, len(keys), _AT_ONCE):
        try:
            with _pruning():
                execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
                if inbox_id is not None and lock_by_id(inbox_id, wait=True) is None:
                    break
                deleted = delete(keys[start : start + _AT_ONCE])
        except DatabaseError as exc:
            # Ledger receipts and tombstones have no inbox.
            busy = isinstance(exc.__cause__, psycopg.errors.LockNotAvailable)
            logger.warning("inbox %s is left to the next sweep of retention", inbox_id, exc_info=None if busy else exc)
            return found + Counter(left=1)
        found += deleted
    return found


@contextmanager
def _pruning() -> Iterator[None]:
    """A transaction in which the triggers let rows be deleted."""
    with acting_as_system("retention"):
        execute("select set_config('gatehouse.pruning', 'on', true)")
        yield
        execute("select set_config('gatehouse.pruning', '', true)")


# Wakes: a webhook is called when its principal's inbox has something new, once for a burst.

_NAMED: Final = 5
_STOPPING: Final = frozenset({404, 409, 410, 422})
"""Answers that ask not to be called again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wake:
    """What a wake reports."""

    mark: selectors.Mark
    receipt_pks: list[int]
    claimed_at: datetime


class WakeSender(Sender):
    """Wakes never die: they are sent again until the agent answers, there is nothing new, or the target is stopped.

    The inbox is looked up again right before each call, so that nobody is woken for nothing.
    """

    def prepare(self, target: Target, delivery: Delivery, now: datetime) -> Payload | None:
        if not _worth_a_wake([target], now):
            return None
        mark = _mark_of(target)
        page = selectors.newest_entries(mark.principal_id, limit=_NAMED)
        if page.visible < target.min_unacked:
            return None
        body = webhook_body(
            "inbox.changed",
            now,
            target=str(target),
            principal=target.principal.name if target.principal is not None else "",
            as_of=page.as_of,
            unread=page.unread,
            visible=page.visible,
            pending=page.pending,
            newest=[entry.model_dump(include={"ref", "kind", "sequence", "count"}) for entry in page.entries],
        )
        # The id stays the same until there is something new, so that a receiver can drop the repetition.
        return Payload(
            url=target.url,
            message_id=f"wake_{target.pk}_{page.as_of}",
            body=body,
            context=_Wake(
                mark=selectors.Mark(tenant_id=mark.tenant_id, principal_id=mark.principal_id, sequence=page.as_of),
                receipt_pks=[pk for entry in page.entries for pk in entry.receipt_pks],
                claimed_at=now,
            ),
        )

    def judge(self, payload: Payload, outcome: Answer | CallFailed, *, seconds: float, now: datetime) -> Verdict:
        if isinstance(outcome, Answer) and outcome.status in _STOPPING:
            return Refused(code=f"http_{outcome.status}", said=f"Answered {outcome.status}.")
        return super().judge(payload, outcome, seconds=seconds, now=now)

    def settled(self, target: Target, delivery: Delivery, payload: Payload, verdict: Verdict, now: datetime) -> None:
        if isinstance(verdict, Refused):
            target.stopped_at, target.stopped_reason = now, target.result
        elif isinstance(verdict, Delivered):
            wake: _Wake = payload.context
            target.covered_seq, target.woken_at = max(target.covered_seq, wake.mark.sequence), now
            # An agent that acks while it is being called was not woken in vain.
            acked_before = selectors.all_acked_by(wake.receipt_pks, wake.claimed_at)
            target.wasted += acked_before and not selectors.anything_left(wake.mark)


def _mark_of(target: Target) -> selectors.Mark:
    """What a target has been notified of."""
    return selectors.Mark(
        tenant_id=target.tenant_id, principal_id=target.principal_id or 0, sequence=target.covered_seq
    )


def _worth_a_wake(targets: Sequence[Target], now: datetime) -> list[Target]:
    """The targets for which something new is waiting.

    A target that was woken within its lease is left alone while anything that it was woken for is unacked.
    """
    found = {news.mark: news for news in selectors.news(list({_mark_of(target) for target in targets}))}
    worth = []
    for target in targets:
        news = found.get(_mark_of(target))
        leased = target.woken_at is not None and target.woken_at + target.notify_lease > now
        if news and news.visible >= target.min_unacked and not (leased and news.leftover):
            worth.append(target)
    return worth


def queue_wakes() -> int:
    """Queue a delivery to each webhook that is to be woken now; answers how many.

    Opens its own transaction. A target that has a delivery pending gets no second one.
    """
    with acting_as_system("queue wakes"):
        pending = Delivery.objects.filter(target=OuterRef("pk"), state=State.PENDING)
        webhooks = Target.objects.filter(kind=TargetKind.WEBHOOK, stopped_at=None, principal__disabled_at=None)
        now = database_now()
        due = _worth_a_wake(list(webhooks.exclude(Exists(pending)).order_by("pk")), now)
        Delivery.objects.bulk_create(
            [Delivery(tenant_id=one.tenant_id, target=one, due_at=now, created_at=now) for one in due],
            ignore_conflicts=True,
        )
    for _ in range(min(len(due), MOST_AT_ONCE)):
        notify_delivery()
    return len(due)
