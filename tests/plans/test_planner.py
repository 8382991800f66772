"""The planner as a pure function: what it plans, what it refuses, and that the same request gives the same bytes."""

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
from tests.plans import manifests
from tests.plans.intents import PLAIN, REFUSED, RULED_OUT, SERVED, UNPLAIN
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
    HELD_OUT_SERVED,
    HELD_OUT_UNSERVED,
    LAST_HELD_OUT_SERVED,
    LAST_MET_SERVED,
    LAST_UNSERVED,
    LATER_SERVED,
    LATER_UNSERVED,
    MET_SERVED,
    MET_UNSERVED,
)

TRANSLATORS = [one for one in FULL.offers if one.tool_uid == TRANSLATE.uid]
FLAGSHIP = "Analyze the Python codebase at /path/to/repo and suggest optimizations"


def test_the_flagship_intent_becomes_its_five_steps() -> None:
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


def test_a_fast_tool_is_called_directly_and_reported() -> None:
    plan = make_plan("Analyze sentiment of this text: 'AsyncGate is amazing!'", context={"language": "english"})

    assert [step.step_type for step in plan.steps] == ["call_worker", "escalate"]
    assert plan.steps[0].params == {"text": "AsyncGate is amazing!", "language": "english"}
    assert plan.estimated_total_runtime_seconds == 2


def test_a_missing_input_is_looked_for_one_step_back_and_summing_up_is_the_principals() -> None:
    intent = "Index all PDFs in F:/Documents, extract key concepts, and generate summary"
    plan = make_plan(intent, context={"file_types": ["pdf"], "path": "F:/Documents"})

    worker_steps = {step.tool_name: step for step in plan.steps if step.tool_name}
    assert list(worker_steps) == ["scan_directory", "index_pdfs", "extract_concepts"]
    assert worker_steps["scan_directory"].params == {"path": "F:/Documents", "file_types": ["pdf"]}
    assert worker_steps["index_pdfs"].params == {"files": "{{step-1.files}}"}
    assert worker_steps["extract_concepts"].params == {"index_pointer": "{{step-2.index_pointer}}"}
    aggregate = next(step for step in plan.steps if step.step_type == "aggregate")
    assert "generate summary" in (aggregate.synthesis_instructions or "")


def test_there_are_as_many_intents_to_serve_as_the_claim_needs_and_more_to_refuse() -> None:
    assert len({intent for intent, _ in SERVED}) >= 41
    assert len(set(REFUSED)) >= 41


@pytest.mark.parametrize(("intent", "tools"), SERVED)
def test_what_the_tools_can_do_is_planned(intent: str, tools: list[str]) -> None:
    plan = make_plan(intent)

    assert (plan.status, plan.missing) == (PlanStatus.READY, None)
    assert [step.tool_name for step in plan.steps if step.tool_name] == tools
    assert validate(plan.document(), FULL) == []


@pytest.mark.parametrize("intent", REFUSED)
def test_what_no_tool_may_or_can_do_is_refused_with_what_is_missing(intent: str) -> None:
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
def test_what_is_not_plainly_asked_for_is_refused_though_a_tool_could_do_it(intent: str) -> None:
    plan = make_plan(intent, UNBARRED)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert plan.missing
    assert validate(plan.document(), UNBARRED) == []


@pytest.mark.parametrize("intent", RULED_OUT)
def test_a_prohibition_reaches_to_the_end_of_its_sentence_and_no_farther_back(intent: str) -> None:
    plan = make_plan(intent, UNBARRED)

    assert [step.tool_name for step in plan.steps if step.tool_name] == ["scan_directory"]
    assert any("rules out" in assumption for assumption in plan.assumptions)


@pytest.mark.parametrize(("intent", "tools"), PLAIN)
def test_what_is_plainly_asked_for_is_planned_by_those_who_may(intent: str, tools: list[str]) -> None:
    plan = make_plan(intent, UNBARRED)

    assert (plan.status, plan.missing) == (PlanStatus.READY, None)
    assert [step.tool_name for step in plan.steps if step.tool_name] == tools


@pytest.mark.parametrize(("wish", "tools"), [*MET_SERVED, *LAST_MET_SERVED])
def test_wishes_in_everyday_words_are_served(wish: str, tools: list[str]) -> None:
    assert served_by(wish) == tools


