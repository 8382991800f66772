"""Executions as operators see them: read-only, linked to plan, tasks and receipts."""

from collections.abc import Mapping
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join
from unfold.admin import TabularInline
from unfold.widgets import UnfoldAdminSelectWidget

from apps.core.admin import OperatorAdmin, ReasonForm, as_json, link_to, start_of, verb
from apps.executions import reports, selectors, services
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services import Decision
from apps.executions.states import StepStatus
from apps.plans.models import Plan
from apps.plans.shapes import StepType
from apps.principals.tenancy import acting_in, on_behalf_of
from apps.receipts.models import Receipt
from apps.tasks.models import Task

_OUTCOME: Final = 200
_OPERATE: Final = "executions.operate_execution"


class _Step(forms.ModelChoiceField):  # type: ignore[type-arg]  # not subscriptable at run time
    def label_from_instance(self, step: Any) -> str:
        return f"{step.step_id}: {start_of(_question(step), 60)}"


class DecisionForm(ReasonForm):
    """Which step is meant; the first one of those that wait for a decision."""

    field_order = ["step"]
    step = _Step(queryset=ExecutionStep.objects.none(), empty_label=None, widget=UnfoldAdminSelectWidget)

    def __init__(self, request: HttpRequest, object_id: int | str | None = None, **given: Any) -> None:
        super().__init__(request, object_id, **given)
        choice = self.fields["step"]
        assert isinstance(choice, _Step)  # noqa: S101  # tells the type
        choice.queryset = ExecutionStep.objects.filter(
            execution_id=object_id or 0, status=StepStatus.AWAITING, step_type=StepType.ESCALATE
        ).order_by("position")


def _question(step: ExecutionStep) -> str:
    """What its owner was asked."""
    receipt = Receipt.objects.filter(tenant_id=step.tenant_id, receipt_id=step.receipt_id).first()
    return receipt.summary if receipt else str(step.step_type)


def _steps(execution: Any) -> list[ExecutionStep]:
    """Looked up once for each page."""
    if not hasattr(execution, "shown_steps"):
        execution.shown_steps = list(execution.steps.order_by("position"))
    steps: list[ExecutionStep] = execution.shown_steps
    return steps


def _asks(execution: Execution) -> bool:
    return any(step.is_asked and step.step_type == StepType.ESCALATE for step in _steps(execution))


def _receipt_link(tenant_id: int, receipt_id: str | None) -> str:
    if receipt_id is None:
        return "-"
    return link_to(Receipt.objects.filter(tenant_id=tenant_id, receipt_id=receipt_id).first())


def _task_link(step: ExecutionStep) -> str:
    return "-" if step.task_id is None else link_to(Task.objects.filter(pk=step.task_id).first())


class StepInline(TabularInline):
    """The steps of one execution, in the order of the plan."""

    model = ExecutionStep
    extra = 0
    can_delete = False
    ordering = ["position"]
    # The heading of each row names the step and its type.
    fields = ["status", "outcome", "worker_and_tool", "task_or_receipt", "attempts", "cost", "took"]
    readonly_fields = fields
    show_change_link = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description="Result")
    def outcome(self, step: ExecutionStep) -> str:
        return start_of(reports.outcome(step), _OUTCOME) or "-"

    @admin.display(description="Worker")
    def worker_and_tool(self, step: ExecutionStep) -> str:
        return f"{step.worker_id}: {step.tool_name}" if step.worker_id else "-"

    @admin.display(description="Task or receipt")
    def task_or_receipt(self, step: ExecutionStep) -> str:
        return _receipt_link(step.tenant_id, step.receipt_id) if step.task_id is None else _task_link(step)

    @admin.display(description="Duration")
    def took(self, step: ExecutionStep) -> str:
        if step.started_at is None or step.ended_at is None:
            return "-"
        return f"{(step.ended_at - step.started_at).total_seconds():.2f} s"


def _decided(execution: Execution, given: Mapping[str, Any], decision: Decision) -> str:
    with acting_in(execution.tenant_id, "console: an escalation is decided"):
        moved = services.decide_step(
            caller=on_behalf_of(execution.owner),
            execution_ref=execution.ref,
            step_id=given["step"].step_id,
            decision=decision,
            note=f"By an operator: {given['reason']}",
        )
    return f"{given['step'].step_id} is decided; {moved} is {moved.status}."


