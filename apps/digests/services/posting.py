"""Posting: the fact below, its place in the recipient's inbox here, in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from apps.core.errors import DomainError
from apps.core.sql import hot_cursor
from apps.digests import formats, sql
from apps.digests.models import THREAD_LIMIT
from apps.digests.services import locking
from apps.digests.services.locking import LockedInbox
from apps.digests.services.publishing import publish_pending
from apps.digests.states import FlushReason
from apps.receipts import services as receipts
from apps.receipts.models import FlushClass, Surface
from apps.receipts.services import Group, Poster, ReceiptDraft, Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """A receipt, stored and placed. `entry_ref` is there if the post itself made an entry visible."""

    id: int
    receipt_id: str
    uuid: UUID
    dedupe_key: str
    created_at: datetime
    entry_ref: str | None


@transaction.atomic
def post(*, poster: Poster, draft: ReceiptDraft, now: datetime) -> Posted:
    """Store a receipt and, unless it is for the ledger, place it in its recipient's inbox.

    With a group it waits in the burst buffer of its thread, else it is visible at once.

    :raises DuplicateReceipt: if the source has posted it before.
    :raises DedupeConflict: if the source has used the key for another content.
    :raises ReceiptIdConflict: if another receipt has the given id.
    :raises ChainCycle: if the receipt would be its own cause.
    """
    # The fact comes first: rivals of one key meet there, before anybody holds an inbox.
    recorded = receipts.record(poster=poster, draft=draft, now=now)
    if draft.surface == Surface.LEDGER:
        return _posted(recorded, None)
    inbox = locking.lock_or_create(tenant_id=poster.tenant_id, principal_id=draft.recipient_id)
    return _posted(recorded, _place(inbox, draft, recorded, now))


@transaction.atomic
def post_many(*, poster: Poster, drafts: Sequence[ReceiptDraft], now: datetime) -> list[Posted | DomainError]:
    """Post many in one transaction; the answer at each place is what became of the draft at that place.

    A refused draft changes nothing and does not hinder the others.
    """
    # Facts first, each kind of lock in one order for everybody, then inboxes in theirs.
    verdicts = receipts.record_many(poster=poster, drafts=drafts, now=now)
    inboxes = locking.lock_several(
        tenant_id=poster.tenant_id,
        principal_ids={
            draft.recipient_id
            for draft, verdict in zip(drafts, verdicts, strict=True)
            if isinstance(verdict, Recorded) and draft.surface == Surface.INBOX
        },
    )
    answers: list[Posted | DomainError] = []
    for draft, verdict in zip(drafts, verdicts, strict=True):
        if isinstance(verdict, DomainError):
            answers.append(verdict)
        elif draft.surface == Surface.LEDGER:
            answers.append(_posted(verdict, None))
        else:
            answers.append(_posted(verdict, _place(inboxes[draft.recipient_id], draft, verdict, now)))
    return answers


def _posted(recorded: Recorded, entry_id: int | None) -> Posted:
    return Posted(
        id=recorded.id,
        receipt_id=recorded.receipt_id,
        uuid=recorded.uuid,
        dedupe_key=recorded.dedupe_key,
        created_at=recorded.created_at,
        entry_ref=formats.entry_ref(entry_id) if entry_id is not None else None,
    )


def _place(inbox: LockedInbox, draft: ReceiptDraft, recorded: Recorded, now: datetime) -> int | None:
    key = _group_key(draft) if inbox.enabled else None
    if key is None:
        return _place_item(inbox, draft, recorded, now)
    return _place_in_thread(inbox, key, draft, recorded, now)


@dataclass(frozen=True, slots=True)
class _Key:
    source_system: str
    resource_ref: str
    event_family: str
    group: Group


def _group_key(draft: ReceiptDraft) -> _Key | None:
    """What the receipt is grouped by; None where either half is missing, or the poster opted out."""
    group = draft.group
    if group is None or group.groupable is False or not group.resource_ref or not group.event_family:
        return None
    return _Key(draft.source_system, group.resource_ref, group.event_family, group)


def _place_item(inbox: LockedInbox, draft: ReceiptDraft, recorded: Recorded, now: datetime) -> int:
    with hot_cursor() as cursor:
        cursor.execute(
            sql.POST_ITEM,
            {
                "inbox": inbox.id,
                "tenant": inbox.tenant_id,
                "receipt": recorded.id,
                "source_system": draft.source_system,
                "delivery_handle": draft.delivery_handle,
                "created_at": recorded.created_at,
                "now": now,
            },
        )
        entry_id: int = cursor.fetchone()[0]
    inbox.announce()
    return entry_id


def _place_in_thread(
    inbox: LockedInbox, key: _Key, draft: ReceiptDraft, recorded: Recorded, now: datetime
) -> int | None:
    thread_id = _open_thread(inbox, key, now)
    given: dict[str, Any] = {
        "inbox": inbox.id,
        "tenant": inbox.tenant_id,
        "receipt": recorded.id,
        "window": inbox.window,
        "thread": thread_id,
        "source_system": key.source_system,
        "resource_ref": key.resource_ref,
        "event_family": key.event_family,
    }
    with connection.cursor() as cursor:
        cursor.execute(sql.BUFFER if thread_id is not None else sql.BUFFER_IN_NEW_THREAD, given)
        thread_id, pending = cursor.fetchone()
    if key.group.flush_class == FlushClass.IMMEDIATE:
        reason = FlushReason.IMMEDIATE
    elif pending >= inbox.max_items:
        reason = FlushReason.SIZE
    else:
        return None
    return publish_pending(inbox, [thread_id], reason=reason, now=now)[0].pk


def _open_thread(inbox: LockedInbox, key: _Key, now: datetime) -> int | None:
    """The thread that takes the next receipt, if one is open and has not to roll over before."""
    asked: list[Any] = [inbox.max_thread_age, inbox.tenant_id, inbox.id]
    with connection.cursor() as cursor:
        cursor.execute(sql.OPEN_THREAD, [*asked, key.source_system, key.resource_ref, key.event_family])
        row = cursor.fetchone()
    if row is None:
        return None
    thread_id, receipt_count, pending, aged = row
    if not (aged or receipt_count >= THREAD_LIMIT or key.group.break_thread):
        return int(thread_id)
    if pending:
        publish_pending(inbox, [thread_id], reason=FlushReason.ROLLOVER, now=now)
    with connection.cursor() as cursor:
        cursor.execute(sql.CLOSE_FINISHED, [now, [thread_id]])
    return None
