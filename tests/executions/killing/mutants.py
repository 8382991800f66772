"""Executions without what carries them over a kill, for a judge that must notice."""

from typing import Any

from apps.executions import selectors
from apps.executions.services import advancing
from apps.executions.services.rounds import Round
from apps.executions.states import WORKER_STEPS, StepStatus


def without_ticks() -> None:
    """What nobody nudges stays where it is."""
    selectors.due = lambda **_: []


def from_the_beginning() -> None:
    """Who takes over a call of a process that is gone begins the whole plan again."""
    take_over = advancing._take_over  # what is mutated

    def beginning_anew(work: Round, *, may_call: bool) -> bool:
        expired = [
            step
            for step in work.in_state(StepStatus.CALLING)
            if step.call_expires_at is not None and step.call_expires_at <= work.now
        ]
        if expired and may_call:
            for step in work.in_state(StepStatus.COMPLETE):
                if step.step_type in WORKER_STEPS and step.task_id is None:
                    step.status, step.envelope, step.ended_at = StepStatus.PENDING, None, None
                    work.touch(step)
        return take_over(work, may_call=may_call)

    advancing._take_over = beginning_anew


MUTANTS: dict[str, Any] = {mutant.__name__: mutant for mutant in (without_ticks, from_the_beginning)}
