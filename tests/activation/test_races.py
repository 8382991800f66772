"""Rivals and crashes, with real connections and committed rows."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import connection, transaction

from apps.activation import services
from apps.activation.errors import TooManyTargets
from apps.activation.models import Dispatch, Target
from apps.activation.services import TargetChange, TargetWithSecret
from apps.core.sql import database_now
from apps.digests import selectors as inboxes
from apps.digests import services as digests
from apps.principals.models import Principal
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from config.celery import app
from tests.activation.making import dispatch_of, is_due, make_target, wake
from tests.broker import listening_at, take
from tests.digests.makers import post, read
from tests.digests.test_races import race, race_behind
from tests.factories import make_caller, make_tenant
from tests.remote import Exchange, Received, Remote, says

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kee() -> Caller:
    return make_caller(make_tenant("acme"))


def post_one(recipient: Caller) -> int:
    with acting_as(recipient):
        return post(recipient).id


def ack(reader: Caller, receipt_pk: int) -> None:
    """As an interface does it: the moment is that of the request."""
    with acting_as(reader):
        now = database_now()
        digests.ack_receipts(principal_id=reader.principal_id, receipt_pks=[receipt_pk], now=now)


def test_of_many_deliverers_one_calls(kee: Caller, agent: Remote) -> None:
    target = make_target(kee, agent.url).target
    meet = threading.Event()
    post_one(kee)

    def slowly(exchange: Exchange) -> None:
        assert meet.wait(20)
        says(200)(exchange)

    agent.always = slowly

    def deliver() -> bool:
        called = wake(target)
        if not called:
            meet.set()
        return called

    assert sorted(race(deliver, deliver, deliver, deliver)) == [False, False, False, True]
    assert len(agent.received) == 1
    assert (dispatch_of(target).sent, dispatch_of(target).fence) == (1, 1)


def test_nothing_is_held_while_an_agent_is_called(kee: Caller, agent: Remote) -> None:
    target = make_target(kee, agent.url).target
    receipt = post_one(kee)
    seen: list[int] = []

    def acts(exchange: Exchange) -> None:
        # The agent reads and acks, its owner changes the target, all before it answers.
        try:
            with acting_as(kee):
                seen.append(len(read(kee).entries))
            ack(kee, receipt)
            with acting_as(kee):
                services.rotate_secret(principal_id=kee.principal_id, target_id=target.pk, overlap=target.notify_lease)
        finally:
            connection.close()
        says(200)(exchange)

    agent.always = acts
    assert wake(target)
    assert seen == [1]
    done = dispatch_of(target)
    assert (done.sent, done.wasted, done.result) == (1, 0, "HTTP 200")


def test_a_wake_that_an_ack_has_overtaken_is_counted_as_wasted(kee: Caller, agent: Remote) -> None:
    """The ack began before the call and is not committed when the deliverer looks."""
    target = make_target(kee, agent.url).target
    receipt = post_one(kee)
    acked, called, committed = threading.Event(), threading.Event(), threading.Event()

    def ack_slowly() -> None:
        with acting_as(kee):
            digests.ack_receipts(principal_id=kee.principal_id, receipt_pks=[receipt], now=database_now())
            acked.set()
            assert called.wait(20)
        committed.set()

    def answer(exchange: Exchange) -> None:
        called.set()
        assert committed.wait(20)
        says(200)(exchange)

    def deliver() -> bool:
        assert acked.wait(20)
        return wake(target)

    agent.always = answer
    assert race(ack_slowly, deliver) == [None, True]
    assert (dispatch_of(target).sent, dispatch_of(target).wasted) == (1, 1)
    assert not is_due(target)


def test_an_ack_against_a_wake_leaves_none_that_is_neither_apt_nor_counted(kee: Caller, agent: Remote) -> None:
    target = make_target(kee, agent.url).target
    for _ in range(15):
        receipt = post_one(kee)
        before = dispatch_of(target)
        _, called = race(lambda receipt=receipt: ack(kee, receipt), lambda: wake(target))  # type: ignore[misc]  # the receipt of this round
        after = dispatch_of(target)
        assert after.sent - before.sent == (1 if called else 0)
        if called:
            with acting_as(kee):
                (state,) = inboxes.inbox_receipts(kee.principal_id, unread_only=False, limit=1)
            assert state.read_at is not None
            assert after.tried_at is not None
            assert after.wasted - before.wasted <= (1 if state.read_at <= after.tried_at else 0)
    assert len(agent.received) == dispatch_of(target).sent


@contextmanager
def _holding(owner: Caller) -> Iterator[None]:
    with acting_as(owner):
        Principal.objects.select_for_update(no_key=True).get(pk=owner.principal_id)
        yield


def test_rivals_for_the_last_place_of_a_target_are_counted_one_after_the_other(
    kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.activation.services.targets.MOST", 1)
    outcomes = race_behind(
        partial(_holding, kee), *(partial(make_target, kee, f"https://agent.example/{number}") for number in range(2))
    )
    assert {type(one) for one in outcomes} == {TargetWithSecret, TooManyTargets}
    with acting_as(kee):
        assert Target.objects.count() == 1


def test_a_deliverer_that_is_killed_after_its_call_leads_to_one_more_wake_and_no_more(
    kee: Caller, agent: Remote
) -> None:
    target = make_target(kee, agent.url).target
    post_one(kee)
    pids: list[int] = []
    known = threading.Event()

    def kill(received: Received) -> None:
        assert known.wait(60)
        os.kill(pids[0], 9)

    agent.script = [lambda exchange: kill(exchange.received)]
    script = (
        "import django; django.setup()\n"
        "from apps.activation import services\n"
        f"services.wake(tenant_id={target.tenant_id}, target_id={target.pk})"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=settings.BASE_DIR,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings", "DATABASE_URL": _database_url()},
    )
    pids.append(child.pid)
    known.set()
    assert child.wait(timeout=120) == -9
    left = dispatch_of(target)
    assert (left.fence, left.sent, left.attempts) == (1, 0, 0)
    assert not is_due(target), "the claim of whoever calls stands"

    with transaction.atomic():
        later(15)
        assert not wake(target)
        later(15)
        assert wake(target)
        later(3600)
        assert not wake(target)
    assert [call.headers["webhook-id"] for call in agent.received] == [f"wake_{target.pk}_1"] * 2
    assert (dispatch_of(target).fence, dispatch_of(target).sent) == (2, 1)


def test_a_deliverer_whose_claim_was_taken_over_writes_nothing(kee: Caller, agent: Remote) -> None:
    from apps.activation.services import waking  # noqa: PLC0415

    target = make_target(kee, agent.url).target
    post_one(kee)
    with acting_as(kee):
        slow = waking._claim(target.pk)
        assert slow is not None
    with transaction.atomic():
        later(31)
        assert wake(target)
    before = dispatch_of(target)
    with acting_as(kee):
        waking._note(slow, waking._Verdict(woken=False, says="HTTP 410", final=True))
    after = dispatch_of(target)
    assert (after.result, after.failed, after.target.state) == (before.result, 0, "enabled")


def test_a_note_against_its_owners_changes_neither_deadlocks_nor_is_lost(kee: Caller, agent: Remote) -> None:
    target = make_target(kee, agent.url).target
    agent.always = says(410)
    for _ in range(5):
        post_one(kee)
        with acting_as_system("test"):
            services.resume(target_id=target.pk, now=database_now())

        def rotate() -> None:
            with acting_as(kee):
                services.rotate_secret(principal_id=kee.principal_id, target_id=target.pk, overlap=target.notify_lease)

        called, rotated = race(lambda: wake(target), rotate)
        assert rotated is None
        # Whoever finds the target held leaves it to the next tick.
        assert called or wake(target)
    assert dispatch_of(target).target.state == "stopped"

    def delete() -> None:
        with acting_as(kee):
            services.delete(principal_id=kee.principal_id, target_id=target.pk)

    with acting_as_system("test"):
        services.resume(target_id=target.pk, now=database_now())
    outcomes = race(lambda: wake(target), delete)
    assert outcomes[1] is None
    assert not isinstance(outcomes[0], Exception)
    with acting_as_system("test"):
        assert not Dispatch.objects.exists()


@pytest.mark.parametrize("status", [200, 410])
def test_what_an_old_address_answers_says_nothing_of_the_new_one(kee: Caller, agent: Remote, status: int) -> None:
    target = make_target(kee, agent.url).target
    post_one(kee)

    def moves(exchange: Exchange) -> None:
        try:
            with acting_as(kee):
                services.change(
                    principal_id=kee.principal_id,
                    target_id=target.pk,
                    change=TargetChange(url=f"{agent.url}/new"),
                    now=database_now(),
                )
        finally:
            connection.close()
        says(status)(exchange)

    agent.always = moves
    wake(target)
    after = dispatch_of(target)
    assert (after.sent, after.failed, after.covered_seq, after.target.state) == (0, 0, 0, "enabled")
    assert is_due(target)


def test_a_post_hints_through_the_broker_at_its_inbox_and_the_look_at_its_target(kee: Caller, agent: Remote) -> None:
    make_target(kee, agent.url)
    with listening_at("deliver") as deliver:
        for _ in range(50):
            post_one(kee)
        assert take(deliver, "activation.look") == [[[kee.tenant_id, kee.principal_id]]]
        app.tasks["activation.look"]([[kee.tenant_id, kee.principal_id]])
        assert take(deliver, "activation.wake") == []
        app.tasks["activation.wake"]()
    assert len(agent.received) == 1


def later(seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "select set_config('gatehouse.now', (gatehouse_now() + make_interval(secs => %s))::text, true)", [seconds]
        )


def _database_url() -> str:
    """Of the tests' own database."""
    return urlsplit(settings.DATABASE_URL)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
