"""How a step begins, succeeds and fails, and how an execution ends.

Worker steps are only claimed here; they are called after the commit.
"""

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from apps.core.errors import DomainError, Unavailable
from apps.executions import calls, reports, selectors
from apps.executions.errors import NEEDS_ESCALATION, OUTCOME_UNKNOWN, WorkerUnavailable
from apps.executions.models import ExecutionStep
from apps.executions.services import announcing
from apps.executions.services.work import UnitOfWork
from apps.executions.states import MONEY, Mode, Status, StepStatus, Strategy
from apps.memory import services as memory
from apps.plans import services as planning
from apps.plans.shapes import WORKER_STEPS, StepType
from apps.principals.scopes import Kind
from apps.tasks.models import FinishedTask
from apps.tasks.services import ending
from apps.tasks.states import Status as TaskStatus
from apps.workers.models import WorkerRateLimited
from apps.workers.services import registry

CLAIM: Final = timedelta(seconds=10)
"""How long a claim lasts without renewal; a crash delays a step by no more."""
MAX_CLAIMS: Final = 8
RECEIPTS_EVERY: Final = timedelta(seconds=2)


def begin(work: UnitOfWork, step: ExecutionStep) -> None:
    """Begin one step."""
    if step.started_at is None:
        step.started_at = work.now
    match step.step_type:
        case StepType.WAIT_FOR:
            wait_for_receipts(work, step)
        case StepType.AGGREGATE:
            _aggregate(work, step)
        case StepType.ESCALATE:
            _escalate(work, step)
        case _:
            claim(work, step)
    work.touch(step)


def claim(work: UnitOfWork, step: ExecutionStep) -> None:
    """Claim a worker step for this process, if the budget covers it. If its worker is away, the step waits a while."""
    try:
        target = calls.target_of(worker_id=step.worker_id or "", tool_name=step.tool_name or "", tool_uid=step.tool_uid)
    except DomainError as exc:
        if isinstance(exc, WorkerUnavailable) and exc.may_come_back:
            step.away_looks += 1
            if step.away_looks <= calls.AWAY_LOOKS:
                if step.status != StepStatus.PENDING:
                    step.move_to(StepStatus.PENDING)
                step.retry_at = work.now + calls.LOOK_AGAIN
                return
        fail(work, step, code=exc.code, message=exc.detail, retryable=isinstance(exc, Unavailable))
        return
    if not _charge(work, step, target):
        return
    step.repeatable = target.repeatable or as_task(work, step, target)
    step.attempts += 1
    step.retry_at, step.away_looks = None, 0
    step.move_to(StepStatus.CALLING)
    step.call_expires_at = work.now + CLAIM
    work.claims.append((step, target))


def as_task(work: UnitOfWork, step: ExecutionStep, target: calls.Target) -> bool:
    """Whether the step becomes a task. `auto` follows the worker's declared runtime for steps that the plan calls directly."""
    mode = Mode(work.execution.mode)
    if mode == Mode.ASYNC_ONLY or step.step_type == StepType.QUEUE_EXECUTION:
        return True
    return mode == Mode.AUTO and target.runtime == "long"


def take_calls(work: UnitOfWork) -> None:
    """Count the claimed direct calls against the workers' rate limits; those over a limit wait.

    In the order of the workers' ids, to avoid deadlocks. The call of a task is counted by its run.
    """
    for step, target in sorted(work.claims, key=lambda claimed: claimed[1].worker_id):
        if as_task(work, step, target):
            continue
        try:
            registry.take_call(worker_id=target.worker_id)
        except WorkerRateLimited as full:
            work.unclaim(step)
            step.move_to(StepStatus.PENDING)
            step.retry_at = work.now + timedelta(seconds=full.retry_after)


