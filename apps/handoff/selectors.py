"""What waits for a principal, as items."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from apps.core.errors import NotFound
from apps.digests import selectors as digests
from apps.digests.shapes import ReceiptOutput
from apps.handoff import tokens
from apps.handoff.budget import choose
from apps.handoff.items import Item, Kind, Priority
from apps.handoff.models import Handoff
from apps.memory.services import HANDOFF
from apps.receipts import selectors as receipts
from apps.receipts.models import Receipt

# More than this wait for nobody who ever inherits.
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
        return tokens.estimate(self.item.shown(in_project=None))

    @property
    def order(self) -> tuple[int, datetime, str]:
        return (*self.item.turn, f"{self.pk:020d}")


def waiting(principal_id: int, *, project: str | None, only: Sequence[str] | None = None) -> list[Kept]:
    """What nobody has inherited, in the order in which it is shown.

    :param project: of this repository, and what belongs to none; None: all.
    :param only: receipt ids to look among.
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
    """What a session would be shown now, and what would go on waiting."""
    found = waiting(principal_id, project=project, only=only)
    return choose(found, max_tokens=max_tokens, claim=lambda one: one)


def inherited_by(principal_id: int, session: str) -> list[Kept]:
    """What a session has inherited, as far as it is still kept."""
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
    """A receipt of the source read as an item, whatever its poster has put into it."""
    said: dict[str, Any] = receipt.metadata
    return Kept(
        pk=receipt.pk,
        receipt_id=receipt.receipt_id,
        item=Item(
            from_session=_line(said.get("from_session")) or receipt.source_system,
            kind=Kind(receipt.event_type) if receipt.event_type in set(Kind) else Kind.CONTEXT,
            priority=Priority(said["priority"]) if said.get("priority") in list(Priority) else Priority.MEDIUM,
            created=_moment(said.get("created")) or receipt.created_at,
            body=receipt.summary,
            project=_line(said.get("project")),
            receipt_id=receipt.receipt_id,
        ),
    )


def _line(value: Any) -> str | None:
    """A name that fits where items hold one."""
    if not isinstance(value, str) or not value.isprintable():
        return None
    return value.strip()[:100] or None


def _moment(value: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else None
