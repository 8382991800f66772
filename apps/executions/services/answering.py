"""Commands of principals to an execution: submit a result, decide, cancel, plan again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from django.db import transaction

from apps.core.errors import Conflict
from apps.executions import selectors
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services import announcing
from apps.executions.services.advancing import go_forward
from apps.executions.services.steps import fail, report_of, succeed
from apps.executions.services.work import UnitOfWork
from apps.executions.states import Status, StepStatus
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.services import Escalation, Limits, MadePlan, Replacement
from apps.plans.shapes import WORKER_STEPS, StepType
from apps.principals.tenancy import Caller

Decision = Literal["accept", "reject"]


@transaction.atomic
def submit_step_result(
    *, caller: Caller, execution_ref: str, step_id: str, result: Any, result_pointer: str, summary: str
) -> Execution:
    """Submit the result of an aggregate step. This closes the obligation, and the execution continues.

    :param result: the value if it was given; it is stored behind the pointer.
    :raises NotFound: if the caller has no such execution, or the plan no such step.
    :raises Conflict: if the step is no aggregate or does not wait (`step_not_open`), or another result was submitted
        before (`other_result`). The same result again changes nothing.
    """

    def same(step: ExecutionStep) -> bool:
        return step.result_pointer == result_pointer

    with _open_step(caller, execution_ref, step_id, StepType.AGGREGATE, same) as found:
        if found is not None:
            work, step = found
            succeed(work, step, result=result, result_pointer=result_pointer, summary=summary)
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
def replan(*, caller: Caller, replacement: Replacement, now: datetime) -> MadePlan:
    """Make the plan that replaces a failed one: completed steps keep their results. A waiting execution ends as canceled.

    :raises UnknownPlan: if the caller has no such plan.
    :raises UnknownStep: if the plan has no such step.
    :raises NoTool: if the step runs no tool.
    :raises StepDone: if the step is complete.
    :raises Conflict: if a worker still has a step of it (`still_at_work`).
    :raises PlanReplaced: if the plan has been replaced before.
    """
    plans.plan_for(replacement.plan_id, caller=caller)
    # This waits for a concurrent start of the plan, and then sees its execution.
    was_waiting = planning.take_up(plan_id=replacement.plan_id)
    execution = selectors.execution_of_plan(caller, replacement.plan_id)
    work = None if execution is None else UnitOfWork.of(execution.pk, caller=caller)
    if work is None:
        return planning.replan(caller=caller, replacement=replacement, done=(), was_waiting=was_waiting, now=now)
    if any(work.in_state(StepStatus.CALLING, StepStatus.QUEUED)):
        detail = f"A worker still has a step of {execution}; cancel it, or wait for its end."
        raise Conflict(detail, code="still_at_work")
    if not work.execution.is_final:
        work.halt(Status.CANCELED, f"Planned again: {replacement.failed_step} failed.")
        go_forward(work, may_call=False)
    return planning.replan(
        caller=caller,
        replacement=_completed(work, replacement),
        done=[step.step_id for step in work.in_state(StepStatus.COMPLETE) if step.step_type in WORKER_STEPS],
        was_waiting=False,
        now=now,
    )


def _completed(work: UnitOfWork, replacement: Replacement) -> Replacement:
    """The replacement with the step's error, the budget and its use, and the closing receipt as the cause."""
    execution = work.execution
    failed = next((step for step in work.steps if step.step_id == replacement.failed_step), None)
    error = (failed and failed.error) or {}
    asked = (failed and failed.escalation) or {}
    suggested = asked.get("suggested_delegate")
    most, most_per_step = execution.max_total_cost, execution.max_cost_per_step
    return replace(
        replacement,
        carried_out_within=Limits(
            max_total_cost=None if most is None else float(most),
            max_cost_per_step=None if most_per_step is None else float(most_per_step),
        ),
        spent=float(execution.total_cost),
        reason=replacement.reason or error.get("message", "") or "no reason given",
        escalation=None if suggested is None else Escalation(intent=asked["intent"], worker_id=suggested),
        worker_is_out=bool(error.get("retryable")),
        caused_by=replacement.caused_by or execution.terminal_receipt_id,
    )
