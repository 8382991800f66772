"""Questions about facts: one receipt, its chain, what is owed, and what is on its way elsewhere."""

import uuid as uuids
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from django.db import connection
from django.db.models import Aggregate, Count, Min, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from apps.core.sql import hot_cursor
from apps.principals.scopes import Kind
from apps.receipts import sql
from apps.receipts.errors import UnknownReceipt, UnknownTarget
from apps.receipts.letters import Content
from apps.receipts.models import FlushClass, Letter, Receipt, ReceiptKey, RemoteTarget, Residence, Surface
from apps.receipts.states import LetterState

CHAIN_LIMIT: Final = 1000


def find(reference: str) -> Receipt:
    """The receipt of this uuid, or else of this receipt id, in the current tenant; none of which a tombstone is left.

    :raises UnknownReceipt: if there is none.
    """
    found = _find(reference)
    if found.pruned_at is not None:
        raise UnknownReceipt(f"The receipt {reference[:100]!r} has been kept its time and is gone.")
    return found


def _find(reference: str) -> Receipt:
    receipts = Receipt.objects.select_related("recipient", "poster")
    as_uuid = _uuid(reference)
    found = receipts.filter(uuid=as_uuid).first() if as_uuid is not None else None
    if found is None:
        found = receipts.filter(receipt_id=reference).first()
    if found is None:
        raise UnknownReceipt(f"There is no receipt {reference[:100]!r}.")
    return found


def find_for(reference: str, *, principal_id: int) -> Receipt:
    """As :func:`find`, for a principal that has received or posted it; for others there is none."""
    found = find(reference)
    if principal_id not in {found.recipient_id, found.poster_id}:
        raise UnknownReceipt(f"There is no receipt {reference[:100]!r}.")
    return found


def in_order(receipt_pks: Sequence[int]) -> list[Receipt]:
    """The receipts of these keys, in their order; pruned ones are left out."""
    found = Receipt.objects.select_related("recipient", "poster").filter(pruned_at=None).in_bulk(list(receipt_pks))
    return [found[pk] for pk in receipt_pks if pk in found]


def _uuid(reference: str) -> UUID | None:
    try:
        return uuids.UUID(reference)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Link:
    """One receipt of a chain and what it hangs from, by receipt id where that is known."""

    id: int
    receipt_id: str
    uuid: UUID
    event_type: str
    source_system: str
    recipient: str
    title: str | None
    surface: str
    requires_action: bool
    created_at: datetime
    caused_by: str | None
    pairs_with: str | None
    obligation_open: bool | None
    """None where the receipt opened none."""
    pruned: bool
    """Retention has removed what it said; who, what kind and when is left."""


def chain(receipt_ref: str) -> list[Link]:
    """The whole tree around a receipt, both ways: causes, consequences and pairs, oldest first.

    Of a receipt that retention has removed, its tombstone. At most 1,000 receipts, those nearest by links first.

    :raises UnknownReceipt: if there is no such receipt.
    """
    return _walk(sql.CHAIN, receipt=_find(receipt_ref).pk)


def chain_for(receipt_ref: str, *, principal_id: int) -> list[Link]:
    """As :func:`chain`, as far as it can be walked through receipts that concern a principal.

    A receipt concerns whoever posted or received it, and whoever owes or is owed something because of it.

    :raises UnknownReceipt: if there is no such receipt, or it does not concern the principal.
    """
    links = _walk(sql.CHAIN_FOR, receipt=_find(receipt_ref).pk, principal=principal_id)
    if not links:
        raise UnknownReceipt(f"There is no receipt {receipt_ref[:100]!r}.")
    return links


def _walk(statement: str, **given: int) -> list[Link]:
    with hot_cursor() as cursor:
        cursor.execute(statement, given | {"limit": CHAIN_LIMIT})
        return [Link(*row) for row in cursor.fetchall()]


@dataclass(frozen=True, slots=True)
class Owed:
    """An open obligation."""

    id: int
    receipt_id: str
    event_type: str
    source_system: str
    title: str | None
    summary: str
    debtor: str
    creditor: str
    suggested_next_step: str | None
    opened_at: datetime


def obligations(
    *, owed_by: int | None = None, awaited_by: int | None = None, after: int = 0, limit: int = 50
) -> list[Owed]:
    """Open obligations of a debtor, or those that a creditor awaits, oldest first, after the one with this key."""
    sides = [sql.OWED_BY] if owed_by is not None else []
    sides += [sql.AWAITED_BY] if awaited_by is not None else []
    order = sql.BY_DEBTOR if owed_by is not None else sql.BY_CREDITOR if awaited_by is not None else ""
    with connection.cursor() as cursor:
        cursor.execute(
            sql.OPEN_OBLIGATIONS.format(sides=" ".join(sides), order=order),
            {"owed_by": owed_by, "awaited_by": awaited_by, "after": after, "limit": limit},
        )
        return [Owed(*row) for row in cursor.fetchall()]