def test_of_wishes_that_the_planner_was_not_mended_on_three_in_four_are_served_and_none_wrongly() -> None:
    assert_most_are_served(HELD_OUT_SERVED)


def test_of_wishes_that_were_held_out_until_the_planner_was_mended_on_them_as_many_are_served() -> None:
    assert_most_are_served([*LATER_SERVED, *LAST_HELD_OUT_SERVED])


def assert_most_are_served(wishes: list[tuple[str, list[str]]]) -> None:
    """Three in four by their tools, and none by others."""
    outcomes = {wish: (served_by(wish), tools) for wish, tools in wishes}

    assert [wish for wish, (found, tools) in outcomes.items() if found not in (None, tools)] == []
    assert sum(found == tools for found, tools in outcomes.values()) >= 0.75 * len(wishes)


@pytest.mark.parametrize("catalogue", [FULL, UNBARRED], ids=["some barred", "all allowed"])
def test_of_wishes_that_no_tool_serves_none_is_planned_met_or_not(catalogue: Catalogue) -> None:
    wishes = [*MET_UNSERVED, *HELD_OUT_UNSERVED, *LATER_UNSERVED, *LAST_UNSERVED]

    assert [wish for wish in wishes if make_plan(wish, catalogue).status == PlanStatus.READY] == []


@pytest.mark.parametrize(
    ("wish", "unheard"),
    [
        ("Run the tests of /srv/app on Windows", "windows"),
        ("Run the tests of /srv/app as root", "root"),
        ("Run the tests of /srv/app with coverage", "coverage"),
        ("Run the tests as root in /srv/app", "root"),
        ("Run the tests of /srv/app against the live database", "live database"),
        ("Delete the file /tmp/a.log from Bob's phone", "bob phone"),
        ("Send an email to bob@example.org via Slack: 'hi'", "slack"),
        ("Send bob@example.org a Slack message: 'hi'", "slack"),
        ("Send an email to bob@example.org as Ann: 'hi'", "ann"),
    ],
)
def test_what_qualifies_a_change_and_is_heard_by_no_tool_is_named_as_missing(wish: str, unheard: str) -> None:
    plan = make_plan(wish, UNBARRED)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert [f"takes nothing that says {unheard!r}" in one["detail"] for one in plan.missing or ()] == [True]


@pytest.mark.parametrize(
    "wish",
    [
        "Run the tests for the billing service at /srv/app",
        "Run the tests for our shop in /srv/app, please",
        "Run all the tests in /srv/app",
        "Run the tests in the folder /srv/app for me",
        "Delete the file /tmp/a.log as it is full of nonsense",
        "Run the tests of /srv/app immediately",
        "Send an email to our accountant at ann@example.org: 'The bill is paid'",
        "Send an email to my dear colleague bob@example.org with the text 'See you'",
        "Send ann@example.org an email with the following words: 'See you'",
        "Drop ann@example.org a line: 'thanks for the fish'",
    ],
)
def test_words_that_only_introduce_what_is_named_exactly_or_give_a_reason_qualify_nothing(wish: str) -> None:
    assert served_by(wish) is not None


def test_a_qualifier_that_a_tool_speaks_of_or_takes_is_heard() -> None:
    takes = shape("repo_path", repo_path=STRING, platform={"type": "string", "enum": ["windows", "linux"]})
    runner = tool("run_tests", "Run the tests of a project in a container.", takes, shape(failures=INTEGER))
    catalogue = Catalogue(4, (runner,), (offer("runner", runner, effects=["exec"]),))

    taken = make_plan("Run the tests of /srv/app on Windows in a container", catalogue)
    refused = make_plan("Run the tests of /srv/app on Solaris in a container", catalogue)

    assert taken.steps[0].params == {"repo_path": "/srv/app", "platform": "windows"}
    assert refused.status == PlanStatus.NEEDS_ESCALATION


