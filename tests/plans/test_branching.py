"""What a request names alike is planned for one by one: no value is left out, and nothing is done that was not asked for."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from apps.plans.clauses import read
from apps.plans.documents import Plan, PlanStatus
from apps.plans.planner import Done, Revision
from apps.plans.shapes import WORKER_STEPS
from tests.plans.shelf import UNBARRED, make_plan

SENTIMENTS = "Analyze the sentiment of 'great stuff' and 'what a pity'"
CONCEPTS = "Index the PDFs in /lib/a and /lib/b and extract the key concepts"


def calls(plan: Plan) -> list[tuple[str | None, dict[str, Any]]]:
    return [(step.tool_name, dict(step.params or {})) for step in plan.steps if step.step_type in WORKER_STEPS]


def given(plan: Plan, param: str) -> list[Any]:
    return [params[param] for _, params in calls(plan) if param in params]


@pytest.mark.parametrize(
    ("intent", "param", "values"),
    [
        (SENTIMENTS, "text", ["great stuff", "what a pity"]),
        ("What is the sentiment of 'meh', 'wow' and 'ugh'?", "text", ["meh", "wow", "ugh"]),
        ("Analyze the sentiment of 'good' and the sentiment of 'bad'", "text", ["good", "bad"]),
        ("List the files in /srv/one, /srv/two and in /srv/three", "path", ["/srv/one", "/srv/two", "/srv/three"]),
        (
            "Fetch https://example.org/a and https://example.org/b",
            "url",
            ["https://example.org/a", "https://example.org/b"],
        ),
        ("Translate 'good night' into Danish, Dutch and Greek", "target_language", ["danish", "dutch", "greek"]),
        ("Translate 'yes' and 'no' into French and German", "text", ["yes", "yes", "no", "no"]),
        ("Translate 'good' and 'good' into French", "text", ["good"]),
    ],
)
def test_each_value_that_is_named_alike_has_a_call_of_its_own(intent: str, param: str, values: list[str]) -> None:
    plan = make_plan(intent, UNBARRED)

    assert plan.status == PlanStatus.READY, plan.missing
    assert given(plan, param) == values
    assert not any("uses" in said for said in plan.assumptions)


def test_calls_that_change_nothing_may_run_beside_each_other_and_come_together_in_one_answer() -> None:
    plan = make_plan(SENTIMENTS, UNBARRED)

    first, second, together, _ = plan.steps
    assert (first.depends_on, second.depends_on, second.order_hint) == ((), (), None)
    assert together.aggregate_step_ids == (first.step_id, second.step_id)
    assert plan.can_run_parallel


def test_what_goes_on_from_a_call_goes_on_from_each() -> None:
    plan = make_plan(CONCEPTS, UNBARRED)

    assert given(plan, "path") == ["/lib/a", "/lib/b"]
    assert given(plan, "files") == ["{{step-1.files}}", "{{step-2.files}}"]
    indexed = [step.step_id for step in plan.steps if step.tool_name == "index_pdfs"]
    assert given(plan, "index_pointer") == [f"{{{{{step_id}.index_pointer}}}}" for step_id in indexed]


def test_what_is_said_to_come_after_comes_after_all_of_the_calls() -> None:
    plan = make_plan("List the files in /srv/a and /srv/b, then translate 'done' into Czech", UNBARRED)

    first, second, last, *_ = plan.steps
    assert last.tool_name == "translate_text"
    assert last.depends_on == (first.step_id, second.step_id)


@pytest.mark.parametrize(
    "intent",
    [
        "Email hugo@example.org, with ivy@example.org in copy: 'See you'",
        "Send hugo@example.org the files /data/a.pdf and /data/b.pdf",
        "Delete the files in /data/a and /data/b",
        "Delete the files /data/a.log and /data/b.log",
        "Delete the files /data/a.log, /data/b.log and /data/c.log, but not /data/b.log",
        "Send an email to ann@example.org and bob@example.org: 'Hello'",
        "List the files in /srv/a, /srv/b and /srv/c, but not in /srv/b",
        "Delete the file /data/a.log and its copy in /data/b.log",
        "Resize /p/a.png and /p/b.png",
        "Fetch https://example.org/a and https://example.org/b and mail them to ann@example.org",
        "Send 'one' and 'two' to ann@example.org",
        "Translate 'good' into French, 'bad' into German",
        "List the files in " + ", ".join(f"/d/{number}" for number in range(20)) + " and /e",
    ],
)
def test_what_is_not_plainly_asked_for_one_by_one_or_too_often_is_refused(intent: str) -> None:
    assert make_plan(intent, UNBARRED).status == PlanStatus.NEEDS_ESCALATION


@pytest.mark.parametrize(
    "intent",
    [
        "Move /a.txt to /b.txt",
        "Look for what differs between /a.txt and /b.txt",
        "Read /a.txt or /b.txt",
        "Read /a.txt and not /b.txt",
        "Read /a.txt and tell ann@example.org",
    ],
)
def test_what_is_named_otherwise_than_side_by_side_is_not_alike(intent: str) -> None:
    assert not any(clause.conjoined for clause in read(intent).clauses)


def successor(plan: Plan, finished: Collection[str]) -> Plan:
    """The plan that takes a plan's place after these steps have run and the first of the others has failed."""
    tools = {tool.uid: tool for tool in UNBARRED.tools}
    ran = [step for step in plan.steps if step.step_type in WORKER_STEPS and step.step_id in finished]
    left = [step for step in plan.steps if step.step_type in WORKER_STEPS and step.step_id not in finished]
    revision = Revision(
        replaces=plan.plan_id,
        number=2,
        after=len(plan.steps),
        done=tuple(
            Done(
                step=replace(
                    step,
                    done=True,
                    depends_on=tuple(one for one in step.depends_on if one in finished),
                    order_hint=None,
                    estimated_cost=None,
                ),
                tool=tools[step.tool_uid or ""],
            )
            for step in ran
        ),
        open_clauses=frozenset(step.clause for step in left if step.clause is not None),
    )
    return make_plan(plan.intent, UNBARRED, revision=revision)


