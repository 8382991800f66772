"""Executions without what carries them over a kill, for a judge that must notice."""

from typing import Any

from apps.executions import calls, selectors
from apps.executions.services import advancing
from apps.executions.services.work import UnitOfWork
from apps.executions.states import StepStatus
from apps.plans.shapes import StepType


def without_ticks() -> None:
    """What nobody nudges stays where it is."""
    selectors.due = lambda **_: []


def without_memory() -> None:
    """Who takes over a call of a process that is gone calls again what was called before it."""
    take_over = advancing._take_over

    def taking_over(work: UnitOfWork, *, may_call: bool) -> bool:
        if work.expired_claims and may_call:
            for step in work.in_state(StepStatus.COMPLETE):
                if step.step_type == StepType.CALL_WORKER:
                    target = calls.target_of(worker_id=step.worker_id or "", tool_name=step.tool_name or "")
                    work.claims.append((step, target))
        return take_over(work, may_call=may_call)

    def standing(claim: advancing.Claim) -> bool:
        return not claim.lost.is_set()

    advancing._take_over = taking_over
    # The look right before each call would find that these claims are no more.
    advancing._renew = standing


MUTANTS: dict[str, Any] = {mutant.__name__: mutant for mutant in (without_ticks, without_memory)}
