from typing import Final

from django.contrib import admin
from django.utils.html import format_html, format_html_join

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to, link_to_page, linked, start_of
from apps.receipts import selectors
from apps.receipts.models import Obligation, Receipt

_DEEPEST: Final = 20


def _place(receipt: Receipt) -> str:
    """A link to the thread or inbox where the receipt is read."""
    state = getattr(receipt, "state", None)
    return link_to(state and (state.thread or state.inbox))


def tree(receipt: Receipt) -> str:
    """All receipts around one, each below what it follows from or answers, with links to their pages."""
    links = {link.receipt_id: link for link in selectors.chain(receipt.receipt_id)}
    found = Receipt.objects.filter(receipt_id__in=links).select_related("state__inbox__principal", "state__thread")
    pages = {one.receipt_id: one for one in found}
    depths: dict[str, int] = {}
    below: dict[str | None, list[str]] = {}
    for link in links.values():
        above = next((one for one in (link.caused_by_receipt_id, link.pairs_with) if one in links), None)
        below.setdefault(above, []).append(link.receipt_id)
    waiting = below.get(None, list(links)[:1])[::-1]
    while waiting:
        one = waiting.pop()
        depths.setdefault(one, 0)
        for child in below.get(one, [])[::-1]:
            if child not in depths:
                depths[child] = depths[one] + 1
                waiting.append(child)
    return format_html_join(
        "",
        '<div style="padding-left:{}rem">{} <strong>{}</strong> to {}{}{}{}</div>',
        (
            (
                min(depth, _DEEPEST) * 1.5,
                link_to_page("receipts_receipt", pages[key].pk, key) if key in pages else key,
                links[key].event_type,
                links[key].recipient_ai,
                f": {start_of(title, 80)}" if (title := links[key].title) else "",
                " (this one)" if key == receipt.receipt_id else "",
                format_html(", read as {}", _place(pages[key])) if key in pages and _place(pages[key]) != "-" else "",
            )
            for key, depth in depths.items()
        ),
    )


@admin.register(Receipt)
class ReceiptAdmin(OperatorAdmin):
    list_display = ["receipt_id", "created_at", "source_system", "event_type", linked("recipient"), "title", "surface"]
    list_filter = ["surface", ("source_system", ExactTextFilter), ("event_type", ExactTextFilter), "tenant"]
    list_select_related = ["recipient"]
    search_fields = ["receipt_id__exact"]
    ordering = ["-id"]
    exclude = ["caused_by", "pairs_with"]
    readonly_fields = [linked("caused_by"), linked("pairs_with"), "consequences", "place", "obligation_link"]

    @admin.display(description="Causes and consequences")
    def consequences(self, receipt: Receipt) -> str:
        return tree(receipt)

    @admin.display(description="Read as")
    def place(self, receipt: Receipt) -> str:
        return _place(receipt)

    @admin.display(description="Obligation")
    def obligation_link(self, receipt: Receipt) -> str:
        return link_to(getattr(receipt, "obligation", None))


@admin.register(Obligation)
class ObligationAdmin(OperatorAdmin):
    list_display = [
        linked("receipt"), linked("debtor"), linked("creditor"), "opened_at", "closed_at", linked("closed_by"),
    ]  # fmt: skip
    list_filter = [("closed_at", admin.EmptyFieldListFilter), "tenant"]
    list_select_related = ["receipt", "debtor", "creditor", "closed_by"]
    ordering = ["-receipt_id"]
