"""Decides what an execution does next: which steps begin, which are skipped, and how it ends. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.executions.models import ExecutionStep
from apps.executions.references import steps_named_in
from apps.executions.states import ACTIVE, SETTLED, Status, StepStatus, Strategy
from apps.plans.shapes import WORKER_STEPS, StepType

# These go on with the results that exist. A critical failure has halted the plan before.
_GATHERS = frozenset({StepType.AGGREGATE, StepType.ESCALATE, StepType.WAIT_FOR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The next moves. `verdict` is set when nothing is left to do or to wait for."""

    begin: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    halt_as: Status | None = None
    verdict: Status | None = None


def dependencies(steps: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The steps that each step of a plan waits for: declared, aggregated or referred to.

    An escalate step that declares none reports on the whole plan, so it waits for all steps before it.
    """
    found: dict[str, tuple[str, ...]] = {}
    for step in steps:
        needs = [
            *(step.get("depends_on") or ()),
            *(step.get("wait_for_step_ids") or ()),
            *(step.get("aggregate_step_ids") or ()),
            *sorted(steps_named_in(step.get("params") or {})),
        ]
        if step["step_type"] == StepType.ESCALATE and not needs:
            needs = list(found)
        found[step["step_id"]] = tuple(dict.fromkeys(needs))
    return found


def critical_steps(steps: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The steps whose failure fails the plan: those that declare it, else those that a later step depends on."""
    needed = {name for step in steps for name in step.get("depends_on") or ()}
    needed |= {name for step in steps for name in step.get("wait_for_step_ids") or ()}
    needed |= {name for step in steps for name in steps_named_in(step.get("params") or {})}
    return frozenset(
        step["step_id"]
        for step in steps
        if (step["step_id"] in needed if step.get("critical") is None else step["critical"])
    )


def next_moves(steps: Sequence[ExecutionStep], *, strategy: Strategy, halted_as: Status | None) -> Moves:
    """Decide from the steps alone: the same rows give the same moves in any process."""
    halt_as = halted_as or _halt(steps, strategy)
    if halt_as is not None:
        pending = tuple(step.step_id for step in steps if step.status == StepStatus.PENDING)
        idle = not any(step.status in ACTIVE for step in steps)
        return Moves(skip=pending, halt_as=halt_as, verdict=halt_as if idle else None)
    known = {step.step_id: step for step in steps}
    begin = tuple(step.step_id for step in steps if _may_begin(step, known))
    skip = tuple(step.step_id for step in steps if _never_begins(step, known))
    if begin or skip or any(step.status not in SETTLED for step in steps):
        return Moves(begin=begin, skip=skip)
    return Moves(verdict=_verdict(steps))


def _halt(steps: Iterable[ExecutionStep], strategy: Strategy) -> Status | None:
    lost = any(step.status == StepStatus.FAILED and step.critical for step in steps)
    return Status.FAILED if lost and strategy != Strategy.PARTIAL else None


def _may_begin(step: ExecutionStep, known: Mapping[str, ExecutionStep]) -> bool:
    if step.status != StepStatus.PENDING:
        return False
    if step.step_type in _GATHERS:
        return all(known[name].status in SETTLED for name in step.depends_on) and not _nothing_to_gather(step, known)
    return all(status == StepStatus.COMPLETE for status in _needs(step, known))


def _never_begins(step: ExecutionStep, known: Mapping[str, ExecutionStep]) -> bool:
    if step.status != StepStatus.PENDING:
        return False
    if step.step_type in _GATHERS:
        return all(known[name].status in SETTLED for name in step.depends_on) and _nothing_to_gather(step, known)
    return any(status in SETTLED - {StepStatus.COMPLETE} for status in _needs(step, known))


def _needs(step: ExecutionStep, known: Mapping[str, ExecutionStep]) -> list[str]:
    """The statuses of the steps that this one needs.

    A wait step ends even if the steps that it waits for fail, so a step after it needs those steps too.
    """
    needs, seen = list(step.depends_on), set(step.depends_on)
    for name in needs:
        if known[name].step_type == StepType.WAIT_FOR:
            needs += [other for other in known[name].depends_on if other not in seen]
            seen.update(known[name].depends_on)
    return [known[name].status for name in needs]


def _nothing_to_gather(step: ExecutionStep, known: Mapping[str, ExecutionStep]) -> bool:
    if step.step_type != StepType.AGGREGATE:
        return False
    return not any(known[name].status == StepStatus.COMPLETE for name in step.depends_on)


def _verdict(steps: Sequence[ExecutionStep]) -> Status:
    lost = [step for step in steps if step.status in {StepStatus.FAILED, StepStatus.SKIPPED}]
    if not lost:
        return Status.COMPLETE
    won = any(step.status == StepStatus.COMPLETE and step.step_type in WORKER_STEPS for step in steps)
    return Status.PARTIAL if won else Status.FAILED
