"""Where an execution goes: decided from the steps alone."""

from itertools import product
from typing import Any

import pytest

from apps.executions.models import Execution, ExecutionStep
from apps.executions.routing import critical_steps, dependencies, next_moves
from apps.executions.states import STEP_TRANSITIONS, TRANSITIONS, Status, StepStatus, Strategy
from apps.plans.shapes import StepType
from tests.executions.making import refused

EXAMPLE: list[dict[str, Any]] = [
    {"step_id": "step-1", "step_type": "queue_execution", "params": {"repo_path": "/x"}, "depends_on": []},
    {"step_id": "step-2", "step_type": "wait_for", "wait_for_step_ids": ["step-1"]},
    {
        "step_id": "step-3",
        "step_type": "call_worker",
        "params": {"analysis_pointer": "{{step-1.result_pointer}}"},
        "depends_on": ["step-2"],
    },
    {
        "step_id": "step-4",
        "step_type": "aggregate",
        "aggregate_step_ids": ["step-1", "step-3"],
        "executor": "principal",
    },
    {"step_id": "step-5", "step_type": "escalate", "report_summary": "done", "decision_required": False},
]


def standings(**statuses: StepStatus) -> list[ExecutionStep]:
    needs, critical = dependencies(EXAMPLE), critical_steps(EXAMPLE)
    return [
        ExecutionStep(
            step_id=step["step_id"],
            step_type=StepType(step["step_type"]),
            status=statuses.get(step["step_id"].replace("-", "_"), StepStatus.PENDING),
            depends_on=needs[step["step_id"]],
            critical=step["step_id"] in critical,
        )
        for step in EXAMPLE
    ]


def test_a_step_waits_for_what_it_declares_gathers_and_refers_to() -> None:
    assert dependencies(EXAMPLE) == {
        "step-1": (),
        "step-2": ("step-1",),
        "step-3": ("step-2", "step-1"),
        "step-4": ("step-1", "step-3"),
        "step-5": ("step-1", "step-2", "step-3", "step-4"),
    }


def test_what_a_later_step_depends_on_is_critical_unless_it_says_otherwise() -> None:
    assert critical_steps(EXAMPLE) == {"step-1", "step-2"}
    assert critical_steps([{**EXAMPLE[0], "critical": False}, *EXAMPLE[1:]]) == {"step-2"}


def test_what_a_later_step_only_waits_for_is_critical() -> None:
    assert critical_steps(EXAMPLE[:2]) == {"step-1"}


@pytest.mark.parametrize("strategy", [*Strategy])
def test_what_gathers_goes_on_over_a_failure_unless_that_ends_the_plan(strategy: Strategy) -> None:
    done, failed = StepStatus.COMPLETE, StepStatus.FAILED

    uncritical = next_moves(standings(step_1=done, step_2=done, step_3=failed), strategy=strategy, halted_as=None)
    critical = next_moves(
        standings(step_1=failed, step_2=done, step_3=done, step_4=done), strategy=strategy, halted_as=None
    )

    assert (uncritical.begin, uncritical.halt_as) == (("step-4",), None)
    goes_on = strategy == Strategy.PARTIAL
    assert (critical.begin, critical.halt_as) == ((("step-5",), None) if goes_on else ((), Status.FAILED))


def test_steps_begin_when_what_they_wait_for_is_complete() -> None:
    done = StepStatus.COMPLETE

    assert next_moves(standings(), strategy=Strategy.SEQUENTIAL, halted_as=None).begin == ("step-1",)
    assert next_moves(standings(step_1=StepStatus.QUEUED), strategy=Strategy.SEQUENTIAL, halted_as=None).begin == ()
    assert next_moves(standings(step_1=done), strategy=Strategy.SEQUENTIAL, halted_as=None).begin == ("step-2",)
    assert next_moves(standings(step_1=done, step_2=done), strategy=Strategy.SEQUENTIAL, halted_as=None).begin == (
        "step-3",
    )


def test_independent_steps_begin_at_once() -> None:
    pair = [
        ExecutionStep(
            step_id=name, step_type=StepType.CALL_WORKER, status=StepStatus.PENDING, depends_on=[], critical=False
        )
        for name in ("a", "b")
    ]

    assert next_moves(pair, strategy=Strategy.SEQUENTIAL, halted_as=None).begin == ("a", "b")


