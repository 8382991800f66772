"""What becomes of a proposal: workers, order, the four answers, and the way back from a document to a proposal."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.plans.assembling import draft_of
from apps.plans.catalogue import Catalogue
from apps.plans.documents import Plan, canonical, next_step
from apps.plans.proposals import Evidence, Lack, Missing, Value
from apps.plans.validation import validate
from tests.plans.making import (
    ANALYZE,
    EXTRACT,
    FULL,
    INDEX,
    MAIL,
    OFFERS,
    PAGE,
    REMOVE,
    RESIZE,
    SCAN,
    SENTIMENT,
    STRING,
    TRANSLATE,
    UNBARRED,
    assembled,
    call,
    flagship,
    make_plan,
    make_proposal,
    offer,
    shape,
    tool,
    translation,
)


def steps_of(made: Plan) -> list[tuple[Any, ...]]:
    return [(step.step_type, step.tool_name, step.depends_on) for step in made.steps]


def test_queued_result_is_waited_for_before_it_is_used() -> None:
    made = make_plan()

    assert made.status == "ready"
    assert steps_of(made) == [
        ("queue_execution", "analyze_repository", ()),
        ("wait_for", None, ("step-1",)),
        ("call_worker", "suggest_optimizations", ("step-3",)),
        ("aggregate", None, ("step-3", "step-2")),
        ("escalate", None, ("step-4",)),
    ]
    assert made.steps[2].params == {"analysis_pointer": "{{step-1.result_pointer}}"}
    assert (made.scope, made.estimated_total_runtime_seconds) == ("code_analysis", 302)
    assert made.document()["delegation_path"] == ["above"]


def test_provenance_tells_where_each_value_is_from() -> None:
    values: dict[str, Any] = {
        "text": Value(value="hallo", evidence=Evidence.CONTEXT, text="greeting"),
        "target_language": Value(value="French", evidence=Evidence.CHOICE, text="French"),
    }
    first, second = make_plan(call(TRANSLATE, **values), call(SENTIMENT, 1, text="{{step-1.text}}")).steps[:2]

    assert first.document()["provenance"] == {
        "text": {"source": "context", "key": "greeting"},
        "target_language": {"source": "choice", "text": "French"},
    }
    assert second.document()["provenance"] == {"text": {"source": "step", "step_id": "step-1", "path": "text"}}


def test_nothing_runs_beside_a_step_that_changes_something() -> None:
    page, remove = call(PAGE, url="https://example.org"), call(REMOVE, 1, path="/tmp/a")  # noqa: S108
    made = make_plan(page, remove, page.model_copy(update={"clause": 2}), call(SCAN, 3, path="/x"), catalogue=UNBARRED)

    assert [step.depends_on for step in made.steps[:4]] == [(), ("step-1",), ("step-2",), ("step-2",)]
    assert made.can_run_parallel


UNKNOWN = tool("unknown", "Unknown.", shape())

# The four answers.

CUT = Value(value="hello world", evidence=Evidence.CUT, text="hello world")


def test_guess_and_a_near_second_tool_need_a_confirmation_and_are_listed() -> None:
    made = make_plan(call(TRANSLATE, text=CUT, target_language="French")).document()

    assert made["status"] == "needs_confirmation"
    said = 'translate_text takes text = "hello world", from your words.'
    assert made["unsure"] == [{"detail": said, "step_id": "step-1", "param": "text"}]
    assert made["steps"][0]["provenance"]["text"] == {"source": "cut", "text": "hello world"}
    confirmed = 'confirm_plan(plan_id="plan-1"), over REST POST /api/v1/plans/plan-1/confirm.'
    assert next_step(made) == f"{said} Is it right? Then {confirmed}"
    near = translation().model_copy(update={"alternatives": ({"tool_name": "analyze_sentiment"},)})
    doubted = make_plan(near, doubtful=True).document()
    assert doubted["status"] == "needs_confirmation"
    assert doubted["unsure"][0]["detail"] == "translate_text is meant, not analyze_sentiment."


def test_param_that_lacks_or_has_no_exact_form_is_asked_for() -> None:
    asked = make_plan(call(RESIZE, image_path="/a.png")).document()

    assert asked["status"] == "needs_input"
    names = {"question_id": "question-1", "step_id": "step-1", "tool_name": "resize_image", "param": "width"}
    text = "What is “width” for resize_image?"
    assert asked["questions"] == [{**names, "text": text, "schema": {"type": "integer"}}]
    (half,) = asked["partial_plan"]["steps"]
    assert (half["params"], half["missing_params"]) == ({"image_path": "/a.png"}, ["width"])
    told = 'answer_plan(plan_id="plan-1", answers={"question-1": …}), by call_tool, over REST POST /api/v1/plans/plan-1/answer.'
    assert next_step(asked) == f"{text} Tell it with {told}"
    inexact = make_plan(call(SENTIMENT, text=Value(value=2**60, evidence=Evidence.CONTEXT))).document()
    assert "give it as text" in inexact["questions"][0]["text"]
    named = call(RESIZE, image_path="/a.png", width=5).model_copy(update={"missing_params": ("width",)})
    assert make_plan(named).status == "ready"
    some = tool("some", "Some.", {**shape("a", a=STRING), "minProperties": 1})
    assert make_plan(call(some), catalogue=Catalogue(1, (some,), [offer("one", some)])).status == "needs_input"


def test_refusal_says_the_reason_first() -> None:
    missing = (Missing(kind=Lack.CONDITION, detail="“unless” can't be held by a plan"),)
    made = make_plan(call(TRANSLATE, text="good morning"), missing=missing).document()

    assert (made["status"], made["confidence"]) == ("needs_escalation", 0.35)
    assert next_step(made) == "“unless” can't be held by a plan. Change the request."
    assert [one["tool_name"] for one in made["partial_plan"]["steps"]] == ["translate_text"]
    barred = make_plan(call(REMOVE, path="/a")).document()
    assert next_step(barred).endswith("approves it with: manage.py mcp_workers approve janitor --tool delete_file")


@pytest.mark.parametrize(
    ("steps", "kind", "said"),
    [
        (
            (call(REMOVE, path="/a"),),
            "permission",
            "delete_file: janitor may not run this tool: the tier verified does not allow write",
        ),
        ((call(UNKNOWN),), "tool", "No worker offers unknown"),
        ((), "tool", "names nothing that a registered tool does"),
        ((translation(),) * 13, "limit", "12 are the most"),
        ((call(SENTIMENT, text="{{step-2.text}}"), translation()), "limit", "does not depend on step-2"),
        ((call(SENTIMENT, text="ght_0123abcd_" + "a" * 43),), "limit", "no credentials"),
        ((call(SENTIMENT, text="{{step-9.text}}"),), "limit", "No step step-9"),
        ((call(RESIZE, image_path="/a.png", width="wide"),), "limit", '"wide" is not of type "integer"'),
    ],
)
def test_what_no_plan_can_hold_is_refused(steps: tuple[Any, ...], kind: str, said: str) -> None:
    made = assembled(make_proposal(*steps))

    assert made.status == "needs_escalation"
    first = (made.missing or ())[0]
    assert first["kind"] == kind
    assert said in first["detail"]
    assert validate(made, FULL) == []


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [
        ({"budget": {"max_total_cost": 0.015}}, "budget"),
        ({"budget": {"max_cost_per_step": 0.001}}, "budget"),
        ({"timeout_seconds": 1}, "time"),
    ],
)
def test_bounds_are_kept(bounds: dict[str, Any], kind: str) -> None:
    twice = make_proposal(translation("one"), translation("two"))

    assert assembled(twice, budget={"max_total_cost": 0.02}).status == "ready"
    refused = assembled(twice, FULL, **bounds).document()
    assert refused["missing"][0]["kind"] == kind


def test_cheaper_worker_is_taken_where_the_budget_asks_for_it() -> None:
    dear = tuple(replace(one, runs=900, successes=900) if one.worker_id == "polyglot-2" else one for one in OFFERS)
    catalogue = Catalogue(7, FULL.tools, dear)

    def worker(**bounds: Any) -> str | None:
        return assembled(make_proposal(translation()), catalogue, **bounds).steps[0].worker_id

    assert worker() == "polyglot-2"
    assert worker(budget={"max_total_cost": 0.1}) == "polyglot"


def test_worker_without_room_is_passed_over() -> None:
    offers = tuple(replace(one, max_payload_bytes=20) if one.worker_id == "polyglot" else one for one in OFFERS)
    made = make_plan(translation(), catalogue=Catalogue(7, FULL.tools, offers))
    assert (made.status, made.steps[0].worker_id) == ("ready", "polyglot-2")

    tight = Catalogue(7, FULL.tools, tuple(replace(one, max_payload_bytes=20) for one in OFFERS))
    refused = make_plan(translation(), catalogue=tight).document()
    assert "polyglot takes 20 bytes a call" in refused["missing"][0]["detail"]


# From a document back to a draft.


@pytest.mark.parametrize(
    "steps",
    [
        flagship(),
        (
            call(SCAN, path="/x"),
            call(INDEX, 1, files="{{step-1.files}}"),
            call(EXTRACT, 2, index_pointer="{{step-2.index_pointer}}"),
        ),
        (
            call(TRANSLATE, text=CUT, target_language="French"),
            call(MAIL, 1, recipient="a@b.example", body="{{step-1.text}}"),
        ),
        (call(RESIZE, image_path="/a.png"),),
    ],
)
def test_document_read_again_gives_the_same_plan(steps: tuple[Any, ...]) -> None:
    first = make_plan(*steps).document()

    for listed in (first["steps"], first["steps"][::-1]):
        assert canonical(assembled(draft_of({**first, "steps": listed})).document()) == canonical(first)


def test_call_after_an_aggregate_comes_after_what_it_puts_together() -> None:
    document = make_plan(translation("one"), translation("two")).document()
    document["steps"].insert(3, {**document["steps"][0], "step_id": "last", "depends_on": ["step-3"]})

    assert [step.depends_on for step in draft_of(document).steps] == [(), (), ("step-1", "step-2")]


TOOLS = (SENTIMENT, TRANSLATE, PAGE, SCAN, REMOVE, ANALYZE, MAIL)


@given(data=st.data())
def test_any_proposal_gives_a_valid_plan(data: st.DataObject) -> None:
    steps = []
    for place in range(data.draw(st.integers(0, 5))):
        of = data.draw(st.sampled_from(TOOLS))
        values: Mapping[str, st.SearchStrategy[Any]] = {
            name: st.one_of(
                st.text(max_size=5),
                st.integers(-3, 2**55),
                st.integers(1, max(place, 1)).map("{{{{step-{}.text}}}}".format),
                st.builds(Value, value=st.text(max_size=5), evidence=st.sampled_from(Evidence), text=st.just("x")),
            )
            for name in of.inputs
        }
        params = {name: data.draw(found) for name, found in values.items() if data.draw(st.booleans())}
        steps.append(call(of, place, **params))
    plan = make_plan(*steps, catalogue=UNBARRED) if steps else make_plan(missing=())
    made = plan.document()

    assert validate(plan, UNBARRED) == []
    assert made["status"] in {"ready", "needs_confirmation", "needs_input", "needs_escalation"}
    assert next_step(json.loads(json.dumps(made)))
    ids = [step["step_id"] for step in made["steps"]]
    assert all(one != other for one, other in itertools.pairwise(ids))
