"""What changes the world is done to the very thing that is named, and to no other of which the words before it tell."""

import pytest

from apps.plans.catalogue import Catalogue
from apps.plans.documents import PlanStatus
from tests.plans.shelf import INTEGER, STRING, UNBARRED, make_plan, offer, shape, tool
from tests.plans.test_announcing import SHOP

OK = shape(ok={"type": "boolean"})
CHANGING = (
    tool("restart_service", "Restart a service.", shape("url", url={"type": "string", "format": "uri"}), OK),
    tool("upload_file", "Upload a file to a bucket.", shape("path", path=STRING), OK),
    tool("close_ticket", "Close a ticket.", shape("ticket_id", ticket_id={**STRING, "examples": ["OPS-1"]}), OK),
    tool("delete_user", "Delete a user.", shape("user", user=STRING), OK),
    tool("cancel_order", "Cancel an order.", shape("order_id", order_id=INTEGER), OK),
)
OFFICE = Catalogue(
    10,
    (*SHOP.tools, *CHANGING),
    (*SHOP.offers, *(offer(f"w-{one.name}", one, effects=["write"]) for one in CHANGING)),
)
_RELATIONS = [
    "above",
    "behind",
    "below",
    "beside",
    "near",
    "under",
    "in",
    "on",
    "over",
    "via",
    "using",
    "for",
    "of",
    "by",
    "with",
    "as",
    "into",
    "about",
    "against",
    "replacing",
    "like",
]


@pytest.mark.parametrize(
    ("intent", "said"),
    [
        *((f"Delete the file {word} /data/x", f"file {word}") for word in _RELATIONS),
        ("Delete the file that replaced /data/x", "that replaced"),
        ("Delete a file like /data/x", "like"),
        ("Delete files near /data/x", "near"),
        ("Delete files named like /data/x", "like"),
        ("Delete the file named after /data/x", "named after"),
        ("Delete the file next to /data/x", "next to"),
        ("Delete the file outside of /data/x", "outside of"),
        ("Delete the file whose copy is /data/x", "copy is"),
        ("Delete the copy of /data/x", "copy"),
        ("Delete the directory above the file /data/x", "above"),
        ("Restart the service that replaced https://a.example", "that replaced"),
        ("Restart the service behind https://a.example", "behind"),
        ("Upload a file like /data/x", "like"),
        ("Run the tests that use /srv/app", "that use"),
        ("Close the ticket like OPS-77", "like"),
        ("Close the ticket that blocks OPS-77", "that blocks"),
        ("Delete the user like 'bob'", "like"),
        ("Delete the user of 'bob'", "of"),
        ("Drop the table that replaced 'users'", "that replaced"),
        ("Send an email to whoever replaced bob@example.org: 'hi'", "whoever replaced"),
        ("Send an email about bob@example.org: 'hi'", "about"),
    ],
)
def test_a_thing_that_only_stands_in_relation_to_the_one_named_is_not_changed(intent: str, said: str) -> None:
    plan = make_plan(intent, OFFICE)

    assert plan.status == PlanStatus.NEEDS_ESCALATION
    assert any(
        set(said.split()) <= set(one["detail"].split(":")[0].replace("'", " ").split()) for one in plan.missing or ()
    )


@pytest.mark.parametrize(
    ("intent", "value"),
    [
        ("Delete the file /data/x", "/data/x"),
        ("Delete the file called '/data/x'", "/data/x"),
        ("Delete the file located at /data/x", "/data/x"),
        ("Delete the file that is stored at /data/x", "/data/x"),
        ("Delete this file: /data/x", "/data/x"),
        ("Get rid of the file /data/x", "/data/x"),
        ("I want the file /data/x deleted", "/data/x"),
        ("Take the file /data/x and delete it", "/data/x"),
        ("Restart the service at https://a.example", "https://a.example"),
        ("Restart the service https://a.example", "https://a.example"),
        ("Upload the file /data/x", "/data/x"),
        ("Run the tests of /srv/app", "/srv/app"),
        ("Close the ticket OPS-77", "OPS-77"),
        ("Cancel the order number 42", 42),
        ("Delete the user named 'bob'", "bob"),
        ("Drop the table called 'users' of the database 'prod'", "users"),
        ("Send an email to our accountant ann@example.org: 'hi'", "ann@example.org"),
        ("Send an email to Ann Miller (ann@example.org): 'hi'", "ann@example.org"),
        ("ann@example.org should get an email saying 'hi'", "ann@example.org"),
    ],
)
def test_words_that_only_say_what_the_thing_is_or_where_hold_nothing_back(intent: str, value: object) -> None:
    plan = make_plan(intent, OFFICE)

    assert plan.status == PlanStatus.READY
    assert value in (plan.steps[0].params or {}).values()


@pytest.mark.parametrize("waits", ["in a while", "in a little while", "in an hour"])
def test_what_is_to_be_changed_later_is_not_changed_now(waits: str) -> None:
    assert make_plan(f"Delete the file /data/x {waits}", UNBARRED).status == PlanStatus.NEEDS_ESCALATION


@pytest.mark.parametrize(
    "intent", ["List the files that lie near /data", "Check the licenses of the code behind /srv/app"]
)
def test_what_changes_nothing_is_done_for_looser_words(intent: str) -> None:
    assert make_plan(intent, UNBARRED).status == PlanStatus.READY
