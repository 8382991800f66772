"""How an execution ends: what is in the air is let go, the plan's obligation is closed, one trace goes to memory, and what
was learned where the owner may promote it.

How it went is told to the planner, which learns from it.
"""

from collections.abc import Mapping
from typing import Any

from apps.executions import reports, selectors
from apps.executions.models import ExecutionStep
from apps.executions.services import announcing
from apps.executions.services.beginning import give_up
from apps.executions.services.rounds import Round
from apps.executions.states import Status, StepStatus, Strategy
from apps.memory import services as memory
from apps.plans import services as plans
from apps.plans.shapes import StepType
from apps.tasks import services as tasks
from apps.tasks.states import Status as TaskStatus


def let_go(work: Round) -> None:
    """After a halt: nobody is asked or called for what is no longer wanted, and a cancel also takes back what was given out."""
    for step in work.in_state(StepStatus.AWAITING):
        _withdraw(work, step)
    if work.newly_halted:
        _take_back(work)
    for step in work.expired_claims:
        give_up(work, step)


def _take_back(work: Round) -> None:
    work.newly_halted = False
    if work.execution.halted_as == Status.CANCELED or work.execution.strategy == Strategy.ESCALATE:
        for step in work.in_state(StepStatus.CALLING):
            # Whoever is calling has lost its claim by this, and what it brings back is dropped.
            work.unclaim(step)
            work.settle(step, StepStatus.CANCELED)
        _cancel_tasks(work)


def _withdraw(work: Round, step: ExecutionStep) -> None:
    """The step is not wanted any more; who was asked owes nothing."""
    work.settle(step, StepStatus.CANCELED)
    if step.step_type in {StepType.AGGREGATE, StepType.ESCALATE}:
        announcing.close_obligation(
            work, step, event_type=f"{step.step_type}_canceled", summary=f"{step.step_id} is no longer wanted."
        )


def _cancel_tasks(work: Round) -> None:
    """A task that is being worked on ends when its worker obeys; the step waits for that verdict."""
    steps = {step.task_id: step for step in work.in_state(StepStatus.QUEUED) if step.task_id is not None}
    ended = tasks.cancel_many(caller=work.owner, task_ids=steps)
    canceled = [steps[task_id] for task_id, status in ended.items() if status == TaskStatus.CANCELED]
    never_run = selectors.tasks_never_run([step.task_id for step in canceled if step.task_id and step.cost])
    for step in canceled:
        if step.task_id in never_run:
            work.give_back(step, step.cost)
        work.settle(step, StepStatus.CANCELED)


def finish(work: Round, status: Status) -> None:
    """Write the end: status, the receipt that closes the plan, what the planner learns from, the trace."""
    execution = work.execution
    execution.move_to(status)
    execution.ended_at = work.now
    execution.wake_at = None
    execution.terminal_receipt_id = announcing.announce_end(work, status)
    work.post()
    plans.record_outcome(
        plan_id=execution.plan_id,
        completed={line.step_id for line in work.lines if line.status == StepStatus.COMPLETE},
        succeeded=status == Status.COMPLETE,
        now=work.now,
    )
    text, metadata = reports.trace(
        plan_id=execution.plan_id,
        intent=execution.intent,
        lines=work.lines,
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
    _promote(work)


def _promote(work: Round) -> None:
    """Make knowledge of what steps recommend, where the owner's policy allows it; else it stays a recommendation."""
    for step in work.in_state(StepStatus.COMPLETE):
        asked = (step.envelope or {}).get("promotion_recommendation")
        if not asked:
            continue
        step.envelope = {**(step.envelope or {}), "promotion_recommendation": {**asked, **_verdict(work, step, asked)}}
        work.touch(step)


def _verdict(work: Round, step: ExecutionStep, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a recommendation: whether it is one still, and why."""
    promotion = memory.promote(
        delegate=work.owner,
        text=asked["observation"],
        domain=asked["domain"],
        confidence=asked["confidence"],
        evidence=[f"plan:{work.execution.plan_id}", f"exec:{work.execution.ref}", f"step:{step.step_id}"],
        now=work.now,
    )
    known = promotion.observation
    return {
        "promote": known is None and promotion.verdict != memory.Verdict.KNOWN_ALREADY,
        "verdict": promotion.verdict,
        "reason": promotion.reason,
        "promoted_as": None if known is None else known.ref,
    }