@pytest.mark.parametrize(
    "wish",
    [
        "Download all images from https://example.org",
        "Fetch every video on https://example.org/a",
        "Resize every image in /pics to 100 pixels",
        "Resize all pictures in /pics/2024 to a width of 100 pixels",
    ],
)
def test_what_is_meant_for_all_of_a_kind_is_not_done_to_one_thing(wish: str) -> None:
    assert served_by(wish) is None


@pytest.mark.parametrize(
    ("wish", "tools"),
    [
        ("Transcribe /a/b.mp3 and email the transcript to ann@example.org", ["transcribe_audio", "send_email"]),
        ("Fetch https://example.org/a and email the text to ann@example.org", ["fetch_webpage", "send_email"]),
        ("Open https://example.org/help and give me the text", ["fetch_webpage"]),
        ("Have a look at the Python project /srv/shop and find problems", ["analyze_repository"]),
        ("Run a sentiment analysis on 'what a dull day'", ["analyze_sentiment"]),
        ("I'd like to see what is in /var/log", ["scan_directory"]),
        ("What does the sign in /tmp/sign.jpg say?", ["read_image_text"]),
        ("Resize the photo /tmp/me.jpg to 200 px", ["resize_image"]),
        ("Read me https://example.org/about", ["fetch_webpage"]),
        ("Google cheap flights to Rome", ["search_web"]),
        ("Search online for the tallest building in Asia", ["search_web"]),
        ("ls /home", ["scan_directory"]),
        ("rm /tmp/a.log", ["delete_file"]),
    ],
)
def test_results_links_places_and_units_are_understood_without_more_words(wish: str, tools: list[str]) -> None:
    assert served_by(wish) == tools


@pytest.mark.parametrize(
    ("wish", "unheard"),
    [
        ("On Windows, run the tests of /srv/app", "windows"),
        ("In the backup, delete the file /tmp/a.log", "backup"),
        ("As root, run the tests of /srv/app", "root"),
        ("With coverage, run the tests of /srv/app", "coverage"),
        ("Via Slack, send an email to bob@example.org: 'hi'", "slack"),
        ("On the server, in the backup, delete the file /tmp/a.log", "server backup"),
        ("Take the file /tmp/a.log from the backup and delete it", "backup"),
        ("Send two emails to bob@example.org: 'hi'", "two"),
        ("Run the tests of /srv/app twice", "twice"),
    ],
)
def test_what_is_said_before_the_verb_or_how_often_qualifies_as_well(wish: str, unheard: str) -> None:
    plan = make_plan(wish, UNBARRED)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert any(f"takes nothing that says {unheard!r}" in one["detail"] for one in plan.missing or ())


@pytest.mark.parametrize(
    "wish",
    [
        "On Friday, send an email to bob@example.org: 'hi'",
        "After lunch, delete the file /tmp/a.log",
        "If you can, delete the file /tmp/a.log",
        "Take the file /tmp/a.log and delete its first line",
        "Before you delete the file /tmp/a.log, ask me",
        "Send 'hi' to Ann, whose boss is bob@example.org",
        "Don't just list the files in /data, delete the file /data/x",
        "Can anybody delete the file /tmp/a.log?",
        "Under no circumstances, delete the file /tmp/a.log",
        "Users must not edit files, only delete the file /tmp/a.log",
        "Run the tests of the project that is no longer in /srv/app",
    ],
)
def test_what_is_said_before_the_verb_may_hold_it_back(wish: str) -> None:
    assert served_by(wish) is None


@pytest.mark.parametrize(
    ("wish", "tools"),
    [
        ("In /srv/app, run the tests", ["run_tests"]),
        ("For the billing service, run the tests in /srv/app", ["run_tests"]),
        ("To bob@example.org, send an email: 'hi'", ["send_email"]),
        ("On the web, search for tea", ["search_web"]),
        ("In German, say 'good morning'", ["translate_text"]),
        ("At the end of the day, list the files in /data", ["scan_directory"]),
        ("If you can, list the files in /data", ["scan_directory"]),
        ("Do not panic, just delete the file /data/x", ["delete_file"]),
        ("Send 'hi' to Ann, whose address is ann@example.org", ["send_email"]),
        ("Send 'hi' to our dear accountant at ann@example.org", ["send_email"]),
        ("Drop an email to ann@example.org that says 'hi'", ["send_email"]),
        ("Run the tests of the project that lies in /srv/app", ["run_tests"]),
        ("Resize /pics/a.png to 300px in width", ["resize_image"]),
        ("Before you list the files in /data, delete the file /data/x", ["delete_file", "scan_directory"]),
    ],
)
def test_what_is_said_before_the_verb_or_only_brings_in_a_name_belongs_to_the_wish(wish: str, tools: list[str]) -> None:
    assert served_by(wish) == tools


