"""One receipt, its chain, and open obligations."""

import uuid as uuids
from collections.abc import Sequence
from hashlib import sha256
from typing import Final
from uuid import UUID

from apps.core.ids import encode_cursor
from apps.core.sql import fetch
from apps.receipts import sql
from apps.receipts.errors import UnknownReceipt
from apps.receipts.models import Receipt, ReceiptKey
from apps.receipts.shapes import LinkOutput, ObligationOutput, ObligationsOutput

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


def chain(receipt_ref: str) -> list[LinkOutput]:
    """The whole tree around a receipt, both ways: causes, consequences and pairs, oldest first.

    Of a receipt that retention has removed, its tombstone. At most 1,000 receipts, those nearest by links first.

    :raises UnknownReceipt: if there is no such receipt.
    """
    return _walk(sql.CHAIN, receipt=_find(receipt_ref).pk)


def chain_for(receipt_ref: str, *, principal_id: int) -> list[LinkOutput]:
    """As :func:`chain`, as far as it can be walked through receipts that concern a principal.

    A receipt concerns whoever posted or received it, and whoever owes or is owed something because of it.

    :raises UnknownReceipt: if there is no such receipt, or it does not concern the principal.
    """
    links = _walk(sql.CHAIN_FOR, receipt=_find(receipt_ref).pk, principal=principal_id)
    if not links:
        raise UnknownReceipt(f"There is no receipt {receipt_ref[:100]!r}.")
    return links


def _walk(statement: str, **given: int) -> list[LinkOutput]:
    return [
        LinkOutput(**dict(zip(LinkOutput.model_fields, row, strict=True)))
        for row in fetch(statement, given | {"limit": CHAIN_LIMIT}, hot=True)
    ]


def obligations(
    *, owed_by: int | None = None, awaited_by: int | None = None, after: int = 0, limit: int = 50
) -> ObligationsOutput:
    """Open obligations of a debtor, or those that a creditor awaits, oldest first, after the one with this key."""
    side, principal = ("debtor_id", owed_by) if owed_by is not None else ("creditor_id", awaited_by)
    given = {"principal": principal, "after": after, "limit": limit}
    rows = fetch(sql.OPEN_OBLIGATIONS.format(side=side), given, hot=True)
    return ObligationsOutput(
        obligations=[
            ObligationOutput(**dict(zip(ObligationOutput.model_fields, row[1:], strict=True))) for row in rows
        ],
        next=encode_cursor(rows[-1][0]) if len(rows) == limit else None,
    )


def used_keys(tenant_id: int, source_system: str, dedupe_keys: Sequence[str]) -> set[str]:
    """Those of a source's dedupe keys that it has used."""
    by_digest = {sha256(key.encode()).digest(): key for key in dedupe_keys}
    used = ReceiptKey.objects.filter(tenant_id=tenant_id, source_system=source_system, key_digest__in=by_digest)
    return {by_digest[bytes(digest)] for digest in used.values_list("key_digest", flat=True)}
