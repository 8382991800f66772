"""How a step of each type begins. Worker steps are only claimed here: who calls out does so after the commit."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from apps.core.errors import DomainError, Unavailable
from apps.executions import calls, envelopes, reports, selectors
from apps.executions.errors import BUDGET_EXCEEDED, NEEDS_ESCALATION, OUTCOME_UNKNOWN, WorkerUnavailable
from apps.executions.models import ExecutionStep
from apps.executions.services import announcing
from apps.executions.services.rounds import Round
from apps.executions.states import MONEY, Mode, Status, StepStatus, Strategy
from apps.plans.shapes import WORKER_STEPS, StepType
from apps.principals.scopes import Kind
from apps.workers.errors import WorkerRateLimited

CLAIM: Final = timedelta(seconds=10)
"""How long a claim stands without a sign of life; a crash delays a step by no more."""
MAX_CLAIMS: Final = 8
RECEIPTS_EVERY: Final = timedelta(seconds=2)


def begin(work: Round, step: ExecutionStep) -> None:
    """Begin one step."""
    if step.started_at is None:
        step.started_at = work.now
    _BEGIN[StepType(step.step_type)](work, step)
    work.touch(step)


def claim(work: Round, step: ExecutionStep) -> None:
    """Claim a worker step for this process, if it still fits the budget. One whose worker is away waits for it a while."""
    try:
        target = calls.target_of(worker_id=step.worker_id or "", tool_name=step.tool_name or "", tool_uid=step.tool_uid)
    except DomainError as exc:
        if _may_wait(work, step, exc):
            if step.status != StepStatus.PENDING:
                step.move_to(StepStatus.PENDING)
            step.retry_at = work.now + calls.LOOK_AGAIN
            return
        fail(work, step, code=exc.code, message=exc.detail, retryable=isinstance(exc, Unavailable))
        return
    if not _charge(work, step, target):
        return
    step.repeatable = target.repeatable
    step.set_aside = work.charges[step.pk] if as_task(work, step, target) else None
    step.attempts += 1
    step.retry_at = step.missed_since = None
    step.move_to(StepStatus.CALLING)
    step.call_expires_at = work.now + CLAIM
    work.claims.append((step, target))


def _may_wait(work: Round, step: ExecutionStep, refusal: DomainError) -> bool:
    if not isinstance(refusal, WorkerUnavailable) or not refusal.may_come_back:
        return False
    # Not from when the step began: its process may have been gone for longer, and its worker with it.
    step.missed_since = calls.missed_since(step.missed_since, looked_for_at=step.retry_at, now=work.now)
    return work.now - step.missed_since < calls.WORKER_AWAY


def as_task(work: Round, step: ExecutionStep, target: calls.Target) -> bool:
    """Long work is a task; `auto` trusts the worker's own word where the plan would call it directly."""
    mode = Mode(work.execution.mode)
    if mode == Mode.ASYNC_ONLY or step.step_type == StepType.QUEUE_EXECUTION:
        return True
    return mode == Mode.AUTO and target.runtime == "long"


def take_calls(work: Round) -> None:
    """Count the direct calls that were claimed against what their workers allow; those without room wait for it.

    In the order of the workers' ids, so that rounds that meet at two workers don't wait for each other. What becomes a
    task is counted by the run that calls.
    """
    for step, target in sorted(work.claims, key=lambda claimed: claimed[1].worker_id):
        if as_task(work, step, target):
            continue
        try:
            calls.take(target)
        except WorkerRateLimited as full:
            _put_off(work, step, timedelta(seconds=full.retry_after))


def _put_off(work: Round, step: ExecutionStep, pause: timedelta) -> None:
    """The step waits as if it had not begun."""
    work.unclaim(step)
    step.move_to(StepStatus.PENDING)
    step.retry_at = work.now + pause


def _charge(work: Round, step: ExecutionStep, target: calls.Target) -> bool:
    """Take what a call costs from the budget before it is made, so that steps that run at once can't overrun it together.

    Each call that may have run is paid for, the first and those made again: by the plan's estimate, or by what the worker
    asks by now, where that is more.
    """
    estimate = Decimal(str(step.definition.get("estimated_cost") or 0))
    cost = max(target.cost, estimate).quantize(MONEY)
    why = work.execution.over_budget(cost, spent=step.cost)
    if why is None:
        step.cost += cost
        work.execution.total_cost += cost
        work.charges[step.pk] = cost
        return True
    work.halt(Status.BUDGET_EXCEEDED, why)
    if step.attempts:
        fail(work, step, code=BUDGET_EXCEEDED, message=f"It can't be called again. {why}", retryable=False)
    else:
        step.started_at = None
    return False


