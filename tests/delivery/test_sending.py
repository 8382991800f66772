"""The delivery machine: claims, retries, the breaker, dead deliveries, replays and shares; with receipts to a remote."""

import logging
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from pytest_django import Settings

from apps.core.sql import database_now
from apps.delivery import jobs
from apps.delivery.models import Delivery, State, Target
from apps.delivery.senders import Delivered, Later, Refused, Resting
from apps.delivery.services import sending
from apps.delivery.services.sending import COOL_DOWN, FAILURES_TO_OPEN, Claim
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller
from apps.receipts.deliveries import ReceiptSender
from tests import remote as remotes
from tests.delivery.making import (
    STORED,
    TOKEN,
    deliver,
    delivery,
    make_remote,
    make_webhook,
    move_away,
    pass_time,
    reloaded,
)
from tests.digests.makers import post
from tests.factories import make_caller, make_tenant
from tests.remote import Remote, says

_LATER = Later(code="timed_out", said="late")
_REFUSED = Refused(code="http_422", said="no")
_EXPIRED = 31
"""Seconds after which a claim of a target with a timeout of 5 seconds is lost."""


@pytest.fixture(autouse=True)
def _acting(as_kee: Caller) -> None:
    """All of this happens in one tenant."""


def claim(target: Target) -> Claim:
    claimed = sending.claim(target_id=target.pk)
    assert claimed is not None
    return claimed


def settle(claimed: Claim, verdict: Delivered | Refused | Later | Resting, *, slow: bool = False) -> None:
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
    assert (delivery().state, delivery().failure, delivery().said) == (State.DELIVERED, None, None)
    assert [one.body for one in remote.received] == [remote.received[0].body] * 2
    after = reloaded(north)
    assert (after.sent, after.failures_in_a_row, after.result) == (1, 0, "HTTP 200")
    assert 25 < after.delivery_seconds < 60


def test_nothing_delivered_is_sent_again(kee: Caller, lee: Caller, north: Target, remote: Remote) -> None:
    post(lee, poster=kee)
    deliver()
    pass_time(4000)
    deliver()
    assert len(remote.received) == 1


def test_deliveries_are_first_tried_in_the_order_of_posting(
    kee: Caller, lee: Caller, north: Target, remote: Remote
) -> None:
    posted = [post(lee, poster=kee).receipt_id for _ in range(5)]
    deliver()
    assert [one.json["receipt_id"] for one in remote.received] == posted


def test_unreachable_target_is_tried_at_its_new_address_at_once(kee: Caller, lee: Caller, north: Target) -> None:
    make_remote(kee, "http://127.0.0.1:1")
    post(lee, poster=kee)
    deliver()
    assert delivery().failure == "unreachable"
    with remotes.serving(says(200, STORED)) as risen:
        make_remote(kee, risen.url)
        deliver()
    assert delivery().state == State.DELIVERED


def test_forbidden_address_is_never_called(kee: Caller, lee: Caller, north: Target) -> None:
    make_remote(kee, "http://0177.0.0.1:18799")
    post(lee, poster=kee)
    deliver()
    assert (delivery().failure, reloaded(north).failures_in_a_row) == ("forbidden_endpoint", 1)


