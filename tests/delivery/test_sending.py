"""Sending: claims, retries, the breaker, shares and replays; what receipts of moved principals become at a remote."""

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from pytest_django import Settings

from apps.core.errors import Conflict
from apps.core.sql import database_now, fetch
from apps.delivery import jobs
from apps.delivery import services as sending
from apps.delivery.models import Delivery, Endpoint, State, Target
from apps.delivery.senders import Delivered, Later, Refused, Verdict
from apps.delivery.services import COOL_DOWN, FAILURES_TO_OPEN, Claim
from apps.digests.models import Entry, Inbox
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.receipts import deliveries, services
from apps.receipts.deliveries import ReceiptSender
from apps.receipts.errors import DuplicateReceipt
from apps.receipts.models import Surface
from apps.receipts.selectors import chain, find, obligations
from apps.receipts.services import Group, ObligationDraft, Poster
from tests import remote as remotes
from tests.delivery.conftest import STORED, TOKEN, deliver, delivery, make_remote, make_webhook, reloaded
from tests.digests.makers import make_draft, post, unsound
from tests.factories import T0, make_caller, make_tenant, pass_time
from tests.remote import Remote, says

_LATER = Later(code="timed_out", said="late")
_REFUSED = Refused(code="http_422", said="no")
_EXPIRED = 31
"""Seconds after which a claim of a target with a timeout of 5 seconds is lost."""


pytestmark = pytest.mark.usefixtures("as_kee", "north")


def claim(target: Target) -> Claim:
    claimed = sending.claim(target_id=target.pk)
    assert claimed is not None
    return claimed


def settle(claimed: Claim, verdict: Verdict, *, slow: bool = False) -> None:
    sending.settle(claim=claimed, verdict=verdict, result="so it went", slow=slow)


def states() -> set[tuple[str, int]]:
    return set(Delivery.objects.values_list("state", "attempts"))


