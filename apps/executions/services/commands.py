"""Commands of principals to an execution: start, submit a result, decide, cancel, plan again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from django.db import IntegrityError, transaction

from apps.core.errors import Conflict, Forbidden, Invalid
from apps.core.sql import violated_constraint
from apps.executions import calls, selectors
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services import announcing
from apps.executions.services.advancing import go_forward
from apps.executions.services.steps import fail, report_of, succeed
from apps.executions.services.work import UnitOfWork
from apps.executions.states import MONEY, Mode, Status, StepStatus, Strategy
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.models import Plan
from apps.plans.shapes import WORKER_STEPS, Budget, StepType, tighter
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller

Decision = Literal["accept", "reject"]


@transaction.atomic
def start(
    *,
    caller: Caller,
    plan_id: str,
    mode: Mode,
    budget: Budget,
    now: datetime,
    strategy: Strategy = Strategy.SEQUENTIAL,
    answers_inbox: bool = False,
) -> Execution:
    """Start the execution of a plan, or return the execution that it already has. The caller or a tick continues it.

    The plan's own bounds hold too, where the budget is not tighter. A plan is executed once, so a repeated request does
    nothing twice. The owner is the caller; but a plan that one DeleGate asks of another is owned by the other, which has
    its own inbox.

    :param answers_inbox: its end comes to the caller's inbox, even if it is complete.
    :raises NotFound: if the caller has no such plan (`unknown_plan`).
    :raises Conflict: if the plan is no executable plan (`plan_refused`), if its execution has another mode, strategy or
        budget (`already_executed`), or if it was replaced, waited too long, or was forgotten (`plan_abandoned`).
    :raises Forbidden: if one of its workers has left the pool of the DeleGate that it was made for (`outside_pool`).
    """
    plan = plans.plan_for(plan_id, caller=caller)
    if not plan.is_ready and not plan.is_forgotten:
        detail = f"{plan_id} is {plan.status}, and only a plan that is ready is carried out. {plan.next_step}"
        raise Conflict(detail, code="plan_refused", plan_status=str(plan.status))
    bounds = (plan.document.get("constraints") or {}).get("budget", {})
    most = _money(tighter(budget.max_total_cost, bounds.get("max_total_cost")))
    per_step = _money(tighter(budget.max_cost_per_step, bounds.get("max_cost_per_step")))
    if plan.is_forgotten or not planning.take_up(plan_id=plan_id):
        return _existing(plan_id, mode, strategy, most, per_step)
    to_do = {step["worker_id"] for step in plan.document["steps"] if step.get("worker_id") and not step.get("done")}
    outside = plans.outside_pool(to_do, tenant_id=caller.tenant_id, delegate=plan.delegate.name)
    if outside:
        names = ", ".join(outside)
        detail = f"Not in the pool of {plan.delegate} any more: {names}. Ask for another plan."
        raise Forbidden(detail, code="outside_pool")
    try:
        with transaction.atomic():
            execution = Execution.objects.create(
                tenant_id=caller.tenant_id,
                plan_id=plan.plan_id,
                plan_receipt_id=plan.receipt_id,
                intent=plan.document["intent"],
                owner_id=plan.delegate_id if caller.kind == Kind.DELEGATE else caller.principal_id,
                requested_by_id=caller.principal_id,
                mode=mode,
                strategy=strategy,
                max_total_cost=most,
                max_cost_per_step=per_step,
                answers_inbox=answers_inbox,
                created_at=now,
                wake_at=now,
            )
    except IntegrityError as exc:
        if violated_constraint(exc) != "executions_execution_once_per_plan":
            raise
        return _existing(plan_id, mode, strategy, most, per_step)
    _add_steps(execution, plan.document)
    return execution


def _money(amount: float | None) -> Decimal | None:
    return None if amount is None else Decimal(str(amount)).quantize(MONEY)


def _existing(plan_id: str, *terms: object) -> Execution:
    found = Execution.objects.filter(plan_id=plan_id).first()
    if found is None:
        detail = f"{plan_id} was replaced, forgotten, or waited too long; it is not executed any more."
        raise Conflict(detail, code="plan_abandoned")
    if terms != (found.mode, found.strategy, found.max_total_cost, found.max_cost_per_step):
        detail = f"{plan_id} is executed by {found} with another mode, strategy or budget."
        raise Conflict(detail, code="already_executed", execution_id=found.ref)
    return found


def _add_steps(execution: Execution, document: Mapping[str, Any]) -> None:
    before, critical = plans.order_of(document)
    rows = [
        ExecutionStep(
            tenant_id=execution.tenant_id,
            execution=execution,
            position=position,
            step_id=definition["step_id"],
            step_type=definition["step_type"],
            definition=definition,
            depends_on=before[definition["step_id"]],
            critical=definition["step_id"] in critical,
        )
        for position, definition in enumerate(document["steps"])
    ]
    if document.get("replaces"):
        _take_over(rows, _results_before(document["replaces"]))
    ExecutionStep.objects.bulk_create(rows)


def _take_over(rows: Sequence[ExecutionStep], before: Mapping[str, ExecutionStep]) -> None:
    """Give steps that completed under the replaced plan their results; they are neither run nor charged again."""
    for row in rows:
        if not row.definition.get("done"):
            continue
        ran = before.get(row.step_id)
        if ran is None:
            detail = f"{row.step_id} is marked as done, and no execution has its result."
            raise Invalid(detail, code="not_executable")
        row.status, row.envelope, row.task_id = ran.status, ran.envelope, ran.task_id
        row.started_at, row.ended_at = ran.started_at, ran.ended_at


def _results_before(plan_id: str | None) -> dict[str, ExecutionStep]:
    """The complete steps of a plan, or of the latest executed plan that it replaced, by id."""
    while plan_id is not None:
        execution = Execution.objects.filter(plan_id=plan_id).first()
        if execution is not None:
            return {step.step_id: step for step in execution.steps.filter(status=StepStatus.COMPLETE)}
        plan_id = plans.plan(plan_id).document.get("replaces")
    return {}


@transaction.atomic
def submit_step_result(
    *, caller: Caller, execution_ref: str, step_id: str, result: Any, result_pointer: str | None = None, summary: str
) -> Execution:
    """Submit the result of an aggregate step. This closes the obligation, and the execution continues.

    :param result_pointer: where the result is; None: it is stored as an artifact once it is accepted.
    :raises NotFound: if the caller has no such execution, or the plan no such step.
    :raises Conflict: if the step is no aggregate or does not wait (`step_not_open`), or another result was submitted
        before (`other_result`). The same result again changes nothing.
    """

    pointer = result_pointer or calls.pointer_to(result)

    def same(step: ExecutionStep) -> bool:
        return step.result_pointer == pointer

    with _open_step(caller, execution_ref, step_id, StepType.AGGREGATE, same) as found:
        if found is not None:
            work, step = found
            if result_pointer is None:
                calls.keep(caller=caller, value=result)
            succeed(work, step, result=result, result_pointer=pointer, summary=summary)
            announcing.close_obligation(work, step, event_type="aggregate_complete", summary=summary)
    return selectors.execution_of(caller, execution_ref)


@transaction.atomic
def decide_step(*, caller: Caller, execution_ref: str, step_id: str, decision: Decision, note: str | None) -> Execution:
    """Answer an escalation that asked for a decision. Accepting completes the step, rejecting fails it.

    :raises NotFound: if the caller has no such execution, or the plan no such step.
    :raises Conflict: if the step asks for no decision or does not wait (`step_not_open`), or was decided otherwise
        before (`other_result`). The same decision again changes nothing.
    """

    def same(step: ExecutionStep) -> bool:
        return (step.status == StepStatus.COMPLETE) == (decision == "accept")

    with _open_step(caller, execution_ref, step_id, StepType.ESCALATE, same) as found:
        if found is not None:
            work, step = found
            if decision == "accept":
                decided = {"decision_required": True, "decision": decision, "note": note}
                succeed(work, step, result={**report_of(work, step), **decided})
            else:
                fail(work, step, code="rejected", message=note or "The recommendation was rejected.", retryable=False)
                work.halt(Status.FAILED, f"{step.step_id} was rejected{f': {note}' if note else '.'}")
            summary = note or f"Decided: {decision}."
            announcing.close_obligation(work, step, event_type="escalation_decided", summary=summary)
    return selectors.execution_of(caller, execution_ref)


@contextmanager
def _open_step(
    caller: Caller,
    execution_ref: str,
    step_id: str,
    step_type: StepType,
    is_repetition: Callable[[ExecutionStep], bool],
) -> Iterator[tuple[UnitOfWork, ExecutionStep] | None]:
    """The waiting step under its locks, then the execution continues; None for a repeated answer."""
    execution = selectors.execution_of(caller, execution_ref)
    work = UnitOfWork.of(execution.pk, caller=caller)
    if work is None:
        yield None
        return
    step = work.step(step_id)
    # An escalate step that asks for no decision is only a report.
    is_asked = step.step_type == step_type and (
        step_type == StepType.AGGREGATE or bool(step.definition.get("decision_required"))
    )
    if is_asked and step.status in {StepStatus.COMPLETE, StepStatus.FAILED} and step.receipt_id:
        if not is_repetition(step):
            detail = f"{step_id} of {execution} was answered before, with something else."
            raise Conflict(detail, code="other_result")
        yield None
        return
    if not is_asked or step.status != StepStatus.AWAITING:
        raise Conflict(step.state_text, code="step_not_open", step_status=step.status)
    yield work, step
    work.touch(step)
    go_forward(work, may_call=False)


@transaction.atomic
def cancel(*, caller: Caller, execution_ref: str, reason: str | None) -> Execution:
    """Stop an execution: nothing more begins, open tasks are canceled, obligations are closed.

    A leased task ends when its worker stops; the execution ends after it.

    :raises NotFound: if the caller has no such execution.
    :raises Conflict: if it has ended otherwise (`execution_ended`); canceling twice changes nothing.
    """
    execution = selectors.execution_of(caller, execution_ref)
    work = UnitOfWork.of(execution.pk, caller=caller)
    if work is not None and work.execution.status != Status.CANCELED:
        if work.execution.is_final:
            status = work.execution.status
            raise Conflict(f"{execution} is over: {status}.", code="execution_ended", execution_status=status)
        work.halt(Status.CANCELED, reason or "Canceled by its owner.")
        go_forward(work, may_call=False)
    return selectors.execution_of(caller, execution_ref)


@transaction.atomic
def replan(
    *,
    caller: Caller,
    plan_id: str,
    failed_step: str,
    reason: str,
    now: datetime,
    max_total_cost: float | None = None,
) -> Plan:
    """Make the plan that replaces a failed one: completed steps keep their results. A waiting execution ends as canceled.

    :param reason: why the step failed; if empty, the error of the execution's step.
    :param max_total_cost: what the steps that are left may cost; None: what is left of the plan's and the execution's bound.
    :raises NotFound: if the caller has no such plan (`unknown_plan`), or it has no such step (`unknown_step`).
    :raises Invalid: if the step runs no tool (`step_without_tool`).
    :raises Conflict: if the step is complete (`step_done`), a worker still has a step of it (`still_at_work`), or the plan
        has been replaced before (`plan_replaced`).
    """
    plans.plan_for(plan_id, caller=caller)
    # This waits for a concurrent start of the plan, and then sees its execution.
    was_waiting = planning.take_up(plan_id=plan_id)
    execution = selectors.execution_of_plan(caller, plan_id)
    work = None if execution is None else UnitOfWork.of(execution.pk, caller=caller)
    ran: dict[str, Any] = {"budget": Budget(max_total_cost=max_total_cost)}
    if work is not None:
        if any(work.in_state(StepStatus.CALLING, StepStatus.QUEUED)):
            detail = f"A worker still has a step of {execution}; cancel it, or wait for its end."
            raise Conflict(detail, code="still_at_work")
        if not work.execution.is_final:
            work.halt(Status.CANCELED, f"Planned again: {failed_step} failed.")
            go_forward(work, may_call=False)
        failed = next((step for step in work.steps if step.step_id == failed_step), None)
        error = (failed and failed.error) or {}
        reason = reason or error.get("message", "") or "no reason given"
        most, per_step = work.execution.max_total_cost, work.execution.max_cost_per_step
        if max_total_cost is None and most is not None:
            max_total_cost = float(max(most - work.execution.total_cost, Decimal()))
        max_cost_per_step = None if per_step is None else float(per_step)
        ran = {
            "budget": Budget(max_total_cost=max_total_cost, max_cost_per_step=max_cost_per_step),
            "done": [step.step_id for step in work.in_state(StepStatus.COMPLETE) if step.step_type in WORKER_STEPS],
            "caused_by": work.execution.terminal_receipt_id,
        }
    return planning.replan(
        caller=caller,
        plan_id=plan_id,
        failed_step=failed_step,
        reason=reason,
        was_waiting=was_waiting,
        now=now,
        **ran,
    )