def _charge(work: UnitOfWork, step: ExecutionStep, target: calls.Target) -> bool:
    """Charge a step to the budget before its first call, so that steps at once can't exceed the budget together.

    The charge is the plan's estimate, or the worker's present price if that is higher.
    """
    if step.cost:
        return True
    estimate = Decimal(str(step.definition.get("estimated_cost") or 0))
    cost = max(target.cost, estimate).quantize(MONEY)
    why = work.execution.over_budget(cost)
    if why is None:
        step.cost += cost
        work.execution.total_cost += cost
        work.charges[step.pk] = cost
        return True
    work.halt(Status.BUDGET_EXCEEDED, why)
    if not step.attempts:
        step.started_at = None
    return False


def reclaim(work: UnitOfWork, step: ExecutionStep) -> None:
    """Take over a lost claim, unless the tool may have run and must not run twice."""
    work.touch(step)
    if not step.repeatable:
        _fail_as_unknown(work, step)
    elif step.attempts >= MAX_CLAIMS:
        fail(work, step, code="claims_exhausted", message="Every process that tried is gone.", retryable=True)
    else:
        claim(work, step)


def give_up(work: UnitOfWork, step: ExecutionStep) -> None:
    """Settle a lost claim that is not wanted any more."""
    if step.repeatable:
        work.settle(step, StepStatus.CANCELED)
    else:
        _fail_as_unknown(work, step)


def _fail_as_unknown(work: UnitOfWork, step: ExecutionStep) -> None:
    message = f"The process that called {step.tool_name} is gone, and the tool may not be run twice."
    fail(work, step, code=OUTCOME_UNKNOWN, message=message, retryable=False)


def wait_for_receipts(work: UnitOfWork, step: ExecutionStep) -> None:
    """Complete a wait step whose receipts have arrived; else it waits."""
    wanted = step.definition.get("wait_for_receipts") or []
    if not selectors.missing_receipts(wanted, recipient_id=work.execution.owner_id):
        succeed(work, step, result=None)
    elif step.status != StepStatus.AWAITING:
        step.move_to(StepStatus.AWAITING)


def _aggregate(work: UnitOfWork, step: ExecutionStep) -> None:
    if step.definition.get("executor") == "self" or work.execution.owner.kind == Kind.DELEGATE:
        wanted = step.definition.get("aggregate_step_ids") or step.depends_on
        succeed(work, step, result={"results": reports.results_for_receipt(work.steps, wanted)})
        return
    step.receipt_id = announcing.request_result(work, step)
    step.move_to(StepStatus.AWAITING)


def _escalate(work: UnitOfWork, step: ExecutionStep) -> None:
    if step.definition.get("decision_required"):
        step.receipt_id = announcing.request_decision(work, step)
        step.move_to(StepStatus.AWAITING)
        return
    step.receipt_id = announcing.report_upward(work, step)
    succeed(work, step, result={**report_of(work, step), "decision_required": False})


def report_of(work: UnitOfWork, step: ExecutionStep) -> dict[str, Any]:
    """The report of an escalate step."""
    return {name: work.readable(step, name) for name in ("report_summary", "recommendation")}


def succeed(
    work: UnitOfWork,
    step: ExecutionStep,
    *,
    result: Any,
    result_pointer: str | None = None,
    summary: str | None = None,
    run_id: str | None = None,
) -> None:
    """Complete the step with its result, or fail it if the result asks that somebody else does the work."""
    asked = reports.escalated(result) if step.step_type in WORKER_STEPS else None
    if asked is not None:
        message = asked["message"]
        fail(work, step, code=NEEDS_ESCALATION, message=message, retryable=False, run_id=run_id, escalation=asked)
        return
    step.envelope = reports.complete(
        step, result=result, result_pointer=result_pointer, ended_at=work.now, run_id=run_id, summary=summary
    )
    work.settle(step, StepStatus.COMPLETE)


def fail(
    work: UnitOfWork,
    step: ExecutionStep,
    *,
    code: str,
    message: str,
    retryable: bool,
    run_id: str | None = None,
    escalation: Mapping[str, Any] | None = None,
) -> None:
    """Fail the step. `routing` decides what that means for the others.

    :param escalation: the work that its worker asks somebody else to do.
    """
    error = {"code": code, "message": message[:2_000], "retryable": retryable}
    asked = {} if escalation is None else {"escalation": dict(escalation)}
    step.envelope = reports.ended(step, "failed", work.now, run_id, error=error, **asked)
    work.settle(step, StepStatus.FAILED)
    if step.critical and work.execution.strategy == Strategy.ESCALATE:
        announcing.raise_alarm(work, step)


