from urllib.parse import urlencode

from django.contrib import admin
from django.utils.html import format_html

from apps.core.admin import ExactTextFilter, OperatorAdmin, link_to
from apps.handoff.models import Handoff
from apps.receipts.models import Receipt


@admin.register(Handoff)
class HandoffAdmin(OperatorAdmin):
    """What was left for whom, project by project; what it says stands in its receipt."""

    list_display = ["__str__", "of_project", "priority", "recipient_link", "left_at", "inherited_by", "inherited_at"]
    list_select_related = ["recipient"]
    list_filter = [
        ("project", ExactTextFilter),
        ("from_session", ExactTextFilter),
        "kind",
        "priority",
        ("inherited_at", admin.EmptyFieldListFilter),
        "tenant",
    ]
    search_fields = ["=project", "=from_session", "=inherited_by", "=receipt_id"]
    readonly_fields = ["receipt_link"]

    @admin.display(description="Project", ordering="project")
    def of_project(self, handoff: Handoff) -> str:
        """Leads to the handoffs of the same one."""
        if not handoff.project:
            return "-"
        return format_html(
            '<a href="?{}" class="text-primary-600">{}</a>', urlencode({"project": handoff.project}), handoff.project
        )

    @admin.display(description="Recipient")
    def recipient_link(self, handoff: Handoff) -> str:
        return link_to(handoff.recipient)

    @admin.display(description="Receipt")
    def receipt_link(self, handoff: Handoff) -> str:
        return link_to(Receipt.objects.filter(tenant_id=handoff.tenant_id, receipt_id=handoff.receipt_id).first())
