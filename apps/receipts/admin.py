from django.contrib import admin
from django.db.models import Model
from django.utils.html import format_html_join

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to
from apps.receipts.models import Obligation, Receipt, ReceiptKey


@admin.register(Receipt)
class ReceiptAdmin(OperatorAdmin):
    list_display = ["receipt_id", "created_at", "source_system", "event_type", "recipient_link", "title", "surface"]
    list_filter = ["surface", ("source_system", ExactTextFilter), ("event_type", ExactTextFilter), "tenant"]
    list_select_related = ["recipient"]
    search_fields = ["receipt_id__exact"]
    ordering = ["-id"]
    exclude = ["caused_by", "pairs_with"]
    readonly_fields = ["cause_link", "pair_link", "consequence_links", "answer_links", "place_link", "obligation_link"]

    @admin.display(description="Recipient")
    def recipient_link(self, receipt: Receipt) -> str:
        return link_to(receipt.recipient)

    @admin.display(description="Caused by")
    def cause_link(self, receipt: Receipt) -> str:
        return link_to(receipt.caused_by)

    @admin.display(description="Pairs with")
    def pair_link(self, receipt: Receipt) -> str:
        return link_to(receipt.pairs_with)

    @admin.display(description="Consequences")
    def consequence_links(self, receipt: Receipt) -> str:
        return _links(*receipt.consequences.order_by("id")[:20])

    @admin.display(description="Answered by")
    def answer_links(self, receipt: Receipt) -> str:
        return _links(*receipt.pairs.order_by("id")[:20])

    @admin.display(description="Place in the inbox")
    def place_link(self, receipt: Receipt) -> str:
        return link_to(getattr(receipt, "state", None))

    @admin.display(description="Obligation")
    def obligation_link(self, receipt: Receipt) -> str:
        return link_to(getattr(receipt, "obligation", None))


def _links(*related: Model) -> str:
    return format_html_join(", ", "{}", ((link_to(one),) for one in related)) or "-"


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
    list_display = ["receipt_link", "debtor_link", "creditor_link", "opened_at", "closed_at", "closer_link"]
    list_filter = [("closed_at", admin.EmptyFieldListFilter), "tenant"]
    list_select_related = ["receipt", "debtor", "creditor", "closed_by"]
    ordering = ["-receipt_id"]

    @admin.display(description="Receipt")
    def receipt_link(self, obligation: Obligation) -> str:
        return link_to(obligation.receipt)

    @admin.display(description="Debtor")
    def debtor_link(self, obligation: Obligation) -> str:
        return link_to(obligation.debtor)

    @admin.display(description="Creditor")
    def creditor_link(self, obligation: Obligation) -> str:
        return link_to(obligation.creditor)

    @admin.display(description="Closed by")
    def closer_link(self, obligation: Obligation) -> str:
        return link_to(obligation.closed_by)
