"""Decisions and values of executions as pure functions: routing, references, envelopes, reports."""

from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core import strict_json
from apps.executions import reports
from apps.executions.errors import UnresolvedReference
from apps.executions.models import Execution, ExecutionStep
from apps.executions.reports import MAX_PAYLOAD_BYTES, complete, ended, recommended
from apps.executions.routing import next_moves, resolve
from apps.executions.states import STEP_TRANSITIONS, TRANSITIONS, Status, StepStatus, Strategy
from apps.plans.documents import Step, critical_steps, parents_of
from apps.plans.shapes import StepType
from apps.receipts.models import MAX_METADATA
from tests.factories import T0, refused

TOOL: dict[str, Any] = {"worker_id": "w", "tool_name": "t", "params": {}}
STEPS = [
    Step.model_validate({"step_id": step_id, "step_type": step_type, **more})
    for step_id, step_type, more in (
        ("step-1", "queue_execution", TOOL),
        ("step-2", "wait_for", {"wait_for_step_ids": ["step-1"]}),
        ("step-3", "call_worker", {**TOOL, "depends_on": ["step-2"]}),
        ("step-4", "aggregate", {"aggregate_step_ids": ["step-1", "step-3"], "synthesis_instructions": "Both."}),
        ("step-5", "escalate", {"report_summary": "done", "decision_required": False}),
    )
]


def standings(**statuses: StepStatus) -> list[ExecutionStep]:
    parents, critical = parents_of(STEPS), critical_steps(STEPS)
    return [
        ExecutionStep(
            step_id=step.step_id,
            step_type=step.step_type,
            status=statuses.get(step.step_id.replace("-", "_"), StepStatus.PENDING),
            depends_on=sorted(parents[step.step_id]),
            critical=step.step_id in critical,
        )
        for step in STEPS
    ]


def test_step_comes_after_what_it_declares_waits_for_and_aggregates() -> None:
    assert parents_of(STEPS) == {
        "step-1": set(),
        "step-2": {"step-1"},
        "step-3": {"step-2"},
        "step-4": {"step-1", "step-3"},
        "step-5": {"step-1", "step-2", "step-3", "step-4"},
    }


def test_step_that_a_later_step_needs_is_critical() -> None:
    assert critical_steps(STEPS) == {"step-1", "step-2"}
    assert critical_steps([STEPS[0].model_copy(update={"critical": False}), *STEPS[1:]]) == {"step-2"}
    assert critical_steps(STEPS[:2]) == {"step-1"}


@pytest.mark.parametrize("strategy", [*Strategy])
def test_aggregate_goes_on_over_an_uncritical_failure(strategy: Strategy) -> None:
    done, failed = StepStatus.COMPLETE, StepStatus.FAILED

    uncritical = next_moves(standings(step_1=done, step_2=done, step_3=failed), strategy=strategy, halted_as=None)
    critical = next_moves(
        standings(step_1=failed, step_2=done, step_3=done, step_4=done), strategy=strategy, halted_as=None
    )

    assert (uncritical.begin, uncritical.halt_as) == (("step-4",), None)
    goes_on = strategy == Strategy.PARTIAL
    assert (critical.begin, critical.halt_as) == ((("step-5",), None) if goes_on else ((), Status.FAILED))
    assert critical.verdict == critical.halt_as
    assert goes_on or critical.skip == ("step-5",)


def test_step_begins_when_its_dependencies_are_complete() -> None:
    done = StepStatus.COMPLETE

    assert next_moves(standings(), strategy=Strategy.SEQUENTIAL, halted_as=None).begin == ("step-1",)
    assert next_moves(standings(step_1=StepStatus.QUEUED), strategy=Strategy.SEQUENTIAL, halted_as=None).begin == ()
    assert next_moves(standings(step_1=done), strategy=Strategy.SEQUENTIAL, halted_as=None).begin == ("step-2",)
    assert next_moves(standings(step_1=done, step_2=done), strategy=Strategy.SEQUENTIAL, halted_as=None).begin == (
        "step-3",
    )


def test_partial_strategy_goes_on_with_the_results() -> None:
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


def test_step_after_a_wait_for_a_failed_step_is_skipped() -> None:
    done, failed = StepStatus.COMPLETE, StepStatus.FAILED

    waited = [*standings(step_1=failed, step_2=done)[:2], one("again", StepType.WAIT_FOR, "step-2", status=done)]

    for wait in ("step-2", "again"):
        after = one("after", StepType.CALL_WORKER, wait)
        moves = next_moves([*waited, after], strategy=Strategy.PARTIAL, halted_as=None)
        assert (moves.begin, moves.skip) == ((), ("after",))


def one(step_id: str, step_type: StepType, needs: str, *, status: StepStatus = StepStatus.PENDING) -> ExecutionStep:
    return ExecutionStep(step_id=step_id, step_type=step_type, status=status, depends_on=[needs], critical=False)


def test_halted_execution_ends_when_no_step_is_active() -> None:
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
def test_routing_ends_for_any_statuses(statuses: tuple[StepStatus, ...], strategy: Strategy) -> None:
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


