"""Receipts for principals that have moved: what is sent, what counts as delivered, and what an answer closes."""

import json
from typing import Any

import pytest
from django.db import transaction

from apps.core.errors import NotFound
from apps.delivery.models import Delivery, Endpoint, State, Target
from apps.delivery.senders import Later, Refused, Verdict
from apps.delivery.services import sending, targets
from apps.delivery.services.sending import Claim
from apps.digests.models import Entry, Inbox
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.receipts import metrics, services
from apps.receipts.errors import DedupeConflict, DuplicateReceipt
from apps.receipts.models import Surface
from apps.receipts.selectors import chain, find, obligations
from apps.receipts.services import Group, ObligationDraft, Poster
from tests import remote as remotes
from tests.delivery.making import STORED, TOKEN, deliver, delivery, make_remote, move_away, pass_time
from tests.digests.makers import make_draft, post, unsound
from tests.factories import T0, make_caller, make_tenant
from tests.remote import Remote, says

pytestmark = pytest.mark.usefixtures("as_kee")


def test_post_to_a_moved_principal_is_a_receipt_a_delivery_and_no_entry(
    kee: Caller, lee: Caller, north: Target
) -> None:
    posted = post(lee, poster=kee)
    assert posted.entry_ref is None
    assert find(posted.receipt_id).surface == Surface.REMOTE
    waiting = delivery()
    assert (waiting.target, waiting.object_id, waiting.reference) == (north, posted.id, posted.receipt_id)
    assert (waiting.recipient, waiting.state, waiting.attempts) == ("Lee", State.PENDING, 0)
    assert not Entry.objects.exists()
    assert not Inbox.objects.filter(principal_id=lee.principal_id).exists()
    assert unsound() == {}
    with transaction.atomic():
        post(lee, poster=kee)
        transaction.set_rollback(True)
    assert Delivery.objects.count() == 1


@pytest.mark.usefixtures("north")
def test_repeated_post_makes_no_second_delivery(kee: Caller, lee: Caller) -> None:
    draft = make_draft(lee, dedupe_key="once")
    for verdict in (services.Recorded, DuplicateReceipt):
        assert type(services.record_many(poster=Poster.of(kee), drafts=[draft], now=T0)[0]) is verdict
    with pytest.raises(DedupeConflict), transaction.atomic():
        post(lee, poster=kee, dedupe_key="once")
    assert Delivery.objects.count() == 1


@pytest.mark.usefixtures("north")
@pytest.mark.parametrize(
    ("endpoint", "deliveries"), [(Endpoint.GATEHOUSE, 1), (Endpoint.UNIVERSAL, 1), (Endpoint.INBOX, 0)]
)
def test_ledger_receipt_is_sent_to_endpoints_that_know_ledgers(
    lee: Caller, remote: Remote, endpoint: Endpoint, deliveries: int
) -> None:
    make_remote(lee, remote.url, endpoint=endpoint)
    posted = post(lee, surface="ledger", event_type="plan_created")
    assert find(posted.receipt_id).surface == Surface.LEDGER
    assert Delivery.objects.count() == deliveries


@pytest.mark.usefixtures("north")
def test_principal_that_moves_back_receives_here_again(kee: Caller, lee: Caller) -> None:
    assert post(kee).entry_ref is not None
    targets.remove_route(principal_id=lee.principal_id)
    assert post(lee, poster=kee).entry_ref is not None
    assert not Delivery.objects.exists()


def test_principal_can_not_move_to_a_target_of_another_tenant(kee: Caller, remote: Remote) -> None:
    make_remote(make_caller(make_tenant("rival"), "Rival"), remote.url)
    with pytest.raises(NotFound):
        move_away(kee, kee)


