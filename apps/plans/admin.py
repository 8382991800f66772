from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import TabularInline

from apps.core.admin import OperatorAdmin, link_to
from apps.plans.models import Delegate, Plan, PlanStep
from apps.receipts.models import Receipt


class StepInline(TabularInline):
    model = PlanStep
    fields = ["position", "step_id", "step_type", "worker_id", "tool_name", "params", "depends_on", "confidence"]
    readonly_fields = fields
    ordering = ["position"]
    extra = 0
    can_delete = False


@admin.register(Plan)
class PlanAdmin(OperatorAdmin):
    list_display = ["plan_id", "principal_link", "status", "scope", "confidence", "receipt_link", "created_at"]
    list_filter = ["status", "tenant"]
    list_select_related = ["principal", "delegate"]
    search_fields = ["plan_id", "intent"]
    ordering = ["-id"]
    inlines = [StepInline]
    readonly_fields = ["receipt_link", "execution_link"]

    @admin.display(description="Asked by")
    def principal_link(self, plan: Plan) -> str:
        return link_to(plan.principal)

    @admin.display(description="Receipt")
    def receipt_link(self, plan: Plan) -> str:
        return link_to(Receipt.objects.filter(uuid=plan.receipt_uuid).first())

    @admin.display(description="Executions")
    def execution_link(self, plan: Plan) -> str:
        # By address: executions stand above plans.
        address = reverse("admin:executions_execution_changelist", query={"q": plan.plan_id})
        return format_html('<a href="{}" class="text-primary-600">those of this plan</a>', address)


@admin.register(PlanStep)
class PlanStepAdmin(OperatorAdmin):
    list_display = ["plan_link", "step_id", "step_type", "worker_id", "tool_name"]
    list_filter = ["step_type"]
    list_select_related = ["plan"]
    search_fields = ["worker_id", "tool_name"]

    @admin.display(description="Plan")
    def plan_link(self, step: PlanStep) -> str:
        return link_to(step.plan)


@admin.register(Delegate)
class DelegateAdmin(OperatorAdmin):
    list_display = ["delegate_id", "scope", "parent_link", "principal_link", "created_at"]
    list_select_related = ["parent", "principal"]

    @admin.display(description="Parent")
    def parent_link(self, delegate: Delegate) -> str:
        return link_to(delegate.parent)

    @admin.display(description="Acts as")
    def principal_link(self, delegate: Delegate) -> str:
        return link_to(delegate.principal)
