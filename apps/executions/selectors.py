"""Questions about executions."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from django.db.models import Exists, OuterRef

from apps.core.errors import NotFound
from apps.core.ids import parse_ref
from apps.core.sql import GATEHOUSE_NOW, in_turn
from apps.executions import reports
from apps.executions.models import Execution, ExecutionStep
from apps.executions.shapes import ExecutionReport, StepOutput
from apps.executions.states import Status, StepStatus
from apps.plans import selectors as plans
from apps.plans.models import Plan
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller
from apps.receipts import selectors as receipts
from apps.receipts.errors import UnknownReceipt
from apps.tasks.models import FinishedTask


def execution_of(caller: Caller, ref: str) -> Execution:
    """:raises NotFound: if the caller has no execution of this reference (`unknown_execution`)."""
    found = Execution.objects.of(caller.principal_id).filter(pk=parse_ref("exec", ref)).select_related("owner").first()
    if found is None:
        raise NotFound(f"There is no execution {ref[:40]!r}.", code="unknown_execution")
    return found


def execution_of_plan(caller: Caller, plan_id: str) -> Execution | None:
    """The execution of a plan; None if the caller has not begun it."""
    return Execution.objects.of(caller.principal_id).filter(plan_id=plan_id).select_related("owner").first()


def steps_of(execution: Execution) -> list[ExecutionStep]:
    """The steps of an execution, in the order of its plan."""
    steps = list(execution.steps.order_by("position"))
    for step in steps:
        step.execution = execution
    return steps


def report_on(execution: Execution) -> ExecutionReport:
    """The completion report of an execution, at any time."""
    steps = steps_of(execution)
    status = Status(execution.status)
    return ExecutionReport(
        execution_id=execution.ref,
        plan_id=execution.plan_id,
        status=status,
        strategy=execution.strategy,
        summary=reports.summary(execution.intent, status, steps, halted_why=execution.halted_why),
        results=reports.results(steps),
        report=reports.final_report(steps),
        next_actions=reports.next_actions(
            execution.ref, status, steps, is_delegate=execution.owner.kind == Kind.DELEGATE
        ),
        steps=[StepOutput.model_validate(step) for step in steps],
        steps_complete=sum(step.status == StepStatus.COMPLETE for step in steps),
        steps_total=len(steps),
        completed_steps=[step.step_id for step in steps if step.status == StepStatus.COMPLETE],
        wait_for_receipts=[step.receipt_id for step in steps if step.receipt_id and step.status == StepStatus.AWAITING],
        async_task_ids=[step.task_ref for step in steps if step.task_ref],
        total_cost=float(execution.total_cost),
        escalation=next((step.escalation for step in steps if step.escalation), None),
        receipt_id=execution.plan_receipt_id,
        terminal_receipt_id=execution.terminal_receipt_id,
        created_at=execution.created_at,
        ended_at=execution.ended_at,
    )


def report_of_plan(caller: Caller, plan_id: str) -> ExecutionReport:
    """The report on a plan's execution, or on the plan if it was not executed.

    :raises NotFound: if the caller has no such plan (`unknown_plan`).
    """
    execution = execution_of_plan(caller, plan_id)
    if execution is not None:
        return report_on(execution)
    plan = plans.plan_for(plan_id, caller=caller)
    intent = plan.document["intent"]
    successor = plans.successor_of(plan_id)
    if not plan.is_ready and not plan.is_forgotten and successor is None:
        return _without_execution(plan, plan.status, f"{intent}: nothing was done.", plan.next_step)
    if plan.can_be_begun:
        action = f'execute_delegation_plan(plan_id="{plan_id}")'
        return _without_execution(plan, "not_started", f"{intent}: not begun.", action)
    # It may have been begun just now.
    execution = execution_of_plan(caller, plan_id)
    if execution is not None:
        return report_on(execution)
    if successor is None:
        return _without_execution(
            plan, "abandoned", f"{intent}: not begun in time.", "Ask anew with carry_out_request."
        )
    action = f'get_plan_status(plan_id="{successor}")'
    return _without_execution(plan, "abandoned", f"{intent}: replaced by {successor}.", action)


def _without_execution(plan: Plan, status: str, summary: str, next_action: str) -> ExecutionReport:
    return ExecutionReport(
        plan_id=plan.plan_id,
        status=status,
        summary=summary,
        next_actions=[next_action],
        steps_total=len(plan.document["steps"]),
        receipt_id=plan.receipt_id,
    )


def executions(caller: Caller, *, before: int | None = None, limit: int, **fitting: Any) -> list[Execution]:
    """The executions that the caller owns or asked for, newest first.

    :param before: the key of the last one of the page before.
    :param fitting: lookups that narrow the list; None narrows nothing.
    """
    narrowed = {name: value for name, value in ({"pk__lt": before} | fitting).items() if value is not None}
    found = Execution.objects.filter(**narrowed)
    # Two queries, so that each uses its own index.
    owned = found.filter(owner_id=caller.principal_id).order_by("-id")[:limit]
    asked_for = found.filter(requested_by_id=caller.principal_id).order_by("-id")[:limit]
    return list(owned.union(asked_for).order_by("-id")[:limit])


def due(*, limit: int) -> list[tuple[int, int]]:
    """Executions that can continue, as (tenant, execution). Tenants share the limit fairly, oldest first."""
    ended = FinishedTask.objects.filter(task_id=OuterRef("task_id"))
    steps = ExecutionStep.objects.filter(Exists(ended), status=StepStatus.QUEUED)
    by_task = Execution.objects.open().filter(pk__in=steps.values("execution_id"))
    by_clock = Execution.objects.open().filter(wake_at__lte=GATEHOUSE_NOW)
    turns = [in_turn(by_clock, by="wake_at"), in_turn(by_task, by="pk")]
    found = [row for rows in turns for row in rows.values_list("turn", "tenant_id", "pk")[:limit]]
    found.sort(key=itemgetter(0))
    return list(dict.fromkeys((tenant_id, pk) for _, tenant_id, pk in found))[:limit]


def missing_receipts(references: Sequence[str], *, recipient_id: int) -> list[str]:
    """The receipts among these that the principal has not received."""
    missing = []
    for reference in references:
        try:
            receipts.find_for(reference, principal_id=recipient_id)
        except UnknownReceipt:
            missing.append(reference)
    return missing


def ended_tasks(execution_id: int) -> list[tuple[int, str | None]]:
    """The ended tasks of an execution whose steps still wait, as (task, result pointer)."""
    waiting = ExecutionStep.objects.filter(execution_id=execution_id, status=StepStatus.QUEUED).values("task_id")
    found = FinishedTask.objects.filter(task_id__in=waiting).order_by("task_id")
    return list(found.values_list("task_id", "result_pointer"))
