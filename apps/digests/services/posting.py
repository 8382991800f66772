"""Posting: the fact below and its place in the recipient's inbox, in one transaction.

A receipt without a group becomes an entry of its own. A receipt with a group waits in the buffer of its thread, which
this transaction flushes if the receipt fills it. A post also flushes some of what is due in the same inbox.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction

from apps.core.errors import DomainError, NotFound
from apps.core.ids import fits_an_address
from apps.core.metrics import once_committed
from apps.core.sql import hot_cursor
from apps.digests import formats, metrics, selectors, sql
from apps.digests.grouping import Key
from apps.digests.models import THREAD_LIMIT, FlushReason
from apps.digests.policy import Policy
from apps.digests.services import locking
from apps.digests.services.flushing import flush_threads
from apps.digests.services.locking import LockedInbox
from apps.digests.services.policies import policies_of
from apps.principals import selectors as principals
from apps.principals import services as principals_services
from apps.principals.errors import NameTaken, UnknownPrincipal
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.receipts import services as receipts
from apps.receipts.models import Surface
from apps.receipts.services import Placing, Poster, ReceiptDraft, Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A receipt that is stored. `entry_ref` is there if its transaction made the receipt visible in an entry."""

    id: int
    receipt_id: str
    uuid: UUID
    dedupe_key: str
    created_at: datetime
    entry_ref: str | None
    goes_elsewhere: bool
    """Its recipient has moved to another deployment, to which it is delivered."""


def post(*, poster: Poster, draft: ReceiptDraft, now: datetime) -> Posted:
    """Post one receipt.

    :raises DuplicateReceipt: if the source has posted it before.
    :raises DedupeConflict: if the source has used the key for another content.
    :raises ReceiptIdConflict: if another receipt has the given id.
    :raises ChainCycle: if the receipt would be its own cause.
    :raises ChainTooLong: if that takes too long to find out.
    """
    (answer,) = post_many(poster=poster, drafts=[draft], now=now)
    if isinstance(answer, DomainError):
        raise answer
    return answer


# No savepoint: a refusal is an answer, and changes nothing.
@transaction.atomic(savepoint=False)
def post_many(*, poster: Poster, drafts: Sequence[ReceiptDraft], now: datetime) -> list[Posted | DomainError]:
    """Post receipts in one transaction; returns for each draft, in order, what became of it.

    Verdicts and facts are those of drafts posted one after another; a refused draft changes nothing and does not
    hinder the others. What a batch brings to a thread comes at once: receipts without a group stand first, in
    their order; then a thread that becomes due, by its size or by one immediate receipt, shows all of the batch in
    one snapshot. A thread that is full, or broken, rolls over at that receipt, as it does between posts.
    """
    keys = [selectors.group_of(poster.tenant_id, draft) for draft in drafts]
    # Facts first: rivals of one key meet there, before anybody holds an inbox.
    verdicts = receipts.record_many(poster=poster, drafts=drafts, now=now, placing=_placing(keys))
    new = [
        _New(draft, verdict, key)
        for draft, verdict, key in zip(drafts, verdicts, keys, strict=True)
        if isinstance(verdict, Recorded)
    ]
    for source, count in Counter(one.draft.source_system for one in new).items():
        once_committed(metrics.POSTED.labels(source).inc, count)
    shown = [one for one in new if one.recorded.surface == Surface.INBOX]
    entries = _follow(poster.tenant_id, [one for one in shown if any(one.recorded.place)], now)
    if rest := [one for one in shown if not any(one.recorded.place)]:
        entries |= _place(poster.tenant_id, rest, now)
    return [
        Posted(
            id=verdict.id,
            receipt_id=verdict.receipt_id,
            uuid=verdict.uuid,
            dedupe_key=verdict.dedupe_key,
            created_at=verdict.created_at,
            entry_ref=formats.entry_ref(entries[verdict.id]) if verdict.id in entries else None,
            goes_elsewhere=verdict.goes_elsewhere,
        )
        if isinstance(verdict, Recorded)
        else verdict
        for verdict in verdicts
    ]


def recipient_named(*, tenant_id: int, name: str, now: datetime) -> int:
    """The key of the one principal of this name; made where the tenant lets receipts make recipients.

    :raises NotFound: `unknown_recipient`, if there is none.
    """
    try:
        return principals.principal_id_named(name, tenant_id=tenant_id)
    except UnknownPrincipal:
        refusal = NotFound(f"There is no recipient {name[:50]!r}.", code="unknown_recipient")
    if not fits_an_address(name) or not Tenant.objects.filter(pk=tenant_id, creates_recipients=True).exists():
        raise refusal
    with transaction.atomic():
        try:
            return principals_services.add_principal(tenant_id=tenant_id, name=name, kind=Kind.AI, now=now).pk
        except NameTaken:
            pass
        # Somebody else has just made it, or it is disabled.
        try:
            return principals.principal_id_named(name, tenant_id=tenant_id)
        except UnknownPrincipal:
            raise refusal from None


_ONE: Final = Placing(
    statements=sql.PLACE_ONE,
    answer="entry.id, inbox.is_due",
    join="left join entry on entry.receipt = stored.id left join inbox on inbox.id = entry.inbox_id",
)
_SEVERAL: Final = replace(_ONE, statements=sql.PLACE_SEVERAL)


