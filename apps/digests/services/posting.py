"""Posting: the fact below, its place in the recipient's inbox here, in one transaction."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction

from apps.core.errors import DomainError
from apps.core.metrics import once_committed
from apps.core.sql import hot_cursor
from apps.digests import formats, metrics, selectors, sql
from apps.digests.gathering import THREAD_LIMIT, Policy
from apps.digests.grouping import Key
from apps.digests.services import locking
from apps.digests.services.locking import LockedInbox
from apps.digests.services.policies import policies_of
from apps.digests.services.publishing import publish
from apps.digests.states import FlushReason
from apps.receipts import services as receipts
from apps.receipts.models import Surface
from apps.receipts.services import Placing, Poster, ReceiptDraft, Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A receipt, stored and placed. `entry_ref` is there if its transaction made the receipt visible in an entry."""

    id: int
    receipt_id: str
    uuid: UUID
    dedupe_key: str
    created_at: datetime
    entry_ref: str | None
    goes_elsewhere: bool
    """Its recipient lives at another deployment, to which a letter takes it."""


def post(*, poster: Poster, draft: ReceiptDraft, now: datetime) -> Posted:
    """Store a receipt and, unless it is for the ledger, place it in its recipient's inbox.

    With a group it waits in the burst buffer of its thread, else it is visible at once. It also publishes some of what
    is due in that inbox.

    :raises DuplicateReceipt: if the source has posted it before.
    :raises DedupeConflict: if the source has used the key for another content.
    :raises ReceiptIdConflict: if another receipt has the given id.
    :raises ChainCycle: if the receipt would be its own cause.
    :raises ChainTooLong: if that can't be told, since so much hangs from it, and it from so much.
    """
    (answer,) = post_many(poster=poster, drafts=[draft], now=now)
    if isinstance(answer, DomainError):
        raise answer
    return answer


# No savepoint: a refusal is an answer, and changes nothing.
@transaction.atomic(savepoint=False)
def post_many(*, poster: Poster, drafts: Sequence[ReceiptDraft], now: datetime) -> list[Posted | DomainError]:
    """Post many in one transaction; the answer at each place is what became of the draft at that place.

    Verdicts and facts are those of drafts posted one after another; a refused draft changes nothing and does not
    hinder the others. What a batch brings to a thread comes at once: receipts that are not gathered stand first, in
    their order; then a thread that becomes due, by its size or by one immediate receipt, shows all of the batch in
    one snapshot. A thread that is full, or broken, rolls over at that receipt, as it does between posts.
    """
    keys = [selectors.group_of(poster.tenant_id, draft) for draft in drafts]
    # Facts first: rivals of one key meet there, before anybody holds an inbox.
    verdicts = receipts.record_many(poster=poster, drafts=drafts, now=now, placing=_placing(keys))
    stored = [
        _Arrival(draft, verdict, key)
        for draft, verdict, key in zip(drafts, verdicts, keys, strict=True)
        if isinstance(verdict, Recorded)
    ]
    for source, count in Counter(one.draft.source_system for one in stored).items():
        once_committed(metrics.POSTED.labels(source).inc, count)
    shown = [one for one in stored if one.recorded.surface == Surface.INBOX]
    entries = _follow(poster.tenant_id, [one for one in shown if any(one.recorded.place)], now)
    if rest := [one for one in shown if not any(one.recorded.place)]:
        entries |= _place(poster.tenant_id, rest, now)
    return [
        _posted(verdict, entries.get(verdict.id)) if isinstance(verdict, Recorded) else verdict for verdict in verdicts
    ]


_ONE: Final = Placing(
    statements=sql.PLACE_ONE,
    answer="entry.id, inbox.is_due",
    join="left join entry on entry.receipt = stored.id left join inbox on inbox.id = entry.inbox_id",
)
_SEVERAL: Final = replace(_ONE, statements=sql.PLACE_SEVERAL)


def _placing(keys: Sequence[Key | None]) -> Placing | None:
    """What takes new facts to their places by itself, where none of them is gathered."""
    if any(keys):
        return None
    return _ONE if len(keys) == 1 else _SEVERAL


