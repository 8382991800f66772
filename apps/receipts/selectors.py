"""Questions about facts: one receipt, its chain, what is owed."""

import uuid as uuids
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db import connection

from apps.receipts import sql
from apps.receipts.errors import UnknownReceipt
from apps.receipts.models import Receipt

CHAIN_LIMIT: Final = 1000


def find(reference: str) -> Receipt:
    """The receipt of this uuid, or else of this receipt id, in the current tenant.

    :raises UnknownReceipt: if there is none.
    """
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
    found = Receipt.objects.select_related("recipient", "poster").in_bulk(list(receipt_pks))
    return [found[pk] for pk in receipt_pks if pk in found]


def _uuid(reference: str) -> UUID | None:
    try:
        return uuids.UUID(reference)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
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


def chain(receipt_ref: str) -> list[Link]:
    """The whole tree around a receipt, both ways: causes, consequences and pairs, oldest first.

    At most 1,000 receipts, those nearest by links first.

    :raises UnknownReceipt: if there is no such receipt.
    """
    return _links(_walk(sql.CHAIN, receipt=find(receipt_ref).pk))


def chain_for(receipt_ref: str, *, principal_id: int) -> list[Link]:
    """As :func:`chain`, as far as it can be walked through receipts that concern a principal.

    A receipt concerns whoever posted or received it, and whoever owes or is owed something because of it.

    :raises UnknownReceipt: if there is no such receipt, or it does not concern the principal.
    """
    keys = _walk(sql.CHAIN_FOR, receipt=find(receipt_ref).pk, principal=principal_id)
    if not keys:
        raise UnknownReceipt(f"There is no receipt {receipt_ref[:100]!r}.")
    return _links(keys)


def _walk(statement: str, **given: int) -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute(statement, given | {"limit": CHAIN_LIMIT})
        return {pk for (pk,) in cursor.fetchall()}


def _links(keys: set[int]) -> list[Link]:
    rows = (
        Receipt.objects.filter(pk__in=keys)
        .select_related("recipient", "caused_by", "pairs_with", "obligation")
        .order_by("id")
    )
    return [_link(row, keys) for row in rows]


def _link(row: Receipt, shown: set[int]) -> Link:
    """A link to what is not shown is told in the poster's own words, which tell it nothing new."""
    obligation = getattr(row, "obligation", None)
    return Link(
        id=row.pk,
        receipt_id=row.receipt_id,
        uuid=row.uuid,
        event_type=row.event_type,
        source_system=row.source_system,
        recipient=row.recipient.name,
        title=row.title,
        surface=row.surface,
        requires_action=row.requires_action,
        created_at=row.created_at,
        caused_by=row.caused_by.receipt_id if row.caused_by and row.caused_by_id in shown else row.caused_by_ref,
        pairs_with=row.pairs_with.receipt_id if row.pairs_with and row.pairs_with_id in shown else row.pairs_with_ref,
        obligation_open=None if obligation is None else obligation.closed_at is None,
    )


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
    with connection.cursor() as cursor:
        cursor.execute(
            sql.OPEN_OBLIGATIONS.format(sides=" ".join(sides)),
            {"owed_by": owed_by, "awaited_by": awaited_by, "after": after, "limit": limit},
        )
        return [Owed(*row) for row in cursor.fetchall()]