def reclaim(work: Round, step: ExecutionStep) -> None:
    """Take over a call whose process is gone, unless the tool may have run and must not run twice."""
    work.touch(step)
    again = step.may_be_claimed_again
    work.unclaim(step)
    if not again:
        _fail_as_unknown(work, step)
    elif step.attempts >= MAX_CLAIMS:
        fail(work, step, code="claims_exhausted", message="Every process that tried is gone.", retryable=True)
    else:
        claim(work, step)


def give_up(work: Round, step: ExecutionStep) -> None:
    """Settle a call whose process is gone and that is not wanted any more."""
    again = step.may_be_claimed_again
    work.unclaim(step)
    if again:
        work.settle(step, StepStatus.CANCELED)
    else:
        _fail_as_unknown(work, step)


def _fail_as_unknown(work: Round, step: ExecutionStep) -> None:
    message = f"The process that called {step.tool_name} is gone, and the tool may not be run twice."
    fail(work, step, code=OUTCOME_UNKNOWN, message=message, retryable=False)


def _wait(work: Round, step: ExecutionStep) -> None:
    wanted = step.definition.get("wait_for_receipts") or []
    if selectors.missing_receipts(wanted, recipient_id=work.execution.owner_id):
        if step.status != StepStatus.AWAITING:
            step.move_to(StepStatus.AWAITING)
        return
    succeed(work, step, result=None)


def _aggregate(work: Round, step: ExecutionStep) -> None:
    if step.definition.get("executor") == "self" or work.execution.owner.kind == Kind.DELEGATE:
        wanted = step.definition.get("aggregate_step_ids") or step.depends_on
        handed_over = reports.within_a_receipt(reports.handed_over(work.lines, wanted))
        succeed(work, step, result={"results": handed_over})
        return
    step.receipt_id = announcing.hand_over_aggregate(work, step)
    step.move_to(StepStatus.AWAITING)


def _escalate(work: Round, step: ExecutionStep) -> None:
    if step.definition.get("decision_required"):
        step.receipt_id = announcing.ask_for_decision(work, step)
        step.move_to(StepStatus.AWAITING)
        return
    step.receipt_id = announcing.report_upward(work, step)
    succeed(
        work,
        step,
        result={
            "report_summary": work.words(step, "report_summary"),
            "recommendation": work.words(step, "recommendation"),
            "decision_required": False,
        },
    )


_BEGIN: Final[dict[StepType, Callable[[Round, ExecutionStep], None]]] = {
    StepType.CALL_WORKER: claim,
    StepType.QUEUE_EXECUTION: claim,
    StepType.WAIT_FOR: _wait,
    StepType.AGGREGATE: _aggregate,
    StepType.ESCALATE: _escalate,
}


def look_again(work: Round, step: ExecutionStep) -> None:
    """A step that waits for receipts may have them by now."""
    _wait(work, step)
    work.touch(step)


def succeed(
    work: Round,
    step: ExecutionStep,
    *,
    result: Any,
    result_pointer: str | None = None,
    summary: str | None = None,
    run_id: str | None = None,
) -> None:
    """The step has its result, unless that says that somebody else has to do it."""
    asked = envelopes.escalated(result) if step.step_type in WORKER_STEPS else None
    if asked is not None:
        fail(
            work,
            step,
            code=NEEDS_ESCALATION,
            message=asked["message"],
            retryable=False,
            run_id=run_id,
            escalation=asked,
        )
        return
    step.envelope = envelopes.complete(
        step.origin,
        result=result,
        result_pointer=result_pointer,
        summary=summary,
        started_at=step.started_at or work.now,
        ended_at=work.now,
        task_id=step.task_ref,
        run_id=run_id,
    )
    work.settle(step, StepStatus.COMPLETE)


def fail(
    work: Round,
    step: ExecutionStep,
    *,
    code: str,
    message: str,
    retryable: bool,
    run_id: str | None = None,
    escalation: Mapping[str, Any] | None = None,
) -> None:
    """The step will have none. What it means for the others is routing's affair."""
    step.envelope = envelopes.failed(
        step.origin,
        code=code,
        message=message,
        retryable=retryable,
        started_at=step.started_at or work.now,
        ended_at=work.now,
        task_id=step.task_ref,
        run_id=run_id,
        escalation=escalation,
    )
    work.settle(step, StepStatus.FAILED)
    if step.critical and work.execution.strategy == Strategy.ESCALATE:
        announcing.raise_alarm(work, step)
