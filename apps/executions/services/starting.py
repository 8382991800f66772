"""An execution begins: rows for the plan's steps, and nothing else yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Self

from django.db import IntegrityError, transaction

from apps.core.sql import violated_constraint
from apps.executions import routing
from apps.executions.errors import AlreadyExecuted, NotExecutable, PlanRefused
from apps.executions.models import Execution, ExecutionStep
from apps.executions.services.rounds import send_on_commit
from apps.executions.signals import execution_can_go_on
from apps.executions.states import MONEY, Mode, StepStatus, Strategy
from apps.plans import selectors as plans
from apps.plans import services as planning
from apps.plans.errors import OutsidePool, PlanAbandoned
from apps.plans.selectors import StoredPlan
from apps.plans.shapes import StepType, tighter
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What an execution may cost. A step begins only if what it costs still fits."""

    max_total_cost: Decimal | None = None
    max_cost_per_step: Decimal | None = None
    currency: str = "USD"

    def within(self, bounds: Mapping[str, Any]) -> Self:
        """This budget, or the bounds that a plan was made under where they are tighter."""
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
    """Begin to carry out a plan, or answer the execution that it already has.

    The bounds that the plan was made under hold for its execution too, where the budget given here is not tighter.
    A plan is carried out once, so that a repeated request does nothing twice; what failed is planned again. It is
    carried out on behalf of whoever asks; but where one DeleGate asks another, on behalf of the other, which has an
    inbox of its own and answers for what it was asked.

    :raises UnknownPlan: if the caller has no such plan.
    :raises PlanRefused: if it only says what is missing.
    :raises OutsidePool: if one of its workers has left the pool of the DeleGate that it was made for.
    :raises AlreadyExecuted: if its execution has another mode, strategy or budget.
    :raises PlanAbandoned: if it was replaced, waited too long, or was forgotten on request.
    """
    plan = plans.plan_for(plan_id, caller=caller)
    if not plan.is_ready and not plan.is_forgotten:
        raise PlanRefused(f"{plan_id} only says what is missing; it has nothing to carry out.")
    budget = budget.within(plan.document.get("constraints") or {})
    if plan.is_forgotten or not planning.take_up(plan_id=plan_id):
        return _existing(plan.plan_id, mode, strategy, budget)
    _refuse_outside_pool(plan)
    try:
        with transaction.atomic():
            execution = Execution.objects.create(
                tenant_id=caller.tenant_id,
                plan_id=plan.plan_id,
                delegate_id=plan.delegate_id,
                plan_receipt_id=plan.receipt_id,
                intent=plan.document["intent"],
                owner_id=_owner(caller, plan),
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
    send_on_commit(execution_can_go_on, execution)
    return execution


def _refuse_outside_pool(plan: StoredPlan) -> None:
    to_do = {step["worker_id"] for step in plan.document["steps"] if step.get("worker_id") and not step.get("done")}
    outside = plans.outside_pool(to_do, delegate=plans.delegate_named(plan.delegate_id)) if to_do else []
    if outside:
        raise OutsidePool(
            f"Not in the pool of {plan.delegate_id} any more: {', '.join(outside)}. Ask for another plan."
        )


def _owner(caller: Caller, plan: StoredPlan) -> int:
    return plan.delegate_principal_id if caller.kind == Kind.DELEGATE else caller.principal_id


def _existing(plan_id: str, mode: Mode, strategy: Strategy, budget: Budget) -> Execution:
    found = Execution.objects.filter(plan_id=plan_id).first()
    if found is None:
        raise PlanAbandoned(f"{plan_id} was replaced, forgotten, or waited too long; it is not carried out any more.")
    asked = (mode, strategy, budget.max_total_cost, budget.max_cost_per_step, budget.currency)
    has = (found.mode, found.strategy, found.max_total_cost, found.max_cost_per_step, found.currency)
    if asked != has:
        raise AlreadyExecuted(
            f"{plan_id} is carried out by {found} with another mode, strategy or budget.", execution_id=found.ref
        )
    return found


def _add_steps(execution: Execution, document: Mapping[str, Any]) -> None:
    steps = document["steps"]
    known = {step["step_id"] for step in steps}
    needs = routing.dependencies(steps)
    critical = routing.critical_steps(steps)
    if strangers := sorted({name for names in needs.values() for name in names} - known):
        raise NotExecutable(f"The plan waits for steps that it does not have: {', '.join(strangers)}.")
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
    """What ran to its end under the plan before has its result, and is neither run nor paid again."""
    for row in rows:
        if not row.definition.get("done"):
            continue
        ran = before.get(row.step_id)
        if ran is None:
            raise NotExecutable(f"{row.step_id} is said to be done, and no execution has its result.")
        row.status, row.envelope, row.task_id = ran.status, ran.envelope, ran.task_id
        row.started_at, row.ended_at = ran.started_at, ran.ended_at


def _results_before(plan_id: str | None) -> dict[str, ExecutionStep]:
    """The steps that ran to their end under a plan, or under those that it replaced where it was never begun, by id."""
    while plan_id is not None:
        execution = Execution.objects.filter(plan_id=plan_id).first()
        if execution is not None:
            return {step.step_id: step for step in execution.steps.filter(status=StepStatus.COMPLETE)}
        plan_id = plans.plan(plan_id).document.get("replaces")
    return {}
