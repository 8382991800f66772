"""Recording facts. Called by the app that owns inboxes; everybody else posts there."""

import hashlib
import json
import uuid as uuids
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, Never, Self
from uuid import UUID

from django.db import connection, transaction

from apps.core import strict_json
from apps.core.errors import Unavailable
from apps.core.ids import random_id
from apps.core.sql import hot_cursor
from apps.principals.tenancy import Caller
from apps.receipts import sql
from apps.receipts.errors import ChainCycle, DedupeConflict, DuplicateReceipt, ReceiptIdConflict
from apps.receipts.models import FlushClass, Obligation, Receipt, ReceiptKey, Surface, UnmatchedCloser


@dataclass(frozen=True, slots=True, kw_only=True)
class Poster:
    """The principal that posts."""

    tenant_id: int
    principal_id: int
    name: str

    @classmethod
    def of(cls, caller: Caller) -> Self:
        return cls(tenant_id=caller.tenant_id, principal_id=caller.principal_id, name=caller.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What the poster says about grouping. Without a resource and a family there is none."""

    resource_ref: str | None = None
    event_family: str | None = None
    flush_class: str = FlushClass.NORMAL
    summary_hint: str | None = None
    break_thread: bool = False
    groupable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObligationDraft:
    """Who owes whom because of a receipt; principals' ids."""

    debtor_id: int
    creditor_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptDraft:
    """A receipt to be posted. `caused_by` and `pairs_with` name a receipt id or a uuid, known or not yet."""

    recipient_id: int
    source_system: str
    event_type: str
    dedupe_key: str
    summary: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    receipt_id: str | None = None
    artifact_pointer: str | None = None
    artifact_location: str | None = None
    requires_action: bool = False
    suggested_next_step: str | None = None
    caused_by: str | None = None
    pairs_with: str | None = None
    group: Group | None = None
    delivery_handle: str | None = None
    surface: str = Surface.INBOX
    obligation: ObligationDraft | None = None
    """Left out, a receipt that requires action makes its recipient the poster's debtor."""

    def content_digest(self) -> bytes:
        """What makes two posts of one key the same. Ids are not content: a repetition may be given a new one."""
        content = asdict(self)
        for name in ("receipt_id", "obligation", "dedupe_key", "source_system"):
            del content[name]
        return strict_json.digest(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A fact, now in the database."""

    id: int
    receipt_id: str
    uuid: UUID
    dedupe_key: str
    created_at: datetime


@transaction.atomic
def record(*, poster: Poster, draft: ReceiptDraft, now: datetime) -> Recorded:
    """Write a fact, link it into the chain, open and close obligations.

    :raises DuplicateReceipt: if the source has posted it before.
    :raises DedupeConflict: if the source has used the key for another content.
    :raises ReceiptIdConflict: if another receipt has the given id.
    :raises ChainCycle: if the receipt would be its own cause.
    """
    links = _resolve(poster, draft)
    recorded = _store(poster, draft, links, now)
    closers = _link_arrived(poster, draft, recorded, links)
    _open_obligation(poster, draft, recorded, closers, now)
    _pair(poster, draft, recorded, links, now)
    return recorded


_Links = dict[str, int]


def _resolve(poster: Poster, draft: ReceiptDraft) -> _Links:
    """The known ones among the receipts that the draft refers to, by reference."""
    references = [reference for reference in (draft.caused_by, draft.pairs_with) if reference is not None]
    if draft.receipt_id is not None and draft.receipt_id in references:
        raise ChainCycle("A receipt can't refer to itself.")
    links = _look_up(poster.tenant_id, references)
    unknown = [reference for reference in references if reference not in links]
    meeting_points = unknown + ([draft.receipt_id] if draft.receipt_id is not None else [])
    if meeting_points:
        with connection.cursor() as cursor:
            cursor.execute(sql.MEET, [poster.tenant_id, meeting_points])
    if unknown:
        links |= _look_up(poster.tenant_id, unknown)
    return links


def _look_up(tenant_id: int, references: list[str]) -> _Links:
    if not references:
        return {}
    as_uuid = {reference: text for reference in references if (text := _uuid(reference)) is not None}
    with connection.cursor() as cursor:
        cursor.execute(sql.RESOLVE, [tenant_id, references, list(as_uuid.values())])
        rows = cursor.fetchall()
    by_uuid = {uuid: pk for pk, _, uuid in rows}
    by_id = {receipt_id: pk for pk, receipt_id, _ in rows}
    found = {reference: by_uuid[uuid] for reference, uuid in as_uuid.items() if uuid in by_uuid}
    return found | {reference: by_id[reference] for reference in references if reference in by_id}


def _uuid(reference: str) -> str | None:
    try:
        return str(uuids.UUID(reference))
    except ValueError:
        return None


def _store(poster: Poster, draft: ReceiptDraft, links: _Links, now: datetime) -> Recorded:
    receipt_id = draft.receipt_id or random_id("rcpt")
    key_digest, content_digest = hashlib.sha256(draft.dedupe_key.encode()).digest(), draft.content_digest()
    group = draft.group or Group()
    with hot_cursor() as cursor:
        cursor.execute(
            sql.RECORD,
            {
                "tenant": poster.tenant_id,
                "recipient": draft.recipient_id,
                "poster": poster.principal_id,
                "receipt_id": receipt_id,
                "key_digest": key_digest,
                "content_digest": content_digest,
                "source_system": draft.source_system,
                "event_type": draft.event_type,
                "dedupe_key": draft.dedupe_key,
                "title": draft.title,
                "summary": draft.summary,
                "metadata": json.dumps(dict(draft.metadata)),
                "artifact_pointer": draft.artifact_pointer,
                "artifact_location": draft.artifact_location,
                "requires_action": draft.requires_action,
                "suggested_next_step": draft.suggested_next_step,
                "caused_by_ref": draft.caused_by,
                "pairs_with_ref": draft.pairs_with,
                "caused_by": links.get(draft.caused_by) if draft.caused_by else None,
                "pairs_with": links.get(draft.pairs_with) if draft.pairs_with else None,
                "surface": draft.surface,
                "groupable": group.groupable,
                "resource_ref": group.resource_ref,
                "event_family": group.event_family,
                "flush_class": group.flush_class,
                "summary_hint": group.summary_hint,
                "break_thread": group.break_thread,
                "delivery_handle": draft.delivery_handle,
                "now": now,
            },
        )
        row = cursor.fetchone()
    if row is None:
        _refuse_repetition(poster, draft, key_digest, content_digest)
    pk, uuid, stored = row
    if not stored:
        existing = Receipt.objects.values_list("uuid", flat=True).get(tenant_id=poster.tenant_id, receipt_id=receipt_id)
        raise ReceiptIdConflict(
            f"The receipt id {receipt_id!r} belongs to a receipt with another dedupe key.",
            existing_receipt_id=receipt_id,
            existing_uuid=str(existing),
        )
    return Recorded(id=pk, receipt_id=receipt_id, uuid=uuid, dedupe_key=draft.dedupe_key, created_at=now)


def _refuse_repetition(poster: Poster, draft: ReceiptDraft, key_digest: bytes, content_digest: bytes) -> Never:
    existing = ReceiptKey.objects.filter(
        tenant_id=poster.tenant_id, source_system=draft.source_system, key_digest=key_digest
    ).first()
    if existing is None:
        raise Unavailable("This dedupe key was released at this moment; post again.")
    ids: dict[str, Any] = {"existing_receipt_id": existing.receipt_id, "existing_uuid": str(existing.uuid)}
    if bytes(existing.content_digest) == content_digest:
        raise DuplicateReceipt("Receipt with this dedupe_key already exists", **ids)
    raise DedupeConflict("This dedupe_key was used for a receipt with other content", **ids)


def _link_arrived(poster: Poster, draft: ReceiptDraft, recorded: Recorded, links: _Links) -> list[int]:
    """Link what waited for this receipt; answers the receipts that pair with it."""
    if draft.receipt_id is None:
        return []  # nobody could know the id before
    given: dict[str, Any] = {"tenant": poster.tenant_id, "receipt": recorded.id, "reference": draft.receipt_id}
    with connection.cursor() as cursor:
        cursor.execute(sql.LINK_CONSEQUENCES, given)
        waiting = cursor.rowcount
        cursor.execute(sql.LINK_PAIRS, given)
        closers = sorted(pk for (pk,) in cursor.fetchall())
        if (waiting or closers) and links:
            _refuse_cycle(cursor, poster, recorded)
    return closers


# A cycle can only be closed by a receipt that is waited for and refers to another; such ones take turns.
_CYCLE_TURN: Final = "chain"


def _refuse_cycle(cursor: Any, poster: Poster, recorded: Recorded) -> None:
    cursor.execute(sql.MEET, [poster.tenant_id, [f"turn:{_CYCLE_TURN}"]])
    cursor.execute(sql.IN_A_CYCLE, {"receipt": recorded.id})
    if cursor.fetchone()[0]:
        raise ChainCycle(f"{recorded.receipt_id} would be its own cause.")


def _open_obligation(
    poster: Poster, draft: ReceiptDraft, recorded: Recorded, closers: list[int], now: datetime
) -> None:
    owed = draft.obligation
    if owed is None and draft.requires_action:
        owed = ObligationDraft(debtor_id=draft.recipient_id, creditor_id=poster.principal_id)
    if owed is None:
        return
    Obligation.objects.create(
        receipt_id=recorded.id,
        tenant_id=poster.tenant_id,
        debtor_id=owed.debtor_id,
        creditor_id=owed.creditor_id,
        opened_at=now,
        closed_by_id=closers[0] if closers else None,
        closed_at=now if closers else None,
    )


def _pair(poster: Poster, draft: ReceiptDraft, recorded: Recorded, links: _Links, now: datetime) -> None:
    if draft.pairs_with is None:
        return
    root = links.get(draft.pairs_with)
    if root is None:
        UnmatchedCloser.objects.create(receipt_id=recorded.id, tenant_id=poster.tenant_id, reference=draft.pairs_with)
        return
    with connection.cursor() as cursor:
        cursor.execute(sql.CLOSE, [recorded.id, now, root])