def records_desk() -> Catalogue:
    """Tools for one thing each, which take what the thing is called as free text."""
    tools = [
        tool("archive_invoice", "Archive one invoice.", shape(invoice_name=STRING), shape(report=STRING)),
        tool("update_contract", "Update one contract.", shape("name", name=STRING), shape(report=STRING)),
        tool("restart_service", "Restart a service.", shape("service_name", service_name=STRING), shape(report=STRING)),
        tool("lock_account", "Lock an account.", shape(), shape(report=STRING)),
        tool("remove_page", "Remove a page.", shape("file_name", file_name=STRING), shape(report=STRING)),
    ]
    return Catalogue(9, tools, [offer("desk", one) for one in tools])


@pytest.mark.parametrize(
    ("wish", "params"),
    [
        ("Archive the invoice of the Miller account", {"invoice_name": "invoice of the Miller account"}),
        ("Archive the invoice for Tokyo", {"invoice_name": "invoice for Tokyo"}),
        ("Please archive the invoice number 42", {"invoice_name": "invoice number 42"}),
        ("Archive the invoice from last year, please", {"invoice_name": "invoice from last year"}),
        ("Update our contract for Berlin from 2024-05-01", {"name": "contract for Berlin from 2024-05-01"}),
        ("I want the service for Tokyo restarted", {"service_name": "service for Tokyo"}),
    ],
)
def test_a_param_for_a_name_takes_the_data_that_tells_which_thing_is_meant(wish: str, params: dict[str, str]) -> None:
    plan = make_plan(wish, records_desk())

    assert plan.status == PlanStatus.READY
    assert plan.steps[0].params == params


@pytest.mark.parametrize(
    "wish",
    [
        "Archive the invoice of the Miller account on the Tokyo server",
        "Archive the invoice of the Miller account with a note to Ann",
        "Archive the invoice for Tokyo using Excel",
        "Archive the invoice for Tokyo only",
        "Archive the invoice for Tokyo again",
        "Archive the invoice of the Miller account permanently",
        "Archive the invoice of Miller while the server is down",
        "Archive the invoice for Tokyo tomorrow",
        "Archive the invoice for Tokyo on Friday",
        "Archive the invoice from Monday on",
        "Archive the invoice for Tokyo twice",
        "Archive the invoice for 2 hours",
        "Archive the invoice for Tokyo unless Ann objects",
        "Archive every invoice except the one for Tokyo",
        "Archive every invoice of the Miller account",
        "Archive the invoices of the Miller account",
        "Archive the invoice of our best customer",
        "Restart the service as root",
        "Restart the service with Java 17",
        "Restart the service",
        "Lock the account of Ann Miller",
        "Remove the page for Tokyo",
    ],
)
def test_what_no_name_can_hold_still_qualifies(wish: str) -> None:
    assert served_by(wish, records_desk()) is None


@pytest.mark.parametrize(
    ("wish", "tools"),
    [
        ("Have the tests of /srv/app run", ["run_tests"]),
        ("Get the tests of the project in /srv/app run, please", ["run_tests"]),
        ("List, without opening any of them, the files in /data", ["scan_directory"]),
        ("The file /data/x is not needed, please delete it", ["delete_file"]),
        ("The file /data/x can be deleted now, please delete it", ["delete_file"]),
        ("The photo /pics/a.png is ready, resize it to a width of 40 pixels", ["resize_image"]),
        ("Which concepts do the PDFs in /lib talk about?", ["scan_directory", "index_pdfs", "extract_concepts"]),
        ("Transcribe the interview /a/b.mp3 and email the transcript of the interview to ann@example.org", ["transcribe_audio", "send_email"]),
        ("I have the tests of /srv/app run", None),
        ("Have the tests of /srv/app run by Bob", None),
        ("List, without the hidden ones, the files in /data", None),
        ("The file /data/x can be deleted on Friday, please delete it", None),
        ("The file /data/x can be deleted after the backup, so delete it", None),
        ("The file /data/x could be deleted", None),
        ("The file /data/x was wanted by whoever wrote it, delete it", None),
        ("Run the tests of /srv/app without the slow ones", None),
    ],
)  # fmt: skip
def test_a_wish_may_be_put_behind_what_it_is_about_or_be_interrupted(wish: str, tools: list[str] | None) -> None:
    assert served_by(wish) == tools


