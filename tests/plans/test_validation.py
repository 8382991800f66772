"""The judge of plans: every wrong plan that a person or a model could submit is refused by name and place."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.plans import validation
from apps.plans.catalogue import Catalogue
from apps.plans.documents import plan_hash
from apps.plans.validation import MAX_PROBLEMS, Problem, parse, validate
from tests.plans.making import FULL, INTEGER, NUMBER, OFFERS, STRING, make_plan, offer, shape, tool, translation

Document = dict[str, Any]


def good() -> Document:
    return make_plan().document()


def refusals(document: Document, **bounds: Any) -> set[tuple[str, str]]:
    document = {**document, "constraints": bounds} if bounds else document
    return {(found.code, found.path) for found in judged(document)}


def judged(document: Any, catalogue: Catalogue = FULL) -> list[Problem]:
    plan, problems = parse(document)
    return problems + (validate(plan, catalogue) if plan else [])


def changed(change: Callable[[Document], object]) -> Document:
    document = copy.deepcopy(good())
    change(document)
    return document


def step(document: Document, number: int) -> Document:
    found: Document = document["steps"][number]
    return found


def at(number: int, **members: Any) -> Callable[[Document], object]:
    return lambda document: step(document, number).update(members)


def params(number: int, **members: Any) -> Callable[[Document], object]:
    return lambda document: step(document, number)["params"].update(members)


def top(**members: Any) -> Callable[[Document], object]:
    return lambda document: document.update(members)


POINTER = "/steps/2/params/analysis_pointer"
PATH = "/steps/0/params/repo_path"


def pointed(to: str) -> Callable[[Document], object]:
    """The plan in which the third step takes this."""
    return params(2, analysis_pointer=to)


CASES: list[tuple[str, str, Callable[[Document], object]]] = [
    ("schema", "", lambda d: d.pop("steps")),
    ("schema", "/confidence", top(confidence=1.5)),
    ("schema", "/confidence", top(confidence="high")),
    ("schema", "/steps/0/step_type", at(0, step_type="teleport")),
    ("schema", "/steps/0", lambda d: step(d, 0).pop("params")),
    ("schema", "", params(0, repo_path=2**60)),
    ("schema", "/steps/1/wait_for_receipts/0", at(1, wait_for_receipts=[""])),
    ("schema", "/steps/0/estimated_cost", at(0, estimated_cost=1e308)),
    ("schema", "/steps/0/estimated_runtime_seconds", at(0, estimated_runtime_seconds=1e308)),
    ("unknown_member", "/steps/4/depends_On", at(4, depends_On=["step-99"])),
    ("unknown_member", "/constraints/max_totl_cost", top(constraints={"max_totl_cost": 0})),
    ("duplicate_step", "/steps/2", at(1, step_id="step-2")),
    ("unknown_step", "/steps/2/depends_on/0", at(2, depends_on=["step-9"])),
    ("unknown_step", "/steps/1/wait_for_step_ids/0", at(1, wait_for_step_ids=["step-9"])),
    ("cycle", "/steps/0", at(0, depends_on=["step-2"])),
    ("cycle", "/steps/0", lambda d: (step(d, 4).pop("depends_on"), step(d, 0).update(depends_on=["step-5"]))),
    ("unknown_worker", "/steps/0/worker_id", at(0, worker_id="nobody")),
    ("unknown_tool", "/steps/0/tool_name", at(0, tool_name="analyze_everything")),
    ("not_eligible", "/steps/0/worker_id", at(0, worker_id="janitor", tool_name="delete_file")),
    ("not_eligible", "/steps/0/worker_id", top(constraints={"exclude_workers": ["code-analyzer-001"]})),
    ("tool_changed", "/steps/0/tool_uid", at(0, tool_uid="0" * 32)),
    ("param_missing", PATH, lambda d: step(d, 0)["params"].pop("repo_path")),
    ("param_missing", "/steps/0/missing_params", at(0, missing_params=["language"])),
    ("param_invalid", PATH, params(0, repo_path=5)),
    ("param_unknown", "/steps/0/params/depth", params(0, depth=5)),
    ("reference_not_upstream", POINTER, at(2, depends_on=[])),
    ("reference_not_upstream", PATH, params(0, repo_path="{{step-2.summary}}")),
    ("reference_unknown_step", POINTER, pointed("{{step-7.result_pointer}}")),
    ("reference_unknown_step", POINTER, pointed("{{step-3.result_pointer}}")),
    ("reference_unknown_step", "/steps/4/report_summary", at(4, report_summary="See {{step-9.summary}}")),
    ("reference_unknown_field", POINTER, pointed("{{step-1.secrets}}")),
    ("reference_unknown_field", POINTER, pointed(f"{{{{step-1.issues.{'9' * 5_000}}}}}")),
    ("reference_needs_wait", POINTER, at(2, depends_on=["step-1"])),
    (
        *("reference_needs_wait", "/steps/3/params/analysis_pointer"),
        lambda d: (
            d["steps"].insert(0, {**step(d, 0), "step_id": "step-0"}),
            step(d, 2).update(wait_for_step_ids=["step-0"]),
            step(d, 3).update(depends_on=["step-1", "step-3"]),
        ),
    ),
    ("reference_type", POINTER, pointed("{{step-1.complexity_score}}")),
    ("reference_malformed", POINTER, pointed("{{step-1}}")),
    ("done_nowhere", "/steps/0/done", at(0, done=True)),
    ("done_nowhere", "/steps/1/done", lambda d: (d.update(replaces="plan-0"), step(d, 1).update(done=True))),
    ("wait_for_nothing", "/steps/1/wait_for_step_ids/0", at(0, step_type="call_worker")),
    ("no_result", "/steps/3/aggregate_step_ids/0", at(3, aggregate_step_ids=["step-3"])),
    ("no_final_escalate", "/steps/3", lambda d: d["steps"].pop()),
    ("status", "/steps", top(status="needs_escalation")),
    ("secret", "/steps/0/params", params(0, repo_path="ght_0123abcd_" + "a" * 43)),
    ("plan_hash", "/plan_hash", top(plan_hash="0" * 64)),
    ("time", "/estimated_total_runtime_seconds", top(constraints={"timeout_seconds": 1})),
]


@pytest.mark.parametrize(("code", "path", "change"), CASES)
def test_fault_is_named_with_its_place(code: str, path: str, change: Callable[[Document], object]) -> None:
    assert (code, path) in refusals(changed(change))


def test_good_plan_has_no_fault_and_its_hash_and_estimates_are_optional() -> None:
    document = good()
    assert judged(document) == []
    assert judged({**document, "plan_hash": plan_hash(document)}) == []
    for name in ("estimated_total_runtime_seconds", "execution_cost_estimate", "can_run_parallel"):
        document.pop(name, None)
    for one in document["steps"]:
        one.pop("estimated_runtime_seconds", None)
        one.pop("estimated_cost", None)
    assert judged(document) == []


CLOSED = {"type": "object", "additionalProperties": False}
POINT = {"type": "object", "properties": {"x": NUMBER, "label": STRING}}
READ = tool(
    "read",
    "Read.",
    shape(),
    {
        **shape(text=STRING, number=INTEGER, spots={"type": "array", "items": {"$ref": "#/$defs/spot"}}, centre=POINT),
        "$defs": {"spot": POINT},
    },
)
WRITE = tool(
    "write",
    "Write.",
    {
        **CLOSED,
        "properties": {
            "colour": {"enum": ["red", "blue", None]},
            "size": {"const": 5},
            "map": {"type": "object", "additionalProperties": {}},
            "inner": {**CLOSED, "properties": {"title": STRING}},
            "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
            "style": {"type": "object", "properties": {"width": INTEGER}, "additionalProperties": STRING},
            "one_of_two": {"anyOf": [{"type": "object", "properties": {"n": INTEGER}}, {"type": "null"}]},
            "either": {
                "anyOf": [
                    {**CLOSED, "properties": {"kind": {"const": "a"}, "n": INTEGER}, "required": ["kind", "n"]},
                    {**CLOSED, "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
                ]
            },
        },
        "$defs": {"point": POINT},
    },
    shape(done={"type": "boolean"}),
)
EITHER = tool(
    "either",
    "Either.",
    {
        "type": "object",
        "oneOf": [
            {**CLOSED, "properties": {"a": INTEGER}, "required": ["a"]},
            {**CLOSED, "properties": {"b": STRING}, "required": ["b"]},
        ],
    },
    shape(done={"type": "boolean"}),
)
DESK = Catalogue(1, (READ, WRITE, EITHER), [offer("clerk", of) for of in (READ, WRITE, EITHER)])


def desk(params: Document, tool_name: str = "write") -> list[tuple[str, str]]:
    """The faults of a plan that reads something and calls a tool with these params."""
    head = dict.fromkeys(("plan_id", "delegate_id", "principal_ai", "intent", "scope"), "x")
    worker = {"step_type": "call_worker", "worker_id": "clerk"}
    steps = [
        {**worker, "step_id": "step-1", "tool_name": "read", "params": {}},
        {**worker, "step_id": "step-2", "tool_name": tool_name, "params": params, "depends_on": ["step-1"]},
        {"step_id": "end", "step_type": "escalate", "report_summary": "Done.", "decision_required": False},
    ]
    document = {**head, "created_at": "2026-01-03T22:00:00Z", "steps": steps}
    return [(found.code, found.path.removeprefix("/steps/1/params")) for found in judged(document, DESK)]


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"points": [{"x": "{{step-1.centre.label}}"}]}, "/points/0/x"),
        ({"points": ["{{step-1.centre.x}}"]}, "/points/0"),
        ({"points": "{{step-1.centre}}"}, "/points"),
        ({"style": {"width": "{{step-1.spots.0.label}}"}}, "/style/width"),
        ({"style": {"colour": "{{step-1.spots.0.x}}"}}, "/style/colour"),
        ({"one_of_two": {"n": "{{step-1.spots}}"}}, "/one_of_two/n"),
        ({"colour": "{{step-1.number}}"}, "/colour"),
        ({"size": "{{step-1.text}}"}, "/size"),
    ],
)
def test_reference_must_have_the_type_of_its_member(params: dict[str, Any], path: str) -> None:
    assert desk(params) == [("reference_type", path)]


@pytest.mark.parametrize(
    "params",
    [
        {"points": ["{{step-1.centre}}", "{{step-1.spots.1}}", {"x": "{{step-1.spots.0.x}}"}]},
        {"style": {"colour": "{{step-1.centre.label}}"}, "one_of_two": {"n": 1, "m": "plain"}},
        {"colour": "{{step-1.text}}", "size": "{{step-1.number}}", "either": {"kind": "{{step-1.text}}"}},
        {"map": {"{{name}}": "{{step-1.text}}"}},
    ],
)
def test_reference_of_the_right_type_is_no_fault(params: dict[str, Any]) -> None:
    assert desk(params) == []


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        ({"points": ["{{step-1.centre.z}}"]}, ("reference_unknown_field", "/points/0")),
        ({"map": {"{{step-1.text}}": 1}}, ("reference_malformed", "/map/{{step-1.text}}")),
        ({"map": {"to {{step-1.text}}": {"x": 1}}}, ("reference_malformed", "/map/to {{step-1.text}}")),
        ({"zz": "{{step-1.text}}"}, ("param_unknown", "/zz")),
        ({"inner": {"y": 1}}, ("param_invalid", "/inner")),
        ({"either": {"kind": "c"}}, ("param_invalid", "/either")),
    ],
)
def test_fault_within_params_is_named_once(params: Document, fault: tuple[str, str]) -> None:
    assert desk(params) == [fault]


def test_choice_of_a_whole_schema_is_judged_unless_it_holds_a_reference() -> None:
    assert desk({"b": "{{step-1.text}}"}, "either") == []
    assert desk({"a": 1, "b": "plain"}, "either")


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        (at(0, tool_name="analyse_repository"), " Did you mean analyze_repository?"),
        (params(0, langauge="python"), " Did you mean language?"),
        (at(0, worker_id=None), "The step names no worker."),
    ],
)
def test_wrong_name_is_told_with_the_right_one(change: Callable[[Document], object], meant: str) -> None:
    assert next(found.message for found in judged(changed(change))).endswith(meant)


def test_only_the_shape_is_told_where_it_is_wrong() -> None:
    document = changed(at(0, tool_name="nothing"))
    document["confidence"] = "high"
    del document["intent"]

    assert refusals(document) == {("schema", "/confidence"), ("schema", "")}


def test_limits_are_checked_by_the_offers() -> None:
    plan = make_plan(translation()).document()
    step(plan, 0)["estimated_cost"] = 0

    assert ("budget", "/steps") in refusals(plan, budget={"max_total_cost": 0.001})
    assert ("budget", "/steps/0") in refusals(plan, budget={"max_cost_per_step": 0.001})
    step(plan, 0)["estimated_cost"] = 7
    assert ("budget", "/steps/0") in refusals(plan, budget={"max_cost_per_step": 5})
    report, many = step(good(), 4), good()
    many["steps"] += [{**report, "step_id": f"report-{number}"} for number in range(60)]
    assert ("too_many_steps", "/steps") in refusals(many)


def test_payload_and_rate_of_a_worker_are_checked() -> None:
    offers = tuple(replace(one, max_payload_bytes=20, calls_per_hour=1.0) for one in OFFERS)
    strict = Catalogue(7, FULL.tools, offers)
    plan = make_plan(translation("one"), translation("two")).document()
    for one in plan["steps"]:
        if one["step_type"] == "call_worker":
            one["worker_id"] = "polyglot"

    found = {(one.code, one.path) for one in judged(plan, strict)}

    assert found == {("no_room", "/steps/0/worker_id"), ("no_room", "/steps/1/worker_id")}
    often = tuple(replace(one, calls_per_hour=1.0) for one in OFFERS)
    assert {one.path for one in judged(plan, Catalogue(7, FULL.tools, often))} == {"/steps/1/worker_id"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=300)
@given(document=JSON)
def test_any_json_gets_a_verdict(document: object) -> None:
    assert judged(document) != []


@settings(max_examples=300)
@given(data=st.data())
def test_any_replaced_member_gets_a_verdict(data: st.DataObject) -> None:
    document = copy.deepcopy(good())
    place = document if data.draw(st.booleans()) else step(document, data.draw(st.integers(0, 4)))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)

    for found in judged(document):
        assert found.code
        assert found.message


def test_search_for_faults_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for, document = itertools.count(), good()
    monkeypatch.setattr(validation, "_RULES", (lambda _: (Problem("", "fault", str(one)) for one in looked_for),))

    assert len(judged(document)) == MAX_PROBLEMS
    assert next(looked_for) == MAX_PROBLEMS
