"""The retry queue: what is posted to a principal that lives elsewhere, and how it gets there, or does not."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from pytest_django import Settings

from apps.core.sql import database_now
from apps.digests.models import Entry, Inbox
from apps.digests.services import Group, Poster
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.receipts import jobs, metrics, services, states
from apps.receipts.errors import DedupeConflict, DuplicateReceipt, LivesHere, UnknownTarget, UnusableTarget
from apps.receipts.letters import Delivered, Later, Refused, Resting
from apps.receipts.models import Letter, Receipt, RemoteTarget, Surface
from apps.receipts.selectors import chain, find, obligations, target_named
from apps.receipts.services import Claim, ObligationDraft
from apps.receipts.states import Breaker, Door, LetterState
from tests import remote as remotes
from tests.digests.makers import make_draft, post, unsound
from tests.digests.test_races import acting, race_behind
from tests.factories import T0, make_caller, make_tenant
from tests.receipts.mailing import STORED, TOKEN, letter, make_target, move_away, pass_time, tick
from tests.remote import Remote, says


@pytest.fixture
def remote() -> Iterator[Remote]:
    with remotes.serving(says(200, STORED)) as running:
        yield running


@pytest.fixture
def lee(tenant: Tenant) -> Caller:
    """An agent of another deployment."""
    return make_caller(tenant, "Lee North")


@pytest.fixture
def north(as_kee: Caller, lee: Caller, remote: Remote) -> RemoteTarget:
    """Where Lee lives, under that name."""
    target = make_target(as_kee, remote.url)
    move_away(as_kee, lee)
    return target


# Posting.


def test_a_post_to_who_lives_elsewhere_is_a_fact_here_and_one_letter_and_no_entry(
    as_kee: Caller, lee: Caller, north: RemoteTarget
) -> None:
    posted = post(lee, poster=as_kee)

    assert posted.entry_ref is None
    assert find(posted.receipt_id).surface == Surface.REMOTE
    waiting = letter()
    assert (waiting.target, waiting.receipt_id, waiting.recipient_name) == (north, posted.id, "Lee")
    assert (waiting.state, waiting.attempts) == (LetterState.PENDING, 0)
    assert not Entry.objects.exists()
    assert not Inbox.objects.filter(principal_id=lee.principal_id).exists()
    assert unsound() == {}


def test_a_post_that_is_taken_back_leaves_no_letter(as_kee: Caller, lee: Caller, north: RemoteTarget) -> None:
    with transaction.atomic():
        post(lee, poster=as_kee)
        transaction.set_rollback(True)

    assert not Letter.objects.exists()


def test_a_repeated_post_writes_no_second_letter(as_kee: Caller, lee: Caller, north: RemoteTarget) -> None:
    draft = make_draft(lee, dedupe_key="once")
    for verdict in (services.Recorded, DuplicateReceipt):
        assert type(services.record_many(poster=Poster.of(as_kee), drafts=[draft], now=T0)[0]) is verdict
    with pytest.raises(DedupeConflict), transaction.atomic():
        post(lee, poster=as_kee, dedupe_key="once")

    assert Letter.objects.count() == 1


@pytest.mark.parametrize(("door", "letters"), [(Door.GATEHOUSE, 1), (Door.UNIVERSAL, 1), (Door.INBOX, 0)])
def test_a_fact_of_the_ledger_stays_one_and_is_told_where_ledgers_are_understood(
    lee: Caller, north: RemoteTarget, remote: Remote, door: Door, letters: int
) -> None:
    make_target(lee, remote.url, door=door)
    posted = post(lee, surface="ledger", event_type="plan_created")

    assert find(posted.receipt_id).surface == Surface.LEDGER
    assert Letter.objects.count() == letters


def test_what_is_owed_because_of_a_letter_is_known_here_and_closed_here(
    as_kee: Caller, lee: Caller, north: RemoteTarget
) -> None:
    asked = post(lee, poster=as_kee, requires_action=True)
    (owed,) = obligations(awaited_by=as_kee.principal_id)
    assert (owed.receipt_id, owed.debtor) == (asked.receipt_id, "Lee North")

    post(as_kee, poster=lee, pairs_with=asked.receipt_id)
    assert not obligations(awaited_by=as_kee.principal_id)


def test_others_receive_as_ever_and_so_does_who_comes_back(as_kee: Caller, lee: Caller, north: RemoteTarget) -> None:
    assert post(as_kee).entry_ref is not None
    services.keep_here(principal_id=lee.principal_id)
    assert post(lee, poster=as_kee).entry_ref is not None
    assert not Letter.objects.exists()
    with pytest.raises(LivesHere):
        services.keep_here(principal_id=lee.principal_id)


def test_nobody_is_sent_to_a_target_of_another_tenant(as_kee: Caller, remote: Remote) -> None:
    make_target(make_caller(make_tenant("rival"), "Rival"), remote.url)
    with pytest.raises(UnknownTarget):
        services.send_elsewhere(
            tenant_id=as_kee.tenant_id, principal_id=as_kee.principal_id, target="north", name_there="Mo"
        )
    assert not Letter.objects.exists()


# What is said.


def test_a_letter_says_what_the_fact_says_with_references_that_both_sides_know(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    cause = post(as_kee)
    posted = post(
        lee,
        poster=as_kee,
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

    tick()

    (received,) = remote.received
    assert received.path == "/internal/receipt"
    assert received.headers["X-Service-Token"] == TOKEN
    assert received.json == {
        "recipient_ai": "Lee",
        "source_system": "github",
        "event_type": "ci_update",
        "receipt_id": posted.receipt_id,
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
    ("door", "path", "members"),
    [
        (Door.UNIVERSAL, "/internal/receipt", {"receipt_id", "event_type", "requires_action"}),
        (Door.INBOX, "/internal/inbox/receipt", set()),
    ],
)
def test_a_door_is_told_no_member_that_its_contract_does_not_have(
    as_kee: Caller, remote: Remote, door: Door, path: str, members: set[str]
) -> None:
    make_target(as_kee, f"{remote.url}/gate/", door=door)
    remote.always = says(
        201, {"receipt_id": "rcpt_there", "dedupe_key": "k", "created_at": "x", "uuid": STORED["uuid"]}
    )
    lee = make_caller(Tenant.objects.get(slug="acme"), "Lee North")
    post(lee, group=Group(resource_ref="pr:7", event_family="ci"), delivery_handle="h")

    tick()

    (received,) = remote.received
    assert received.path == f"/gate{path}"
    always = {"recipient_ai", "source_system", "dedupe_key", "title", "summary", "metadata"}
    assert set(received.json) == always | members
    assert letter().state == LetterState.DELIVERED


def test_a_target_that_knows_this_deployment_by_one_name_still_keeps_the_sources_keys_apart(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    make_target(as_kee, remote.url, known_as="south")
    for source, key in [("a", "b:c"), ("a:b", "c"), ("long", "k" * 200)]:
        post(lee, poster=as_kee, source=source, dedupe_key=key)

    tick()

    assert {one.json["source_system"] for one in remote.received} == {"south"}
    keys = [one.json["dedupe_key"] for one in remote.received]
    assert keys[:2] == ["1:a:b:c", "3:a:b:c"]
    assert len(keys[2]) <= 200


# Answers.


def test_a_delivered_letter_remembers_what_the_remote_called_it(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    post(lee, poster=as_kee)
    tick()
    tick()

    sent = letter()
    assert (sent.state, sent.remote_receipt_id, str(sent.remote_uuid)) == (
        LetterState.DELIVERED,
        STORED["receipt_id"],
        STORED["uuid"],
    )
    assert len(remote.received) == 1
    north.refresh_from_db()
    assert (north.delivered_count, north.failed_count, north.dead_count) == (1, 0, 0)


EXISTING = {"error": "duplicate_receipt", "existing_uuid": STORED["uuid"], "message": "already exists"}


@pytest.mark.usefixtures("north")
@pytest.mark.parametrize(
    ("door", "answer"),
    [
        (Door.GATEHOUSE, EXISTING),
        (Door.UNIVERSAL, {"existing_uuid": STORED["uuid"]}),
        (Door.INBOX, {"error": "duplicate_receipt", "existing_receipt_id": "rcpt_there", "message": "exists"}),
    ],
)
def test_a_duplicate_counts_as_delivered(
    as_kee: Caller, lee: Caller, remote: Remote, door: Door, answer: dict[str, str]
) -> None:
    make_target(as_kee, remote.url, door=door)
    remote.always = says(409, answer)
    post(lee, poster=as_kee)
    tick()

    assert letter().state == LetterState.DELIVERED


@pytest.mark.parametrize(
    ("answered", "failure"),
    [
        (
            says(409, {"error": "dedupe_conflict", "existing_uuid": STORED["uuid"], "message": "other"}),
            "dedupe_conflict",
        ),
        (says(409, {"error": "receipt_id_conflict", "message": "taken"}), "receipt_id_conflict"),
        (says(404, {"error": "unknown_recipient", "message": "There is no recipient 'Lee'."}), "http_404"),
        (says(400, "bad"), "http_400"),
        (says(413, {}), "http_413"),
        (says(422, {"error": "invalid", "message": "/summary is too long\x00"}), "http_422"),
    ],
)
def test_what_no_repetition_mends_is_dead_with_its_reason_and_speaks_well_of_the_target(
    lee: Caller, north: RemoteTarget, remote: Remote, answered: remotes.Behaviour, failure: str
) -> None:
    remote.always = answered
    post(lee)
    tick()
    pass_time(100_000)
    tick()

    dead = letter()
    assert (dead.state, dead.failure, dead.attempts) == (LetterState.DEAD, failure, 1)
    assert dead.said
    assert len(remote.received) == 1
    north.refresh_from_db()
    assert (north.breaker, north.failures_in_a_row, north.dead_count) == (Breaker.CLOSED, 0, 1)


LIES = {
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


@pytest.mark.parametrize("lie", LIES)
def test_what_names_no_stored_receipt_has_delivered_nothing(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote, lie: str
) -> None:
    status, answer, failure = LIES[lie]
    remote.script = [says(status, answer)]
    post(lee, poster=as_kee)
    tick()

    waiting = letter()
    assert (waiting.state, waiting.failure) == (LetterState.PENDING, failure)
    north.refresh_from_db()
    assert north.failures_in_a_row == 1

    pass_time(30)
    tick()
    assert letter().state == LetterState.DELIVERED


FAULTS: dict[str, tuple[remotes.Behaviour, str]] = {
    "hangs": (remotes.hangs, "timed_out"),
    "drips": (remotes.drips, "timed_out"),
    "hangs up": (remotes.hangs_up, "disconnected"),
    "floods": (remotes.floods, "answer_too_large"),
    "redirects": (says(307, b"", Location="http://127.0.0.1:1/elsewhere"), "redirected"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_remote_that_fails_gets_the_letter_again_within_half_a_minute(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote, fault: str
) -> None:
    behaviour, failure = FAULTS[fault]
    make_target(as_kee, remote.url, timeout_seconds=1 if failure == "timed_out" else 20)
    remote.script = [behaviour]
    post(lee, poster=as_kee)
    tick()
    waiting = letter()
    assert (waiting.state, waiting.failure, waiting.attempts) == (LetterState.PENDING, failure, 1)

    pass_time(30)
    tick()

    assert letter().state == LetterState.DELIVERED
    assert [one.json for one in remote.received] == [remote.received[0].json] * 2


def test_a_remote_that_nobody_runs_gets_the_letter_when_it_is_there(
    as_kee: Caller, lee: Caller, north: RemoteTarget
) -> None:
    make_target(as_kee, "http://127.0.0.1:1")
    post(lee, poster=as_kee)
    tick()
    assert letter().failure == "unreachable"

    with remotes.serving(says(200, STORED)) as risen:
        make_target(as_kee, risen.url)  # and what waits is tried again at once
        tick()

    assert letter().state == LetterState.DELIVERED


def test_a_reply_that_is_lost_after_the_remote_has_stored_doubles_nothing(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    stored: list[str] = []
    remote.script = [
        remotes.then_hangs_up(lambda received: stored.append(received.json["dedupe_key"])),
        says(409, EXISTING),
    ]
    post(lee, poster=as_kee, dedupe_key="once")
    tick()
    pass_time(30)
    tick()

    assert stored == ["once"]
    assert (letter().state, str(letter().remote_uuid)) == (LetterState.DELIVERED, STORED["uuid"])


@pytest.mark.parametrize(
    ("answer", "waits"),
    [
        (says(429, {}, Retry_After="120"), 120),
        (says(503, {}, Retry_After="120"), 120),
        (says(429, {}, Retry_After="Sat, 01 Jan 2000 00:00:00 GMT"), 10),
        (says(429, {}, Retry_After="soon"), 10),
        (says(500, {}, Retry_After="120"), 10),
        (says(429, {}, Retry_After="315360000"), 86_400),
        (says(503, {}, Retry_After="Fri, 31 Dec 9999 23:59:59 GMT"), 86_400),
    ],
)
@pytest.mark.usefixtures("north")
def test_a_remote_that_asks_to_wait_is_waited_for(
    lee: Caller, remote: Remote, answer: remotes.Behaviour, waits: int
) -> None:
    remote.script = [answer]
    post(lee)
    tick()
    pass_time(waits - 1)
    tick()
    assert len(remote.received) == 1

    pass_time(waits)
    tick()
    assert letter().state == LetterState.DELIVERED


@pytest.mark.parametrize("status", [429, 503])
def test_a_target_that_asks_to_wait_rests_as_a_whole_and_costs_no_letter_an_attempt(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote, status: int
) -> None:
    for _ in range(8):
        post(lee, poster=as_kee)
    remote.always = says(status, {}, Retry_After="3600")
    pass_time(0)
    for calls in (1, 2):
        tick()
        tick()
        assert len(remote.received) == calls
        assert set(Letter.objects.values_list("state", "attempts")) == {(LetterState.PENDING, 0)}
        assert letter(failure=f"http_{status}").said
        north.refresh_from_db()
        assert north.retry_at is not None
        assert timedelta(seconds=3600) <= north.retry_at - database_now() <= timedelta(seconds=3960)
        pass_time(3961)
        Letter.objects.update(failure=None)

    remote.always = says(200, STORED)
    tick()
    assert set(Letter.objects.values_list("state", flat=True)) == {LetterState.DELIVERED}


def test_a_target_that_has_rested_and_fails_at_the_probe_is_left_alone_again(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    for _ in range(3):
        post(lee, poster=as_kee)
    remote.always = says(503, {}, Retry_After="60")
    tick()
    pass_time(70)
    remote.always = says(500)
    tick()
    north.refresh_from_db()
    assert (len(remote.received), north.breaker, north.failures_in_a_row) == (2, Breaker.OPEN, 1)
    tick()
    assert len(remote.received) == 2

    pass_time(60)
    remote.always = says(200, STORED)
    tick()
    pass_time(60)
    tick()
    assert set(Letter.objects.values_list("state", flat=True)) == {LetterState.DELIVERED}


def test_targets_rest_by_chance_longer_than_they_ask() -> None:
    rests = {states.jittered(timedelta(hours=1)) for _ in range(20)}
    assert len(rests) > 1
    assert min(rests) >= timedelta(hours=1)


def test_a_letter_that_can_not_be_sent_for_any_reason_dies_in_the_end(
    as_kee: Caller,
    lee: Caller,
    north: RemoteTarget,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr("apps.core.outbound.post", break_down)
    monkeypatch.setattr("apps.receipts.services.delivering.MAX_ATTEMPTS", 2)
    post(lee, poster=as_kee)
    tick()
    assert (letter().state, letter().failure, letter().attempts) == (LetterState.PENDING, "defect", 1)
    assert "unforeseen" in caplog.text
    pass_time(30)
    tick()
    assert (letter().state, letter().failure) == (LetterState.DEAD, "attempts")


def test_an_address_that_is_none_to_who_calls_is_a_failure_of_the_target(
    as_kee: Caller, lee: Caller, north: RemoteTarget
) -> None:
    make_target(as_kee, "http://0177.0.0.1:18799")
    post(lee, poster=as_kee)
    tick()
    assert (letter().failure, letter().attempts) == ("forbidden_endpoint", 1)
    north.refresh_from_db()
    assert north.failures_in_a_row == 1


def test_a_delivered_letter_does_not_look_failed(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    remote.script = [says(500)]
    post(lee, poster=as_kee)
    tick()
    assert letter().failure == "http_500"
    pass_time(30)
    tick()
    assert (letter().state, letter().failure, letter().said) == (LetterState.DELIVERED, None, None)


@pytest.mark.usefixtures("north")
@pytest.mark.parametrize("door", Door)
@pytest.mark.parametrize("repeated", [False, True])
def test_an_answer_that_names_the_senders_own_receipt_proves_nothing(
    as_kee: Caller, lee: Caller, remote: Remote, door: Door, repeated: bool
) -> None:
    make_target(as_kee, remote.url, door=door)
    posted = post(lee, poster=as_kee)
    own = {"receipt_id": posted.receipt_id, "uuid": str(posted.uuid)}
    remote.always = (
        says(409, {f"existing_{name}": value for name, value in own.items()}) if repeated else says(200, own)
    )
    tick()

    assert (letter().state, letter().failure) == (LetterState.DEAD, "came_back")
    assert "back here" in (letter().said or "")


@pytest.mark.parametrize("status", [401, 403, 407, 408, 421, 425, 429])
def test_a_refusal_that_concerns_a_credential_or_a_rate_is_tried_again_and_opens_no_breaker(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote, status: int
) -> None:
    remote.always = says(status, {"error": "invalid_service_token", "message": "no"})
    for _ in range(8):
        post(lee, poster=as_kee)
    tick()

    assert len(remote.received) == 8
    assert set(Letter.objects.values_list("state", "failure")) == {(LetterState.PENDING, f"http_{status}")}
    north.refresh_from_db()
    assert north.breaker == Breaker.CLOSED


def test_a_letter_is_dead_after_its_last_attempt_and_alive_after_a_replay(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.receipts.services.delivering.MAX_ATTEMPTS", 3)
    remote.always = says(500)
    post(lee, poster=as_kee)
    for _ in range(5):
        tick()
        pass_time(4000)

    dead = letter()
    assert (dead.state, dead.attempts, dead.failure) == (LetterState.DEAD, 3, "attempts")
    assert dead.said is not None
    assert "500" in dead.said

    remote.always = says(200, STORED)
    assert services.replay(target=north, letter_ids=[dead.pk + 1]) == 0
    assert services.replay(target=north) == 1
    assert services.replay(target=north) == 0
    tick()
    assert letter().state == LetterState.DELIVERED


def test_a_replayed_letter_has_all_its_attempts_again(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.receipts.services.delivering.MAX_ATTEMPTS", 2)
    remote.always = says(500)
    post(lee, poster=as_kee)
    for _ in range(3):
        tick()
        pass_time(4000)
    assert letter().state == LetterState.DEAD

    services.replay(target=north)
    tick()
    assert (letter().state, letter().attempts) == (LetterState.PENDING, 1)


# Pauses, claims, fences.


def test_pauses_double_up_to_an_hour_and_the_first_is_under_half_a_minute() -> None:
    for attempts, shortest in [(1, 10), (2, 20), (4, 80), (9, 2560), (10, 3600), (49, 3600)]:
        pauses = {states.pause(attempts) for _ in range(50)}
        assert len(pauses) > 1
        assert all(timedelta(seconds=shortest) <= one <= timedelta(seconds=1.5 * shortest) for one in pauses)
    assert states.pause(1) < timedelta(seconds=30)


def test_a_claim_that_is_lost_comes_back_and_its_late_failure_counts_for_nothing(
    as_kee: Caller, lee: Caller, north: RemoteTarget
) -> None:
    post(lee, poster=as_kee)
    lost = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert lost is not None
    assert services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk) is None

    pass_time(states.claimed_for(5).total_seconds())
    second = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert second is not None
    assert (second.letter_id, second.fence, second.body) == (lost.letter_id, lost.fence + 1, lost.body)

    before = letter()
    services.settle(claim=lost, verdict=Later(code="timed_out", said="late"))
    services.settle(claim=lost, verdict=Refused(code="http_422", said="late"))
    assert (letter().due_at, letter().failure, letter().state) == (before.due_at, None, LetterState.PENDING)

    services.settle(claim=lost, verdict=Delivered(receipt_id="rcpt_there", uuid=None))
    services.settle(claim=second, verdict=Refused(code="http_422", said="no"))
    assert letter().state == LetterState.DELIVERED


def test_a_late_wish_to_rest_leaves_the_letter_to_who_holds_it_now(
    as_kee: Caller, lee: Caller, north: RemoteTarget
) -> None:
    post(lee, poster=as_kee)
    lost = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    pass_time(states.claimed_for(5).total_seconds())
    second = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert lost is not None
    assert second is not None
    before = letter()

    services.settle(claim=lost, verdict=Resting(code="http_429", said="late", wait=timedelta(hours=1)))

    after = letter()
    assert (after.attempts, after.due_at, after.claimed) == (2, before.due_at, True)
    assert after.failure is None


def test_a_letter_that_died_of_refusals_at_the_door_goes_under_the_new_name_when_it_is_replayed(
    as_kee: Caller, lee: Caller, north: RemoteTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.receipts.services.delivering.MAX_ATTEMPTS", 1)
    post(lee, poster=as_kee, source="github", dedupe_key="k")
    first = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert first is not None
    services.settle(claim=first, verdict=Later(code="http_403", said="not you", status=403, unwell=False))
    assert letter().state == LetterState.DEAD

    make_target(as_kee, "https://north.example", known_as="south")
    services.replay(target=north)
    again = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert again is not None
    assert json.loads(again.body)["source_system"] == "south"


@pytest.mark.django_db(transaction=True)
def test_of_rival_deliverers_one_probes_a_target_that_has_cooled_down(kee: Caller, tenant: Tenant) -> None:
    lee = make_caller(tenant, "Lee North")
    target = make_target(kee, "http://127.0.0.1:1")
    move_away(kee, lee)
    with acting_as(kee):
        for _ in range(2):
            post(lee, poster=kee)
        RemoteTarget.objects.filter(pk=target.pk).update(breaker=Breaker.OPEN, retry_at=T0)

    @contextmanager
    def held() -> Iterator[None]:
        with acting_as(kee):
            RemoteTarget.objects.select_for_update(no_key=True).get(pk=target.pk)
            yield

    rival = acting(kee, partial(services.claim, tenant_id=kee.tenant_id, target_id=target.pk))
    outcomes = race_behind(held, rival, rival)

    assert [type(one) for one in outcomes if one is not None] == [Claim]
    with acting_as(kee):
        assert sorted(Letter.objects.values_list("attempts", flat=True)) == [0, 1]
        assert RemoteTarget.objects.get().breaker == Breaker.HALF_OPEN


def test_a_letter_is_delivered_once_however_many_learn_it(as_kee: Caller, lee: Caller, north: RemoteTarget) -> None:
    post(lee, poster=as_kee)
    pass_time(0)
    slow = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    pass_time(states.claimed_for(5).total_seconds())
    quick = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert slow is not None
    assert quick is not None
    services.settle(claim=quick, verdict=Delivered(receipt_id="rcpt_there", uuid=None))
    settled = letter().settled_at
    pass_time(60)
    services.settle(claim=slow, verdict=Delivered(receipt_id="rcpt_late", uuid=None))

    north.refresh_from_db()
    assert (north.delivered_count, round(north.delivery_seconds)) == (1, 30)
    assert (letter().remote_receipt_id, letter().settled_at) == ("rcpt_there", settled)


def test_a_change_of_the_target_leaves_what_is_just_being_sent_to_whoever_sends_it(
    as_kee: Caller, lee: Caller, north: RemoteTarget
) -> None:
    for _ in range(2):
        post(lee, poster=as_kee)
    sending = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    deferred = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert sending is not None
    assert deferred is not None
    services.settle(claim=deferred, verdict=Later(code="http_500", said="no", unwell=False))

    make_target(as_kee, "https://north.example", known_as="south")
    again = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert again is not None
    assert again.letter_id == deferred.letter_id
    assert services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk) is None

    pass_time(states.claimed_for(5).total_seconds())
    make_target(as_kee, "https://north.example", known_as="south")
    lost = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert lost is not None
    assert (lost.letter_id, lost.fence) == (sending.letter_id, sending.fence + 1)


def test_a_letter_keeps_the_key_that_it_was_first_sent_under(as_kee: Caller, lee: Caller, north: RemoteTarget) -> None:
    def send() -> tuple[Claim, dict[str, Any]]:
        claim = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
        assert claim is not None
        told = json.loads(claim.body)
        return claim, {name: told[name] for name in ("source_system", "dedupe_key")}

    post(lee, poster=as_kee, source="github", dedupe_key="k")
    claim, plain = send()
    assert plain == {"source_system": "github", "dedupe_key": "k"}
    services.settle(claim=claim, verdict=Later(code="timed_out", said="late"))
    make_target(as_kee, "https://north.example", known_as="south")
    claim, again = send()
    assert again == plain  # it may be there already
    services.settle(claim=claim, verdict=Refused(code="http_422", said="no", status=422))
    make_target(as_kee, "https://north.example", known_as="west")
    services.replay(target=north)
    claim, again = send()
    assert again == plain
    services.settle(claim=claim, verdict=Later(code="http_403", said="not you", status=403, unwell=False))
    make_target(as_kee, "https://north.example", known_as="east")
    assert send()[1] == plain  # the first call may have left it there all the same


def test_a_letter_that_was_only_ever_turned_away_goes_under_the_new_name(
    as_kee: Caller, lee: Caller, north: RemoteTarget
) -> None:
    post(lee, poster=as_kee, source="github", dedupe_key="k")
    for known_as, source in (("south", "github"), ("west", "south"), (None, "west")):
        claim = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
        assert claim is not None
        assert json.loads(claim.body)["source_system"] == source
        services.settle(claim=claim, verdict=Later(code="http_401", said="not you", status=401, unwell=False))
        make_target(as_kee, "https://north.example", known_as=known_as)


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
def test_who_posts_as_the_target_closes_what_was_asked_there(
    as_kee: Caller, lee: Caller, tenant: Tenant, case: tuple[str, str, str, bool], early: bool
) -> None:
    root, answer, source, closes = case
    branch = make_caller(tenant, "branch", Kind.SERVICE)

    def ask() -> None:
        post(lee, poster=as_kee, receipt_id="R.root", event_type=root, requires_action=True, surface="inbox")

    def reply() -> None:
        post(as_kee, poster=branch, source=source, event_type=answer, pairs_with="R.root")

    for step in (reply, ask) if early else (ask, reply):
        step()
    assert bool(obligations(awaited_by=as_kee.principal_id)) is not closes


@pytest.mark.usefixtures("north")
def test_who_posts_as_a_target_closes_nothing_that_others_owe(as_kee: Caller, lee: Caller, tenant: Tenant) -> None:
    branch, gate = make_caller(tenant, "branch", Kind.SERVICE), make_caller(tenant, "gate")
    owed = ObligationDraft(debtor_id=gate.principal_id, creditor_id=lee.principal_id)
    queued = post(lee, poster=gate, event_type="task_queued", surface="ledger", obligation=owed)
    asked = post(gate, poster=as_kee, requires_action=True)
    for root in (queued, asked):
        post(as_kee, poster=branch, source="north", event_type="task_complete", pairs_with=root.receipt_id)
    assert len(obligations(owed_by=gate.principal_id)) == 2


def test_letters_of_a_target_are_first_tried_in_the_order_of_posting(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    posted = [post(lee, poster=as_kee).receipt_id for _ in range(5)]
    tick()

    assert [one.json["receipt_id"] for one in remote.received] == posted


# The breaker.


def test_the_breaker_opens_after_failures_in_a_row_sends_one_probe_and_closes(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    def state() -> tuple[str, int]:
        north.refresh_from_db()
        return north.breaker, north.failures_in_a_row

    remote.always = says(500)
    for _ in range(20):
        post(lee, poster=as_kee)
    for number in range(1, 5):
        tick()
        assert state() == (Breaker.CLOSED, number)
    tick()
    assert state() == (Breaker.OPEN, 5)

    tick()
    assert len(remote.received) == 5
    pass_time(30)
    tick()
    assert len(remote.received) == 6  # the probe
    assert state() == (Breaker.OPEN, 6)

    pass_time(30)
    probing = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert probing is not None
    assert state()[0] == Breaker.HALF_OPEN
    tick()
    assert len(remote.received) == 6  # while a probe is out, nothing else goes

    pass_time(states.claimed_for(5).total_seconds())  # the prober has died
    remote.always = says(200, STORED)
    tick()
    assert state() == (Breaker.CLOSED, 0)
    pass_time(4000)
    tick()
    assert set(Letter.objects.values_list("state", flat=True)) == {LetterState.DELIVERED}
    assert len({one.json["receipt_id"] for one in remote.received}) == 20


def test_a_target_that_is_down_keeps_back_no_other(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote, tenant: Tenant
) -> None:
    make_target(as_kee, "http://127.0.0.1:1", "a-dead-one")
    mo = make_caller(tenant, "Mo")
    move_away(as_kee, mo, "a-dead-one", "Mo")
    for _ in range(10):
        post(mo, poster=as_kee)
        post(lee, poster=as_kee)
    tick()

    assert len(remote.received) == 10
    assert Letter.objects.filter(target__name="a-dead-one", attempts__gt=0).count() == 1


def test_one_tenants_targets_are_worked_in_that_tenant(as_kee: Caller, lee: Caller, north: RemoteTarget) -> None:
    post(lee, poster=as_kee)
    stranger = make_caller(make_tenant("rival"), "Rival")

    assert jobs.work(stranger.tenant_id, north.pk)
    assert letter().attempts == 0


# Credentials.


def test_a_token_is_sealed_and_stands_in_no_log_and_no_row(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    remote.script = [says(500), remotes.hangs_up, says(422, {"error": "x"}), says(403)]
    for _ in range(5):
        post(lee, poster=as_kee)
    for _ in range(5):
        tick()

    assert TOKEN in {one.headers["X-Service-Token"] for one in remote.received}
    assert TOKEN not in caplog.text
    with connection.cursor() as cursor:
        cursor.execute(
            "select to_jsonb(t)::text || (select string_agg(to_jsonb(l)::text, '') from receipts_letter l) from receipts_remotetarget t"
        )
        (row,) = cursor.fetchone()
    assert TOKEN not in row
    assert str(north) == "north"


def test_a_token_whose_key_is_gone_delivers_nothing_until_it_is_given_again(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote, settings: Settings
) -> None:
    post(lee, poster=as_kee)
    settings.SEALING_KEYS = ["another"]
    tick()
    assert (letter().failure, remote.received) == ("seal_broken", [])

    make_target(as_kee, remote.url)
    tick()
    assert letter().state == LetterState.DELIVERED


def test_changing_a_target_keeps_its_token_unless_one_is_given(
    as_kee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    services.put_target(
        tenant_id=as_kee.tenant_id, name="north", base_url=remote.url, door=Door.INBOX, token=None, now=T0
    )
    assert target_named("north").sealed_token == north.sealed_token


@pytest.mark.parametrize(
    "url",
    [
        "",
        "north",
        "ftp://north",
        "https://",
        "https://u:p@north",
        "https://north?x=1",
        "https://north#x",
        "https://north:0",
        "https://north:x",
    ],
)
def test_an_address_without_its_form_is_refused(as_kee: Caller, url: str) -> None:
    with pytest.raises(UnusableTarget):
        make_target(as_kee, url)
    assert not RemoteTarget.objects.exists()


def test_a_new_target_needs_a_token(as_kee: Caller) -> None:
    with pytest.raises(UnusableTarget, match="token"):
        services.put_target(
            tenant_id=as_kee.tenant_id, name="x", base_url="https://x", door=Door.INBOX, token=None, now=T0
        )


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("update receipts_letter set due_at = null", "receipts_letter_due_iff_pending"),
        (
            "update receipts_letter set state = 'dead', due_at = null, settled_at = now()",
            "receipts_letter_due_iff_pending",
        ),
        ("update receipts_letter set recipient_name = 'x'", "immutable"),
        ("update receipts_remotetarget set breaker = 'open'", "receipts_remotetarget_closed_or_has_a_retry"),
        ("update receipts_remotetarget set retry_at = now()", "receipts_remotetarget_closed_or_has_a_retry"),
        ("update receipts_remotetarget set door = 'window'", "receipts_remotetarget_door_known"),
        ("update receipts_remotetarget set timeout_seconds = 0", "receipts_remotetarget_timeout_in_bounds"),
        (
            (
                "insert into receipts_letter (tenant_id, target_id, receipt_id, recipient_name, state, due_at, attempts,"
                " fence, created_at) select tenant_id, target_id, receipt_id, 'y', state, due_at, 0, 0, created_at"
                " from receipts_letter"
            ),
            "receipts_letter_once_per_target",
        ),
    ],
)
def test_the_database_refuses_a_contradiction(
    as_kee: Caller, lee: Caller, north: RemoteTarget, statement: str, constraint: str
) -> None:
    post(lee, poster=as_kee)
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


def test_a_delegates_receipts_are_counted_by_its_name(
    as_kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote, tenant: Tenant
) -> None:
    manager = make_caller(tenant, "Manager", Kind.DELEGATE)
    remote.script = [says(500)]
    with acting_as(manager):
        post(lee, poster=manager, surface="ledger", event_type="plan_created")
    counted = metrics.EMISSIONS.labels("Manager", "true"), metrics.EMISSIONS.labels("Manager", "false")
    before = [counter._value.get() for counter in counted]
    tick()
    pass_time(30)
    tick()

    assert [counter._value.get() for counter in counted] == [before[0] + 1, before[1] + 1]


def test_a_chain_goes_through_letters(as_kee: Caller, lee: Caller, north: RemoteTarget) -> None:
    asked = post(lee, poster=as_kee, requires_action=True)
    answer = post(as_kee, poster=lee, pairs_with=asked.receipt_id, caused_by=asked.receipt_id)

    assert [link.surface for link in chain(answer.receipt_id)] == ["remote", "inbox"]
    assert Receipt.objects.count() == 2