def test_only_listed_transitions_are_allowed() -> None:
    for before, after in product(Status, Status):
        execution = Execution(status=before)
        with nullcontext() if after in {*TRANSITIONS.get(before, ()), before} else refused("illegal_transition"):
            execution.move_to(after)
    for step_before, step_after in product(StepStatus, StepStatus):
        step = ExecutionStep(status=step_before)
        with nullcontext() if step_after in STEP_TRANSITIONS.get(step_before, ()) else refused("illegal_transition"):
            step.move_to(step_after)


ENVELOPES: dict[str, dict[str, Any]] = {
    "step-1": {
        "payload": {"files": ["a.py", "b.py"], "score": 7.5, "nested": {"x": {"y": 1}}},
        "result_pointer": "artifact:1",
    },
    "step-2": {"payload": None, "result_pointer": "artifact:2"},
}


BEHIND = {"step-2": {"text": "long"}}


def resolved(value: Any) -> Any:
    return resolve(value, envelopes=ENVELOPES, payload_of=BEHIND.get)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{{step-1.result_pointer}}", "artifact:1"),
        ("{{step-1.files}}", ["a.py", "b.py"]),
        ("{{step-1.files.1}}", "b.py"),
        ("{{step-1.score}}", 7.5),
        ("{{step-1.nested.x.y}}", 1),
        ("score {{step-1.score}} of {{step-1.files}}", 'score 7.5 of ["a.py", "b.py"]'),
        ("{{step-1.text}}", '{"files": ["a.py", "b.py"], "score": 7.5, "nested": {"x": {"y": 1}}}'),
        ({"deep": ["{{step-2.text}}", 5, None, True]}, {"deep": ["long", 5, None, True]}),
        ("no {{ reference", "no {{ reference"),
    ],
)
def test_reference_becomes_the_named_value(given: Any, expected: Any) -> None:
    assert resolved(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        "{{step-3.result_pointer}}",
        "{{step-1.absent}}",
        "{{step-1.files.2}}",
        "{{step-1.score.deeper}}",
        f"{{{{step-1.files.{'9' * 5_000}}}}}",
    ],
)
def test_reference_to_nothing_is_refused(given: str) -> None:
    with pytest.raises(UnresolvedReference):
        resolved({"param": given})


def test_value_of_a_reference_is_not_resolved_again() -> None:
    envelopes: dict[str, Any] = {
        "step-1": {"payload": {"text": "{{step-1.secret}}", "secret": "x"}, "result_pointer": None}
    }

    assert resolve("{{step-1.text}}", envelopes=envelopes, payload_of=BEHIND.get) == "{{step-1.secret}}"


STEP = ExecutionStep(
    step_id="a",
    step_type=StepType.CALL_WORKER,
    definition={"worker_id": "texter", "tool_name": "echo"},
    execution=Execution(plan_id="plan-1"),
)


@pytest.mark.parametrize("letter", ["x", "é", "漢"])
def test_envelope_carries_a_result_up_to_its_limit(letter: str) -> None:
    room, size = MAX_PAYLOAD_BYTES - len('{"text": ""}'), len(letter.encode())
    fits = letter * (room // size) + "x" * (room % size)

    for text, carried in ((fits, True), (fits + "x", False)):
        result = {"text": text}
        envelope = complete(STEP, result=result, result_pointer="artifact:1", ended_at=T0)
        assert envelope["payload"] == (result if carried else None)


def line(number: int, result: dict[str, Any] | str) -> ExecutionStep:
    """A step that has found this, or has failed with these words."""
    envelope = (
        ended(STEP, "failed", T0, error={"code": "worker_refused", "message": result[:2_000], "retryable": False})
        if isinstance(result, str)
        else complete(STEP, result=result, result_pointer="artifact:1", ended_at=T0)
    )
    return ExecutionStep(
        step_id=f"step-{number}",
        step_type=StepType.CALL_WORKER,
        status=envelope["status"],
        definition=STEP.definition,
        execution=STEP.execution,
        envelope=envelope,
    )


LETTERS = st.sampled_from(["x", "é", "漢", "\n", "\U0001f600"])


RESULTS = st.one_of(
    st.builds(lambda names, letter: {f"k{one}": letter * 600 for one in range(names)}, st.integers(0, 20), LETTERS),
    st.builds(lambda letter: letter * 3_000, LETTERS),
)


@given(st.lists(RESULTS, max_size=120))
def test_results_in_a_receipt_leave_room(found: list[dict[str, Any] | str]) -> None:
    steps = [line(number, one) for number, one in enumerate(found)]
    whole = [one.model_dump() for one in reports.results(steps)]

    told = reports.results_for_receipt(steps)

    assert strict_json.size(told) <= MAX_METADATA * 2 // 3
    assert [one["step_id"] for one in told] == [one["step_id"] for one in whole][: len(told)]
    assert told == whole or strict_json.size(whole) > MAX_METADATA // 2
    assert len(told) >= min(len(whole), 30)


LEARNED = "The nightly build of the parser fails on Mondays."


ASKED = {"promote": True, "domain": "builds", "observation": LEARNED, "reasoning": "Seen thrice", "confidence": 0.9}


@pytest.mark.parametrize(
    "asked",
    [
        None,
        {**ASKED, "promote": "yes"},
        {**ASKED, "domain": " "},
        {**ASKED, "observation": "", "reasoning": ""},
        {**ASKED, "confidence": 1.1},
    ],
)
def test_malformed_recommendation_is_none(asked: Any) -> None:
    assert recommended({"promotion_recommendation": asked}) is None
    assert recommended(asked) is None