@pytest.mark.usefixtures("north")
def test_payload_names_what_both_sides_know(kee: Caller, lee: Caller, remote: Remote) -> None:
    cause = post(kee)
    post(
        lee,
        poster=kee,
        receipt_id="R.7",
        dedupe_key="github:ci_update:7:v1",
        title="Run 7",
        summary="is grün",
        metadata={"run": 7},
        artifact_pointer="s3://runs/7",
        artifact_location="s3",
        requires_action=True,
        suggested_next_step="Look",
        caused_by=str(cause.uuid),
        pairs_with="rcpt_not_yet",
        group=Group(resource_ref="pr:7", event_family="ci", flush_class="immediate"),
        delivery_handle="handle",
    )
    deliver()
    (received,) = remote.received
    assert received.path == "/internal/receipt"
    assert received.headers["X-Service-Token"] == TOKEN
    assert received.json == {
        "recipient_ai": "Lee",
        "source_system": "github",
        "event_type": "ci_update",
        "receipt_id": "R.7",
        "dedupe_key": "github:ci_update:7:v1",
        "title": "Run 7",
        "summary": "is grün",
        "metadata": {"run": 7},
        "artifact_pointer": "s3://runs/7",
        "artifact_location": "s3",
        "requires_action": True,
        "suggested_next_step": "Look",
        "caused_by_receipt_id": cause.receipt_id,
        "pairs_with": "rcpt_not_yet",
        "group": {"resource_ref": "pr:7", "event_family": "ci", "flush_class": "immediate"},
        "delivery_handle": "handle",
        "surface": "inbox",
    }


@pytest.mark.usefixtures("north")
@pytest.mark.parametrize(
    ("endpoint", "path", "members"),
    [
        (Endpoint.UNIVERSAL, "/internal/receipt", {"receipt_id", "event_type", "requires_action"}),
        (Endpoint.INBOX, "/internal/inbox/receipt", set()),
    ],
)
def test_endpoint_is_sent_documented_members_only(
    lee: Caller, remote: Remote, endpoint: Endpoint, path: str, members: set[str]
) -> None:
    make_remote(lee, f"{remote.url}/gate/", endpoint=endpoint)
    remote.always = says(201, {"receipt_id": "rcpt_there", "dedupe_key": "k", "uuid": STORED["uuid"]})
    post(lee, group=Group(resource_ref="pr:7", event_family="ci"), delivery_handle="h")
    deliver()
    (received,) = remote.received
    assert received.path == f"/gate{path}"
    always = {"recipient_ai", "source_system", "dedupe_key", "title", "summary", "metadata"}
    assert set(received.json) == always | members
    assert delivery().state == State.DELIVERED


@pytest.mark.usefixtures("north")
def test_known_as_keeps_the_keys_of_sources_apart(kee: Caller, lee: Caller, remote: Remote) -> None:
    make_remote(kee, remote.url, known_as="south")
    for source, key in [("a", "b:c"), ("a:b", "c"), ("long", "k" * 200)]:
        post(lee, poster=kee, source=source, dedupe_key=key)
    deliver()
    assert {one.json["source_system"] for one in remote.received} == {"south"}
    keys = [one.json["dedupe_key"] for one in remote.received]
    assert keys[:2] == ["1:a:b:c", "3:a:b:c"]
    assert len(keys[2]) <= 200


def _sent_as(target: Target) -> tuple[Claim, str]:
    claim = sending.claim(target_id=target.pk)
    assert claim is not None
    return claim, json.loads(claim.payload.body)["source_system"]


def _change(target: Target, verdict: Verdict, claim: Claim, known_as: str) -> None:
    sending.settle(claim=claim, verdict=verdict, result="no")
    targets.put_remote(
        tenant_id=target.tenant_id,
        name="north",
        url="https://north.example",
        endpoint=Endpoint.GATEHOUSE,
        token=None,
        known_as=known_as,
        now=T0,
    )


def test_delivery_keeps_the_source_that_it_may_be_stored_under(kee: Caller, lee: Caller, north: Target) -> None:
    post(lee, poster=kee, source="github", dedupe_key="k")
    verdicts: dict[str, Verdict] = {
        "south": Later(code="timed_out", said="late"),
        "west": Refused(code="http_422", said="no"),
        "east": Later(code="http_403", said="not you", unwell=False),
    }
    for known_as, verdict in verdicts.items():
        claim, source = _sent_as(north)
        assert source == "github"
        _change(north, verdict, claim, known_as)
        sending.replay(target=north)
    assert _sent_as(north)[1] == "github"


