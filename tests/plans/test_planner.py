"""The planner as a pure function: plans, refusals, and the same bytes for the same request."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from apps.core.lexical import words
from apps.plans import lexicon
from apps.plans.catalogue import Catalogue
from apps.plans.documents import PlanStatus, canonical, plan_hash
from apps.plans.offers import Priority
from apps.plans.validation import Limits, validate
from tests.plans.registries import bundled
from tests.plans.shelf import (
    ANALYZE,
    EXAMPLE,
    EXAMPLE_OFFERS,
    EXAMPLE_TOOLS,
    FULL,
    INTEGER,
    STRING,
    TRANSLATE,
    UNBARRED,
    make_plan,
    offer,
    shape,
    tool,
)
from tests.plans.wishes import (
    BUNDLED_SERVED,
    HELD_BACK,
    HELD_OUT_SERVED,
    HELD_OUT_UNSERVED,
    INTRODUCED,
    LAST_HELD_OUT_SERVED,
    LAST_MET_SERVED,
    LAST_UNSERVED,
    LATER_SERVED,
    LATER_UNSERVED,
    MET_SERVED,
    MET_UNSERVED,
    PLAIN,
    QUALIFIED,
    REFUSED,
    RULED_OUT,
    SERVED,
    UNPLAIN,
)

TRANSLATORS = [one for one in FULL.offers if one.tool_uid == TRANSLATE.uid]


FLAGSHIP = "Analyze the Python codebase at /path/to/repo and suggest optimizations"


def test_example_request_becomes_its_five_steps() -> None:
    plan = make_plan(FLAGSHIP, EXAMPLE, context={"language": "python", "priority": "high"})

    document = plan.document()
    assert plan.status == PlanStatus.READY
    assert [step.step_type for step in plan.steps] == [
        "queue_execution",
        "wait_for",
        "call_worker",
        "aggregate",
        "escalate",
    ]
    first, wait, third, aggregate, last = document["steps"]
    assert (first["worker_id"], first["tool_name"]) == ("code-analyzer-001", "analyze_repository")
    assert first["params"] == {"repo_path": "/path/to/repo", "language": "python"}
    assert wait["wait_for_step_ids"] == ["step-1"]
    assert third["params"] == {"analysis_pointer": "{{step-1.result_pointer}}"}
    assert third["depends_on"] == ["step-2"]
    assert (aggregate["aggregate_step_ids"], aggregate["executor"]) == (["step-1", "step-3"], "principal")
    assert last["decision_required"] is False
    assert document["can_run_parallel"] is False
    assert document["references"]["expected_outputs"]["result_pointers"] == [
        "{{step-1.result_pointer}}",
        "{{step-3.result_pointer}}",
    ]
    assert document["confidence"] >= 0.7


def test_fast_tool_is_called_directly() -> None:
    plan = make_plan("Analyze sentiment of this text: 'AsyncGate is amazing!'", context={"language": "english"})

    assert [step.step_type for step in plan.steps] == ["call_worker", "escalate"]
    assert plan.steps[0].params == {"text": "AsyncGate is amazing!", "language": "english"}
    assert plan.estimated_total_runtime_seconds == 2


def test_missing_input_comes_from_a_step_before() -> None:
    intent = "Index all PDFs in F:/Documents, extract key concepts, and generate summary"
    plan = make_plan(intent, context={"file_types": ["pdf"], "path": "F:/Documents"})

    worker_steps = {step.tool_name: step for step in plan.steps if step.tool_name}
    assert list(worker_steps) == ["scan_directory", "index_pdfs", "extract_concepts"]
    assert worker_steps["scan_directory"].params == {"path": "F:/Documents", "file_types": ["pdf"]}
    assert worker_steps["index_pdfs"].params == {"files": "{{step-1.files}}"}
    assert worker_steps["extract_concepts"].params == {"index_pointer": "{{step-2.index_pointer}}"}
    aggregate = next(step for step in plan.steps if step.step_type == "aggregate")
    assert "generate summary" in (aggregate.synthesis_instructions or "")


@pytest.mark.parametrize(("intent", "tools"), SERVED)
def test_request_that_tools_serve_is_planned(intent: str, tools: list[str]) -> None:
    plan = make_plan(intent)

    assert (plan.status, plan.missing) == (PlanStatus.READY, None)
    assert [step.tool_name for step in plan.steps if step.tool_name] == tools
    assert validate(plan.document(), FULL) == []


@pytest.mark.parametrize("intent", REFUSED)
def test_request_that_no_tool_serves_names_what_is_missing(intent: str) -> None:
    plan = make_plan(intent)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert [(step.step_type, step.decision_required) for step in plan.steps] == [("escalate", True)]
    assert plan.missing
    said = set(words(intent))
    for one in plan.missing:
        told = {*words(one["detail"]), *words(one.get("clause", ""))} - lexicon.STOP
        meant = {*said, *words(one.get("tool_name", "")), *words(one.get("param", ""))}
        assert told & meant, f"{one['detail']} names nothing of the request"
    assert validate(plan.document(), FULL) == []


@pytest.mark.parametrize("intent", UNPLAIN)
def test_request_that_is_not_plain_is_refused(intent: str) -> None:
    plan = make_plan(intent, UNBARRED)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert plan.missing
    assert validate(plan.document(), UNBARRED) == []


@pytest.mark.parametrize("intent", RULED_OUT)
def test_prohibition_ends_with_its_sentence(intent: str) -> None:
    plan = make_plan(intent, UNBARRED)

    assert [step.tool_name for step in plan.steps if step.tool_name] == ["scan_directory"]
    assert any("rules out" in assumption for assumption in plan.assumptions)


@pytest.mark.parametrize(("intent", "tools"), PLAIN)
def test_plain_change_is_planned(intent: str, tools: list[str]) -> None:
    plan = make_plan(intent, UNBARRED)

    assert (plan.status, plan.missing) == (PlanStatus.READY, None)
    assert [step.tool_name for step in plan.steps if step.tool_name] == tools


@pytest.mark.parametrize(("wish", "tools"), [*MET_SERVED, *LAST_MET_SERVED, *INTRODUCED])
def test_wish_in_everyday_words_is_served(wish: str, tools: list[str]) -> None:
    assert served_by(wish) == tools


@pytest.mark.parametrize("catalogue", [FULL, UNBARRED], ids=["some barred", "all allowed"])
def test_no_wish_without_a_tool_is_planned(catalogue: Catalogue) -> None:
    wishes = [*MET_UNSERVED, *HELD_OUT_UNSERVED, *LATER_UNSERVED, *LAST_UNSERVED]

    assert [wish for wish in wishes if make_plan(wish, catalogue).status == PlanStatus.READY] == []


def test_qualifier_that_a_tool_takes_is_a_param() -> None:
    takes = shape("repo_path", repo_path=STRING, platform={"type": "string", "enum": ["windows", "linux"]})
    runner = tool("run_tests", "Run the tests of a project in a container.", takes, shape(failures=INTEGER))
    catalogue = Catalogue(4, (runner,), (offer("runner", runner, effects=["exec"]),))

    taken = make_plan("Run the tests of /srv/app on Windows in a container", catalogue)
    refused = make_plan("Run the tests of /srv/app on Solaris in a container", catalogue)

    assert taken.steps[0].params == {"repo_path": "/srv/app", "platform": "windows"}
    assert refused.status == PlanStatus.NEEDS_ESCALATION


@pytest.mark.parametrize(("wish", "tools"), BUNDLED_SERVED)
def test_wish_goes_to_the_tool_that_does_it(wish: str, tools: list[str]) -> None:
    assert served_by(wish, bundled(), context={"file_types": ["pdf"]}) == tools


def test_same_call_is_made_once_unless_something_changed() -> None:
    twice = (
        "Resize the image /tmp/a.png to a width of 300 pixels and resize the image /tmp/a.png to a width of 300 pixels"
    )
    assert served_by(twice) == ["resize_image"]
    again = "List the files in /tmp, delete the file /tmp/a.txt and list the files in /tmp"
    assert served_by(again) == ["scan_directory", "delete_file", "scan_directory"]


@pytest.mark.parametrize("wishes", [HELD_OUT_SERVED, [*LATER_SERVED, *LAST_HELD_OUT_SERVED]], ids=["held out", "later"])
def test_three_of_four_unseen_wishes_are_served_and_none_wrongly(wishes: list[tuple[str, list[str]]]) -> None:
    outcomes = {wish: (served_by(wish), tools) for wish, tools in wishes}

    assert [wish for wish, (found, tools) in outcomes.items() if found not in (None, tools)] == []
    assert sum(found == tools for found, tools in outcomes.values()) >= 0.75 * len(wishes)


@pytest.mark.parametrize(("wish", "unheard"), QUALIFIED)
def test_change_with_an_unknown_qualifier_is_refused(wish: str, unheard: str) -> None:
    plan = make_plan(wish, UNBARRED)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert any(f"takes nothing that says {unheard!r}" in one["detail"] for one in plan.missing or ())


def test_of_wishes_that_are_held_back_none_is_planned() -> None:
    assert [wish for wish in HELD_BACK if served_by(wish) is not None] == []


def served_by(wish: str, catalogue: Catalogue = UNBARRED, **more: Any) -> list[str] | None:
    """The tools of the plan for a wish, everything allowed; None: it is refused."""
    plan = make_plan(wish, catalogue, **more)
    return [step.tool_name for step in plan.steps if step.tool_name] if plan.status == PlanStatus.READY else None


@pytest.mark.parametrize(
    "intent",
    [
        pytest.param("and " * 5_000, id="and"),
        pytest.param(", " * 10_000, id="commas"),
        pytest.param("a" + " " * 19_998 + "b", id="gap"),
        pytest.param(" \n" * 10_000, id="lines"),
        pytest.param("for " * 5_000, id="for"),
        pytest.param("how " * 5_000, id="how"),
        pytest.param("a+" * 9_999 + "@", id="address"),
        pytest.param("a@" + "-a" * 9_999, id="host"),
        pytest.param("a\\b" * 6_000, id="name"),
        pytest.param("1" * 19_999 + "a", id="number"),
    ],
)
def test_longest_senseless_request_is_refused(intent: str) -> None:
    assert make_plan(intent, UNBARRED).status == PlanStatus.NEEDS_ESCALATION


def test_refusal_has_the_partial_plan() -> None:
    plan = make_plan("Analyze the codebase at /srv/app and deploy it")

    assert plan.partial_plan is not None
    assert [step["tool_name"] for step in plan.partial_plan["steps"]] == ["analyze_repository"]
    assert plan.missing is not None
    assert plan.missing[0]["clause"] == "deploy it"


def test_path_that_no_step_uses_is_a_refusal() -> None:
    plan = make_plan("Scan the directory /a, which is a copy of /b but for /c")

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert plan.missing is not None
    assert [one["detail"] for one in plan.missing] == ["No step would use /b.", "No step would use /c."]


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("/srv/app", "/srv/app"),
        ('"/srv/my app"', "/srv/my app"),
        ("'/srv/größe/ü b'", "/srv/größe/ü b"),
        ("/home/jörg/Übungen", "/home/jörg/Übungen"),
        ("/srv/my app/source", "/srv/my app/source"),
        ("/srv/my\\ app", "/srv/my app"),
        ("C:\\Users\\me\\repo", "C:\\Users\\me\\repo"),
        ("~/repo", "~/repo"),
        ("./repo", "./repo"),
    ],
)
def test_path_is_read_as_written(written: str, path: str) -> None:
    plan = make_plan(f"Analyze the Python codebase at {written} and suggest optimizations")

    assert plan.steps[0].params == {"repo_path": path, "language": "python"}


@pytest.mark.parametrize(
    ("asked", "kind", "advice"),
    [
        ({"intent": "Translate 'hello' into French", "limits": Limits(max_total_cost=0.0001)}, "budget", "Allow more"),
        ({"intent": FLAGSHIP, "limits": Limits(max_runtime_seconds=0.0001)}, "time", "Allow more"),
        ({"intent": "Analyze the Python codebase"}, "param", "Supply it"),
        ({"intent": "If it rains, list the files in /x"}, "condition", "Change the request."),
    ],
)
def test_refusal_advises_what_helps(asked: dict[str, Any], kind: str, advice: str) -> None:
    plan = make_plan(**asked)

    assert plan.missing is not None
    assert plan.missing[0]["kind"] == kind
    assert f" {advice}" in (plan.steps[0].recommendation or "")


def test_words_of_order_bind_steps() -> None:
    side_by_side = make_plan("Analyze the codebase at /srv/app and search the web for python")
    in_order = make_plan("Analyze the codebase at /srv/app, then search the web for python")

    assert side_by_side.can_run_parallel
    assert not in_order.can_run_parallel


def test_reference_or_credential_is_no_param() -> None:
    for text in ("{{step-1.text}}", "ght_0123abcd_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"):
        plan = make_plan(f"Translate '{text}' into German")

        assert plan.status == PlanStatus.NEEDS_ESCALATION
        assert validate(plan.document(), FULL) == []


def test_budget_exclusions_and_cost_decide_the_worker() -> None:
    intent = "Translate 'good morning' into French"

    assert make_plan(intent).steps[0].worker_id == "polyglot"
    other = make_plan(intent, excluded_workers=frozenset({"polyglot"}))
    assert other.steps[0].worker_id == "polyglot-2"
    refused = make_plan(intent, limits=Limits(max_total_cost=0.001))
    assert refused.status == PlanStatus.NEEDS_ESCALATION
    assert refused.missing is not None
    assert refused.missing[0]["kind"] == "budget"


def ticket_desk(**more: Any) -> Catalogue:
    """One who looks tickets up, by a number of a form of their own."""
    number = {"type": "string", **more}
    desk = tool("find_ticket", "Find a ticket.", shape("ticket_number", ticket_number=number), shape(text=STRING))
    return Catalogue(2, (desk,), (offer("desk", desk),))


@pytest.mark.parametrize("form", [{"examples": ["OPS-1", "DEV-2044"]}, {"pattern": "^[A-Z]+-[0-9]+$"}])
def test_word_of_the_form_in_a_schema_is_the_value(form: dict[str, Any]) -> None:
    plan = make_plan("Find the ticket OPS-77, please", ticket_desk(**form))

    assert plan.steps[0].params == {"ticket_number": "OPS-77"}
    assert plan.steps[0].provenance == {"ticket_number": {"source": "literal", "text": "OPS-77", "clause": 0}}
    assert plan.assumptions == ()


def departments(**more: Any) -> Catalogue:
    """Two who take a part of a wish in plain words, beside all other tools."""
    takes = shape("intent", intent=STRING, **more)
    research = tool("review_literature", "Review the literature on a subject.", takes, shape(summary=STRING))
    code = tool("audit_code", "Audit the code of a service.", takes, shape(summary=STRING))
    offers = (offer("research-dept", research, effects=["write"]), offer("code-dept", code, effects=["write"]))
    return Catalogue(9, (*FULL.tools, research, code), (*FULL.offers, *offers))


def wishes(intent: str, **more: Any) -> dict[str, Any]:
    """What each department is asked for."""
    plan = make_plan(intent, departments(), **more)
    assert plan.missing is None
    return {step.worker_id: (step.params or {})["intent"] for step in plan.steps if step.worker_id}


def test_each_delegate_gets_its_part_and_all_prohibitions() -> None:
    intent = "Review the literature on 'safety', then audit the code of the \"billing\" service without changing it"

    assert wishes(intent) == {
        "research-dept": "Review the literature on 'safety'; without changing it",
        "code-dept": 'audit the code of the "billing" service; without changing it',
    }


def test_intent_param_takes_the_request_or_the_context() -> None:
    announced = "Review the literature with the intent 'find proofs of safety'"
    assert wishes(announced) == {"research-dept": "find proofs of safety"}
    assert wishes("Review the literature on 'safety'", context={"intent": "Only theses"}) == {
        "research-dept": "Only theses"
    }


def translators(**more: Any) -> Catalogue:
    """Two who translate, the cheaper one with a limit of its own."""
    cheap, dear = (replace(one, **(more if one.worker_id == "polyglot" else {})) for one in TRANSLATORS)
    return Catalogue(6, FULL.tools, (*(one for one in FULL.offers if one not in TRANSLATORS), cheap, dear))


def test_worker_with_too_small_a_payload_is_passed_over() -> None:
    intent = "Translate 'good morning' into French"

    assert make_plan(intent, translators(max_payload_bytes=1000)).steps[0].worker_id == "polyglot"
    other = make_plan(intent, translators(max_payload_bytes=20)).steps[0]
    assert (other.worker_id, other.fallback_worker_ids) == ("polyglot-2", ())


def test_worker_gets_no_more_calls_than_its_rate_limit() -> None:
    intent = "Translate 'one' into French, then translate 'two' into German, then translate 'three' into Polish"
    taken = [step.worker_id for step in make_plan(intent, translators(calls_per_hour=2.0)).steps if step.worker_id]
    assert taken == ["polyglot", "polyglot", "polyglot-2"]

    alone = translators(calls_per_hour=2.0).without(["polyglot-2"])
    refused = make_plan(intent, translators(calls_per_hour=2.0), excluded_workers=frozenset({"polyglot-2"}))
    assert refused.missing is not None
    assert [one["kind"] for one in refused.missing] == ["limit"]
    assert validate(refused.document(), alone) == []


def test_budget_is_shared_among_the_steps() -> None:
    quick = replace(TRANSLATORS[1], worker_id="quick", cost=0.5, p50_seconds=0.01, runs=50, successes=50)
    catalogue = Catalogue(6, FULL.tools, (*FULL.offers, quick))
    intent = "Translate 'one' into French, then translate 'two' into German"

    free = make_plan(intent, catalogue, priority=Priority.FAST)
    assert [step.worker_id for step in free.steps if step.worker_id] == ["quick", "quick"]
    bound = make_plan(intent, catalogue, priority=Priority.FAST, limits=Limits(max_total_cost=0.6))
    assert bound.status == PlanStatus.READY
    assert [step.worker_id for step in bound.steps if step.worker_id] == ["quick", "polyglot"]
    tight = make_plan(intent, catalogue, priority=Priority.FAST, limits=Limits(max_cost_per_step=0.1))
    assert [step.worker_id for step in tight.steps if step.worker_id] == ["polyglot", "polyglot"]


def test_budget_is_left_for_a_later_dear_step() -> None:
    quick = replace(TRANSLATORS[1], worker_id="quick", cost=0.5, p50_seconds=0.01, runs=50, successes=50)
    offers = tuple(replace(one, cost=0.3) if one.worker_id == "postman" else one for one in FULL.offers)
    intent = "Translate 'one' into French, then send an email to bob@example.org: 'hello'"

    plan = make_plan(
        intent, Catalogue(6, FULL.tools, (*offers, quick)), priority=Priority.FAST, limits=Limits(max_total_cost=0.6)
    )

    assert plan.missing is None
    assert [step.worker_id for step in plan.steps if step.worker_id] == ["polyglot", "postman"]


def test_nothing_runs_beside_a_change() -> None:
    plan = make_plan("List the files in /data and delete the file /data/x", UNBARRED)

    assert not plan.can_run_parallel
    assert next(step for step in plan.steps if step.tool_name == "delete_file").depends_on == ("step-1",)


def test_writing_tool_is_not_added_to_feed_a_step() -> None:
    intent = "Index the PDFs in /data/papers"
    writes = (
        replace(one, effects=frozenset({"write"})) if one.worker_id == "file-scanner-001" else one
        for one in FULL.offers
    )

    plan = make_plan(intent, Catalogue(6, FULL.tools, tuple(writes)))

    assert [step.tool_name for step in make_plan(intent).steps if step.tool_name] == ["scan_directory", "index_pdfs"]
    assert [(one["kind"], one.get("param")) for one in plan.missing or ()][:1] == [("param", "files")]


def test_observed_runtime_overrides_the_declared_one() -> None:
    slow = replace(EXAMPLE_OFFERS[2], runs=25, successes=25, p50_seconds=9.0, p95_seconds=20.0)
    catalogue = Catalogue(4, EXAMPLE_TOOLS, (slow,))

    plan = make_plan("Analyze the sentiment of 'fine'", catalogue)

    assert [step.step_type for step in plan.steps] == ["queue_execution", "wait_for", "escalate"]
    assert plan.estimated_total_runtime_seconds == 9


def test_equal_workers_are_spread_by_request() -> None:
    offers = tuple(offer(f"analyzer-{number}", ANALYZE, effects=["read"]) for number in range(1000))
    catalogue = Catalogue(5, (ANALYZE,), offers)

    taken = {make_plan(f"Analyze the codebase at /srv/{number}", catalogue).steps[0].worker_id for number in range(20)}

    assert len(taken) > 10


def counter(**more: Any) -> Catalogue:
    """One who counts to a number."""
    number = {"type": "integer", **more}
    count = tool("count_to", "Count to a number.", shape("number", number=number), shape(text=STRING))
    return Catalogue(2, (count,), (offer("counter", count),))


@pytest.mark.parametrize("number", [str(2**53), str(2**60), "1" * 5000, "9" * 400 + ".5"])
def test_inexact_number_of_a_request_is_refused(number: str) -> None:
    plan = make_plan(f"Count to the number {number}", counter())

    assert [one["param"] for one in plan.missing or ()] == ["number"]
    assert validate(plan.document(), counter()) == []


@pytest.mark.parametrize("value", [2**53, -(2**60), [2**60], {"a": 2**63}])
def test_inexact_number_of_the_context_is_refused(value: Any) -> None:
    plan = make_plan("Count to a number", counter(type=["integer", "array", "object"]), context={"number": value})

    assert plan.missing is not None
    assert "no exact form" in plan.missing[0]["detail"]
    assert plan_hash(plan.document())


@pytest.mark.parametrize("more", [{"maximum": 2**63 - 1}, {"default": 10**20}])
def test_schema_with_inexact_numbers_is_left_out_of_a_refusal(more: dict[str, Any]) -> None:
    plan = make_plan("Count to a number", counter(**more))

    assert plan.missing is not None
    assert "schema" not in plan.missing[0]
    assert plan_hash(plan.document())


def test_same_request_gives_the_same_bytes_in_another_process() -> None:
    code = "import sys; from tests.plans.shelf import make_plan; from apps.plans.documents import canonical; sys.stdout.buffer.write(canonical(make_plan(sys.argv[1]).document()))"
    here = canonical(make_plan(FLAGSHIP).document())

    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PATH": ""}
        there = subprocess.run([sys.executable, "-c", code, FLAGSHIP], env=env, check=True, capture_output=True)
        assert there.stdout == here


def test_hash_covers_every_member() -> None:
    document = make_plan(FLAGSHIP).document()

    assert plan_hash({**document, "plan_hash": "x"}) == plan_hash(document)
    assert plan_hash({**document, "scope": "other"}) != plan_hash(document)