@pytest.mark.parametrize("finished", ["step-1", "step-2"])
def test_a_plan_that_takes_anothers_place_keeps_the_call_that_ran_and_makes_the_other(finished: str) -> None:
    plan = make_plan(SENTIMENTS, UNBARRED)
    after = successor(plan, {finished})

    assert after.status == PlanStatus.READY, after.missing
    assert sorted(given(after, "text")) == ["great stuff", "what a pity"]
    assert [step.step_id for step in after.steps if step.done] == [finished]


@pytest.mark.parametrize(
    "finished", [("step-1", "step-2"), ("step-1", "step-2", "step-3"), ("step-1", "step-2", "step-4")]
)
def test_what_is_left_goes_on_from_each_call_that_ran(finished: tuple[str, ...]) -> None:
    plan = make_plan(CONCEPTS, UNBARRED)
    after = successor(plan, finished)

    assert after.status == PlanStatus.READY, after.missing
    assert sorted(given(after, "files")) == ["{{step-1.files}}", "{{step-2.files}}"]
    assert len(set(given(after, "index_pointer"))) == len(given(plan, "index_pointer"))
    assert {step.step_id for step in after.steps if step.done} == set(finished)


def test_nothing_is_made_twice_where_all_calls_ran() -> None:
    plan = make_plan("Analyze the Python repositories /srv/x and /srv/y and suggest optimizations", UNBARRED)
    ran = [step.step_id for step in plan.steps if step.tool_name == "analyze_repository"]
    after = successor(plan, ran)

    assert after.status == PlanStatus.READY, after.missing
    assert [step.step_id for step in after.steps if step.tool_name == "analyze_repository"] == ran
    assert len(given(after, "analysis_pointer")) == len(ran)


@pytest.mark.parametrize(
    ("intent", "finished"),
    [
        (
            "Fetch https://example.org/a and https://example.org/b and translate them into French",
            {"step-1", "step-2", "step-3"},
        ),
        ("Fetch https://example.org/a and translate it into French and German", {"step-1", "step-2"}),
        ("Read the text in /p/a.png and /p/b.png and translate it into French", {"step-1", "step-2", "step-3"}),
        ("List the files in /srv/a and /srv/b", {"step-1"}),
        ("Translate 'yes' and 'french' into Danish and French", {"step-1", "step-2", "step-3"}),
    ],
)
def test_no_value_is_lost_where_one_of_several_like_calls_is_left(intent: str, finished: set[str]) -> None:
    plan = make_plan(intent, UNBARRED)
    after = successor(plan, finished)

    assert after.status == PlanStatus.READY, after.missing
    assert {step.step_id for step in after.steps if step.done} == finished
    assert all(call in calls(after) for call in calls(plan))


def test_what_has_run_is_not_counted_again_among_the_most_steps() -> None:
    plan = make_plan(
        "Analyze the sentiment of " + ", ".join(f"'text {one}'" for one in range(8)) + " and 'last'", UNBARRED
    )
    after = successor(plan, {f"step-{number}" for number in range(1, 9)})

    assert after.status == PlanStatus.READY, after.missing
    assert sorted(given(after, "text")) == sorted(given(plan, "text"))


def test_what_may_be_meant_as_one_is_told_and_the_plan_is_not_sure() -> None:
    plan = make_plan("Search the web for pages with both 'red' and 'blue'", UNBARRED)

    assert given(plan, "query") == ["red", "blue"]
    assert any("may be meant together" in said for said in plan.assumptions)
    assert plan.confidence <= 0.5