@pytest.mark.parametrize("strategy", [Strategy.SEQUENTIAL, Strategy.PROGRESSIVE, Strategy.ESCALATE])
def test_a_critical_failure_ends_the_plan(strategy: Strategy) -> None:
    moves = next_moves(standings(step_1=StepStatus.FAILED), strategy=strategy, halted_as=None)

    assert moves.halt_as == moves.verdict == Status.FAILED
    assert moves.skip == ("step-2", "step-3", "step-4", "step-5")


def test_partial_success_goes_on_with_what_there_is() -> None:
    done, failed, skipped = StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.SKIPPED

    moves = next_moves(standings(step_1=done, step_2=done, step_3=failed), strategy=Strategy.PARTIAL, halted_as=None)
    assert moves.begin == ("step-4",)

    moves = next_moves(standings(step_1=failed, step_2=done, step_3=skipped), strategy=Strategy.PARTIAL, halted_as=None)
    assert moves.skip == ("step-4",)

    moves = next_moves(
        standings(step_1=done, step_2=done, step_3=failed, step_4=done, step_5=done),
        strategy=Strategy.PARTIAL,
        halted_as=None,
    )
    assert moves.verdict == Status.PARTIAL


def test_what_comes_after_a_wait_is_not_begun_where_what_was_waited_for_has_failed() -> None:
    done, failed = StepStatus.COMPLETE, StepStatus.FAILED

    waited = [*standings(step_1=failed, step_2=done)[:2], one("again", StepType.WAIT_FOR, "step-2", status=done)]

    for wait in ("step-2", "again"):
        after = one("after", StepType.CALL_WORKER, wait)
        moves = next_moves([*waited, after], strategy=Strategy.PARTIAL, halted_as=None)
        assert (moves.begin, moves.skip) == ((), ("after",))


def one(step_id: str, step_type: StepType, needs: str, *, status: StepStatus = StepStatus.PENDING) -> ExecutionStep:
    return ExecutionStep(step_id=step_id, step_type=step_type, status=status, depends_on=[needs], critical=False)


def test_a_halted_execution_ends_when_nothing_is_in_the_air() -> None:
    moves = next_moves(
        standings(step_1=StepStatus.QUEUED), strategy=Strategy.SEQUENTIAL, halted_as=Status.BUDGET_EXCEEDED
    )
    assert (moves.begin, moves.verdict) == ((), None)

    moves = next_moves(
        standings(step_1=StepStatus.COMPLETE), strategy=Strategy.SEQUENTIAL, halted_as=Status.BUDGET_EXCEEDED
    )
    assert moves.verdict == Status.BUDGET_EXCEEDED


@pytest.mark.parametrize("statuses", [*product([StepStatus.COMPLETE, StepStatus.FAILED, StepStatus.PENDING], repeat=3)])
@pytest.mark.parametrize("strategy", [*Strategy])
def test_whatever_the_steps_are_routing_comes_to_an_end(statuses: tuple[StepStatus, ...], strategy: Strategy) -> None:
    steps = standings(step_1=statuses[0], step_3=statuses[1], step_4=statuses[2])
    for _ in range(10):
        moves = next_moves(steps, strategy=strategy, halted_as=None)
        if moves.verdict is not None:
            return
        changes = dict.fromkeys(moves.begin, StepStatus.COMPLETE) | dict.fromkeys(moves.skip, StepStatus.SKIPPED)
        assert changes, "nothing begins, nothing is skipped, and there is no verdict"
        steps = [
            ExecutionStep(
                step_id=step.step_id,
                step_type=step.step_type,
                status=changes.get(step.step_id, step.status),
                depends_on=step.depends_on,
                critical=step.critical,
            )
            for step in steps
        ]
    pytest.fail("no verdict after ten looks")


@pytest.mark.parametrize(("before", "after"), [*product(Status, Status)])
def test_an_execution_goes_only_where_the_table_says(before: Status, after: Status) -> None:
    execution = Execution(status=before)

    if after in TRANSITIONS[before] or after == before:
        execution.move_to(after)
        assert execution.status == after
    else:
        with refused("illegal_transition"):
            execution.move_to(after)


@pytest.mark.parametrize(("before", "after"), [*product(StepStatus, StepStatus)])
def test_a_step_goes_only_where_the_table_says(before: StepStatus, after: StepStatus) -> None:
    step = ExecutionStep(status=before)

    if after in STEP_TRANSITIONS[before]:
        step.move_to(after)
        assert step.status == after
    else:
        with refused("illegal_transition"):
            step.move_to(after)
