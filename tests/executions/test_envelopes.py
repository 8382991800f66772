"""What an envelope carries itself, and what it leaves behind its pointer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core import strict_json
from apps.executions import reports
from apps.executions.envelopes import MAX_PAYLOAD_BYTES, complete, failed, key_findings
from apps.executions.models import Execution, ExecutionStep
from apps.plans.shapes import StepType
from apps.receipts.models import MAX_METADATA
from tests.factories import T0

STEP = ExecutionStep(
    step_id="a",
    step_type=StepType.CALL_WORKER,
    definition={"worker_id": "texter", "tool_name": "echo"},
    execution=Execution(plan_id="plan-1"),
)
_AROUND = len('{"text": ""}')


@pytest.mark.parametrize("letter", ["x", "é", "漢"])
def test_envelope_carries_a_result_up_to_its_limit(letter: str) -> None:
    room, size = MAX_PAYLOAD_BYTES - _AROUND, len(letter.encode())
    fits = letter * (room // size) + "x" * (room % size)

    for text, carried in ((fits, True), (fits + "x", False)):
        result = {"text": text}
        envelope = complete(STEP, result=result, result_pointer="artifact:1", ended_at=T0)
        assert envelope["payload"] == (result if carried else None)


def test_finding_with_a_long_name_is_left_out() -> None:
    assert key_findings({"k" * 101: 1, "k" * 100: 2, "note": "n"}) == {"k" * 100: 2, "note": "n"}


def line(number: int, result: dict[str, Any] | str) -> ExecutionStep:
    """A step that has found this, or has failed with these words."""
    envelope = (
        failed(STEP, code="worker_refused", message=result, retryable=False, ended_at=T0)
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


def test_large_results_in_a_receipt_are_pointers() -> None:
    steps = [
        line(number, {"text": "x" * 500, "more": ["é" * 500] * 3, **{f"k{one}": "漢" * 500 for one in range(9)}})
        for number in range(4)
    ]

    told = reports.results_for_receipt(steps)

    assert reports.results_for_receipt(steps[:1]) == [one.model_dump() for one in reports.results(steps[:1])]
    assert [one["key_findings"] for one in told] == [{}] * 4
    assert [one["result_pointer"] for one in told] == ["artifact:1"] * 4