def _posted(recorded: Recorded, entry_id: int | None) -> Posted:
    return Posted(
        id=recorded.id,
        receipt_id=recorded.receipt_id,
        uuid=recorded.uuid,
        dedupe_key=recorded.dedupe_key,
        created_at=recorded.created_at,
        entry_ref=formats.entry_ref(entry_id) if entry_id is not None else None,
        goes_elsewhere=recorded.goes_elsewhere,
    )


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A new fact on its way to its place."""

    draft: ReceiptDraft
    recorded: Recorded
    key: Key | None


def _follow(tenant_id: int, placed: Sequence[_Arrival], now: datetime) -> dict[int, int]:
    """What remains to be done for those that have come to their places with their facts; answers their entries."""
    entries: dict[int, int] = {}
    changed, due = set[int](), set[int]()
    for one in placed:
        entries[one.recorded.id], is_due = one.recorded.place
        changed.add(one.draft.recipient_id)
        if is_due:
            due.add(one.draft.recipient_id)
    for principal_id in changed:
        locking.announce(tenant_id=tenant_id, principal_id=principal_id)
    if due:
        _publish_due(locking.lock_several(tenant_id=tenant_id, principal_ids=due).values(), now)
    return entries


def _place(tenant_id: int, arrivals: Sequence[_Arrival], now: datetime) -> dict[int, int]:
    """Give each its place; answers the entries of those that are visible now, by receipt."""
    inboxes = locking.lock_several(tenant_id=tenant_id, principal_ids={one.draft.recipient_id for one in arrivals})
    policies = policies_of(inboxes.values(), {one.key.source_system for one in arrivals if one.key})
    items: list[tuple[LockedInbox, _Arrival]] = []
    groups: dict[tuple[int, str, str, str], _Group] = {}
    for one in arrivals:
        inbox, key = inboxes[one.draft.recipient_id], one.key
        policy = policies.of(inbox, one.draft.source_system)
        if key is None or not policy.enabled:
            items.append((inbox, one))
        else:
            place = (inbox.id, key.source_system, key.resource_ref, key.event_family)
            groups.setdefault(place, _Group(inbox, policy, key)).arrivals.append(one)
    entries, due = _place_items(tenant_id, items, now) if items else ({}, [])
    if groups:
        entries |= _gather(tenant_id, list(groups.values()), inboxes.values(), now)
    elif due:
        _publish_due(due, now)
    return entries


def _place_items(
    tenant_id: int, items: Sequence[tuple[LockedInbox, _Arrival]], now: datetime
) -> tuple[dict[int, int], list[LockedInbox]]:
    """The entry of each, by receipt; and the inboxes in which something is due."""
    touched: dict[LockedInbox, int] = {}
    rows = []
    for inbox, one in items:
        touched[inbox] = touched.get(inbox, 0) + 1
        rows.append(
            {
                "inbox": inbox.id,
                "place": touched[inbox],
                "receipt": one.recorded.id,
                "source_system": one.draft.source_system,
                "delivery_handle": one.draft.delivery_handle,
            }
        )
    with hot_cursor() as cursor:
        cursor.execute(sql.POST_ITEMS, {"tenant": tenant_id, "items": json.dumps(rows), "now": now})
        placed = cursor.fetchall()
    for inbox in touched:
        inbox.announce()
    due = {inbox_id for _, _, inbox_id, is_due in placed if is_due}
    return {receipt: entry_id for receipt, entry_id, *_ in placed}, [inbox for inbox in touched if inbox.id in due]


# Of one inbox, by one post: its poster waits for them.
_DUE_AT_ONCE: Final = 20


# The tick passes over an inbox that is held: without its posters' help one without a pause would never be flushed.
def _publish_due(inboxes: Iterable[LockedInbox], now: datetime) -> None:
    """Publish some of what is due in these inboxes, the longest due first."""
    held = {inbox.id: inbox for inbox in inboxes}
    with connection.cursor() as cursor:
        cursor.execute(sql.DUE_THREADS, {"inboxes": list(held), "due": _DUE_AT_ONCE})
        due = [thread_id for (thread_id,) in cursor.fetchall()]
    if due:
        publish(held, dict.fromkeys(due, FlushReason.WINDOW), now=now)


@dataclass(frozen=True, slots=True)
class _Group:
    """What a batch brings to one group of an inbox."""

    inbox: LockedInbox
    policy: Policy
    key: Key
    arrivals: list[_Arrival] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    """The part of a group that goes into one thread: one that is open, or one that is opened for it."""

    group: _Group
    thread_id: int | None
    room: int
    rolls_over: bool = False
    arrivals: list[_Arrival] = field(default_factory=list)

    def due(self, pending: int) -> FlushReason | None:
        if self.rolls_over:
            return FlushReason.ROLLOVER
        if any(one.key is not None and one.key.is_immediate for one in self.arrivals):
            return FlushReason.IMMEDIATE
        return FlushReason.SIZE if pending >= self.group.policy.max_items else None


def _gather(
    tenant_id: int, groups: Sequence[_Group], inboxes: Collection[LockedInbox], now: datetime
) -> dict[int, int]:
    """Fill the threads of these groups; publish those that are due then, and some of what else is due in the inboxes."""
    held = {inbox.id: inbox for inbox in inboxes}
    threads, overdue = _open_threads(tenant_id, groups, held)
    runs = [run for group, thread in zip(groups, threads, strict=True) for run in _runs(group, thread)]
    filled: list[tuple[_Run, int, FlushReason | None]] = []
    # Threads that roll over close before others of their group open.
    for statement, chosen in (
        (sql.APPEND, [run for run in runs if run.thread_id is not None]),
        (sql.OPEN, [run for run in runs if run.thread_id is None]),
    ):
        filled += [
            (run, thread_id, run.due(pending)) for run, thread_id, pending in _fill(statement, tenant_id, chosen, now)
        ]
    once_committed(metrics.THREADS_OPENED.inc, sum(run.thread_id is None for run in runs))
    reasons = dict.fromkeys(overdue, FlushReason.WINDOW)
    reasons |= {thread_id: reason for _, thread_id, reason in filled if reason is not None}
    snapshots = {entry.thread_id: entry.pk for entry in publish(held, reasons, now=now)} if reasons else {}
    return {
        one.recorded.id: snapshots[thread_id]
        for run, thread_id, _ in filled
        if thread_id in snapshots
        for one in run.arrivals
    }


def _open_threads(
    tenant_id: int, groups: Sequence[_Group], inbox_ids: Iterable[int]
) -> tuple[list[tuple[int, int] | None], list[int]]:
    """For each group the thread that is open, and for how many more receipts it has room; and what else is due.

    That is some threads of each of these inboxes, the longest due first.
    """
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
    for one in group.arrivals:
        last = runs[-1]
        breaks = one.key is not None and one.key.breaks_thread and (last.thread_id is not None or last.arrivals)
        if breaks or last.room == 0:
            last.rolls_over = True
            runs.append(_Run(group, None, THREAD_LIMIT))
        runs[-1].arrivals.append(one)
        runs[-1].room -= 1
    return runs


def _fill(statement: str, tenant_id: int, runs: Sequence[_Run], now: datetime) -> list[tuple[_Run, int, int]]:
    """Put the receipts of these runs into their threads; answers each with its thread, and how many wait there."""
    if not runs:
        return []
    rows = [
        _asked(nth, run.group)
        | {
            "thread": run.thread_id,
            "receipts": [one.recorded.id for one in run.arrivals],
            "rolls_over": run.rolls_over,
            "window": run.group.policy.window.total_seconds(),
        }
        for nth, run in enumerate(runs)
    ]
    with connection.cursor() as cursor:
        cursor.execute(statement, {"tenant": tenant_id, "runs": json.dumps(rows), "now": now})
        return [(runs[nth], thread_id, pending) for nth, thread_id, pending in cursor.fetchall()]
