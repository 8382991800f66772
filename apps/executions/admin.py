"""Executions as operators see them: read-only, linked to plan, tasks and receipts."""

from collections.abc import Mapping
from typing import Any, Final

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import TabularInline

from apps.core.admin import OperatorAdmin, as_json, link_to, start_of
from apps.executions import reports, selectors
from apps.executions.models import Execution, ExecutionStep
from apps.executions.states import StepStatus
from apps.plans import selectors as plans
from apps.plans.models import Plan
from apps.principals.tenancy import acting_in
from apps.receipts.models import Receipt
from apps.tasks.models import Task

_COLOURS: Final[Mapping[str, str]] = {
    StepStatus.PENDING: "#9ca3af",
    StepStatus.CALLING: "#2563eb",
    StepStatus.QUEUED: "#2563eb",
    StepStatus.AWAITING: "#d97706",
    StepStatus.COMPLETE: "#16a34a",
    StepStatus.FAILED: "#dc2626",
    StepStatus.SKIPPED: "#9ca3af",
    StepStatus.CANCELED: "#9ca3af",
}

_OUTCOME: Final = 200


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


@admin.register(Execution)
class ExecutionAdmin(OperatorAdmin):
    list_display = [
        "ref",
        "intent_start",
        "owner",
        "status",
        "mode",
        "strategy",
        "total_cost",
        "created_at",
        "ended_at",
    ]
    list_filter = ["status", "mode", "strategy"]
    list_select_related = ["owner"]
    search_fields = ["plan_id", "intent"]
    ordering = ["-id"]
    inlines = [StepInline]
    readonly_fields = ["summary", "picture", "plan", "plan_receipt", "terminal_receipt"]
    # The result stands before the request.
    fields = [
        *("intent", "status", "summary", "picture", "plan", "owner", "requested_by"),
        *("created_at", "ended_at", "terminal_receipt", "mode", "strategy"),
        *("total_cost", "max_total_cost", "max_cost_per_step", "currency"),
        *("delegate_id", "plan_receipt", "halted_as", "halted_why", "halted_by", "wake_at", "trace_ref"),
    ]

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

    @admin.display(description="Steps")
    def picture(self, execution: Execution) -> str:
        steps = execution.steps.values_list("step_id", "status")
        with acting_in(execution.tenant_id, "console: the picture of an execution"):
            return plans.picture(
                execution.plan_id, marks={step_id: (status, _COLOURS[status]) for step_id, status in steps}
            )

    @admin.display(description="Plan's receipt")
    def plan_receipt(self, execution: Execution) -> str:
        return _receipt_link(execution.tenant_id, execution.plan_receipt_id)

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