def test_a_quote_may_hold_an_apostrophe() -> None:
    (step,) = [one for one in make_plan("Translate 'I can't, won't or don't' into French").steps if one.tool_name]

    assert step.params is not None
    assert step.params["text"] == "I can't, won't or don't"


def test_what_is_told_to_have_been_done_is_not_done_again() -> None:
    assert served_by("I have already resized /tmp/a.png to 300 pixels") is None
    assert served_by("I want to have /tmp/a.png resized to a width of 300 pixels") == ["resize_image"]


@pytest.mark.parametrize(("wish", "tools"), BUNDLED_SERVED)
def test_a_tool_that_speaks_of_what_another_does_takes_no_wish_from_it(wish: str, tools: list[str]) -> None:
    assert served_by(wish, manifests.bundled(), context={"file_types": ["pdf"]}) == tools


def test_the_very_same_call_is_made_once_unless_something_may_have_changed_in_between() -> None:
    twice = (
        "Resize the image /tmp/a.png to a width of 300 pixels and resize the image /tmp/a.png to a width of 300 pixels"
    )
    assert served_by(twice) == ["resize_image"]
    again = "List the files in /tmp, delete the file /tmp/a.txt and list the files in /tmp"
    assert served_by(again) == ["scan_directory", "delete_file", "scan_directory"]


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
def test_the_longest_senseless_intent_is_read_to_its_end_and_refused(intent: str) -> None:
    assert make_plan(intent, UNBARRED).status == PlanStatus.NEEDS_ESCALATION


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("Email a.long-name+x.of-some.one@example.org: 'hi'", "a.long-name+x.of-some.one@example.org"),
        ("- Email <bob@example.org>: 'hi'", "bob@example.org"),
        ("Send 'hi' by email to ...bob@example.org", "bob@example.org"),
    ],
)
def test_an_address_is_read_whole(said: str, address: str) -> None:
    (step,) = [step for step in make_plan(said).steps if step.tool_name]

    assert step.params is not None
    assert step.params["recipient"] == address


def test_a_refusal_carries_the_part_that_could_be_planned() -> None:
    plan = make_plan("Analyze the codebase at /srv/app and deploy it")

    assert plan.partial_plan is not None
    assert [step["tool_name"] for step in plan.partial_plan["steps"]] == ["analyze_repository"]
    assert plan.missing is not None
    assert plan.missing[0]["clause"] == "deploy it"


def test_a_path_that_no_step_would_use_makes_the_plan_a_refusal() -> None:
    plan = make_plan("Scan the directory /a, which is a copy of /b but for /c")

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert plan.missing is not None
    assert [one["detail"] for one in plan.missing] == ["No step would use /b.", "No step would use /c."]


def test_what_changes_the_world_acts_only_on_what_its_own_clause_names() -> None:
    plan = make_plan("List the files in /tmp and delete the file", UNBARRED)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert make_plan("Delete the file /data/x", UNBARRED).steps[0].params == {"path": "/data/x"}


def test_what_the_asker_forbids_is_not_planned() -> None:
    plan = make_plan("Analyze the codebase at /srv/app. Do not suggest optimizations.")

    assert [step.tool_name for step in plan.steps if step.tool_name] == ["analyze_repository"]


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
def test_paths_are_read_as_written(written: str, path: str) -> None:
    plan = make_plan(f"Analyze the Python codebase at {written} and suggest optimizations")

    assert plan.steps[0].params == {"repo_path": path, "language": "python"}


def test_a_refusal_is_told_in_whole_sentences() -> None:
    plan = make_plan("Make me a sandwich")

    assert "sandwich. Register a worker that can do it" in (plan.steps[0].recommendation or "")


