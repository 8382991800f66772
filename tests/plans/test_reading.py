"""How a request is read: which value goes to which param, what has a call of its own, and what is refused."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from apps.plans.catalogue import Catalogue
from apps.plans.documents import Plan, PlanStatus
from apps.plans.planner import Done, Revision
from apps.plans.shapes import WORKER_STEPS
from tests.plans import wishes
from tests.plans.registries import bundled
from tests.plans.shelf import NUMBER, STRING, UNBARRED, make_plan, offer, shape, tool

OK = shape(ok={"type": "boolean"})


DATE = {"type": "string", "format": "date"}


CHANGING = (
    tool(
        "transfer_money",
        "Transfer an amount of money from one account to another.",
        shape("amount", "from_account", "to_account", amount=NUMBER, from_account=STRING, to_account=STRING),
        OK,
    ),
    tool(
        "create_event",
        "Create a calendar event.",
        shape("title", "start_date", title=STRING, start_date=DATE, end_date=DATE),
        OK,
    ),
    tool(
        "replace_text",
        "Replace a text by another in a file.",
        shape("path", "old_text", "new_text", path=STRING, old_text=STRING, new_text=STRING),
        OK,
    ),
    tool("drop_table", "Drop a table of a database.", shape("table_name", table_name=STRING, database=STRING), OK),
    tool("restart_service", "Restart a service.", shape("url", url={"type": "string", "format": "uri"}), OK),
    tool("close_ticket", "Close a ticket.", shape("ticket_id", ticket_id={**STRING, "examples": ["OPS-1"]}), OK),
)
GENTLE = (
    tool("find_orders", "Query the orders of a shop by price.", shape(min_price=NUMBER, max_price=NUMBER), OK),
    tool("lint_rust_code", "Lint Rust code for style.", shape("path", path=STRING), shape(findings={"type": "array"})),
    tool("convert_csv", "Convert a CSV file to JSON.", shape("path", path=STRING), shape(json_pointer=STRING)),
    tool(
        "press_apples",
        "Press the apples of a batch into juice.",
        shape("batch", batch=STRING),
        shape(juice_pointer=STRING),
    ),
    tool(
        "ferment_juice", "Ferment pressed juice.", shape("juice_pointer", juice_pointer=STRING), shape(cider_id=STRING)
    ),
    tool("taste_cider", "Taste the cider.", shape("cider_id", cider_id=STRING), shape(note=STRING)),
)
OFFICE = Catalogue(
    9,
    (*UNBARRED.tools, *CHANGING, *GENTLE),
    (
        *UNBARRED.offers,
        *(offer(f"w-{one.name}", one, effects=["write"]) for one in CHANGING),
        *(offer(f"w-{one.name}", one) for one in GENTLE),
    ),
)


SENTIMENTS = "Analyze the sentiment of 'great stuff' and 'what a pity'"
CONCEPTS = "Index the PDFs in /lib/a and /lib/b and extract the key concepts"


@pytest.mark.parametrize(
    ("intent", "params"),
    [
        (
            "Transfer money to 'Bob' from 'Alice', amount 50",
            {"amount": 50, "from_account": "Alice", "to_account": "Bob"},
        ),
        (
            "Create an event titled 'Party' ending 2026-03-02 and starting 2026-03-01",
            {"title": "Party", "start_date": "2026-03-01", "end_date": "2026-03-02"},
        ),
        ("Replace 'foo' by 'bar' in /x/a.txt", {"path": "/x/a.txt", "old_text": "foo", "new_text": "bar"}),
        ("Drop the table called 'users' of the database 'test'", {"table_name": "users", "database": "test"}),
        ("Query orders with a maximum price of 50 and a minimum price of 10", {"min_price": 10, "max_price": 50}),
        ("Restart the service at https://a.example", {"url": "https://a.example"}),
        ("Close the ticket OPS-77", {"ticket_id": "OPS-77"}),
        ("Delete the file that is stored at '/data/x'", {"path": "/data/x"}),
        ("Index the PDFs /data/a.pdf and /srv/b.pdf", {"files": ["/data/a.pdf", "/srv/b.pdf"]}),
    ],
)
def test_value_goes_to_the_param_that_its_words_name(intent: str, params: dict[str, Any]) -> None:
    plan = make_plan(intent, OFFICE)

    assert (plan.status, [params for _, params in calls(plan)]) == (PlanStatus.READY, [params])


@pytest.mark.parametrize(
    ("intent", "said"),
    [
        *((f"Delete the file {word} /data/x", f"file {word}") for word in ("above", "near", "of", "with", "like")),
        ("Delete the file that replaced /data/x", "that replaced"),
        ("Delete the file named after /data/x", "named after"),
        ("Delete the copy of /data/x", "copy"),
        ("Restart the service behind https://a.example", "behind"),
        ("Run the tests that use /srv/app", "that use"),
        ("Close the ticket that blocks OPS-77", "that blocks"),
        ("Drop the table that replaced 'users'", "that replaced"),
        ("Send an email about bob@example.org: 'hi'", "about"),
        ("Drop the tables 'users' and 'orders'", ""),
        ("Drop the database 'test'", ""),
        ("Delete /tmp/*.txt", ""),
        ("Send an email as ann@x.example saying 'hi'", ""),
    ],
)
def test_change_of_another_thing_than_the_named_one_is_refused(intent: str, said: str) -> None:
    plan = make_plan(intent, OFFICE)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert any(
        set(said.split()) <= set(one["detail"].split(":")[0].replace("'", " ").split()) for one in plan.missing or ()
    )


@pytest.mark.parametrize(
    ("wish", "tools"),
    [
        ("Press the apples of the batch, ferment the juice and give me the cider", ["press_apples", "ferment_juice"]),
        (
            "Press the apples of the batch, then ferment the juice, then taste the cider",
            ["press_apples", "ferment_juice", "taste_cider"],
        ),
        (
            "First press the apples of the batch. Ferment the juice. Taste the cider.",
            ["press_apples", "ferment_juice", "taste_cider"],
        ),
    ],
)
def test_result_of_a_step_is_the_input_of_the_tool_that_names_it(wish: str, tools: list[str]) -> None:
    plan = make_plan(wish, OFFICE, context={"batch": "first"})

    assert (plan.status, [name for name, _ in calls(plan)]) == (PlanStatus.READY, tools)


@pytest.mark.parametrize(
    ("intent", "param", "value"),
    [
        ("Fetch https://example.org/x and email the title to bob@example.org", "body", "{{step-1.title}}"),
        ("Fetch https://example.org/x and email it to bob@example.org", "body", "{{step-1.text}}"),
        ("Transcribe /a/b.mp3 and email the transcript to bob@example.org", "body", "{{step-1.transcript}}"),
        ("Transcribe /a/b.mp3 and email the seconds to bob@example.org", "body", None),
        ("Resize the image /a/b.png to a height of 640 pixels", "width", None),
        ("Translate 'hi' into French or German", "target_language", None),
    ],
)
def test_named_output_is_handed_on_or_missing(intent: str, param: str, value: str | None) -> None:
    plan = make_plan(intent, UNBARRED)

    if value is None:
        assert plan.status == PlanStatus.NEEDS_ESCALATION
        assert param in [one.get("param") for one in plan.missing or ()]
    else:
        assert (plan.status, given(plan, param)[-1]) == (PlanStatus.READY, value)


@pytest.mark.parametrize(
    ("intent", "told"),
    [
        ("Analyze the Java code in /srv/shop", "Java"),
        ("Suggest optimizations for the C++ code in /srv/cpp", "C++"),
        ("Analyze the Python and Scala code in /srv/mix", "Scala"),
        ("Index the HTML documents in /srv/web and extract the key concepts", "HTML"),
        ("Lint the Python code in /srv/x", "Python"),
        ("Convert the JSON file /a/b.json to CSV", "CSV"),
        ("Lint the code in /srv/x/main.py", ".py"),
    ],
)
def test_thing_of_another_kind_than_the_tools_is_refused(intent: str, told: str) -> None:
    plan = make_plan(intent, bundled() if intent.startswith(("Analyze", "Suggest", "Index")) else OFFICE)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert any(f"the request speaks of {told}" in one["detail"] for one in plan.missing or ())


@pytest.mark.parametrize(
    ("intent", "told", "is_sure"),
    [
        ("Analyze the backend code in /srv/x", "the request speaks of backend", True),
        ("List the largest file in /var/data", "'largest'", False),
        ("Index the PDFs in /docs into Elasticsearch", "'elasticsearch'", False),
        ("List the files in /var/data that were changed yesterday", "'yesterday'", True),
        ("List the folders in /srv", "speaks of folders", False),
    ],
)
def test_words_that_no_step_heeds_are_noted(intent: str, told: str, *, is_sure: bool) -> None:
    plan = make_plan(intent, bundled())

    assert plan.status == PlanStatus.READY
    assert [told in said for said in plan.assumptions if told in said] == [True]
    assert is_sure or plan.confidence <= 0.5


def calls(plan: Plan) -> list[tuple[str | None, dict[str, Any]]]:
    return [(step.tool_name, dict(step.params or {})) for step in plan.steps if step.step_type in WORKER_STEPS]


def given(plan: Plan, param: str) -> list[Any]:
    return [params[param] for _, params in calls(plan) if param in params]


@pytest.mark.parametrize(
    ("intent", "param", "values"),
    [
        (SENTIMENTS, "text", ["great stuff", "what a pity"]),
        ("List the files in /srv/one, /srv/two and in /srv/three", "path", ["/srv/one", "/srv/two", "/srv/three"]),
        ("Translate 'yes' and 'no' into French and German", "text", ["yes", "yes", "no", "no"]),
        ("Translate 'good' and 'good' into French", "text", ["good"]),
    ],
)
def test_each_of_several_like_values_has_its_call(intent: str, param: str, values: list[str]) -> None:
    plan = make_plan(intent, UNBARRED)

    assert plan.status == PlanStatus.READY, plan.missing
    assert given(plan, param) == values


def test_chain_goes_on_from_each_call() -> None:
    plan = make_plan(CONCEPTS, UNBARRED)

    assert given(plan, "path") == ["/lib/a", "/lib/b"]
    assert given(plan, "files") == ["{{step-1.files}}", "{{step-2.files}}"]
    indexed = [step.step_id for step in plan.steps if step.tool_name == "index_pdfs"]
    assert given(plan, "index_pointer") == [f"{{{{{step_id}.index_pointer}}}}" for step_id in indexed]


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


@pytest.mark.parametrize(
    "finished", [("step-1", "step-2"), ("step-1", "step-2", "step-3"), ("step-1", "step-2", "step-4")]
)
def test_revision_goes_on_from_each_finished_call(finished: tuple[str, ...]) -> None:
    plan = make_plan(CONCEPTS, UNBARRED)
    after = successor(plan, finished)

    assert after.status == PlanStatus.READY, after.missing
    assert sorted(given(after, "files")) == ["{{step-1.files}}", "{{step-2.files}}"]
    assert len(set(given(after, "index_pointer"))) == len(given(plan, "index_pointer"))
    assert {step.step_id for step in after.steps if step.done} == set(finished)


SERVED = [
    *(wishes.MET_SERVED + wishes.HELD_OUT_SERVED + wishes.LATER_SERVED),
    *(wishes.LAST_MET_SERVED + wishes.LAST_HELD_OUT_SERVED),
]


def notes(plan: Plan) -> list[str]:
    return [said for said in plan.assumptions if "it is done without" in said]


def test_wish_that_is_served_whole_has_no_note() -> None:
    assert [(wish, found) for wish, _ in SERVED if (found := notes(make_plan(wish)))] == []
