from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import admin
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from unfold.widgets import UnfoldAdminTextareaWidget

from apps.core.admin import OperatorAdmin, ReasonForm, as_json, link_to, linked, start_of, verb
from apps.plans import services
from apps.plans.documents import PlanStatus, partial_of
from apps.plans.models import Plan
from apps.principals.tenancy import acting_in, on_behalf_of
from apps.receipts.models import Receipt


class AnswersForm(ReasonForm):
    """The answers to a plan's questions."""

    answers = forms.JSONField(
        help_text='By question: {"question-1": "main"}', widget=UnfoldAdminTextareaWidget(attrs={"rows": 3})
    )

    def clean_answers(self) -> dict[str, Any]:
        found = self.cleaned_data["answers"]
        if not isinstance(found, dict) or not found:
            raise forms.ValidationError("Give a JSON object of answers by question.")
        return found


def _waits_for(plan: Plan, status: PlanStatus) -> bool:
    return plan.status == status and not plan.successors.exists()


@admin.register(Plan)
class PlanAdmin(OperatorAdmin):
    list_display = ["intent_start", "status", linked("principal", "Asked by"), "created_at", "plan_id"]
    list_filter = ["status", "tenant"]
    list_select_related = ["principal"]
    search_fields = ["plan_id", "intent"]
    ordering = ["-id"]
    actions_detail = ["confirm", "answer"]
    # What a plan needs and does stands before its document.
    fields = [
        *("plan_id", "intent", "status", "next_step", "steps"),
        *("principal", "delegate", "receipt_link", "execution_link", "replaces", "successor_link", "created_at"),
        "written",
    ]

    def goes_on(self, plan: Plan) -> bool:
        return not plan.successors.exists()

    @admin.display(description="Intent")
    def intent_start(self, plan: Plan) -> str:
        return start_of(plan.intent) or "(forgotten)"

    @admin.display(description="What it needs")
    def next_step(self, plan: Plan) -> str:
        lists = (plan.document.get(name) or () for name in ("unsure", "questions", "missing"))
        reasons = ((one.get("detail") or one["text"],) for listed in lists for one in listed)
        return format_html(
            '<p class="font-semibold">{}</p><ul>{}</ul>', plan.next_step, format_html_join("", "<li>{}</li>", reasons)
        )

    @admin.display(description="Steps, those of the partial plan if it is not whole")
    def steps(self, plan: Plan) -> str:
        lines = (
            (
                step["step_id"],
                step.get("tool_name") or step["step_type"],
                f" at {step['worker_id']}" if "worker_id" in step else "",
                f", after {', '.join(step['depends_on'])}" if step.get("depends_on") else "",
            )
            for step in partial_of(plan.document)["steps"]
        )
        return format_html_join("", "<p>{}: {}{}{}</p>", lines) or "-"

    @admin.display(description="Document")
    def written(self, plan: Plan) -> str:
        return as_json(plan.document)

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

    @verb(
        "Confirm",
        explanation="The principal's guesses are right: a plan that is ready takes the place of this one.",
        permission="plans.operate_plan",
        possible=lambda plan: _waits_for(plan, PlanStatus.NEEDS_CONFIRMATION),
    )
    def confirm(self, plan: Plan, _given: Mapping[str, Any]) -> str:
        with acting_in(plan.tenant_id, "console: a plan is confirmed"):
            made = services.settle(
                caller=on_behalf_of(plan.principal), plan_id=plan.plan_id, answers=None, now=timezone.now()
            )
        return f"{made.plan_id} takes its place and is {made.status}."

    @verb(
        "Answer",
        explanation="A plan with these answers takes the place of this one.",
        permission="plans.operate_plan",
        possible=lambda plan: _waits_for(plan, PlanStatus.NEEDS_INPUT),
        form=AnswersForm,
    )
    def answer(self, plan: Plan, given: Mapping[str, Any]) -> str:
        caller, answers = on_behalf_of(plan.principal), given["answers"]
        with acting_in(plan.tenant_id, "console: a plan's questions are answered"):
            made = services.settle(caller=caller, plan_id=plan.plan_id, answers=answers, now=timezone.now())
        return f"{made.plan_id} takes its place and is {made.status}."