@pytest.mark.parametrize(
    ("asked", "kind", "advice"),
    [
        ({"intent": "Translate 'hello' into French", "limits": Limits(max_total_cost=0.0001)}, "budget", "Allow more"),
        ({"intent": FLAGSHIP, "limits": Limits(max_runtime_seconds=0.0001)}, "time", "Allow more"),
        ({"intent": "Analyze the Python codebase"}, "param", "Supply it"),
        ({"intent": "If it rains, list the files in /x"}, "condition", "Change the request."),
    ],
)
def test_a_refusal_advises_what_helps_against_it(asked: dict[str, Any], kind: str, advice: str) -> None:
    plan = make_plan(**asked)

    assert plan.missing is not None
    assert plan.missing[0]["kind"] == kind
    assert f" {advice}" in (plan.steps[0].recommendation or "")


def test_a_path_cut_at_a_space_says_so() -> None:
    plan = make_plan("Analyze the Python codebase at /srv/my project and suggest optimizations")

    assert any("Quote a path" in assumption for assumption in plan.assumptions)


def test_independent_wishes_may_run_at_once_and_sequence_words_bind() -> None:
    side_by_side = make_plan("Analyze the codebase at /srv/app and search the web for python")
    in_order = make_plan("Analyze the codebase at /srv/app, then search the web for python")

    assert side_by_side.can_run_parallel
    assert not in_order.can_run_parallel


def test_text_that_reads_as_a_reference_or_a_credential_never_becomes_a_param() -> None:
    for text in ("{{step-1.text}}", "ght_0123abcd_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"):
        plan = make_plan(f"Translate '{text}' into German")

        assert plan.status == PlanStatus.NEEDS_ESCALATION
        assert validate(plan.document(), FULL) == []


def test_what_reads_as_a_reference_is_named_in_a_refusal_though_another_text_could_take_its_place() -> None:
    made = make_plan("Analyze the sentiment of 'x' and translate '{{step-1.sentiment}}' into French", UNBARRED)

    assert made.status == PlanStatus.NEEDS_ESCALATION
    assert [one["kind"] for one in made.missing or () if "{{step-1.sentiment}} reads as" in one["detail"]] == ["param"]


def test_budgets_exclusions_and_cheaper_offers_decide_who_works() -> None:
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
def test_a_word_of_the_form_that_a_schema_shows_is_the_value_and_says_so(form: dict[str, Any]) -> None:
    plan = make_plan("Find the ticket OPS-77, please", ticket_desk(**form))

    assert plan.steps[0].params == {"ticket_number": "OPS-77"}
    assert plan.steps[0].provenance == {"ticket_number": {"source": "literal", "text": "OPS-77", "clause": 0}}
    assert plan.assumptions == ()


@pytest.mark.parametrize(
    "intent", ["Find the ticket ops-77", "Find the tickets OPS-77 or OPS-78", "Find the ticket", "Find the ticket OPS"]
)
def test_of_several_words_of_a_form_or_of_none_nothing_is_guessed(intent: str) -> None:
    for form in ({"examples": ["OPS-1", "DEV-2044"]}, {"pattern": "^[A-Z]+-[0-9]+$"}):
        plan = make_plan(intent, ticket_desk(**form))

        assert plan.missing is not None
        assert [(one["kind"], one.get("param")) for one in plan.missing] == [("param", "ticket_number")]


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


@pytest.mark.parametrize(
    "intent",
    [
        "Review the literature on 'recursive compression', mostly of 2024.",
        "We have a workshop on Friday. Please review the literature on “recursive compression”",
        "Review the literature on `recursive compression`, but do not use preprints",
        "Review the literature in /srv/papers on 'recursive compression' and summarize it",
    ],
)
def test_who_takes_the_whole_request_is_handed_it_in_its_own_words(intent: str) -> None:
    assert wishes(intent) == {"research-dept": intent}


def test_each_of_several_is_handed_its_part_of_the_request_and_all_that_is_ruled_out() -> None:
    intent = "Review the literature on 'safety', then audit the code of the \"billing\" service without changing it"

    assert wishes(intent) == {
        "research-dept": "Review the literature on 'safety'; without changing it",
        "code-dept": 'audit the code of the "billing" service; without changing it',
    }