def test_unforeseen_error_is_logged_and_counts_as_a_failure(
    kee: Caller, lee: Caller, north: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr("apps.core.outbound.post", break_down)
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


def test_refused_delivery_is_dead_and_the_target_is_well(
    kee: Caller, lee: Caller, north: Target, remote: Remote
) -> None:
    remote.always = says(422, {"error": "invalid"})
    post(lee, poster=kee)
    deliver()
    pass_time(100_000)
    deliver()
    after = reloaded(north)
    assert (delivery().state, delivery().failure, len(remote.received)) == (State.DEAD, "http_422", 1)
    assert (after.breaker, after.failures_in_a_row, after.dead, after.failed) == ("closed", 0, 1, 1)


# Claims.


def test_lost_claim_is_repeated_and_its_late_failure_ignored(kee: Caller, lee: Caller, north: Target) -> None:
    post(lee, poster=kee)
    lost = claim(north)
    assert sending.claim(target_id=north.pk) is None
    pass_time(_EXPIRED)
    second = claim(north)
    assert (second.delivery.pk, second.payload.body) == (lost.delivery.pk, lost.payload.body)

    before = delivery()
    for late in (_LATER, _REFUSED, Resting(code="http_429", said="late", wait=timedelta(hours=1))):
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
def test_target_that_asks_to_wait_rests_and_costs_no_attempt(
    kee: Caller, lee: Caller, north: Target, remote: Remote, status: int
) -> None:
    for _ in range(8):
        post(lee, poster=kee)
    remote.always = says(status, {}, Retry_After="3600")
    pass_time(0)
    for calls in (1, 2):
        deliver()
        assert (len(remote.received), states()) == (calls, {(State.PENDING, 0)})
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
@pytest.mark.usefixtures("north")
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


def test_failing_target_delays_no_other(
    kee: Caller, lee: Caller, north: Target, remote: Remote, tenant: Tenant
) -> None:
    make_remote(kee, "http://127.0.0.1:1", "a-dead-one")
    mo = make_caller(tenant, "Mo")
    move_away(kee, mo, "a-dead-one", "Mo")
    for _ in range(FAILURES_TO_OPEN):
        post(mo, poster=kee)
        post(lee, poster=kee)
    sending.deliver_next()
    sending.deliver_next()
    assert len(remote.received) == FAILURES_TO_OPEN
    assert Delivery.objects.filter(target__name="a-dead-one", attempts__gt=0).count() == 1


def occupy(*targets: Target) -> None:
    """As if a worker process called them now."""
    Target.objects.filter(pk__in=[one.pk for one in targets]).update(busy_until=database_now() + timedelta(seconds=35))


def test_tenant_with_its_share_of_calls_waits(kee: Caller, lee: Caller, north: Target, remote: Remote) -> None:
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


def test_target_is_called_by_one_process_at_a_time(kee: Caller, lee: Caller, north: Target) -> None:
    post(lee, poster=kee)
    occupy(north)
    assert not sending.deliver_next()


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
    kee: Caller, lee: Caller, north: Target, remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    remote.script = [says(500), remotes.hangs_up, says(422, {"error": "x"}), says(403)]
    for _ in range(5):
        post(lee, poster=kee)
    deliver()
    assert {one.headers["X-Service-Token"] for one in remote.received} == {TOKEN}
    assert TOKEN not in caplog.text
    with connection.cursor() as cursor:
        cursor.execute(
            "select to_jsonb(t)::text || (select string_agg(to_jsonb(d)::text, '') from delivery_delivery d)"
            " from delivery_target t"
        )
        (row,) = cursor.fetchone()
    assert TOKEN not in row


def test_unreadable_secret_delivers_nothing_until_it_is_replaced(
    kee: Caller, lee: Caller, north: Target, remote: Remote, settings: Settings
) -> None:
    post(lee, poster=kee)
    settings.SEALING_KEYS = ["another"]
    deliver()
    assert (delivery().failure, remote.received) == ("seal_broken", [])
    make_remote(kee, remote.url)
    deliver()
    assert delivery().state == State.DELIVERED


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("update delivery_delivery set due_at = null", "delivery_delivery_due_iff_pending"),
        (
            "update delivery_delivery set state = 'dead', due_at = null, settled_at = now()",
            "delivery_delivery_due_iff_pending",
        ),
        ("update delivery_delivery set recipient = 'x'", "immutable"),
        ("update delivery_target set endpoint = 'window'", "delivery_target_has_what_its_kind_needs"),
        ("update delivery_target set kind = 'pigeon'", "delivery_target_has_what_its_kind_needs"),
        ("update delivery_target set kind = 'webhook'", "delivery_target_has_what_its_kind_needs"),
        ("update delivery_target set timeout_seconds = 0", "delivery_target_numbers_in_bounds"),
        ("update delivery_target set min_unacked = 0", "delivery_target_numbers_in_bounds"),
        ("update delivery_target set notify_lease = interval '8 days'", "delivery_target_numbers_in_bounds"),
        ("update delivery_target set wasted = 1", "delivery_target_numbers_in_bounds"),
        ("update delivery_target set stopped_reason = 'x'", "delivery_target_stopped_has_a_reason"),
        ("update delivery_target set former_secret = 'x'", "delivery_target_former_secret_has_an_end"),
        (
            (
                "insert into delivery_delivery (tenant_id, target_id, object_id, state, due_at, attempts, created_at)"
                " select tenant_id, target_id, object_id, state, due_at, 0, created_at from delivery_delivery"
            ),
            "delivery_delivery_once_per_target",
        ),
    ],
)
def test_database_refuses_a_contradiction(
    kee: Caller, lee: Caller, north: Target, statement: str, constraint: str
) -> None:
    post(lee, poster=kee)
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
