"""The judge of plans: every wrong plan that a person or a model could submit is refused by name and place."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.plans.catalogue import Catalogue
from apps.plans.validation import Limits, validate
from tests.plans.shelf import EXAMPLE, FULL, make_plan

Document = dict[str, Any]
FLAGSHIP = "Analyze the Python codebase at /path/to/repo and suggest optimizations"


def good() -> Document:
    return make_plan(FLAGSHIP).document()


def refusals(document: object, **limits: Any) -> set[tuple[str, str]]:
    return {(found.code, found.path) for found in validate(document, FULL, limits=Limits(**limits))}


def changed(change: Callable[[Document], object]) -> Document:
    document = copy.deepcopy(good())
    change(document)
    return document


def step(document: Document, number: int) -> Document:
    found: Document = document["steps"][number]
    return found


CASES: list[tuple[str, str, Callable[[Document], object]]] = [
    ("schema", "", lambda d: d.pop("steps")),
    ("schema", "/confidence", lambda d: d.update(confidence=1.5)),
    ("schema", "/confidence", lambda d: d.update(confidence="high")),
    ("schema", "/steps/0/step_type", lambda d: step(d, 0).update(step_type="teleport")),
    ("schema", "/steps/0", lambda d: step(d, 0).pop("params")),
    ("schema", "", lambda d: step(d, 0)["params"].update(repo_path=2**60)),
    ("duplicate_step", "/steps/2", lambda d: step(d, 1).update(step_id="step-3")),
    ("unknown_step", "/steps/2/depends_on/0", lambda d: step(d, 2).update(depends_on=["step-9"])),
    ("unknown_step", "/steps/1/wait_for_step_ids/0", lambda d: step(d, 1).update(wait_for_step_ids=["step-9"])),
    ("cycle", "/steps/0", lambda d: step(d, 0).update(depends_on=["step-3"])),
    ("unknown_worker", "/steps/0/worker_id", lambda d: step(d, 0).update(worker_id="nobody", fallback_worker_ids=[])),
    ("unknown_tool", "/steps/0/tool_name", lambda d: step(d, 0).update(tool_name="analyze_everything")),
    ("not_eligible", "/steps/0/worker_id", lambda d: step(d, 0).update(worker_id="janitor", tool_name="delete_file")),
    ("not_eligible", "/steps/0/fallback_worker_ids/0", lambda d: step(d, 0).update(fallback_worker_ids=["scribe"])),
    ("tool_changed", "/steps/0/tool_uid", lambda d: step(d, 0).update(tool_uid="0" * 32)),
    ("param_missing", "/steps/0/params/repo_path", lambda d: step(d, 0)["params"].pop("repo_path")),
    ("param_invalid", "/steps/0/params/repo_path", lambda d: step(d, 0)["params"].update(repo_path=5)),
    ("param_unknown", "/steps/0/params/depth", lambda d: step(d, 0)["params"].update(depth=5)),
    (
        "reference_not_upstream",
        "/steps/2/params/analysis_pointer",
        lambda d: step(d, 2).update(depends_on=[]),
    ),
    (
        "reference_not_upstream",
        "/steps/0/params/repo_path",
        lambda d: step(d, 0)["params"].update(repo_path="{{step-3.summary}}"),
    ),
    (
        "reference_unknown_step",
        "/steps/2/params/analysis_pointer",
        lambda d: step(d, 2)["params"].update(analysis_pointer="{{step-7.result_pointer}}"),
    ),
    (
        "reference_unknown_step",
        "/steps/2/params/analysis_pointer",
        lambda d: step(d, 2)["params"].update(analysis_pointer="{{step-2.result_pointer}}"),
    ),
    (
        "reference_unknown_field",
        "/steps/2/params/analysis_pointer",
        lambda d: step(d, 2)["params"].update(analysis_pointer="{{step-1.secrets}}"),
    ),
    (
        "reference_needs_wait",
        "/steps/2/params/analysis_pointer",
        lambda d: step(d, 2).update(depends_on=["step-1"]),
    ),
    (
        "reference_type",
        "/steps/2/params/analysis_pointer",
        lambda d: step(d, 2)["params"].update(analysis_pointer="{{step-1.complexity_score}}"),
    ),
    (
        "reference_malformed",
        "/steps/2/params/analysis_pointer",
        lambda d: step(d, 2)["params"].update(analysis_pointer="{{step-1}}"),
    ),
    (
        "reference_unknown_step",
        "/references/expected_outputs/result_pointers/0",
        lambda d: d["references"]["expected_outputs"].update(result_pointers=["{{step-8.result_pointer}}"]),
    ),
    ("done_nowhere", "/steps/0/done", lambda d: step(d, 0).update(done=True)),
    ("done_nowhere", "/steps/1/done", lambda d: (d.update(replaces="plan-0"), step(d, 1).update(done=True))),
    ("done_too_early", "/steps/2/done", lambda d: (d.update(replaces="plan-0"), step(d, 2).update(done=True))),
    ("wait_for_nothing", "/steps/1/wait_for_step_ids/0", lambda d: step(d, 0).update(step_type="call_worker")),
    ("no_result", "/steps/3/aggregate_step_ids/0", lambda d: step(d, 3).update(aggregate_step_ids=["step-2"])),
    ("no_final_escalate", "/steps/3", lambda d: d["steps"].pop()),
    (
        "secret",
        "/steps/0/params/repo_path",
        lambda d: step(d, 0)["params"].update(repo_path="ght_0123abcd_" + "a" * 43),
    ),
    ("time", "/estimated_total_runtime_seconds", lambda d: d.update(constraints={"timeout_seconds": 0.001})),
    (
        "excluded_worker",
        "/steps/0/worker_id",
        lambda d: d.update(constraints={"exclude_workers": [step(d, 0)["worker_id"]]}),
    ),
    (
        "excluded_worker",
        "/steps/0/fallback_worker_ids/0",
        lambda d: (
            step(d, 0).update(fallback_worker_ids=["code-analyzer-001"]),
            d.update(constraints={"exclude_workers": ["code-analyzer-001"]}),
        ),
    ),
    ("param_invalid", "/steps/2/params/analysis_pointer", lambda d: step(d, 2)["params"].update(analysis_pointer=5)),
    (
        "reference_unknown_step",
        "/steps/4/report_summary",
        lambda d: step(d, 4).update(report_summary="See {{step-9.summary}}"),
    ),
]


def test_a_good_plan_has_no_fault() -> None:
    assert validate(good(), FULL) == []


@pytest.mark.parametrize(("code", "path", "change"), CASES)
def test_each_fault_is_named_with_its_place(code: str, path: str, change: Callable[[Document], object]) -> None:
    assert (code, path) in refusals(changed(change))


def test_a_cycle_is_spelled_out() -> None:
    found = validate(changed(lambda d: step(d, 0).update(depends_on=["step-3"])), FULL)

    assert "step-1" in found[0].message
    assert "step-3" in found[0].message
    assert "->" in found[0].message


def test_limits_are_checked_by_the_offers_not_by_the_plans_word() -> None:
    plan = make_plan("Translate 'good morning' into French").document()
    step(plan, 0)["estimated_cost"] = 0

    assert ("budget", "/steps") in refusals(plan, max_total_cost=0.001)
    assert ("budget", "/steps/0") in refusals(plan, max_cost_per_step=0.001)
    assert ("too_many_steps", "/steps") in refusals(good(), max_steps=2)
    assert ("fan_out", "/steps/0") in refusals(good(), max_fan_out=0)
    assert ("time", "/estimated_total_runtime_seconds") in refusals(good(), max_runtime_seconds=1)


@pytest.mark.parametrize(("bound", "path"), [("max_total_cost", "/steps"), ("max_cost_per_step", "/steps/0")])
def test_a_plan_is_held_to_its_own_budget_even_where_more_is_allowed(bound: str, path: str) -> None:
    document = make_plan("Translate 'good morning' into French").document()

    document["constraints"] = {bound: 0.01}
    assert refusals(document, max_total_cost=5, max_cost_per_step=5) == set()
    document["constraints"] = {bound: 0.001}
    assert refusals(document, max_total_cost=5, max_cost_per_step=5) == {("budget", path)}


def test_a_worker_is_not_sent_more_than_it_takes() -> None:
    offers = tuple(replace(one, max_payload_bytes=20, calls_per_hour=1.0) for one in FULL.offers)
    strict = Catalogue(7, FULL.tools, offers)
    plan = make_plan("Translate 'one' into French, then translate 'two' into German").document()
    for one in plan["steps"]:
        if one["step_type"] == "call_worker":
            one["worker_id"], one["fallback_worker_ids"] = "polyglot", []

    found = {(one.code, one.path) for one in validate(plan, strict)}

    assert found == {("payload", "/steps/0/params"), ("payload", "/steps/1/params"), ("headroom", "/steps/1/worker_id")}


def test_a_worker_that_left_makes_the_plan_invalid() -> None:
    assert {found.code for found in validate(good(), EXAMPLE.without(["code-analyzer-001"]))} == {"not_eligible"}


def test_a_refusal_must_name_what_is_missing() -> None:
    refusal = make_plan("Delete all files from the production server").document()

    assert validate(refusal, FULL) == []
    assert validate({**refusal, "missing": []}, FULL) != []
    assert validate({**good(), "status": "needs_escalation"}, FULL) != []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(document=JSON)
def test_any_json_gets_a_verdict(document: object) -> None:
    assert validate(document, FULL) != []


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_member_replaced_by_anything_gets_a_verdict(data: st.DataObject) -> None:
    document = copy.deepcopy(good())
    place = document if data.draw(st.booleans()) else step(document, data.draw(st.integers(0, 4)))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)

    for found in validate(document, FULL):
        assert found.code
        assert found.message