def test_what_is_announced_as_the_wish_or_stands_in_the_context_is_the_wish() -> None:
    announced = "Review the literature with the intent 'find proofs of safety'"
    assert wishes(announced) == {"research-dept": "find proofs of safety"}
    assert wishes("Review the literature on 'safety'", context={"intent": "Only theses"}) == {
        "research-dept": "Only theses"
    }


def test_a_param_for_the_matter_takes_what_is_quoted_beside_one_for_the_wish() -> None:
    plan = make_plan("Audit the code of the service 'billing'", departments(service_name=STRING))

    assert plan.steps[0].params == {"intent": "Audit the code of the service 'billing'", "service_name": "billing"}


def translators(**more: Any) -> Catalogue:
    """Two who translate, the cheaper one with a limit of its own."""
    cheap, dear = (replace(one, **(more if one.worker_id == "polyglot" else {})) for one in TRANSLATORS)
    return Catalogue(6, FULL.tools, (*(one for one in FULL.offers if one not in TRANSLATORS), cheap, dear))


def test_a_worker_that_takes_less_than_the_payload_is_passed_over() -> None:
    intent = "Translate 'good morning' into French"

    assert make_plan(intent, translators(max_payload_bytes=1000)).steps[0].worker_id == "polyglot"
    other = make_plan(intent, translators(max_payload_bytes=20)).steps[0]
    assert (other.worker_id, other.fallback_worker_ids) == ("polyglot-2", ())


def test_a_worker_is_planned_for_no_more_calls_than_an_hour_has() -> None:
    intent = "Translate 'one' into French, then translate 'two' into German, then translate 'three' into Polish"
    taken = [step.worker_id for step in make_plan(intent, translators(calls_per_hour=2.0)).steps if step.worker_id]
    assert taken == ["polyglot", "polyglot", "polyglot-2"]

    alone = translators(calls_per_hour=2.0).without(["polyglot-2"])
    refused = make_plan(intent, translators(calls_per_hour=2.0), excluded_workers=frozenset({"polyglot-2"}))
    assert refused.missing is not None
    assert [one["kind"] for one in refused.missing] == ["limit"]
    assert validate(refused.document(), alone) == []


def test_of_a_rare_worker_one_call_is_planned_whose_turn_may_take_long() -> None:
    plan = make_plan(
        "Translate 'one' into French", translators(calls_per_hour=0.5), excluded_workers=frozenset({"polyglot-2"})
    )

    assert plan.status == PlanStatus.READY


def test_a_dear_favourite_leaves_enough_of_the_budget_for_what_comes_later() -> None:
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


def test_a_budget_is_left_for_a_later_step_that_nobody_does_for_less() -> None:
    quick = replace(TRANSLATORS[1], worker_id="quick", cost=0.5, p50_seconds=0.01, runs=50, successes=50)
    offers = tuple(replace(one, cost=0.3) if one.worker_id == "postman" else one for one in FULL.offers)
    intent = "Translate 'one' into French, then send an email to bob@example.org: 'hello'"

    plan = make_plan(
        intent, Catalogue(6, FULL.tools, (*offers, quick)), priority=Priority.FAST, limits=Limits(max_total_cost=0.6)
    )

    assert plan.missing is None
    assert [step.worker_id for step in plan.steps if step.worker_id] == ["polyglot", "postman"]


def test_around_what_changes_the_world_nothing_runs_at_once() -> None:
    plan = make_plan("List the files in /data and delete the file /data/x", UNBARRED)

    assert not plan.can_run_parallel
    assert next(step for step in plan.steps if step.tool_name == "delete_file").depends_on == ("step-1",)


def test_what_changes_the_world_never_comes_first_only_to_feed_another_step() -> None:
    intent = "Index the PDFs in /data/papers"
    writes = (
        replace(one, effects=frozenset({"write"})) if one.worker_id == "file-scanner-001" else one
        for one in FULL.offers
    )

    plan = make_plan(intent, Catalogue(6, FULL.tools, tuple(writes)))

    assert [step.tool_name for step in make_plan(intent).steps if step.tool_name] == ["scan_directory", "index_pdfs"]
    assert [(one["kind"], one.get("param")) for one in plan.missing or ()][:1] == [("param", "files")]


