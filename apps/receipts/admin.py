from django.contrib import admin
from django.db.models import Model
from django.utils.html import format_html_join

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to, linked
from apps.receipts.models import Obligation, Receipt, ReceiptKey


def _links(*related: Model) -> str:
    return format_html_join(", ", "{}", ((link_to(one),) for one in related)) or "-"


@admin.register(Receipt)
class ReceiptAdmin(OperatorAdmin):
    list_display = ["receipt_id", "created_at", "source_system", "event_type", linked("recipient"), "title", "surface"]
    list_filter = ["surface", ("source_system", ExactTextFilter), ("event_type", ExactTextFilter), "tenant"]
    list_select_related = ["recipient"]
    search_fields = ["receipt_id__exact"]
    ordering = ["-id"]
    exclude = ["caused_by", "pairs_with"]
    readonly_fields = [
        *(linked("caused_by"), linked("pairs_with"), "consequence_links", "answer_links", "state_link"),
        "obligation_link",
    ]

    @admin.display(description="Consequences")
    def consequence_links(self, receipt: Receipt) -> str:
        return _links(*receipt.consequences.order_by("id")[:20])

    @admin.display(description="Answered by")
    def answer_links(self, receipt: Receipt) -> str:
        return _links(*receipt.pairs.order_by("id")[:20])

    @admin.display(description="State in the inbox")
    def state_link(self, receipt: Receipt) -> str:
        return link_to(getattr(receipt, "state", None))

    @admin.display(description="Obligation")
    def obligation_link(self, receipt: Receipt) -> str:
        return link_to(getattr(receipt, "obligation", None))


@admin.register(ReceiptKey)
class ReceiptKeyAdmin(OperatorAdmin):
    list_display = ["source_system", "receipt_id", "created_at", "tenant"]
    list_filter = [("source_system", ExactTextFilter), "tenant"]
    list_select_related = ["tenant"]
    search_fields = ["receipt_id__exact"]
    exclude = ["key_digest", "content_digest"]
    ordering = ["-id"]


@admin.register(Obligation)
class ObligationAdmin(OperatorAdmin):
    list_display = [
        linked("receipt"),
        linked("debtor"),
        linked("creditor"),
        "opened_at",
        "closed_at",
        linked("closed_by"),
    ]
    list_filter = [("closed_at", admin.EmptyFieldListFilter), "tenant"]
    list_select_related = ["receipt", "debtor", "creditor", "closed_by"]
    ordering = ["-receipt_id"]
