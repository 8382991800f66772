"""Recording facts. Called by the app that owns inboxes; everybody else posts there."""

import hashlib
import json
import uuid as uuids
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, Never, Self
from uuid import UUID

from django.db import connection, transaction

from apps.core import strict_json
from apps.core.errors import DomainError, Unavailable
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
    receipt_id_is_fresh: bool = False
    """The poster has just drawn the id at random, so that no other receipt can have named it yet."""
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
        for name in ("receipt_id", "receipt_id_is_fresh", "obligation", "dedupe_key", "source_system"):
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

    A receipt closes the obligation that it pairs with where its poster is the debtor or the creditor; else it is a
    pair and no more. A queued task is closed by the gate that queued it, a created plan by a plan's receipt.

    :raises DuplicateReceipt: if the source has posted it before.
    :raises DedupeConflict: if the source has used the key for another content.
    :raises ReceiptIdConflict: if another receipt has the given id.
    :raises ChainCycle: if the receipt would be its own cause.
    """
    known = _meet(poster, [draft])
    recorded = _write(poster, draft, known, now)
    _close([(draft, recorded)], known, now)
    return recorded


@transaction.atomic
def record_many(*, poster: Poster, drafts: Sequence[ReceiptDraft], now: datetime) -> list[Recorded | DomainError]:
    """As :func:`record`, for many; a refused draft changes nothing and does not hinder the others.

    Each kind of lock is taken for the whole batch in one order that is everybody's: meeting points, waiting
    receipts, keys, obligations. So batches can't wait for each other in a circle.
    """
    known = _meet(poster, drafts)
    verdicts: dict[int, Recorded | DomainError] = {}
    written: list[tuple[ReceiptDraft, Recorded]] = []
    for index in sorted(range(len(drafts)), key=lambda i: (drafts[i].source_system, drafts[i].dedupe_key, i)):
        try:
            with transaction.atomic():
                recorded = _write(poster, drafts[index], known, now)
        except DomainError as refusal:
            verdicts[index] = refusal
        else:
            verdicts[index] = recorded
            written.append((drafts[index], recorded))
            known.links[recorded.receipt_id] = recorded.id
    _close(written, known, now)
    return [verdicts[index] for index in range(len(drafts))]


@dataclass(frozen=True, slots=True)
class _Known:
    """What the drafts' references and ids meet in the database, held until the transaction ends."""

    links: dict[str, int]
    """The receipts that the drafts refer to, by reference, as far as they are known."""
    awaited: frozenset[str]
    """Ids of drafts that other receipts have named before their arrival."""


def _references(draft: ReceiptDraft) -> set[str]:
    return {reference for reference in (draft.caused_by, draft.pairs_with) if reference is not None}


def _given_id(draft: ReceiptDraft) -> str | None:
    """The id, if somebody may have named it before."""
    return None if draft.receipt_id_is_fresh else draft.receipt_id


def _meet(poster: Poster, drafts: Sequence[ReceiptDraft]) -> _Known:
    """Wait for rivals that name what these drafts bring, or bring what they name; then look."""
    references = set[str]().union(*(_references(draft) for draft in drafts))
    given = {receipt_id for draft in drafts if (receipt_id := _given_id(draft)) is not None}
    links = _look_up(poster.tenant_id, references)
    unknown = references - links.keys()
    if not unknown and not given:
        return _Known(links, frozenset())
    with connection.cursor() as cursor:
        cursor.execute(sql.MEET, [poster.tenant_id, sorted(unknown | given)])
        links |= _look_up(poster.tenant_id, unknown)
        awaited = _hold_waiting(cursor, poster, given) | (given & references)
        # A cycle can only be closed by a receipt that is waited for and refers to another; such ones take turns.
        if any(_given_id(draft) in awaited and _references(draft) for draft in drafts):
            cursor.execute(sql.MEET, [poster.tenant_id, [f"turn:{_CYCLE_TURN}"]])
    return _Known(links, frozenset(awaited))


_CYCLE_TURN: Final = "chain"


