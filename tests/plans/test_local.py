"""The local planner: requests over small sets of tools, and the steps, questions or refusals that it proposes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apps.plans.catalogue import Catalogue, Tool
from apps.plans.local.index import Library
from apps.plans.local.proposing import propose
from apps.plans.proposals import Asked, Evidence, Lack, Proposal, question_for
from benchmarks.suites.planning import answer
from tests.plans.making import FULL, INTEGER, NUMBER, STRING, STRINGS, UNBARRED, offer, shape, tool

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
DAY = {"type": "string", "format": "date"}
MOMENT = {"type": "string", "format": "date-time"}
EMAIL = {"type": "string", "format": "email"}


def choice(*values: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "enum": list(values), **more}


def maybe(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}], "default": None}


def needs(**properties: Any) -> dict[str, Any]:
    return shape(*properties, **properties)


def takes(schema: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {**schema, "properties": {**schema["properties"], **optional}}


TICKET = needs(subject=STRING, text=STRING)
MONEY = needs(from_account=STRING, to_account=STRING, amount=NUMBER)
EXCHANGE = needs(amount=NUMBER, from_currency=STRING, to_currency=STRING)
STATUS = {"status": maybe(choice("open", "pending", "closed")), "limit": {"type": "integer", "default": 20}}
LEVELS = maybe(choice("low", "normal", "urgent"))
WRITING = (
    tool("create_ticket", "Open a new support ticket.", takes(TICKET, level=LEVELS), needs(ticket_id=INTEGER)),
    tool("close_ticket", "Close a ticket.", needs(ticket_id=INTEGER), shape()),
    tool(
        "transfer_money",
        "Transfer money between two accounts.",
        takes(MONEY, currency=choice("EUR", "USD", default="EUR")),
        shape(),
    ),
    tool("book_room", "Book a meeting room.", needs(room=choice("Oslo", "Lima"), start=MOMENT, end=MOMENT), shape()),
    tool("rename_branch", "Rename a branch.", needs(branch=STRING, new_name=STRING), shape()),
    tool("share_file", "Share a file with people.", needs(path=STRING, people={"type": "array", "items": EMAIL})),
    tool(
        "register_guest",
        "Register a guest.",
        takes(needs(first_name=STRING, last_name=STRING), notify_host={"type": "boolean", "default": True}),
    ),
    tool("set_light", "Turn the light of a room on or off.", shape("room", room=STRING, on=maybe({"type": "boolean"}))),
)
READING = (
    tool("get_weather", "Get the weather forecast of a city.", shape("city", city=STRING, days=INTEGER)),
    tool("list_sales", "List the sales of a period.", takes(needs(start_date=DAY, end_date=DAY), limit=INTEGER)),
    tool("list_tickets", "List support tickets.", shape(**STATUS), shape(tickets=STRINGS)),
    tool(
        "list_pull_requests",
        "List the pull requests of a repository.",
        takes(needs(owner=STRING, repo=STRING), state=choice("open", "closed", default="open")),
    ),
    tool("report_hours", "Report the hours worked.", needs(period=choice("this_week", "last_week"))),
    tool(
        "list_loans",
        "List the loans of books.",
        shape(**{name: {"type": "boolean", "default": False} for name in ("include_archived", "hide_drafts")}),
    ),
    tool("convert_currency", "Convert an amount to another currency.", EXCHANGE),
)


def shelved(writing: tuple[Tool, ...], reading: tuple[Tool, ...]) -> Catalogue:
    offers = [offer("desk", one, effects=["write"], tier="trusted") for one in writing]
    return Catalogue(1, (*writing, *reading), [*offers, *(offer("books", one, effects=["read"]) for one in reading)])


OFFICE = shelved(WRITING, READING)


def library_of(catalogue: Catalogue) -> Library:
    library = Library()
    for one in catalogue.tools:
        library.put(one, [found.worker_id for found in catalogue.offers_of(one.uid)])
    return library


LIBRARIES = {id(catalogue): library_of(catalogue) for catalogue in (OFFICE, FULL, UNBARRED)}


def ask(intent: str, catalogue: Catalogue = OFFICE, **more: Any) -> Proposal:
    library = LIBRARIES.get(id(catalogue)) or library_of(catalogue)
    return propose(Asked(intent=intent, now=NOW, **more), library, catalogue)


def calls(proposal: Proposal) -> list[tuple[str, dict[str, Any]]]:
    return [(str(step.tool_name), step.params or {}) for step in proposal.steps]


def days(first: str, last: str) -> dict[str, Any]:
    return {"start_date": first, "end_date": last}


READY: list[tuple[str, str, dict[str, Any]]] = [
    ("Close ticket 4711", "close_ticket", {"ticket_id": 4711}),
    ("please close the ticket #12", "close_ticket", {"ticket_id": 12}),
    (
        "Transfer 250 EUR from ACC-1 to ACC-2",
        "transfer_money",
        {"from_account": "ACC-1", "to_account": "ACC-2", "amount": 250, "currency": "EUR"},
    ),
    ("Which tickets are pending?", "list_tickets", {"status": "pending"}),
    ("list all tickets", "list_tickets", {}),
    ("Report the hours of last week", "report_hours", {"period": "last_week"}),
    ("List the loans, hide drafts and include archived", "list_loans", {"hide_drafts": True, "include_archived": True}),
    (
        "Register the guest 'Ann' 'Lee' and skip notifying the host",
        "register_guest",
        {"first_name": "Ann", "last_name": "Lee", "notify_host": False},
    ),
    ("What is the weather in Vienna?", "get_weather", {"city": "Vienna"}),
    ("weather in New York please", "get_weather", {"city": "New York"}),
    ("weather in Baden & Wels", "get_weather", {"city": "Baden & Wels"}),
    ("Whta is the weather in Vienna right now?", "get_weather", {"city": "Vienna"}),
    ("What is the wether in Vienna?", "get_weather", {"city": "Vienna"}),
    (
        "Open an urgent ticket with the subject Printer and the text 'It burns'",
        "create_ticket",
        {"subject": "Printer", "text": "It burns", "level": "urgent"},
    ),
    (
        "list the closed pull requests of acme/shop",
        "list_pull_requests",
        {"owner": "acme", "repo": "shop", "state": "closed"},
    ),
    ("List the sales from 2026-03-01 to 2026-03-31", "list_sales", days("2026-03-01", "2026-03-31")),
    ("list the sales between 1 May and 5 May 2026", "list_sales", days("2026-05-01", "2026-05-05")),
    ("Convert 10 USD to EUR", "convert_currency", {"amount": 10, "from_currency": "USD", "to_currency": "EUR"}),
    (
        "Share /plans/a.pdf with ann@example.org and bob@example.org",
        "share_file",
        {"path": "/plans/a.pdf", "people": ["ann@example.org", "bob@example.org"]},
    ),
]


CONFIRMED: list[tuple[str, str, dict[str, Any]]] = [
    ("Rename the branch hotfix to release", "rename_branch", {"branch": "hotfix", "new_name": "release"}),
    ("weather in vienna", "get_weather", {"city": "vienna"}),
    ("the weather in vienna, please? Thank you.", "get_weather", {"city": "vienna"}),
    ("open a ticket about the printer saying it burns", "create_ticket", {"subject": "printer", "text": "it burns"}),
    (
        "Register the guest Ann Lee but no mail to the host",
        "register_guest",
        {"first_name": "Ann", "last_name": "Lee", "notify_host": False},
    ),
    ("turn the light in the kitchen off", "set_light", {"room": "kitchen", "on": False}),
]


@pytest.mark.parametrize(("intent", "name", "values"), READY + CONFIRMED)
def test_call_is_ready_but_where_words_without_quotes_are_cut(intent: str, name: str, values: dict[str, Any]) -> None:
    proposal = ask(intent)

    assert calls(proposal) == [(name, values)]
    assert answer(proposal) == ("confirm" if (intent, name, values) in CONFIRMED else "ready")


@pytest.mark.parametrize(
    ("intent", "param", "choices"),
    [
        ("Close the ticket", "ticket_id", ()),
        ("Share /plans/a.pdf", "people", ()),
        ("Transfer 250 EUR to ACC-2", "from_account", ()),
        ("Book a room from 2026-12-01 10:00 to 2026-12-01 11:00", "room", ("Oslo", "Lima")),
    ],
)
def test_missing_value_is_asked_for(intent: str, param: str, choices: tuple[str, ...]) -> None:
    proposal = ask(intent)

    assert [name for step in proposal.steps for name in step.missing_params or ()] == [param]
    step = proposal.steps[-1]
    question = question_for(step, OFFICE.by_uid[step.tool_uid or ""], param)
    assert (tuple(question.get("choices", ())), param in question["text"]) == (choices, True)
    assert answer(proposal) == "asked"


@pytest.mark.parametrize(
    ("intent", "kind"),
    [
        ("Close ticket 12 unless Ann objects", Lack.CONDITION),
        ("If it is late, close ticket 12", Lack.CONDITION),
        ("Should ticket 13 be late, close ticket 12", Lack.CONDITION),
        ("Don't close ticket 12", Lack.CONDITION),
        ("Every Monday, close ticket 12", Lack.CONDITION),
        ("Close all tickets except ticket 12", Lack.CONDITION),
        ("Close ticket 12 instead of ticket 13", Lack.CONDITION),
        ("List the loans excluding drafts, including archived", Lack.CONDITION),
        ("Water the plants", Lack.TOOL),
        ("Reopen ticket 12", Lack.TOOL),
        ("Close ticket 12 with an encrypted farewell", Lack.TOOL),
        ("...", Lack.CONFIDENCE),
        ("close " * 400, Lack.LIMIT),
        ("0" * 20_000, Lack.LIMIT),
    ],
)
def test_refusal_says_why(intent: str, kind: Lack) -> None:
    proposal = ask(intent)

    assert answer(proposal) == "refused"
    assert proposal.missing[0].kind == kind


HOUSE = shelved(
    (
        tool(
            "set_room_status", "Set the status of a room.", needs(room_number=STRING, status=choice("clean", "dirty"))
        ),
        tool("cancel_booking", "Cancel a booking.", needs(booking_id=STRING)),
        tool("post_message", "Post a message in a channel.", needs(channel=STRING, text=STRING)),
        tool("raise_limit", "Raise the limit of a card.", needs(card_id=STRING, amount=INTEGER)),
        tool("set_weekly_goal", "Set how many workouts a week are wanted.", needs(target=INTEGER)),
    ),
    (
        tool("list_rooms", "List rooms.", shape(floor=INTEGER, status=choice("clean", "dirty"))),
        tool("get_daily_steps", "How many steps were walked on a day.", shape(day=DAY)),
    ),
)


@pytest.mark.parametrize(
    ("intent", "name", "values"),
    [
        ("set room 110 to dirty", "set_room_status", {"room_number": "110", "status": "dirty"}),
        ("which rooms on the second floor are dirty?", "list_rooms", {"floor": 2, "status": "dirty"}),
        ("how many steps did I walk on Sunday", "get_daily_steps", {"day": "2026-11-22"}),
        ("Set my weekly goal to 4", "set_weekly_goal", {"target": 4}),
        ("post in #ops: does it work?", "post_message", {"channel": "ops", "text": "does it work?"}),
        ("post in #ops: we call off the demo", "post_message", {"channel": "ops", "text": "we call off the demo"}),
    ],
)
def test_everyday_words_are_read(intent: str, name: str, values: dict[str, Any]) -> None:
    proposal = ask(intent, HOUSE)

    assert calls(proposal) == [(name, values)]
    assert answer(proposal) in ("ready", "confirm")


@pytest.mark.parametrize(
    "intent",
    [
        "like we did the other day",
        "reduce the limit of card C-12 by 500",
        "cancel my first booking",
        "cancel the other booking B-12",
        "Set the goal to 4 weekly",
        "Set the weekly goal to 4 weekly",
    ],
)
def test_what_only_hints_at_a_tool_is_never_ready(intent: str) -> None:
    assert answer(ask(intent, HOUSE)) != "ready"


@pytest.mark.parametrize("intent", ["the other room?", "what about the other rooms", "a different room?"])
def test_what_points_at_something_unsaid_gets_no_plan(intent: str) -> None:
    assert answer(ask(intent, HOUSE)) not in ("ready", "confirm")


def test_delegates_are_each_handed_their_part_of_the_request() -> None:
    takes = shape("intent", intent=STRING, context={"type": "object"}, delegation_path=STRINGS)
    does = {
        "index_pdfs": "Index the PDFs in a folder.",
        "analyze_code": "Analyze a Python codebase.",
        "list_files": "List the files.",
    }
    tools = [tool(name, said, takes) for name, said in does.items()]
    parts = ["Analyze the Python codebase at /srv/app", "index all PDFs in /srv/docs", "list the files in /srv/data"]

    found = ask(f"{parts[0]}, {parts[1]}, and {parts[2]}", Catalogue(9, tools, [offer(one.name, one) for one in tools]))

    assert calls(found) == [
        (name, {"intent": part, "delegation_path": []})
        for name, part in zip(("analyze_code", "index_pdfs", "list_files"), parts, strict=True)
    ]


ADVERSE = (Path(__file__).parent / "sets" / "adverse.txt").read_text(encoding="utf-8").splitlines()
"""Requests that forbid, except, condition or report an act, or ask for more than a tool does."""


@pytest.mark.parametrize("intent", ADVERSE)
def test_adverse_request_with_an_effect_is_never_ready(intent: str) -> None:
    proposal = ask(intent.replace("\\n", "\n"), UNBARRED)
    effects = {
        effect for step in proposal.steps for one in UNBARRED.offers_of(step.tool_uid or "") for effect in one.effects
    }

    assert answer(proposal) != "ready" or effects <= {"read", "network"}


@pytest.mark.parametrize(
    "intent",
    [
        "Close ticket 12 in 3 minutes",
        "List the sales from 2026-03-01 to 2026-03-31 over 5000",
        "Transfer 250 EUR from ACC-1 to ACC-2 for 12 guests",
        "Close ticket 12 and ticket 13",
    ],
)
def test_number_that_nothing_takes_is_never_ready(intent: str) -> None:
    assert answer(ask(intent)) != "ready"


def test_barred_tool_is_named_with_its_reason() -> None:
    missing = ask("Delete the file /etc/hosts.txt", FULL).missing[0]

    assert (missing.kind, missing.tool_name) == (Lack.PERMISSION, "delete_file")
    assert "the tier verified does not allow write" in missing.detail


ANALYZED = "Analyze the Python codebase at /srv/app and suggest optimizations"
PDFS = "Index all PDFs in F:/Documents, extract key concepts, and generate summary"


@pytest.mark.parametrize(
    ("intent", "tools", "references"),
    [
        (ANALYZED, ["analyze_repository", "suggest_optimizations"], {1: "{{step-1.result_pointer}}"}),
        (
            PDFS,
            ["scan_directory", "index_pdfs", "extract_concepts"],
            {1: "{{step-1.files}}", 2: "{{step-2.index_pointer}}"},
        ),
        ("Translate https://example.org/a into Polish", ["fetch_webpage", "translate_text"], {1: "{{step-1.text}}"}),
        (
            "Transcribe /a/talk.mp3, and then let us translate it into Thai",
            ["transcribe_audio", "translate_text"],
            {1: "{{step-1.transcript}}"},
        ),
    ],
)
def test_step_takes_what_another_gives(intent: str, tools: list[str], references: dict[int, str]) -> None:
    proposal = ask(intent, FULL)

    assert [step.tool_name for step in proposal.steps] == tools
    for place, reference in references.items():
        step = proposal.steps[place]
        told = (step.provenance or {}).items()
        assert [(step.params or {})[name] for name, one in told if one["source"] == "step"] == [reference]


def test_step_takes_the_whole_result_or_the_first_of_a_list() -> None:
    found = shape(result={"type": "array", "items": shape(track_id=STRING, title=STRING)})
    tools = (
        tool("search_tracks", "Search the music.", shape("query", query=STRING), found),
        tool("play_track", "Play a track.", shape("track_id", track_id=STRING)),
        tool("send_email", "Send an e-mail.", shape("to", "body", to=EMAIL, body=STRING)),
    )
    catalogue = Catalogue(1, tools, [offer("other", one) for one in tools])
    played = ask("search tracks for 'Nightcall' and play it", catalogue).steps[1]
    mailed = ask("search tracks for 'Nightcall' and email them to a@b.eu", catalogue).steps[1]
    at_once = ask("email the tracks for Nightcall to a@b.eu", catalogue).steps[1]

    assert played.params == {"track_id": "{{step-1.result.0.track_id}}"}
    assert (played.provenance or {})["track_id"]["source"] == Evidence.ASSUMED
    assert (mailed.params or {})["body"] == (at_once.params or {})["body"] == "{{step-1.text}}"
    assert (mailed.provenance or {})["body"]["source"] == Evidence.STEP


@pytest.mark.parametrize("is_listed", [False, True])
def test_id_is_looked_up_by_a_name(*, is_listed: bool) -> None:
    found = shape(result={"type": "array", "items": shape(sku=STRING)}) if is_listed else shape(sku=STRING)
    takes_name = shape(name=STRING) if is_listed else needs(name=STRING)
    tools = (
        tool("find_chair", "Find a chair.", takes_name, found),
        tool("find_lamp", "Find a lamp.", takes_name, found),
        tool("order_furniture", "Order furniture.", needs(sku=STRING), shape()),
    )
    catalogue = Catalogue(1, tools, [offer("other", one, effects=["read"]) for one in tools])
    given = "{{step-1.result.0.sku}}" if is_listed else "{{step-1.sku}}"

    for noun in ("chair", "lamp"):
        assert calls(ask(f"order the furniture from our {noun} Karin Holm", catalogue)) == [
            (f"find_{noun}", {"name": "Karin Holm"}),
            ("order_furniture", {"sku": given}),
        ]


def test_noun_of_a_tool_may_be_the_verb_of_a_request() -> None:
    reminder = tool("set_reminder", "Set a reminder.", needs(text=STRING, at=MOMENT), shape())
    catalogue = Catalogue(1, [reminder], [offer("other", reminder, effects=["write"], tier="trusted")])

    assert answer(ask("remind me on 2026-12-01 at 10:00 to buy bread", catalogue)) == "confirm"


def test_own_words_of_a_tool_are_no_values_of_another() -> None:
    tools = (
        tool("move_ticket", "Set a ticket to another status.", shape("key", "status", key=STRING, status=STRING)),
        tool("comment_ticket", "Set a comment of a ticket.", shape("key", "comment", key=STRING, comment=STRING)),
    )
    proposal = ask("set MOB-18 to a different status", Catalogue(1, tools, [offer("other", one) for one in tools]))

    assert [(step.tool_name, step.missing_params) for step in proposal.steps] == [("move_ticket", ("status",))]


def test_step_that_nobody_asked_for_belongs_to_no_part_and_a_wish_to_the_asker() -> None:
    proposal = ask(PDFS, FULL)

    assert [step.clause for step in proposal.steps] == [None, 0, 1]
    assert proposal.wishes == ["generate summary"]


def test_changes_keep_their_order_and_each_of_several_ids_has_a_call() -> None:
    proposal, both = ask("Close ticket 12, then close ticket 13"), ask("Close the tickets 12 and 13")

    assert calls(both) == calls(proposal) == [("close_ticket", {"ticket_id": one}) for one in (12, 13)]
    assert [step.depends_on for step in proposal.steps] == [(), ("step-1",)]
    assert ask("Close the tickets 12 and 12345678901 million").steps[1].missing_params == ("ticket_id",)


def test_context_fills_what_the_request_leaves_out_and_an_answer_settles_the_tool() -> None:
    proposal = ask("Close the ticket", context={"ticket_id": 7})

    assert calls(proposal) == [("close_ticket", {"ticket_id": 7})]
    assert (proposal.steps[0].provenance or {})["ticket_id"]["source"] == Evidence.CONTEXT
    assert answer(proposal) == "ready"
    assert calls(ask("list all tickets", context={"status": "open"})) == [("list_tickets", {"status": "open"})]
    tickets = next(one for one in READING if one.name == "list_tickets")
    settled = ask("show what is open", tools={0: tickets.uid})
    assert [step.tool_name for step in settled.steps] == ["list_tickets"]


def test_tool_that_takes_a_request_gets_the_words_themselves() -> None:
    helper = tool("do_research", "Research anything.", shape("request", request=STRING))
    catalogue = Catalogue(1, (helper,), (offer("other", helper, effects=["read"]),))
    proposal = ask("Research the history of tea", catalogue)

    assert calls(proposal) == [("do_research", {"request": "Research the history of tea"})]
    assert (proposal.steps[0].provenance or {})["request"]["source"] == Evidence.REQUEST


def test_order_of_registration_changes_nothing() -> None:
    library = Library()
    for one in reversed(OFFICE.tools):
        library.put(one, [found.worker_id for found in OFFICE.offers_of(one.uid)])
    asked = Asked(intent="Share /plans/a.pdf with ann@example.org, then close ticket 3", now=NOW)

    assert propose(asked, library, OFFICE) == propose(asked, LIBRARIES[id(OFFICE)], OFFICE)


def test_removed_tools_leave_the_index() -> None:
    library = Library()
    for number in range(1300):
        library.put(tool(f"count_kind{number}q", "Count.", shape()))
    for one in [one for one, _ in library.search(["count"], (), 2000)][:1290]:
        library.remove(one.tool.uid)

    assert len(library) == len(library.search(["count"], (), 50)) == 10


@pytest.mark.parametrize(
    "odd",
    [
        tool("\N{CJK UNIFIED IDEOGRAPH-5199}", "", shape()),
        tool("_", "The.", shape(mode=choice("", "fast"))),
        tool("list_days", "", shape(day=choice(""), at={"type": ["string", "null"]})),
    ],
)
def test_odd_tool_hinders_no_other(odd: Tool) -> None:
    (shown, *_) = READING
    catalogue = Catalogue(1, (odd, shown), tuple(offer("books", one, effects=["read"]) for one in (odd, shown)))
    assert calls(ask("weather in Vienna", catalogue)) == [("get_weather", {"city": "Vienna"})]
