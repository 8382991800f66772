"""Turns: one call at a time goes to a target, and slow ones keep back no letter to others."""

import threading
from collections.abc import Iterator

import pytest
from django.db import connection

from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts import jobs, services, states, ticks
from apps.receipts.letters import Delivered
from apps.receipts.models import Letter, RemoteTarget
from apps.receipts.signals import letters_due
from apps.receipts.states import Breaker, LetterState
from tests import remote as remotes
from tests.digests.makers import post
from tests.factories import make_caller
from tests.receipts.mailing import STORED, make_target, move_away, pass_time
from tests.remote import Exchange, Remote, says


@pytest.fixture
def remote() -> Iterator[Remote]:
    with remotes.serving(says(200, STORED)) as running:
        yield running


@pytest.fixture
def slow() -> Iterator[Remote]:
    with remotes.serving(says(200, STORED)) as running:
        yield running


def write(poster: Caller, tenant: Tenant, target: RemoteTarget, number: int) -> None:
    resident = make_caller(tenant, f"Resident of {target.name}")
    move_away(poster, resident, target.name)
    with acting_as(poster):
        for _ in range(number):
            post(resident, poster=poster)


@pytest.mark.django_db(transaction=True)
def test_one_call_at_a_time_goes_to_a_slow_remote_and_letters_to_others_go_meanwhile(
    kee: Caller, tenant: Tenant, remote: Remote, slow: Remote
) -> None:
    others = threading.Event()

    def waits(exchange: Exchange) -> None:
        assert others.wait(60)
        says(200, STORED)(exchange)

    def releases(exchange: Exchange) -> None:
        others.set()
        says(200, STORED)(exchange)

    slow.always, remote.always = waits, releases
    lazy = make_target(kee, slow.url, "lazy", timeout_seconds=60)
    north = make_target(kee, remote.url)
    write(kee, tenant, lazy, 4)

    def deliver() -> None:
        jobs.deliver(kee.tenant_id, lazy.pk)
        connection.close()

    hands = [threading.Thread(target=deliver) for _ in range(4)]
    for hand in hands:
        hand.start()
    while len([hand for hand in hands if hand.is_alive()]) > 1:
        assert not others.is_set()
    assert len(slow.received) <= 1

    # Whoever is slow answers only when this one was called.
    write(kee, tenant, north, 1)
    jobs.deliver(kee.tenant_id, north.pk)
    assert others.is_set()
    for hand in hands:
        hand.join(timeout=60)
    jobs.deliver(kee.tenant_id, lazy.pk)
    with acting_as_system("test"):
        assert set(Letter.objects.values_list("state", flat=True)) == {LetterState.DELIVERED}
    assert len(slow.received) == 4


def test_a_tenant_that_has_its_share_of_turns_waits_for_one(as_kee: Caller, tenant: Tenant, remote: Remote) -> None:
    north = make_target(as_kee, remote.url)
    write(as_kee, tenant, north, 1)
    busy = [make_target(as_kee, remote.url, f"busy-{number}") for number in range(states.SHARE_OF_TENANT)]
    until = database_now() + states.LONGEST_TURN
    RemoteTarget.objects.filter(pk__in=[one.pk for one in busy]).update(busy_until=until)

    jobs.deliver(as_kee.tenant_id, north.pk)
    assert not remote.received
    pass_time(states.LONGEST_TURN.total_seconds())
    jobs.deliver(as_kee.tenant_id, north.pk)
    assert len(remote.received) == 1


def test_a_turn_that_was_taken_over_is_not_ended_by_who_had_it(as_kee: Caller, remote: Remote) -> None:
    north = make_target(as_kee, remote.url)
    services.await_turn(tenant_id=as_kee.tenant_id, target_id=north.pk)
    lost = services.take_turn()
    services.await_turn(tenant_id=as_kee.tenant_id, target_id=north.pk)
    assert lost is not None
    assert services.take_turn() is None
    pass_time(60)
    second = services.take_turn()
    assert second is not None

    services.end_turn(turn=lost, again=True)
    north.refresh_from_db()
    assert (north.busy_until, north.announced_until) == (second.until, None)
    services.end_turn(turn=second, again=False)
    north.refresh_from_db()
    assert north.busy_until == database_now()


def test_answers_that_are_long_in_coming_open_the_breaker_though_they_deliver(
    as_kee: Caller, tenant: Tenant, remote: Remote
) -> None:
    north = make_target(as_kee, remote.url)
    write(as_kee, tenant, north, 6)

    def deliver(*, slow: bool) -> tuple[str, int]:
        claim = services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk)
        assert claim is not None
        services.settle(claim=claim, verdict=Delivered(receipt_id="rcpt_there", uuid=None), slow=slow)
        north.refresh_from_db()
        return north.breaker, north.failures_in_a_row

    for number in range(1, states.FAILURES_TO_OPEN):
        assert deliver(slow=True) == (Breaker.CLOSED, number)
    assert deliver(slow=True) == (Breaker.OPEN, states.FAILURES_TO_OPEN)
    assert services.claim(tenant_id=as_kee.tenant_id, target_id=north.pk) is None
    pass_time(states.COOL_DOWN.total_seconds())
    assert deliver(slow=False) == (Breaker.CLOSED, 0)
    assert north.delivered_count == states.FAILURES_TO_OPEN + 1


def test_a_target_that_was_announced_is_not_announced_again_while_its_message_is_fresh(
    as_kee: Caller, tenant: Tenant, remote: Remote
) -> None:
    heard: list[int] = []

    def hear(target_id: int, **_: object) -> None:
        heard.append(target_id)

    north = make_target(as_kee, remote.url)
    write(as_kee, tenant, north, 3)
    letters_due.connect(hear)
    try:
        for _ in range(10):
            ticks.announce_letters()
        assert heard == [north.pk]
        pass_time(states.FRESH.total_seconds() + 1)
        ticks.announce_letters()
    finally:
        letters_due.disconnect(hear)
    assert heard == [north.pk] * 2
