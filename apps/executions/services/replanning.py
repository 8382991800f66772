"""A plan that failed is planned again: what is done stays done, and the rest is looked for elsewhere."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import transaction

from apps.executions.errors import StillAtWork
from apps.executions.models import Execution
from apps.executions.services.advancing import go_forward
from apps.executions.services.rounds import Round
from apps.executions.states import Status, StepStatus
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.services import Escalation, Limits, MadePlan, Replacement
from apps.plans.shapes import WORKER_STEPS
from apps.principals.tenancy import Caller


@transaction.atomic
def replan(*, caller: Caller, replacement: Replacement, now: datetime) -> MadePlan:
    """Make the plan that takes another's place. An execution that only waits for its owner ends as canceled.

    :raises UnknownPlan: if the caller has no such plan.
    :raises UnknownStep: if it has no such step.
    :raises NoTool: if the step runs no tool.
    :raises StepDone: if the step has run to its end.
    :raises StillAtWork: if a worker still has a step of it.
    :raises PlanReplaced: if the plan has been replaced before.
    """
    plans.plan_for(replacement.plan_id, caller=caller)
    # Whoever begins the plan at this moment is waited for here, and then seen.
    was_waiting = planning.take_up(plan_id=replacement.plan_id)
    execution = Execution.objects.of(caller.principal_id).filter(plan_id=replacement.plan_id).first()
    work = None if execution is None else Round.of(execution.pk, caller=caller)
    if work is None:
        return planning.replan(caller=caller, replacement=replacement, done=(), was_waiting=was_waiting, now=now)
    if any(work.in_state(StepStatus.CALLING, StepStatus.QUEUED)):
        raise StillAtWork(f"A worker still has a step of {execution}; cancel it, or wait for its end.")
    if not work.execution.is_final:
        work.halt(Status.CANCELED, f"Planned again: {replacement.failed_step} failed.")
        go_forward(work, may_call=False)
    return planning.replan(
        caller=caller,
        replacement=_with_what_happened(work, replacement),
        done=[step.step_id for step in work.in_state(StepStatus.COMPLETE) if step.step_type in WORKER_STEPS],
        was_waiting=False,
        now=now,
    )


def _with_what_happened(work: Round, replacement: Replacement) -> Replacement:
    """The step's own error, what was spent of which budget, and the receipt of the end as the cause."""
    execution = work.execution
    failed = next((step for step in work.steps if step.step_id == replacement.failed_step), None)
    error = ((failed.envelope if failed else None) or {}).get("error") or {}
    return replace(
        replacement,
        carried_out_within=Limits(
            max_total_cost=_number(execution.max_total_cost), max_cost_per_step=_number(execution.max_cost_per_step)
        ),
        spent=float(execution.total_cost),
        reason=replacement.reason or error.get("message", "") or "no reason given",
        escalation=_escalation((failed.envelope if failed else None) or {}),
        worker_is_out=bool(error.get("retryable")),
        caused_by=replacement.caused_by or execution.terminal_receipt_id,
    )


def _number(bound: Decimal | None) -> float | None:
    return None if bound is None else float(bound)


def _escalation(envelope: Mapping[str, Any]) -> Escalation | None:
    asked = envelope.get("escalation") or {}
    suggested = asked.get("suggested_delegate")
    return None if suggested is None else Escalation(intent=asked["intent"], worker_id=suggested)