def test_delivery_that_was_only_turned_away_goes_under_the_new_source(kee: Caller, lee: Caller, north: Target) -> None:
    post(lee, poster=kee, source="github", dedupe_key="k")
    for known_as, source in (("south", "github"), ("west", "south"), ("east", "west")):
        claim, sent = _sent_as(north)
        assert sent == source
        _change(north, Later(code="http_401", said="not you", unwell=False), claim, known_as)


EXISTING = {"error": "duplicate_receipt", "existing_uuid": STORED["uuid"], "message": "already exists"}


@pytest.mark.usefixtures("north")
@pytest.mark.parametrize(
    ("endpoint", "answer"),
    [
        (Endpoint.GATEHOUSE, EXISTING),
        (Endpoint.UNIVERSAL, {"existing_uuid": STORED["uuid"]}),
        (Endpoint.INBOX, {"error": "duplicate_receipt", "existing_receipt_id": "rcpt_there"}),
    ],
)
def test_duplicate_counts_as_delivered(lee: Caller, remote: Remote, endpoint: Endpoint, answer: dict[str, str]) -> None:
    make_remote(lee, remote.url, endpoint=endpoint)
    remote.always = says(409, answer)
    post(lee)
    deliver()
    there = "rcpt_there" if endpoint == Endpoint.INBOX else STORED["uuid"]
    assert (delivery().state, delivery().remote_id) == (State.DELIVERED, there)


@pytest.mark.usefixtures("north")
@pytest.mark.parametrize(
    ("answered", "failure"),
    [
        (says(409, {"error": "dedupe_conflict", "existing_uuid": STORED["uuid"]}), "dedupe_conflict"),
        (says(409, {"error": "receipt_id_conflict", "message": "taken"}), "receipt_id_conflict"),
        (says(404, {"error": "unknown_recipient", "message": "There is no recipient 'Lee'."}), "http_404"),
        (says(400, "bad"), "http_400"),
        (says(413, {}), "http_413"),
        (says(422, {"error": "invalid", "message": "/summary is too long\x00"}), "http_422"),
    ],
)
def test_final_refusal_is_dead_with_its_reason(
    lee: Caller, remote: Remote, answered: remotes.Behaviour, failure: str
) -> None:
    remote.always = answered
    post(lee)
    deliver()
    assert (delivery().state, delivery().failure, delivery().attempts) == (State.DEAD, failure, 1)
    assert delivery().said


UNPROVEN = {
    "html": (200, b"<!doctype html><title>Welcome</title>", "not_a_receipt"),
    "wrong json": (200, {"ok": True}, "not_a_receipt"),
    "no object": (200, [1], "not_a_receipt"),
    "no uuid": (200, {"status": "stored", "uuid": "yes"}, "not_a_receipt"),
    "nothing": (204, b"", "not_a_receipt"),
    "deep": (200, b"[" * 60_000, "not_a_receipt"),
    "conflict without a name": (409, b"<html>", "http_409"),
    "conflict about something else": (409, {"error": "locked", "existing_uuid": STORED["uuid"]}, "http_409"),
    "broken": (500, b"Traceback", "http_500"),
    "moved without an address": (304, b"", "http_304"),
}


@pytest.mark.parametrize("case", UNPROVEN)
def test_answer_without_a_stored_receipt_has_delivered_nothing(
    lee: Caller, north: Target, remote: Remote, case: str
) -> None:
    status, answer, failure = UNPROVEN[case]
    remote.always = says(status, answer)
    post(lee)
    deliver()
    assert (delivery().state, delivery().failure) == (State.PENDING, failure)
    north.refresh_from_db()
    assert north.failures_in_a_row == 1


@pytest.mark.usefixtures("north")
@pytest.mark.parametrize("endpoint", Endpoint)
@pytest.mark.parametrize("repeated", [False, True])
def test_answer_that_names_the_sent_receipt_proves_a_circle(
    lee: Caller, remote: Remote, endpoint: Endpoint, repeated: bool
) -> None:
    make_remote(lee, remote.url, endpoint=endpoint)
    posted = post(lee)
    own = {"receipt_id": posted.receipt_id, "uuid": str(posted.uuid)}
    existing = {f"existing_{name}": value for name, value in own.items()}
    remote.always = says(409, existing) if repeated else says(200, own)
    deliver()
    assert (delivery().state, delivery().failure) == (State.DEAD, "came_back")