@admin.register(Execution)
class ExecutionAdmin(OperatorAdmin):
    renews_list = True
    list_display = [
        "ref", "intent_start", "owner", "status", "mode", "strategy", "total_cost", "created_at", "ended_at",
    ]  # fmt: skip
    list_filter = ["status", "mode", "strategy", "tenant"]
    list_select_related = ["owner"]
    search_fields = ["plan_id", "intent"]
    ordering = ["-id"]
    inlines = [StepInline]
    actions_detail = ["accept", "reject", "cancel"]
    # The result stands before the request.
    fields = [
        *("intent", "status", "summary", "needs", "plan", "owner", "requested_by"),
        *("created_at", "ended_at", "terminal_receipt", "mode", "strategy"),
        *("total_cost", "max_total_cost", "max_cost_per_step"),
        *("halted_as", "halted_why", "halted_by", "wake_at"),
    ]

    def goes_on(self, execution: Execution) -> bool:
        return execution.ended_at is None

    @admin.display(description="Intent")
    def intent_start(self, execution: Execution) -> str:
        return start_of(execution.intent)

    @admin.display(description="Result")
    def summary(self, execution: Execution) -> str:
        with acting_in(execution.tenant_id, "console: what came of an execution"):
            return selectors.report_on(execution).summary

    @admin.display(description="Plan")
    def plan(self, execution: Execution) -> str:
        return link_to(Plan.objects.filter(tenant_id=execution.tenant_id, plan_id=execution.plan_id).first())

    @admin.display(description="Waits for a decision")
    def needs(self, execution: Execution) -> str:
        """The questions of the steps that wait for an answer."""
        asked = [step for step in _steps(execution) if step.is_asked]
        lines = (
            (reverse("admin:executions_executionstep_change", args=[step.pk]), step.step_id, _question(step))
            for step in asked
        )
        return format_html_join("", '<p><a href="{}" class="text-primary-600">{}</a>: {}</p>', lines) or "-"

    @verb(
        "Accept",
        explanation="Accept what the step recommends, for the execution's owner: the plan goes on.",
        permission=_OPERATE,
        possible=_asks,
        form=DecisionForm,
    )
    def accept(self, execution: Execution, given: Mapping[str, Any]) -> str:
        return _decided(execution, given, "accept")

    @verb(
        "Reject",
        explanation="Reject what the step recommends, for the execution's owner: the execution fails.",
        permission=_OPERATE,
        possible=_asks,
        form=DecisionForm,
    )
    def reject(self, execution: Execution, given: Mapping[str, Any]) -> str:
        return _decided(execution, given, "reject")

    @verb(
        "Cancel the execution",
        explanation="Nothing more begins; its open tasks are canceled.",
        permission=_OPERATE,
        possible=lambda execution: not execution.is_final,
    )
    def cancel(self, execution: Execution, given: Mapping[str, Any]) -> str:
        with acting_in(execution.tenant_id, "console: an execution is canceled"):
            moved = services.cancel(
                caller=on_behalf_of(execution.owner),
                execution_ref=execution.ref,
                reason=f"By an operator: {given['reason']}",
            )
        return f"{moved} is {moved.status}."

    @admin.display(description="Closing receipt")
    def terminal_receipt(self, execution: Execution) -> str:
        return _receipt_link(execution.tenant_id, execution.terminal_receipt_id)


@admin.register(ExecutionStep)
class ExecutionStepAdmin(OperatorAdmin):
    list_display = ["step_id", "execution", "step_type", "status", "attempts", "cost", "started_at", "ended_at"]
    list_filter = ["status", "step_type"]
    list_select_related = ["execution"]
    search_fields = ["step_id", "execution__plan_id"]
    ordering = ["-id"]
    exclude = ["definition", "envelope", "task_id", "receipt_id"]
    readonly_fields = ["task", "receipt", "outcome", "instruction", "result"]

    @admin.display(description="Result")
    def outcome(self, step: ExecutionStep) -> str:
        return reports.outcome(step) or "-"

    @admin.display(description="Instruction")
    def instruction(self, step: ExecutionStep) -> str:
        return as_json(step.definition)

    @admin.display(description="Envelope")
    def result(self, step: ExecutionStep) -> str:
        return "-" if step.envelope is None else as_json(step.envelope)

    @admin.display(description="Task")
    def task(self, step: ExecutionStep) -> str:
        return _task_link(step)

    @admin.display(description="Receipt")
    def receipt(self, step: ExecutionStep) -> str:
        return _receipt_link(step.tenant_id, step.receipt_id)
