from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import TabularInline

from apps.core.admin import OperatorAdmin, as_json, link_to, start_of, verb
from apps.plans import drawing, services
from apps.plans.documents import PlanStatus
from apps.plans.models import Delegate, LearnedModel, Outcome, Plan, PlanStep, WaitingPlan
from apps.principals.tenancy import acting_in
from apps.receipts.models import Receipt


class StepInline(TabularInline):
    model = PlanStep
    fields = ["position", "step_id", "step_type", "worker_id", "tool_name", "given", "depends_on", "confidence"]
    readonly_fields = fields
    ordering = ["position"]
    extra = 0
    can_delete = False

    @admin.display(description="params")
    def given(self, step: PlanStep) -> str:
        return "-" if step.params is None else as_json(step.params)


@admin.register(Plan)
class PlanAdmin(OperatorAdmin):
    list_display = ["intent_start", "status", "principal_link", "confidence", "created_at", "plan_id"]
    list_filter = ["status", "tenant"]
    list_select_related = ["principal"]
    search_fields = ["plan_id", "intent"]
    ordering = ["-id"]
    inlines = [StepInline]
    readonly_fields = [
        *(
            "refusal",
            "graph",
            "partial_graph",
            "provenance",
            "receipt_link",
            "execution_link",
            "successor_link",
            "written",
        ),
    ]

    def get_fields(self, request: HttpRequest, obj: Plan | None = None) -> list[str]:
        """A plan shows what it does before its document. A refusal shows what is missing before what was found."""
        is_refused = obj is not None and obj.status == PlanStatus.NEEDS_ESCALATION
        return [
            *("plan_id", "intent", "status", *(["refusal"] if is_refused else []), "scope", "confidence"),
            "partial_graph" if is_refused else "graph",
            "provenance",
            *("principal", "delegate", "receipt_link", "execution_link", "replaces", "successor_link", "created_at"),
            *("planner_version", "registry_epoch", "history_epoch", "plan_hash", "written"),
        ]

    @admin.display(description="Intent")
    def intent_start(self, plan: Plan) -> str:
        return start_of(plan.intent) or "(forgotten)"

    @admin.display(description="What is missing")
    def refusal(self, plan: Plan) -> str:
        return drawing.refusal(plan.document)

    @admin.display(description="Steps")
    def graph(self, plan: Plan) -> str:
        return drawing.graph(plan.document)

    @admin.display(description="Best partial plan, which is not carried out")
    def partial_graph(self, plan: Plan) -> str:
        return drawing.graph(plan.document)

    @admin.display(description="Document")
    def written(self, plan: Plan) -> str:
        return as_json(plan.document)

    @admin.display(description="Params, alternatives, confidence")
    def provenance(self, plan: Plan) -> str:
        return drawing.details(plan.document)

    @admin.display(description="Asked by")
    def principal_link(self, plan: Plan) -> str:
        return link_to(plan.principal)

    @admin.display(description="Receipt")
    def receipt_link(self, plan: Plan) -> str:
        return link_to(Receipt.objects.filter(uuid=plan.receipt_uuid).first())

    @admin.display(description="Replaced by")
    def successor_link(self, plan: Plan) -> str:
        return link_to(plan.successors.first())

    @admin.display(description="Executions")
    def execution_link(self, plan: Plan) -> str:
        # By address: executions stand above plans.
        address = reverse(
            "admin:executions_execution_changelist", query={"tenant": plan.tenant_id, "plan_id": plan.plan_id}
        )
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


@admin.register(WaitingPlan)
class WaitingPlanAdmin(OperatorAdmin):
    list_display = ["id", "plan_link", "expires_at"]
    list_filter = ["tenant"]
    list_select_related = ["plan"]
    ordering = ["-id"]

    @admin.display(description="Plan")
    def plan_link(self, waiting: WaitingPlan) -> str:
        return link_to(waiting.plan)


@admin.register(Outcome)
class OutcomeAdmin(OperatorAdmin):
    list_display = ["id", "plan_link", "tools", "weight", "recorded_at"]
    list_filter = ["tenant"]
    list_select_related = ["plan"]
    ordering = ["-id"]

    @admin.display(description="Plan")
    def plan_link(self, outcome: Outcome) -> str:
        return link_to(outcome.plan)


@admin.register(LearnedModel)
class LearnedModelAdmin(OperatorAdmin):
    list_display = [
        "number",
        "tenant",
        "state",
        "learned_from",
        "node_f1",
        "node_f1_before",
        "calibration_error",
        "learned_at",
    ]
    list_filter = ["state", "tenant"]
    ordering = ["-id"]
    exclude = ["body"]
    actions_detail = ["go_back"]

    @verb(
        "Go back to the model before",
        explanation="Plan by the model before this one, until a better one is learned.",
        permission="plans.operate_learnedmodel",
    )
    def go_back(self, model: LearnedModel, _given: Mapping[str, Any]) -> str:
        with acting_in(model.tenant_id, "console: back to the model before"):
            earlier = services.go_back(tenant_id=model.tenant_id, number=model.number)
        return f"{earlier} is in use again."