def used_keys(tenant_id: int, source_system: str, dedupe_keys: Sequence[str]) -> set[str]:
    """Those of a source's dedupe keys that it has used."""
    by_digest = {sha256(key.encode()).digest(): key for key in dedupe_keys}
    used = ReceiptKey.objects.filter(tenant_id=tenant_id, source_system=source_system, key_digest__in=by_digest)
    return {by_digest[bytes(digest)] for digest in used.values_list("key_digest", flat=True)}


def target_named(name: str) -> RemoteTarget:
    """The remote target of this name in the current tenant.

    :raises UnknownTarget: if there is none.
    """
    found = RemoteTarget.objects.filter(name=name).first()
    if found is None:
        raise UnknownTarget(f"There is no target {name[:50]!r}.")
    return found


def content_of(receipt_pk: int, *, recipient_name: str) -> tuple[Content, str | None, UUID]:
    """A receipt as it is told elsewhere, the DeleGate that posted it, if one did, and its uuid, which is told nobody."""
    fact = Receipt.objects.select_related("poster", "caused_by", "pairs_with").get(pk=receipt_pk)
    content = Content(
        recipient=recipient_name,
        source_system=fact.source_system,
        event_type=fact.event_type,
        dedupe_key=fact.dedupe_key,
        receipt_id=fact.receipt_id,
        title=fact.title,
        summary=fact.summary,
        metadata=fact.metadata,
        artifact_pointer=fact.artifact_pointer,
        artifact_location=fact.artifact_location,
        requires_action=fact.requires_action,
        suggested_next_step=fact.suggested_next_step,
        # The poster may have named a uuid, which is ours alone.
        caused_by=fact.caused_by.receipt_id if fact.caused_by else fact.caused_by_ref,
        pairs_with=fact.pairs_with.receipt_id if fact.pairs_with else fact.pairs_with_ref,
        group=_group(fact),
        delivery_handle=fact.delivery_handle,
        surface=Surface.LEDGER if fact.surface == Surface.LEDGER else Surface.INBOX,
    )
    return content, fact.poster.name if fact.poster.kind == Kind.DELEGATE else None, fact.uuid


def _group(fact: Receipt) -> dict[str, Any] | None:
    said = {
        "resource_ref": fact.resource_ref,
        "event_family": fact.event_family,
        "flush_class": fact.flush_class if fact.flush_class != FlushClass.NORMAL else None,
        "summary_hint": fact.summary_hint,
        "break_thread": fact.break_thread or None,
        "groupable": fact.groupable,
    }
    return {name: value for name, value in said.items() if value is not None} or None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """A target and how it fares; never its token."""

    id: int
    name: str
    base_url: str
    door: str
    known_as: str | None
    timeout_seconds: int
    breaker: str
    failures_in_a_row: int
    retry_at: datetime | None
    pending: int
    dead: int
    oldest_pending_at: datetime | None
    delivered: int


def with_letters() -> QuerySet[RemoteTarget]:
    """Targets with what waits for them and what is dead, counted within one statement."""
    return RemoteTarget.objects.annotate(
        pending=Coalesce(_of_its_letters(LetterState.PENDING, Count("pk")), 0),
        dead=Coalesce(_of_its_letters(LetterState.DEAD, Count("pk")), 0),
        oldest_pending_at=_of_its_letters(LetterState.PENDING, Min("created_at")),
    )


def targets(*, after: int = 0, limit: int = 50) -> list[TargetView]:
    """The remote targets of the current tenant, in the order in which they were added."""
    return [_target(row) for row in with_letters().filter(pk__gt=after).order_by("pk")[:limit]]


def target_view(target_id: int) -> TargetView:
    """One target, with what waits for it."""
    return _target(with_letters().get(pk=target_id))


def _of_its_letters(state: LetterState, figure: Aggregate) -> Subquery:
    """A figure over a target's letters of one state; those delivered, which are many, are not read."""
    letters_of_it = Letter.objects.filter(target=OuterRef("pk"), state=state).order_by()
    return Subquery(letters_of_it.values("target").annotate(figure=figure).values("figure"))


def _target(row: Any) -> TargetView:
    return TargetView(
        id=row.pk,
        name=row.name,
        base_url=row.base_url,
        door=row.door,
        known_as=row.known_as,
        timeout_seconds=row.timeout_seconds,
        breaker=row.breaker,
        failures_in_a_row=row.failures_in_a_row,
        retry_at=row.retry_at,
        pending=row.pending,
        dead=row.dead,
        oldest_pending_at=row.oldest_pending_at,
        delivered=row.delivered_count,
    )


def letters(*, target: RemoteTarget, state: LetterState | None = None, after: int = 0, limit: int = 50) -> list[Letter]:
    """Letters to a target with their receipts, oldest first."""
    found = Letter.objects.filter(target=target, pk__gt=after).select_related("receipt")
    return list((found if state is None else found.filter(state=state)).order_by("pk")[:limit])


def residences(*, after: int = 0, limit: int = 50) -> list[Residence]:
    """Who lives elsewhere, with the target."""
    found = Residence.objects.filter(pk__gt=after).select_related("principal", "target")
    return list(found.order_by("pk")[:limit])