def let_go(work: UnitOfWork) -> None:
    """After a halt: withdraw requests, give up lost claims, and after a cancel also take back calls and tasks."""
    for step in work.in_state(StepStatus.AWAITING):
        work.settle(step, StepStatus.CANCELED)
        if step.step_type in {StepType.AGGREGATE, StepType.ESCALATE}:
            summary = f"{step.step_id} is no longer wanted."
            announcing.close_obligation(work, step, event_type=f"{step.step_type}_canceled", summary=summary)
    if work.newly_halted:
        work.newly_halted = False
        if work.execution.halted_as == Status.CANCELED or work.execution.strategy == Strategy.ESCALATE:
            for step in work.in_state(StepStatus.CALLING):
                # The process that calls has lost its claim by this, and its result is dropped.
                work.unclaim(step)
                work.settle(step, StepStatus.CANCELED)
            _cancel_tasks(work)
    for step in work.expired_claims:
        give_up(work, step)


def _cancel_tasks(work: UnitOfWork) -> None:
    """Cancel the execution's tasks. A leased task ends when its worker stops; its step waits for that."""
    steps = {step.task_id: step for step in work.in_state(StepStatus.QUEUED) if step.task_id is not None}
    ended = ending.cancel_many(caller=work.owner, task_ids=steps)
    canceled = [steps[task_id] for task_id, status in ended.items() if status == TaskStatus.CANCELED]
    never_run = FinishedTask.objects.filter(
        task_id__in=[step.task_id for step in canceled if step.cost], fencing_token=0
    )
    refunded = frozenset(never_run.values_list("task_id", flat=True))
    for step in canceled:
        if step.task_id in refunded:
            work.refund(step, step.cost)
        work.settle(step, StepStatus.CANCELED)


def finish(work: UnitOfWork, status: Status) -> None:
    """Write the end: the status, the closing receipt, the outcome for the planner, the trace in memory."""
    execution = work.execution
    execution.move_to(status)
    execution.ended_at = work.now
    execution.wake_at = None
    execution.terminal_receipt_id = announcing.announce_end(work, status)
    work.post()
    ran = {step.step_id for step in work.in_state(StepStatus.COMPLETE) if step.step_type in WORKER_STEPS}
    planning.record_outcome(plan_id=execution.plan_id, completed=ran)
    text, metadata = reports.trace(
        plan_id=execution.plan_id,
        intent=execution.intent,
        steps=work.steps,
        status=status,
        started_at=execution.created_at,
        ended_at=work.now,
    )
    memory.store_observation(
        author=work.owner,
        text=text,
        domain=memory.TRACE,
        confidence=1.0,
        evidence=[f"plan:{execution.plan_id}", f"exec:{execution.ref}"],
        metadata=metadata,
        now=work.now,
    )
    for step in work.in_state(StepStatus.COMPLETE):
        if asked := step.promotion_recommendation:
            step.envelope = {**step.outcome, "promotion_recommendation": {**asked, **_promoted(work, step, asked)}}
            work.touch(step)


def _promoted(work: UnitOfWork, step: ExecutionStep, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Promote what a step recommends, if the owner's policy allows it; returns the verdict."""
    promotion = memory.promote(
        delegate=work.owner,
        text=asked["observation"],
        domain=asked["domain"],
        confidence=asked["confidence"],
        evidence=[f"plan:{work.execution.plan_id}", f"exec:{work.execution.ref}", f"step:{step.step_id}"],
        now=work.now,
    )
    return {
        "promote": promotion.ref is None and promotion.verdict != memory.Verdict.KNOWN_ALREADY,
        "verdict": promotion.verdict,
        "reason": promotion.reason,
        "promoted_as": promotion.ref,
    }
