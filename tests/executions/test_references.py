"""References between steps: resolved from envelopes, refused where they lead nowhere."""

from typing import Any

import pytest

from apps.executions.errors import UnresolvedReference
from apps.executions.references import resolve, steps_named_in
from apps.plans.references import Reference, within

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
        ({"deep": ["{{step-2.text}}", 5, None, True]}, {"deep": ["long", 5, None, True]}),
        ("no {{ reference", "no {{ reference"),
    ],
)
def test_a_reference_becomes_what_it_names(given: Any, expected: Any) -> None:
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
def test_a_reference_that_leads_nowhere_is_refused(given: str) -> None:
    with pytest.raises(UnresolvedReference):
        resolved({"param": given})


@pytest.mark.parametrize(
    "given", ["{{a.b.c}}", "{{step-1.files.0}} {{step_2.x-y.$z}}", "{{.x}}", "{{a b.c}}", "{{a.}}", "{{é.x}}"]
)
def test_what_the_planner_takes_for_a_reference_is_what_executions_resolve(given: str) -> None:
    planned = {found.step_id for found in within(given) if isinstance(found, Reference)}

    assert steps_named_in(given) == planned


def test_what_a_reference_brings_is_not_resolved_again() -> None:
    envelopes: dict[str, Any] = {
        "step-1": {"payload": {"text": "{{step-1.secret}}", "secret": "x"}, "result_pointer": None}
    }

    assert resolve("{{step-1.text}}", envelopes=envelopes, payload_of=BEHIND.get) == "{{step-1.secret}}"


def test_the_steps_that_a_value_refers_to_are_found_at_any_depth() -> None:
    assert steps_named_in({"a": ["{{step-1.x}}", {"b": "see {{step-2.y.0}}"}]}) == {"step-1", "step-2"}