def _placing(keys: Sequence[Key | None]) -> Placing | None:
    """The statements that make entries of the new facts while they are written; None if one of them has a group."""
    if any(keys):
        return None
    return _ONE if len(keys) == 1 else _SEVERAL


@dataclass(frozen=True, slots=True)
class _New:
    """A new fact, and its group."""

    draft: ReceiptDraft
    recorded: Recorded
    key: Key | None


def _follow(tenant_id: int, placed: Sequence[_New], now: datetime) -> dict[int, int]:
    """What remains to do for facts that were written with their entries; returns these entries, by receipt."""
    due = {one.draft.recipient_id for one in placed if one.recorded.place[1]}
    for principal_id in {one.draft.recipient_id for one in placed}:
        locking.notify(tenant_id=tenant_id, principal_id=principal_id)
    if due:
        _flush_due(locking.lock_several(tenant_id=tenant_id, principal_ids=due).values(), now)
    return {one.recorded.id: one.recorded.place[0] for one in placed}


def _place(tenant_id: int, new: Sequence[_New], now: datetime) -> dict[int, int]:
    """Put each fact into its inbox; returns the entries of those that are visible now, by receipt."""
    inboxes = locking.lock_several(tenant_id=tenant_id, principal_ids={one.draft.recipient_id for one in new})
    policies = policies_of(inboxes.values(), {one.key.source_system for one in new if one.key})
    items: list[tuple[LockedInbox, _New]] = []
    groups: dict[tuple[int, Key], _Group] = {}
    for one in new:
        inbox, key = inboxes[one.draft.recipient_id], one.key
        policy = policies.of(inbox, one.draft.source_system)
        if key is None or not policy.enabled:
            items.append((inbox, one))
        else:
            group = groups.setdefault((inbox.id, key.of_thread), _Group(inbox, policy, key))
            group.receipts.append(one)
    entries, due = _place_items(tenant_id, items, now) if items else ({}, [])
    if groups:
        entries |= _buffer(tenant_id, list(groups.values()), inboxes.values(), now)
    elif due:
        _flush_due(due, now)
    return entries


def _place_items(
    tenant_id: int, items: Sequence[tuple[LockedInbox, _New]], now: datetime
) -> tuple[dict[int, int], list[LockedInbox]]:
    """The entry of each, by receipt; and the inboxes in which something is due."""
    rows = [
        {
            "id": one.recorded.id,
            "recipient": one.draft.recipient_id,
            "source_system": one.draft.source_system,
            "delivery_handle": one.draft.delivery_handle,
        }
        for _, one in items
    ]
    with hot_cursor() as cursor:
        cursor.execute(sql.POST_ITEMS, {"tenant": tenant_id, "items": json.dumps(rows), "now": now})
        placed = cursor.fetchall()
    touched = {inbox.id: inbox for inbox, _ in items}
    for inbox in touched.values():
        inbox.notify()
    due = {inbox_id for _, _, inbox_id, is_due in placed if is_due}
    return {receipt: entry_id for receipt, entry_id, *_ in placed}, [touched[inbox_id] for inbox_id in sorted(due)]


# Threads of one inbox that one post flushes: its poster waits for them.
_DUE_AT_ONCE: Final = 20


# The tick passes over a locked inbox: without the help of its posters an inbox without a pause would never be flushed.
def _flush_due(inboxes: Iterable[LockedInbox], now: datetime) -> None:
    """Flush some of what is due in these inboxes, the longest due first."""
    held = {inbox.id: inbox for inbox in inboxes}
    with connection.cursor() as cursor:
        cursor.execute(sql.DUE_THREADS, {"inboxes": list(held), "due": _DUE_AT_ONCE})
        due = [thread_id for (thread_id,) in cursor.fetchall()]
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
    return {
        one.recorded.id: snapshots[thread_id]
        for run, thread_id in filled
        if thread_id in snapshots
        for one in run.receipts
    }


def _open_threads(
    tenant_id: int, groups: Sequence[_Group], inbox_ids: Iterable[int]
) -> tuple[list[tuple[int, int] | None], list[int]]:
    """For each group the open thread, and for how many more receipts it has room; and some threads that are due."""
    asked = [
        _asked(nth, group) | {"max_age": group.policy.max_thread_age.total_seconds()}
        for nth, group in enumerate(groups)
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            sql.OPEN_THREADS,
            {"asked": json.dumps(asked), "tenant": tenant_id, "inboxes": list(inbox_ids), "due": _DUE_AT_ONCE},
        )
        rows = cursor.fetchall()
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
            "receipts": [one.recorded.id for one in run.receipts],
            "rolls_over": run.rolls_over,
            "window": run.group.policy.window.total_seconds(),
        }
        for nth, run in enumerate(runs)
    ]
    with connection.cursor() as cursor:
        cursor.execute(statement, {"tenant": tenant_id, "runs": json.dumps(rows), "now": now})
        return [(runs[nth], thread_id, pending) for nth, thread_id, pending in cursor.fetchall()]