def _hold_waiting(cursor: Any, poster: Poster, given: set[str]) -> set[str]:
    """Those of the given ids that receipts wait for; these receipts are held."""
    if not given:
        return set()
    cursor.execute(sql.WAITING, {"tenant": poster.tenant_id, "references": sorted(given)})
    waiting = [pk for (pk,) in cursor.fetchall()]
    if not waiting:
        return set()
    cursor.execute(sql.HOLD_WAITING, [waiting])
    return {reference for row in cursor.fetchall() for reference in row} & given


def _write(poster: Poster, draft: ReceiptDraft, known: _Known, now: datetime) -> Recorded:
    if draft.receipt_id is not None and draft.receipt_id in _references(draft):
        raise ChainCycle("A receipt can't refer to itself.")
    recorded = _store(poster, draft, known.links, now)
    closers = _link_arrived(poster, draft, recorded, known)
    _open_obligation(poster, draft, recorded, closers, now)
    if draft.pairs_with is not None and draft.pairs_with not in known.links:
        UnmatchedCloser.objects.create(receipt_id=recorded.id, tenant_id=poster.tenant_id, reference=draft.pairs_with)
    return recorded


def _look_up(tenant_id: int, references: set[str]) -> dict[str, int]:
    if not references:
        return {}
    as_uuid = {reference: text for reference in references if (text := _uuid(reference)) is not None}
    with connection.cursor() as cursor:
        cursor.execute(sql.RESOLVE, [tenant_id, list(references), list(as_uuid.values())])
        rows = cursor.fetchall()
    by_uuid = {uuid: pk for pk, _, uuid in rows}
    by_id = {receipt_id: pk for pk, receipt_id, _ in rows}
    found = {reference: by_uuid[uuid] for reference, uuid in as_uuid.items() if uuid in by_uuid}
    return {reference: by_id[reference] for reference in references if reference in by_id} | found


def _uuid(reference: str) -> str | None:
    try:
        return str(uuids.UUID(reference))
    except ValueError:
        return None


def _store(poster: Poster, draft: ReceiptDraft, links: dict[str, int], now: datetime) -> Recorded:
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


def _link_arrived(poster: Poster, draft: ReceiptDraft, recorded: Recorded, known: _Known) -> list[int]:
    """Link what waited for this receipt; answers the receipts that pair with it."""
    if _given_id(draft) not in known.awaited:
        return []
    given: dict[str, Any] = {"tenant": poster.tenant_id, "receipt": recorded.id, "reference": draft.receipt_id}
    with connection.cursor() as cursor:
        cursor.execute(sql.LINK_CONSEQUENCES, given)
        waiting = cursor.rowcount
        cursor.execute(sql.LINK_PAIRS, given)
        closers = sorted(pk for (pk,) in cursor.fetchall())
        if (waiting or closers) and _references(draft) & known.links.keys():
            cursor.execute(sql.IN_A_CYCLE, {"receipt": recorded.id})
            if cursor.fetchone()[0]:
                raise ChainCycle(f"{recorded.receipt_id} would be its own cause.")
    return closers


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
    )
    _close_pairs([(recorded.id, closer) for closer in closers], now)


def _close(written: Sequence[tuple[ReceiptDraft, Recorded]], known: _Known, now: datetime) -> None:
    """Close the obligations that these receipts pair with, as far as their posters may."""
    pairs: list[tuple[int, int]] = []
    for draft, recorded in written:
        root = known.links.get(draft.pairs_with) if draft.pairs_with is not None else None
        if root is not None and root != recorded.id:
            pairs.append((root, recorded.id))
    _close_pairs(pairs, now)


def _close_pairs(pairs: Sequence[tuple[int, int]], now: datetime) -> None:
    """Close of these roots what these closers may close; the first of several closes."""
    if not pairs:
        return
    roots = [root for root, _ in pairs]
    with connection.cursor() as cursor:
        if len(set(roots)) > 1:
            cursor.execute(sql.HOLD_OBLIGATIONS, [roots])
        cursor.execute(sql.CLOSE, {"roots": roots, "closers": [closer for _, closer in pairs], "now": now})
