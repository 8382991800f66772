from django.contrib import admin

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to
from apps.handoff.models import Handoff
from apps.receipts.models import Receipt


@admin.register(Handoff)
class HandoffAdmin(OperatorAdmin):
    """What was left for whom; the text is in the receipt."""

    list_display = ["__str__", "project", "priority", "recipient", "left_at", "inherited_by", "inherited_at"]
    list_select_related = ["recipient"]
    list_filter = [
        ("project", ExactTextFilter), ("from_session", ExactTextFilter), "kind", "priority",
        ("inherited_at", admin.EmptyFieldListFilter), "tenant",
    ]  # fmt: skip
    search_fields = ["=project", "=from_session", "=inherited_by", "=receipt_id"]
    readonly_fields = ["receipt"]

    @admin.display(description="Receipt")
    def receipt(self, handoff: Handoff) -> str:
        return link_to(Receipt.objects.filter(tenant_id=handoff.tenant_id, receipt_id=handoff.receipt_id).first())