FAULTS: dict[str, tuple[remotes.Behaviour, str]] = {
    "hangs": (remotes.hangs, "timed_out"),
    "drips": (remotes.drips, "timed_out"),
    "hangs up": (remotes.hangs_up, "disconnected"),
    "floods": (remotes.floods, "answer_too_large"),
    "redirects": (says(307, b"", Location="http://127.0.0.1:1/elsewhere"), "redirected"),
    "is broken": (says(500), "http_500"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_failed_call_is_repeated_within_half_a_minute(
    kee: Caller, lee: Caller, north: Target, remote: Remote, fault: str
) -> None:
    behaviour, failure = FAULTS[fault]
    make_remote(kee, remote.url, timeout_seconds=1 if failure == "timed_out" else 20)
    remote.script = [behaviour]
    post(lee, poster=kee)
    deliver()
    waiting = delivery()
    assert (waiting.state, waiting.failure, waiting.attempts) == (State.PENDING, failure, 1)
    after = reloaded(north)
    assert (after.failed, after.failures_in_a_row) == (1, 1)
    assert (after.result or "").startswith("HTTP 500" if failure == "http_500" else f"{failure}: ")

    pass_time(30)
    deliver()
    pass_time(4000)
    deliver()
    assert (delivery().state, delivery().failure, delivery().said) == (State.DELIVERED, None, None)
    assert [one.body for one in remote.received] == [remote.received[0].body] * 2
    after = reloaded(north)
    assert (after.sent, after.failures_in_a_row, after.result) == (1, 0, "HTTP 200")
    assert 25 < after.delivery_seconds < 60


def test_deliveries_are_first_tried_in_the_order_of_posting(kee: Caller, lee: Caller, remote: Remote) -> None:
    posted = [post(lee, poster=kee).receipt_id for _ in range(5)]
    deliver()
    assert [one.json["receipt_id"] for one in remote.received] == posted


def test_unforeseen_error_is_logged_and_counts_as_a_failure(
    kee: Caller, lee: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr("apps.core.outbound.send", break_down)
    post(lee, poster=kee)
    deliver()
    assert (delivery().state, delivery().failure, delivery().attempts) == (State.PENDING, "defect", 1)
    assert "unforeseen" in caplog.text


@pytest.mark.parametrize(("longest", "capped"), [(timedelta(minutes=5), 300), (timedelta(hours=1), 3600)])
def test_pauses_double_up_to_the_longest(longest: timedelta, capped: int) -> None:
    for attempts in (1, 2, 5, 7, 10, 49):
        most = min(5 * 2 ** (attempts - 1), capped)
        pauses = {sending._pause(attempts, longest).total_seconds() for _ in range(50)}
        assert len(pauses) > 1
        assert all(0.8 * most <= one <= most for one in pauses)


def test_delivery_dies_after_its_last_attempt_and_can_be_replayed(
    kee: Caller, lee: Caller, north: Target, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReceiptSender, "max_attempts", 3)
    remote.always = says(500)
    post(lee, poster=kee)
    for _ in range(5):
        deliver()
        pass_time(4000)
    dead = delivery()
    assert (dead.state, dead.attempts, dead.failure, len(remote.received)) == (State.DEAD, 3, "attempts", 3)
    assert "500" in (dead.said or "")
    assert reloaded(north).dead == 1

    assert sending.replay(target=north, delivery_ids=[dead.pk + 1]) == 0
    assert sending.replay(target=north) == 1
    assert sending.replay(target=north) == 0
    deliver()
    assert states() == {(State.PENDING, 1)}, "it has all of its attempts again"
    remote.always = says(200, STORED)
    pass_time(4000)
    deliver()
    assert delivery().state == State.DELIVERED


# Claims.


def test_lost_claim_is_repeated_and_its_late_failure_ignored(kee: Caller, lee: Caller, north: Target) -> None:
    post(lee, poster=kee)
    lost = claim(north)
    assert sending.claim(target_id=north.pk) is None
    pass_time(_EXPIRED)
    second = claim(north)
    assert (second.delivery.pk, second.payload.body) == (lost.delivery.pk, lost.payload.body)

    before = delivery()
    for late in (_LATER, _REFUSED, Later(code="http_429", said="late", wait=timedelta(hours=1))):
        settle(lost, late)
    after = delivery()
    assert (after.due_at, after.failure, after.state, after.attempts) == (before.due_at, None, State.PENDING, 2)
    assert reloaded(north).failed == 0


def test_late_success_of_a_lost_claim_counts_once(kee: Caller, lee: Caller, north: Target) -> None:
    post(lee, poster=kee)
    slow = claim(north)
    pass_time(_EXPIRED)
    quick = claim(north)
    settle(slow, Delivered(remote_id="rcpt_there"))
    settled = delivery().settled_at
    pass_time(60)
    settle(quick, Delivered(remote_id="rcpt_late"))
    settle(quick, _REFUSED)
    assert (delivery().state, delivery().remote_id, delivery().settled_at) == (State.DELIVERED, "rcpt_there", settled)
    assert reloaded(north).sent == 1


def test_changed_target_is_sent_everything_at_once(kee: Caller, lee: Caller, north: Target) -> None:
    for _ in range(2):
        post(lee, poster=kee)
    sent, deferred = claim(north), claim(north)
    settle(deferred, Later(code="http_500", said="no", unwell=False))
    make_remote(kee, "https://north.example")
    again = [claim(north), claim(north)]
    assert {one.delivery.pk for one in again} == {sent.delivery.pk, deferred.delivery.pk}
    settle(sent, _REFUSED)
    assert not Delivery.objects.filter(state=State.DEAD).exists(), "the old address says nothing of the new one"


def test_target_of_another_tenant_is_not_claimed(kee: Caller, lee: Caller, north: Target) -> None:
    post(lee, poster=kee)
    stranger = make_caller(make_tenant("rival"), "Rival")
    assert sending.deliver_to(tenant_id=stranger.tenant_id, target_id=north.pk) == 0
    assert delivery().attempts == 0


# The breaker.


def test_breaker_opens_after_failures_probes_once_and_closes(
    kee: Caller, lee: Caller, north: Target, remote: Remote
) -> None:
    remote.always = says(500)
    for _ in range(20):
        post(lee, poster=kee)
    for number in range(1, FAILURES_TO_OPEN):
        sending.deliver_next()
        assert (reloaded(north).breaker, reloaded(north).failures_in_a_row) == ("closed", number)
    deliver()
    assert (reloaded(north).breaker, len(remote.received)) == ("open", FAILURES_TO_OPEN)
    deliver()
    assert len(remote.received) == FAILURES_TO_OPEN

    pass_time(COOL_DOWN.total_seconds())
    deliver()
    assert (reloaded(north).breaker, len(remote.received)) == ("open", FAILURES_TO_OPEN + 1), "one probe"

    pass_time(COOL_DOWN.total_seconds())
    remote.always = says(200, STORED)
    deliver()
    assert (reloaded(north).breaker, reloaded(north).failures_in_a_row) == ("closed", 0)
    pass_time(4000)
    deliver()
    assert set(Delivery.objects.values_list("state", flat=True)) == {State.DELIVERED}
    assert len({one.json["receipt_id"] for one in remote.received}) == 20


def test_slow_answers_open_the_breaker_though_they_deliver(kee: Caller, lee: Caller, north: Target) -> None:
    for _ in range(FAILURES_TO_OPEN + 1):
        post(lee, poster=kee)
    for _ in range(FAILURES_TO_OPEN):
        assert reloaded(north).breaker == "closed"
        settle(claim(north), Delivered(), slow=True)
    assert reloaded(north).breaker == "open"
    assert sending.claim(target_id=north.pk) is None
    pass_time(COOL_DOWN.total_seconds())
    settle(claim(north), Delivered())
    after = reloaded(north)
    assert (after.breaker, after.failures_in_a_row, after.sent) == ("closed", 0, FAILURES_TO_OPEN + 1)


@pytest.mark.parametrize("status", [429, 503])
def test_target_that_asks_to_wait_rests(kee: Caller, lee: Caller, north: Target, remote: Remote, status: int) -> None:
    for _ in range(8):
        post(lee, poster=kee)
    remote.always = says(status, {}, Retry_After="3600")
    pass_time(0)
    for calls in (1, 2):
        deliver()
        assert (len(remote.received), states()) == (calls, {(State.PENDING, 0), (State.PENDING, 1)})
        retry_at = reloaded(north).retry_at
        assert retry_at is not None
        assert timedelta(seconds=3600) <= retry_at - database_now() <= timedelta(seconds=3960)
        pass_time(3961)
    remote.always = says(500)
    deliver()
    assert (len(remote.received), reloaded(north).breaker) == (3, "open"), "the first call after the rest is a probe"
    pass_time(COOL_DOWN.total_seconds())
    remote.always = says(200, STORED)
    deliver()
    assert reloaded(north).breaker == "closed"


@pytest.mark.parametrize(
    ("answer", "waits"),
    [
        (says(429, {}, Retry_After="120"), 120),
        (says(429, {}, Retry_After="Sat, 01 Jan 2000 00:00:00 GMT"), 5),
        (says(429, {}, Retry_After="soon"), 5),
        (says(500, {}, Retry_After="120"), 5),
        (says(429, {}, Retry_After="315360000"), 86_400),
        (says(503, {}, Retry_After="Fri, 31 Dec 9999 23:59:59 GMT"), 86_400),
    ],
)
def test_retry_after_is_kept_up_to_a_day(
    kee: Caller, lee: Caller, remote: Remote, answer: remotes.Behaviour, waits: int
) -> None:
    remote.script = [answer]
    post(lee, poster=kee)
    deliver()
    pass_time(0.75 * waits)
    deliver()
    assert len(remote.received) == 1
    pass_time(0.4 * waits)
    deliver()
    assert delivery().state == State.DELIVERED


# Shares.


def occupy(*targets: Target) -> None:
    """As if a worker process called them now."""
    Target.objects.filter(pk__in=[one.pk for one in targets]).update(busy_until=database_now() + timedelta(seconds=35))


def test_tenant_with_its_share_of_calls_waits(kee: Caller, lee: Caller, remote: Remote) -> None:
    post(lee, poster=kee)
    occupy(*[make_remote(kee, remote.url, f"busy-{number}") for number in range(sending.SHARE_OF_TENANT)])
    assert not sending.deliver_next()
    pass_time(35)
    assert sending.deliver_next()
    assert len(remote.received) == 1


def queue_wake(target: Target) -> None:
    now = database_now()
    Delivery.objects.create(tenant_id=target.tenant_id, target=target, due_at=now, created_at=now)


def test_principal_with_its_share_of_calls_waits(kee: Caller, lee: Caller, north: Target, agent: Remote) -> None:
    *called, waiting = [
        make_webhook(kee, f"{agent.url}/{number}").target for number in range(sending.SHARE_OF_PRINCIPAL + 1)
    ]
    queue_wake(waiting)
    occupy(*called)
    assert not sending.deliver_next()
    post(lee, poster=kee)
    assert sending.deliver_next(), "others are called meanwhile"
    assert delivery(target=north).state == State.DELIVERED
    occupy(*called[:-1])
    pass_time(35)
    assert sending.deliver_next()
    assert not Delivery.objects.filter(target=waiting).exists()


def test_principal_with_the_fewest_calls_is_next(kee: Caller, tenant: Tenant, agent: Remote) -> None:
    busy, queued = [make_webhook(kee, f"{agent.url}/{number}").target for number in range(2)]
    other = make_webhook(make_caller(tenant, "Wim"), agent.url).target
    for one in (queued, other):
        queue_wake(one)
    occupy(busy)
    sending.deliver_next()
    assert Delivery.objects.get().target_id == queued.pk


# Notifications.


def test_tick_notifies_of_what_is_due_and_of_nothing_else(
    kee: Caller, lee: Caller, north: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    notified: list[None] = []
    monkeypatch.setattr(jobs, "notify", lambda: notified.append(None))
    jobs.notify_due()
    assert notified == []
    post(lee, poster=kee)
    jobs.notify_due()
    assert len(notified) == 1
    occupy(north)
    jobs.notify_due()
    assert len(notified) == 1


# Secrets and rows.


def test_token_is_sealed_and_in_no_log(
    kee: Caller, lee: Caller, remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    remote.script = [says(500), remotes.hangs_up, says(422, {"error": "x"}), says(403)]
    for _ in range(5):
        post(lee, poster=kee)
    deliver()
    assert {one.headers["X-Service-Token"] for one in remote.received} == {TOKEN}
    assert TOKEN not in caplog.text
    (row,) = fetch(
        "select to_jsonb(t)::text || (select string_agg(to_jsonb(d)::text, '') from delivery_delivery d)"
        " from delivery_target t"
    )[0]
    assert TOKEN not in row


def test_unreadable_secret_delivers_nothing_until_it_is_replaced(
    kee: Caller, lee: Caller, remote: Remote, settings: Settings
) -> None:
    post(lee, poster=kee)
    settings.SEALING_KEYS = ["another"]
    deliver()
    assert (delivery().failure, remote.received) == ("seal_broken", [])
    make_remote(kee, remote.url)
    deliver()
    assert delivery().state == State.DELIVERED


def test_sent_delivery_keeps_its_recipient(kee: Caller, lee: Caller) -> None:
    post(lee, poster=kee)
    with pytest.raises(IntegrityError, match="immutable"), transaction.atomic():
        Delivery.objects.update(recipient="x")


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


def test_repeated_post_makes_no_second_delivery(kee: Caller, lee: Caller) -> None:
    draft = make_draft(lee, dedupe_key="once")
    for verdict in (services.Recorded, DuplicateReceipt):
        assert type(services.record_many(poster=Poster.of(kee), drafts=[draft], now=T0)[0]) is verdict
    with pytest.raises(Conflict, match="other content"), transaction.atomic():
        post(lee, poster=kee, dedupe_key="once")
    assert Delivery.objects.count() == 1


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


def test_principal_that_moves_back_receives_here_again(kee: Caller, lee: Caller) -> None:
    assert post(kee).entry_ref is not None
    sending.remove_route(principal_id=lee.principal_id)
    assert post(lee, poster=kee).entry_ref is not None
    assert not Delivery.objects.exists()


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


def test_known_as_keeps_the_keys_of_sources_apart(kee: Caller, lee: Caller, remote: Remote) -> None:
    make_remote(kee, remote.url, known_as="south")
    for source, key in [("a", "b:c"), ("a:b", "c"), ("long", "k" * 200)]:
        post(lee, poster=kee, source=source, dedupe_key=key)
    deliver()
    assert {one.json["source_system"] for one in remote.received} == {"south"}
    keys = [one.json["dedupe_key"] for one in remote.received]
    assert keys[:2] == ["1:a:b:c", "3:a:b:c"]
    assert len(keys[2]) <= 200


EXISTING = {"error": "duplicate_receipt", "existing_uuid": STORED["uuid"], "message": "already exists"}


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
    pass_time(100_000)
    deliver()
    dead = delivery()
    assert (dead.state, dead.failure, dead.attempts, len(remote.received)) == (State.DEAD, failure, 1, 1)
    assert dead.said
    assert (dead.target.breaker, dead.target.failures_in_a_row, dead.target.dead) == ("closed", 0, 1)


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


def test_emissions_are_counted_by_delegate(lee: Caller, remote: Remote, tenant: Tenant) -> None:
    manager = make_caller(tenant, "Manager", Kind.DELEGATE)
    remote.script = [says(500)]
    with acting_as(manager):
        post(lee, poster=manager, surface="ledger", event_type="plan_created")
    counted = deliveries._EMISSIONS.labels("Manager", "true"), deliveries._EMISSIONS.labels("Manager", "false")
    before = [counter._value.get() for counter in counted]
    deliver()
    pass_time(30)
    deliver()
    assert [counter._value.get() for counter in counted] == [before[0] + 1, before[1] + 1]


def test_obligation_of_a_moved_principal_is_closed_by_its_answer(kee: Caller, lee: Caller) -> None:
    asked = post(lee, poster=kee, requires_action=True)
    (owed,) = obligations(awaited_by=kee.principal_id).obligations
    assert (owed.receipt_id, owed.debtor) == (asked.receipt_id, "Lee North")
    answer = post(kee, poster=lee, pairs_with=asked.receipt_id, caused_by=asked.receipt_id)
    assert not obligations(awaited_by=kee.principal_id).obligations
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
    assert bool(obligations(awaited_by=kee.principal_id).obligations) is not closes


def test_source_named_like_a_target_closes_nothing_else(kee: Caller, lee: Caller, tenant: Tenant) -> None:
    branch, gate = make_caller(tenant, "branch", Kind.SERVICE), make_caller(tenant, "gate")
    owed = ObligationDraft(debtor_id=gate.principal_id, creditor_id=lee.principal_id)
    queued = post(lee, poster=gate, event_type="task_queued", surface="ledger", obligation=owed)
    asked = post(gate, poster=kee, requires_action=True)
    for root in (queued, asked):
        post(kee, poster=branch, source="north", event_type="task_complete", pairs_with=root.receipt_id)
    assert len(obligations(owed_by=gate.principal_id).obligations) == 2