@pytest.mark.parametrize(
    ("intent", "files"),
    [
        ("Index the PDF /data/a.pdf", ["/data/a.pdf"]),
        ("Index the PDFs /data/a.pdf and /srv/b.pdf", ["/data/a.pdf", "/srv/b.pdf"]),
        ("Index the PDF '/srv/my papers/a.pdf'", ["/srv/my papers/a.pdf"]),
    ],
)
def test_files_that_a_wish_names_are_listed_by_nobody_else(intent: str, files: list[str]) -> None:
    steps = [step for step in make_plan(intent).steps if step.tool_name]

    assert [(step.tool_name, step.params) for step in steps] == [("index_pdfs", {"files": files})]


def test_a_folder_is_listed_whatever_its_name_ends_in() -> None:
    steps = [step for step in make_plan("Index the PDFs in /srv/v1.2").steps if step.tool_name]

    assert [step.tool_name for step in steps] == ["scan_directory", "index_pdfs"]


@pytest.mark.parametrize("intent", ["Delete the branch of /data/x", "Delete the customer of /data/x"])
def test_what_changes_the_world_is_not_taken_for_another_matter_under_the_same_verb(intent: str) -> None:
    assert make_plan(intent, UNBARRED).status == PlanStatus.NEEDS_ESCALATION


def test_what_was_observed_overrides_what_was_promised() -> None:
    slow = replace(EXAMPLE_OFFERS[2], runs=25, successes=25, p50_seconds=9.0, p95_seconds=20.0)
    catalogue = Catalogue(4, EXAMPLE_TOOLS, (slow,))

    plan = make_plan("Analyze the sentiment of 'fine'", catalogue)

    assert [step.step_type for step in plan.steps] == ["queue_execution", "wait_for", "escalate"]
    assert plan.estimated_total_runtime_seconds == 9


def test_a_thousand_workers_with_one_tool_are_one_candidate_spread_by_intent() -> None:
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
def test_a_number_of_the_request_that_no_plan_tells_exactly_is_refused(number: str) -> None:
    plan = make_plan(f"Count to the number {number}", counter())

    assert [one["param"] for one in plan.missing or ()] == ["number"]
    assert validate(plan.document(), counter()) == []


@pytest.mark.parametrize("value", [2**53, -(2**60), [2**60], {"a": 2**63}])
def test_a_number_of_the_context_that_no_plan_tells_exactly_is_refused_by_name(value: Any) -> None:
    plan = make_plan("Count to a number", counter(type=["integer", "array", "object"]), context={"number": value})

    assert plan.missing is not None
    assert "no exact form" in plan.missing[0]["detail"]
    assert plan_hash(plan.document())


def test_the_largest_exact_number_is_planned() -> None:
    plan = make_plan("Count to a number", counter(), context={"number": 2**53 - 1})

    assert plan.steps[0].params == {"number": 2**53 - 1}


@pytest.mark.parametrize("more", [{"maximum": 2**63 - 1}, {"default": 10**20}])
def test_a_schema_with_numbers_that_no_plan_tells_exactly_is_left_out_of_the_refusal(more: dict[str, Any]) -> None:
    plan = make_plan("Count to a number", counter(**more))

    assert plan.missing is not None
    assert "schema" not in plan.missing[0]
    assert plan_hash(plan.document())


def test_the_same_request_gives_the_same_bytes_in_another_process() -> None:
    code = "import sys; from tests.plans.shelf import make_plan; from apps.plans.documents import canonical; sys.stdout.buffer.write(canonical(make_plan(sys.argv[1]).document()))"
    here = canonical(make_plan(FLAGSHIP).document())

    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PATH": ""}
        there = subprocess.run([sys.executable, "-c", code, FLAGSHIP], env=env, check=True, capture_output=True)
        assert there.stdout == here


def test_the_hash_covers_every_member() -> None:
    document = make_plan(FLAGSHIP).document()

    assert plan_hash({**document, "plan_hash": "x"}) == plan_hash(document)
    assert plan_hash({**document, "scope": "other"}) != plan_hash(document)
