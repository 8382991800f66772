"""What a wish names exactly goes to the param that it is announced for; what may be meant otherwise changes nothing."""

from typing import Any

import pytest

from apps.plans.announcing import UNFIT, fit
from apps.plans.catalogue import Catalogue
from apps.plans.documents import Plan, PlanStatus
from apps.plans.shapes import WORKER_STEPS
from tests.plans import manifests
from tests.plans.shelf import INTEGER, NUMBER, STRING, UNBARRED, make_plan, offer, shape, tool

OK = shape(ok={"type": "boolean"})
DATE = {"type": "string", "format": "date"}
CHANGING = (
    tool("grant_role", "Grant a role to a user.", shape("user", "role", user=STRING, role=STRING, project=STRING), OK),
    tool(
        "post_message",
        "Post a message to a channel.",
        shape("channel", "message", channel=STRING, message=STRING, thread=STRING),
        OK,
    ),
    tool(
        "transfer_money",
        "Transfer an amount of money from one account to another.",
        shape("amount", "from_account", "to_account", amount=NUMBER, from_account=STRING, to_account=STRING),
        OK,
    ),
    tool(
        "move_file",
        "Move or rename a file from a source path to a target path.",
        shape("source_path", "target_path", source_path=STRING, target_path=STRING),
        OK,
    ),
    tool("create_issue", "Create an issue in a tracker.", shape("title", title=STRING, body=STRING), OK),
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
    tool(
        "ban_user",
        "Ban a user for a number of days.",
        shape("user", "days", user=STRING, days=INTEGER, reason=STRING),
        OK,
    ),
    tool(
        "scale_deployment",
        "Scale a deployment to a number of replicas.",
        shape("deployment_name", "replicas", deployment_name=STRING, replicas=INTEGER),
        OK,
    ),
    tool(
        "purge_logs",
        "Delete log entries of a service older than a number of days.",
        shape("service_name", "days", service_name=STRING, days=INTEGER),
        OK,
    ),
)
GENTLE = (
    tool(
        "find_route",
        "Find a route from an origin to a destination.",
        shape("origin", "destination", origin=STRING, destination=STRING),
        shape(route=STRING),
    ),
    tool(
        "query_orders",
        "Query the orders of a shop by price.",
        shape(min_price=NUMBER, max_price=NUMBER),
        shape(orders={"type": "array"}),
    ),
)
SHOP = Catalogue(
    9,
    (*UNBARRED.tools, *CHANGING, *GENTLE),
    (
        *UNBARRED.offers,
        *(offer(f"w-{one.name}", one, effects=["write"]) for one in CHANGING),
        *(offer(f"w-{one.name}", one) for one in GENTLE),
    ),
)


def calls(plan: Plan) -> list[dict[str, Any]]:
    return [dict(step.params or {}) for step in plan.steps if step.step_type in WORKER_STEPS]


@pytest.mark.parametrize(
    ("intent", "params"),
    [
        ("Grant the role 'admin' to the user 'ann'", {"user": "ann", "role": "admin"}),
        ("Grant the user 'ann' the role 'admin'", {"user": "ann", "role": "admin"}),
        ("Post the message 'hi' to the channel 'ops'", {"channel": "ops", "message": "hi"}),
        (
            "Transfer money to 'Bob' from 'Alice', amount 50",
            {"amount": 50, "from_account": "Alice", "to_account": "Bob"},
        ),
        (
            "Transfer an amount of 50 to account 'Bob' from account 'Alice'",
            {"amount": 50, "from_account": "Alice", "to_account": "Bob"},
        ),
        ("Move to /b/y.txt the file /a/x.txt", {"source_path": "/a/x.txt", "target_path": "/b/y.txt"}),
        ("Move /a/x.txt to /b/y.txt", {"source_path": "/a/x.txt", "target_path": "/b/y.txt"}),
        ("Create an issue with the body 'It crashes' and the title 'Crash'", {"title": "Crash", "body": "It crashes"}),
        (
            "Create an event titled 'Party' ending 2026-03-02 and starting 2026-03-01",
            {"title": "Party", "start_date": "2026-03-01", "end_date": "2026-03-02"},
        ),
        ("Replace 'foo' by 'bar' in /x/a.txt", {"path": "/x/a.txt", "old_text": "foo", "new_text": "bar"}),
        ("Drop the table 'users' of the database 'test'", {"table_name": "users", "database": "test"}),
        ("Scale the deployment 'web' to 1,000 replicas", {"deployment_name": "web", "replicas": 1000}),
        ("Find a route to 'Rome' from 'Paris'", {"origin": "Paris", "destination": "Rome"}),
        ("Query orders with a maximum price of 50 and a minimum price of 10", {"min_price": 10, "max_price": 50}),
        ("Query orders under a price of 50", {"max_price": 50}),
    ],
)
def test_a_value_goes_to_the_param_that_its_words_announce(intent: str, params: dict[str, Any]) -> None:
    plan = make_plan(intent, SHOP)

    assert (plan.status, calls(plan)) == (PlanStatus.READY, [params])


