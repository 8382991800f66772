"""The end of an execution: active steps are let go, the plan's obligation is closed, planner and memory are informed."""

from collections.abc import Mapping
from typing import Any

from apps.executions import reports, selectors
from apps.executions.models import ExecutionStep
from apps.executions.services import announcing
from apps.executions.services.steps import give_up
from apps.executions.services.work import UnitOfWork
from apps.executions.states import Status, StepStatus, Strategy
from apps.memory import services as memory
from apps.plans import services as plans
from apps.plans.shapes import StepType
from apps.tasks import services as tasks
from apps.tasks.states import Status as TaskStatus


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
    ended = tasks.cancel_many(caller=work.owner, task_ids=steps)
    canceled = [steps[task_id] for task_id, status in ended.items() if status == TaskStatus.CANCELED]
    never_run = selectors.tasks_never_run([step.task_id for step in canceled if step.task_id and step.cost])
    for step in canceled:
        if step.task_id in never_run:
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
    plans.record_outcome(
        plan_id=execution.plan_id,
        completed={step.step_id for step in work.in_state(StepStatus.COMPLETE)},
        succeeded=status == Status.COMPLETE,
        now=work.now,
    )
    text, metadata = reports.trace(
        plan_id=execution.plan_id,
        intent=execution.intent,
        steps=work.steps,
        status=status,
        started_at=execution.created_at,
        ended_at=work.now,
    )
    trace = memory.store_observation(
        author=work.owner,
        text=text,
        domain=memory.TRACE,
        confidence=1.0,
        evidence=[f"plan:{execution.plan_id}", f"exec:{execution.ref}"],
        metadata=metadata,
        now=work.now,
    )
    execution.trace_ref = trace.ref
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
