"""Who is called in which turn, and that slow ones keep places free for others; with real connections."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection, transaction

from apps.activation import services, ticks
from apps.activation.models import Dispatch, Target
from apps.activation.signals import target_due
from apps.activation.states import FRESH, SHARE_OF_PRINCIPAL, SHARE_OF_TENANT
from apps.core.sql import database_now
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from config.celery import app
from tests import remote as remotes
from tests.activation.making import dispatch_of, make_target
from tests.activation.test_races import later
from tests.digests.makers import post
from tests.factories import make_caller, make_tenant
from tests.remote import Exchange, Remote, says

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def slow() -> Iterator[Remote]:
    with remotes.serving() as running:
        yield running


@pytest.fixture
def kee() -> Caller:
    return make_caller(make_tenant("acme"))


@pytest.fixture
def wim(kee: Caller) -> Caller:
    """A neighbour in the same tenant."""
    return make_caller(make_tenant("acme"), "Wim")


def make_targets(owner: Caller, url: str, number: int) -> list[Target]:
    return [make_target(owner, f"{url}/{place}").target for place in range(number)]


def post_and_announce(*recipients: Caller) -> None:
    for recipient in recipients:
        with acting_as(recipient):
            post(recipient)
    ticks.announce_due()


def occupy(targets: list[Target]) -> None:
    """As if somebody called them just now."""
    with acting_as_system("test"):
        until = database_now() + timedelta(seconds=30)
        Dispatch.objects.filter(target__in=targets).update(busy_until=until, next_at=until)


@contextmanager
def announced() -> Iterator[list[int]]:
    heard: list[int] = []

    def hear(target_id: int, **_: object) -> None:
        heard.append(target_id)

    target_due.connect(hear)
    try:
        yield heard
    finally:
        target_due.disconnect(hear)


def test_slow_targets_of_one_principal_hold_its_share_of_the_places_and_delay_nobody_else(
    kee: Caller, wim: Caller, agent: Remote, slow: Remote
) -> None:
    others = threading.Event()

    def waits(exchange: Exchange) -> None:
        assert others.wait(60)
        says(200)(exchange)

    def releases(exchange: Exchange) -> None:
        others.set()
        says(200)(exchange)

    slow.always, agent.always = waits, releases
    slow_ones = make_targets(wim, slow.url, SHARE_OF_PRINCIPAL + 3)
    target = make_target(kee, agent.url).target
    post_and_announce(wim)

    def deliver() -> None:
        app.tasks["activation.wake"]()
        connection.close()

    hands = [threading.Thread(target=deliver) for _ in range(SHARE_OF_PRINCIPAL + 2)]
    for hand in hands:
        hand.start()
    while len([hand for hand in hands if hand.is_alive()]) > SHARE_OF_PRINCIPAL:
        assert not others.is_set()
        time.sleep(0.02)
    assert len(slow.received) <= SHARE_OF_PRINCIPAL

    # Whoever is slow answers only when this one was called.
    post_and_announce(kee)
    app.tasks["activation.wake"]()
    assert others.is_set()
    assert dispatch_of(target).sent == 1
    for hand in hands:
        hand.join(timeout=60)
    # A hand that has been at it for long leaves the rest to the next.
    app.tasks["activation.wake"]()
    assert [dispatch_of(one).sent for one in slow_ones] == [1] * len(slow_ones)
    assert not services.wake_next()


def test_a_principal_that_has_its_share_waits_while_others_are_called(kee: Caller, wim: Caller, agent: Remote) -> None:
    *called, waiting = make_targets(wim, agent.url, SHARE_OF_PRINCIPAL + 1)
    target = make_target(kee, agent.url).target
    post_and_announce(wim, kee)
    occupy(called)

    assert services.wake_next()
    assert not services.wake_next()
    assert (dispatch_of(target).sent, dispatch_of(waiting).sent) == (1, 0)
    occupy(called[:-1])
    with acting_as_system("test"):
        Dispatch.objects.filter(target=called[-1]).update(busy_until=None)
    assert services.wake_next()
    assert dispatch_of(waiting).sent == 1


def test_a_tenant_that_has_its_share_waits_while_others_are_called(kee: Caller, wim: Caller, agent: Remote) -> None:
    crowd = [make_caller(make_tenant("acme"), f"Agent {number}") for number in range(SHARE_OF_TENANT)]
    occupy([make_target(one, agent.url).target for one in crowd])
    make_target(kee, agent.url)
    stranger = make_caller(make_tenant("rival"), "Stranger")
    theirs = make_target(stranger, agent.url).target
    post_and_announce(kee, stranger)

    assert services.wake_next()
    assert not services.wake_next()
    assert dispatch_of(theirs).sent == 1


def test_who_has_the_fewest_calls_under_way_is_next(kee: Caller, wim: Caller, agent: Remote) -> None:
    first, *rest = make_targets(wim, agent.url, 3)
    target = make_target(kee, agent.url).target
    post_and_announce(wim, kee)
    occupy([first])

    assert services.wake_next()
    assert dispatch_of(target).sent == 1
    assert [dispatch_of(one).sent for one in rest] == [0, 0]


def test_a_place_that_was_not_given_back_is_free_when_the_claim_runs_out(kee: Caller, agent: Remote) -> None:
    target = make_target(kee, agent.url).target
    occupy([target])
    with acting_as(kee):
        post(kee)
    with transaction.atomic():
        later(30)
        ticks.announce_due()
        assert services.wake_next()
    assert dispatch_of(target).sent == 1


def test_what_is_announced_and_not_taken_is_not_announced_again_while_its_message_is_fresh(
    kee: Caller, agent: Remote
) -> None:
    targets = make_targets(kee, agent.url, 20)
    with announced() as heard:
        post_and_announce(kee)
        for _ in range(10):
            ticks.announce_due()
        assert sorted(heard) == sorted(one.pk for one in targets)
        with transaction.atomic():
            later(FRESH.total_seconds())
            ticks.announce_due()
    assert len(heard) == 2 * len(targets)