@pytest.mark.parametrize(
    "intent",
    [
        "Post 'hi' to 'ops'",
        "Drop the tables 'users' and 'orders'",
        "Drop the table 'users' before 'orders'",
        "Drop the database 'test'",
        "Ban the users 'ann' and 'bob' for 7 days",
        "Scale the deployment 'web' from 5 replicas to 3 replicas",
        "Scale the deployment 'web' by 3 replicas",
        "Delete log entries of service 'web' younger than 30 days",
        "Delete log entries of service 'web' of the last 30 days",
        "Delete /tmp/*.txt",
        "Forward the email from ann@x.example saying 'hi'",
        "Send an email as ann@x.example saying 'hi'",
    ],
)
def test_what_changes_the_world_is_refused_where_a_value_may_be_meant_otherwise(intent: str) -> None:
    plan = make_plan(intent, SHOP)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert plan.missing


@pytest.mark.parametrize(
    ("intent", "expected"),
    [
        (
            "List the files in /srv/app and analyze the sentiment of 'good'",
            [{"path": "/srv/app"}, {"text": "good"}],
        ),
        (
            "Index the PDFs in /docs and list the files in /src",
            [{"path": "/docs", "file_types": ["pdf"]}, {"files": "{{step-1.files}}"}, {"path": "/src"}],
        ),
        (
            "Analyze the sentiment of 'good' and translate 'bad' into French",
            [{"text": "good"}, {"text": "bad", "target_language": "french"}],
        ),
    ],
)
def test_a_param_that_need_not_be_given_takes_nothing_of_other_parts(
    intent: str, expected: list[dict[str, Any]]
) -> None:
    plan = make_plan(intent, UNBARRED)

    said = [
        {name: value for name, value in call.items() if name not in {"language", "recursive"}} for call in calls(plan)
    ]
    assert (plan.status, said) == (PlanStatus.READY, expected)
    assert "french" not in [call.get("language") for call in calls(plan)]


@pytest.mark.parametrize(
    "intent",
    [
        "Index all PDFs in '/srv/my papers/2026' and extract the key concepts",
        'Find the PDFs in "/srv/papers" and index them',
    ],
)
def test_a_path_in_quotes_is_a_path(intent: str) -> None:
    plan = make_plan(intent, manifests.bundled())

    assert plan.status == PlanStatus.READY
    assert [step.tool_name for step in plan.steps if step.params][:2] == ["scan_directory", "index_pdfs"]


def test_words_in_quotes_that_begin_with_a_slash_are_no_path() -> None:
    assert calls(make_plan("Analyze the sentiment of '/shrug whatever'"))[0]["text"] == "/shrug whatever"


def test_a_language_in_quotes_is_taken_where_it_is_announced() -> None:
    (call,) = calls(make_plan("Analyze the codebase at /srv/app with language 'java'", manifests.bundled()))

    assert call == {"repo_path": "/srv/app", "language": "java"}


@pytest.mark.parametrize(
    ("intent", "waits"),
    [
        (
            "Read the text in /srv/a.png, check the licenses of /srv/lib, then delete /srv/a.png",
            {"delete_file": {"read_image_text", "check_licenses"}},
        ),
        (
            "Check the licenses of /srv/a, transcribe /srv/b.mp3, and finally delete /tmp/x.txt",
            {"delete_file": {"check_licenses", None}},
        ),
        (
            "Delete /srv/app/x.py. Then list the files in /srv/app, and check the licenses of /srv/app",
            {"scan_directory": {"delete_file"}, "check_licenses": {"delete_file"}},
        ),
    ],
)
def test_nothing_runs_beside_what_changes_the_world(intent: str, waits: dict[str, set[str | None]]) -> None:
    plan = make_plan(intent, UNBARRED)
    names = {step.step_id: step.tool_name for step in plan.steps}

    found = {
        step.tool_name: {names[above] for above in step.depends_on} for step in plan.steps if step.tool_name in waits
    }
    assert (plan.status, found) == (PlanStatus.READY, waits)


def test_a_param_that_goes_the_other_way_is_unfit_unless_it_is_named() -> None:
    assert fit(("recipient",), ("mail", "from")) == UNFIT
    assert fit(("source",), ("to",)) == UNFIT
    assert fit(("source",), ("to", "the", "source")) > 0
    assert fit(("to", "account"), ("to", "account")) > fit(("from", "account"), ("to", "account"))


@pytest.mark.parametrize(
    ("intent", "types"),
    [
        ("List the PDFs in /srv/papers", ["pdf"]),
        ("Find all PDFs in /srv/papers", ["pdf"]),
        ("Which PDFs are in /srv/papers?", ["pdf"]),
        ("Scan the folder /srv/papers for PDFs", ["pdf"]),
        ("List all python files in /srv/app", ["py"]),
    ],
)
def test_files_of_a_type_are_found_by_what_lists_files(intent: str, types: list[str]) -> None:
    plan = make_plan(intent, manifests.bundled())

    assert (plan.status, [step.tool_name for step in plan.steps if step.params]) == (
        PlanStatus.READY,
        ["scan_directory"],
    )
    assert calls(plan)[0]["file_types"] == types
