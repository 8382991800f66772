"""What an envelope carries itself, and what it leaves behind its pointer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core import strict_json
from apps.executions import reports
from apps.executions.envelopes import MAX_PAYLOAD_BYTES, Origin, complete, failed, key_findings
from apps.executions.reports import Line
from apps.executions.states import StepStatus
from apps.plans.shapes import StepType
from apps.receipts.models import MAX_METADATA
from tests.factories import T0

ORIGIN = Origin(plan_id="plan-1", step_id="a", worker_id="texter", tool_name="echo")
_AROUND = len('{"text": ""}')


@pytest.mark.parametrize("letter", ["x", "é", "漢"])
def test_an_envelope_carries_a_result_up_to_its_limit_in_bytes(letter: str) -> None:
    room, size = MAX_PAYLOAD_BYTES - _AROUND, len(letter.encode())
    fits = letter * (room // size) + "x" * (room % size)

    for text, carried in ((fits, True), (fits + "x", False)):
        result = {"text": text}
        envelope = complete(ORIGIN, result=result, result_pointer="artifact:1", started_at=T0, ended_at=T0)
        assert envelope["payload"] == (result if carried else None)


def test_a_finding_whose_name_is_longer_than_a_report_is_left_to_the_payload() -> None:
    assert key_findings({"k" * 101: 1, "k" * 100: 2, "note": "n"}) == {"k" * 100: 2, "note": "n"}


def line(number: int, result: dict[str, Any] | str) -> Line:
    """A step that has found this, or has failed with these words."""
    envelope = (
        failed(ORIGIN, code="worker_refused", message=result, retryable=False, started_at=T0, ended_at=T0)
        if isinstance(result, str)
        else complete(ORIGIN, result=result, result_pointer="artifact:1", started_at=T0, ended_at=T0)
    )
    return Line(
        step_id=f"step-{number}",
        step_type=StepType.CALL_WORKER,
        status=StepStatus(envelope["status"]),
        worker_id="texter",
        tool_name="echo",
        task_id=None,
        definition={},
        envelope=envelope,
    )


LETTERS = st.sampled_from(["x", "é", "漢", "\n", "\U0001f600"])
RESULTS = st.one_of(
    st.builds(lambda names, letter: {f"k{one}": letter * 600 for one in range(names)}, st.integers(0, 20), LETTERS),
    st.builds(lambda letter: letter * 3_000, LETTERS),
)


@given(st.lists(RESULTS, max_size=120))
def test_what_a_receipt_tells_of_results_leaves_room_for_the_rest_of_it(found: list[dict[str, Any] | str]) -> None:
    whole = reports.results([line(number, one) for number, one in enumerate(found)])

    told = reports.within_a_receipt(whole)

    assert strict_json.size(told) <= MAX_METADATA * 2 // 3
    assert [one["step_id"] for one in told] == [one["step_id"] for one in whole][: len(told)]
    assert told == whole or strict_json.size(whole) > MAX_METADATA // 2
    assert len(told) >= min(len(whole), 30)


def test_results_that_are_too_large_together_are_told_by_their_pointers() -> None:
    whole = reports.results(
        [
            line(number, {"text": "x" * 500, "more": ["é" * 500] * 3, **{f"k{one}": "漢" * 500 for one in range(9)}})
            for number in range(4)
        ]
    )

    told = reports.within_a_receipt(whole)

    assert reports.within_a_receipt(whole[:1]) == whole[:1]
    assert [one["key_findings"] for one in told] == [{}] * 4
    assert [one["result_pointer"] for one in told] == ["artifact:1"] * 4
