"""Start an execution: one row for each step of the plan, and nothing else yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Self

from django.db import IntegrityError, transaction

from apps.core.errors import Conflict, Invalid
from apps.core.sql import violated_constraint
from apps.executions import routing
from apps.executions.models import Execution, ExecutionStep
from apps.executions.states import MONEY, Mode, StepStatus, Strategy
from apps.executions.wakeups import wake_after_commit
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.errors import OutsidePool, PlanAbandoned
from apps.plans.shapes import StepType, tighter
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of an execution's cost. A step begins only if the budget covers its cost."""

    max_total_cost: Decimal | None = None
    max_cost_per_step: Decimal | None = None
    currency: str = "USD"

    def within(self, bounds: Mapping[str, Any]) -> Self:
        """This budget, with the bounds of the plan where they are tighter."""
        return replace(
            self,
            max_total_cost=_within(self.max_total_cost, bounds.get("max_total_cost")),
            max_cost_per_step=_within(self.max_cost_per_step, bounds.get("max_cost_per_step")),
        )


def _within(given: Decimal | None, bound: float | None) -> Decimal | None:
    return tighter(given, None if bound is None else Decimal(str(bound)).quantize(MONEY))


@transaction.atomic
def start(
    *,
    caller: Caller,
    plan_id: str,
    mode: Mode,
    budget: Budget,
    now: datetime,
    strategy: Strategy = Strategy.SEQUENTIAL,
) -> Execution:
    """Start the execution of a plan, or return the execution that it already has.

    The plan's own bounds hold too, where the budget is not tighter. A plan is executed once, so a repeated request does
    nothing twice. The owner is the caller; but a plan that one DeleGate asks of another is owned by the other, which has
    its own inbox.

    :raises UnknownPlan: if the caller has no such plan.
    :raises Conflict: if the plan is no executable plan (`plan_refused`), or its execution has another mode, strategy or
        budget (`already_executed`).
    :raises OutsidePool: if one of its workers has left the pool of the DeleGate that it was made for.
    :raises PlanAbandoned: if it was replaced, waited too long, or was forgotten on request.
    """
    plan = plans.plan_for(plan_id, caller=caller)
    if not plan.is_ready and not plan.is_forgotten:
        detail = f"{plan_id} only says what is missing; it has nothing to carry out."
        raise Conflict(detail, code="plan_refused")
    budget = budget.within(plan.document.get("constraints") or {})
    if plan.is_forgotten or not planning.take_up(plan_id=plan_id):
        return _existing(plan.plan_id, mode, strategy, budget)
    to_do = {step["worker_id"] for step in plan.document["steps"] if step.get("worker_id") and not step.get("done")}
    outside = plans.outside_pool(to_do, delegate=plans.delegate_named(plan.delegate_id)) if to_do else []
    if outside:
        names = ", ".join(outside)
        raise OutsidePool(f"Not in the pool of {plan.delegate_id} any more: {names}. Ask for another plan.")
    try:
        with transaction.atomic():
            execution = Execution.objects.create(
                tenant_id=caller.tenant_id,
                plan_id=plan.plan_id,
                delegate_id=plan.delegate_id,
                plan_receipt_id=plan.receipt_id,
                intent=plan.document["intent"],
                owner_id=plan.delegate_principal_id if caller.kind == Kind.DELEGATE else caller.principal_id,
                requested_by_id=caller.principal_id,
                mode=mode,
                strategy=strategy,
                max_total_cost=budget.max_total_cost,
                max_cost_per_step=budget.max_cost_per_step,
                currency=budget.currency,
                created_at=now,
                wake_at=now,
            )
    except IntegrityError as exc:
        if violated_constraint(exc) != "executions_execution_once_per_plan":
            raise
        return _existing(plan.plan_id, mode, strategy, budget)
    _add_steps(execution, plan.document)
    wake_after_commit(execution)
    return execution


def _existing(plan_id: str, mode: Mode, strategy: Strategy, budget: Budget) -> Execution:
    found = Execution.objects.filter(plan_id=plan_id).first()
    if found is None:
        raise PlanAbandoned(f"{plan_id} was replaced, forgotten, or waited too long; it is not executed any more.")
    asked = (mode, strategy, budget.max_total_cost, budget.max_cost_per_step, budget.currency)
    has = (found.mode, found.strategy, found.max_total_cost, found.max_cost_per_step, found.currency)
    if asked != has:
        detail = f"{plan_id} is executed by {found} with another mode, strategy or budget."
        raise Conflict(detail, code="already_executed", execution_id=found.ref)
    return found


def _add_steps(execution: Execution, document: Mapping[str, Any]) -> None:
    steps = document["steps"]
    known = {step["step_id"] for step in steps}
    needs = routing.dependencies(steps)
    critical = routing.critical_steps(steps)
    if strangers := sorted({name for names in needs.values() for name in names} - known):
        detail = f"The plan waits for steps that it does not have: {', '.join(strangers)}."
        raise Invalid(detail, code="not_executable")
    rows = [
        ExecutionStep(
            tenant_id=execution.tenant_id,
            execution=execution,
            position=position,
            step_id=step["step_id"],
            step_type=StepType(step["step_type"]),
            definition=dict(step),
            depends_on=list(needs[step["step_id"]]),
            critical=step["step_id"] in critical,
        )
        for position, step in enumerate(steps)
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
