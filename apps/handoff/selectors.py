"""The handoffs of a principal, as items."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from apps.core.errors import NotFound
from apps.digests import selectors as digests
from apps.digests.shapes import ReceiptOutput
from apps.handoff.items import Item, Kind, Priority, choose, estimate
from apps.handoff.models import Handoff
from apps.memory.services import HANDOFF
from apps.receipts import selectors as receipts
from apps.receipts.models import Receipt

# A principal with more never inherits.
_LOOKED_AT: Final = 2000
_PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An item that is a receipt."""

    pk: int
    receipt_id: str
    item: Item

    @property
    def cost(self) -> int:
        return estimate(self.item.shown(in_project=None))

    @property
    def order(self) -> tuple[int, datetime, str]:
        return (*self.item.urgency, f"{self.pk:020d}")


def waiting(principal_id: int, *, project: str | None, only: Sequence[str] | None = None) -> list[Kept]:
    """The items that nobody has inherited, in the order in which they are shown.

    :param project: items of this repository or of none; None: all.
    :param only: among these receipt ids.
    """
    found: list[Kept] = []
    before: int | None = None
    for _ in range(_LOOKED_AT // _PAGE):
        page = digests.inbox_receipts(principal_id, source_system=HANDOFF, before=before, limit=_PAGE)
        found += [kept(receipt) for receipt in page]
        if len(page) < _PAGE:
            break
        before = page[-1].pk
    chosen = [
        one
        for one in found
        if (project is None or one.item.project in {None, project}) and (only is None or one.receipt_id in only)
    ]
    return sorted(chosen, key=lambda one: one.order)


def preview(
    principal_id: int, *, project: str | None, only: Sequence[str] | None, max_tokens: int
) -> tuple[list[Kept], list[Kept]]:
    """The items that a session would be shown now, and those that would wait."""
    found = waiting(principal_id, project=project, only=only)
    return choose(found, max_tokens=max_tokens, claim=lambda one: one)


def inherited_by(principal_id: int, session: str) -> list[Kept]:
    """The items that a session has inherited, as long as they are kept."""
    rows = Handoff.objects.filter(recipient_id=principal_id, inherited_by=session, inherited_at__isnull=False)
    found = []
    for receipt_id in rows.order_by("pk").values_list("receipt_id", flat=True)[:_PAGE]:
        try:
            receipt = receipts.find_for(receipt_id, principal_id=principal_id)
        except NotFound:
            continue
        if receipt.pruned_at is None:
            found.append(kept(receipt))
    return sorted(found, key=lambda one: one.order)


def kept(receipt: Receipt | ReceiptOutput) -> Kept:
    """A receipt of the source as an item, whatever its metadata are."""
    facts: dict[str, Any] = receipt.metadata
    return Kept(
        pk=receipt.pk,
        receipt_id=receipt.receipt_id,
        item=Item(
            from_session=_line(facts.get("from_session")) or receipt.source_system,
            kind=Kind(receipt.event_type) if receipt.event_type in set(Kind) else Kind.CONTEXT,
            priority=Priority(facts["priority"]) if facts.get("priority") in list(Priority) else Priority.MEDIUM,
            created=_moment(facts.get("created")) or receipt.created_at,
            body=receipt.summary,
            project=_line(facts.get("project")),
            receipt_id=receipt.receipt_id,
        ),
    )


def _line(value: Any) -> str | None:
    """A name as items hold it, or None."""
    if not isinstance(value, str) or not value.isprintable():
        return None
    return value.strip()[:100] or None


def _moment(value: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else None