@pytest.mark.parametrize("status", [401, 403, 407, 408, 421, 425, 429])
def test_mendable_refusal_is_repeated_and_opens_no_breaker(
    lee: Caller, north: Target, remote: Remote, status: int
) -> None:
    remote.always = says(status, {"error": "invalid_service_token", "message": "no"})
    for _ in range(8):
        post(lee)
    deliver()
    assert len(remote.received) == 8
    assert set(Delivery.objects.values_list("state", "failure")) == {(State.PENDING, f"http_{status}")}
    north.refresh_from_db()
    assert north.breaker == "closed"


@pytest.mark.usefixtures("north")
def test_emissions_are_counted_by_delegate(lee: Caller, remote: Remote, tenant: Tenant) -> None:
    manager = make_caller(tenant, "Manager", Kind.DELEGATE)
    remote.script = [says(500)]
    with acting_as(manager):
        post(lee, poster=manager, surface="ledger", event_type="plan_created")
    counted = metrics.EMISSIONS.labels("Manager", "true"), metrics.EMISSIONS.labels("Manager", "false")
    before = [counter._value.get() for counter in counted]
    deliver()
    pass_time(30)
    deliver()
    assert [counter._value.get() for counter in counted] == [before[0] + 1, before[1] + 1]


@pytest.mark.usefixtures("north")
def test_obligation_of_a_moved_principal_is_closed_by_its_answer(kee: Caller, lee: Caller) -> None:
    asked = post(lee, poster=kee, requires_action=True)
    (owed,) = obligations(awaited_by=kee.principal_id)
    assert (owed.receipt_id, owed.debtor) == (asked.receipt_id, "Lee North")
    answer = post(kee, poster=lee, pairs_with=asked.receipt_id, caused_by=asked.receipt_id)
    assert not obligations(awaited_by=kee.principal_id)
    assert [link.surface for link in chain(answer.receipt_id)] == ["remote", "inbox"]


@pytest.mark.parametrize(
    "case",
    [
        ("review", "done", "north", True),
        ("review", "done", "github", False),
        ("plan_created", "plan_complete", "north", True),
        ("plan_created", "done", "north", False),
        ("task_queued", "task_complete", "north", True),
        ("task_queued", "task_queued", "north", False),
    ],
)
@pytest.mark.parametrize("early", [False, True], ids=["after the root", "before the root"])
@pytest.mark.usefixtures("north")
def test_source_named_like_the_target_closes_what_was_asked_there(
    kee: Caller, lee: Caller, tenant: Tenant, case: tuple[str, str, str, bool], early: bool
) -> None:
    root, answer, source, closes = case
    branch = make_caller(tenant, "branch", Kind.SERVICE)
    asking: dict[str, Any] = {"receipt_id": "R.root", "event_type": root, "requires_action": True, "surface": "inbox"}
    if not early:
        post(lee, poster=kee, **asking)
    post(kee, poster=branch, source=source, event_type=answer, pairs_with="R.root")
    if early:
        post(lee, poster=kee, **asking)
    assert bool(obligations(awaited_by=kee.principal_id)) is not closes


@pytest.mark.usefixtures("north")
def test_source_named_like_a_target_closes_nothing_else(kee: Caller, lee: Caller, tenant: Tenant) -> None:
    branch, gate = make_caller(tenant, "branch", Kind.SERVICE), make_caller(tenant, "gate")
    owed = ObligationDraft(debtor_id=gate.principal_id, creditor_id=lee.principal_id)
    queued = post(lee, poster=gate, event_type="task_queued", surface="ledger", obligation=owed)
    asked = post(gate, poster=kee, requires_action=True)
    for root in (queued, asked):
        post(kee, poster=branch, source="north", event_type="task_complete", pairs_with=root.receipt_id)
    assert len(obligations(owed_by=gate.principal_id)) == 2
