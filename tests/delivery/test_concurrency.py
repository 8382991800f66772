"""Concurrent worker processes, crashes and lost messages, with real connections; the journey between two deployments."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from kombu.simple import SimpleQueue
from pytest_django.live_server_helper import LiveServer

from apps.core.errors import Conflict
from apps.core.sql import database_now
from apps.delivery import services
from apps.delivery.models import Delivery, Endpoint, State, Target
from apps.delivery.services import TargetWithSecret
from apps.digests import services as digests
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system, acting_in
from apps.receipts.models import Receipt
from apps.receipts.selectors import find
from apps.receipts.services import Group
from config.celery import app
from tests import remote as remotes
from tests.commands import ROOT, with_database
from tests.delivery.conftest import deliver, make_remote, make_webhook, move_away, reloaded, wake
from tests.digests.makers import post, read, unsound
from tests.digests.test_races import race_behind
from tests.factories import make_caller, make_tenant, make_token, pass_time
from tests.remote import Exchange, Remote
from tests.waiters import Other, at_once

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def listening_at(queue: str) -> Iterator[SimpleQueue]:
    """A queue of which all that was there before is gone."""
    with app.connection_for_read() as broker:
        opened = SimpleQueue(broker.default_channel, queue)
        opened.clear()
        yield opened


def take(queue: SimpleQueue, name: str) -> Any:
    """The arguments of the next message of this name; others are let go."""
    while True:
        message = queue.get(timeout=20)
        message.ack()
        if message.headers["task"] == name:
            return message.payload[0]


@pytest.fixture
def door(live_server: LiveServer) -> str:
    return live_server.url.replace("localhost", "127.0.0.1")


@pytest.fixture
def far(db: None) -> Tenant:
    """The other deployment: a tenant that is called through its real endpoint."""
    return make_tenant("north")


@pytest.fixture
def northern_lee(far: Tenant) -> Caller:
    return make_caller(far, "Lee")


@pytest.fixture
def token(far: Tenant, northern_lee: Caller) -> str:
    """With which the south posts in the north."""
    return make_token(far, "south", scopes=[Scope.RECEIPTS_WRITE], source_systems=["github", "asyncgate"])


@pytest.fixture
def deployment(kee: Caller, lee: Caller, door: str, token: str) -> Target:
    """The other deployment as a target, to which Lee has moved."""
    target = make_remote(kee, door, token=token)
    move_away(kee, lee)
    return target


def write(poster: Caller, recipient: Caller, number: int = 1) -> list[str]:
    with acting_as(poster):
        return [post(recipient, poster=poster).receipt_id for _ in range(number)]


def there() -> list[str]:
    """The receipts that the north has, in its order."""
    with acting_as_system("test"):
        return list(Receipt.objects.filter(tenant__slug="north").order_by("id").values_list("receipt_id", flat=True))


def states() -> set[str]:
    with acting_as_system("test"):
        return set(Delivery.objects.values_list("state", flat=True))


def come_due() -> None:
    """Claims and pauses run out."""
    with acting_as_system("test"):
        Delivery.objects.filter(state=State.PENDING).update(due_at=database_now())
        Target.objects.update(busy_until=None)


def ack(reader: Caller, receipt_pk: int) -> None:
    """As an interface does it: the moment is that of the request."""
    with acting_as(reader):
        digests.ack_receipts(principal_id=reader.principal_id, receipt_pks=[receipt_pk], now=database_now())


@pytest.mark.usefixtures("deployment")
def test_question_arrives_there_and_its_answer_here(
    kee: Caller, lee: Caller, northern_lee: Caller, tenant: Tenant, door: str
) -> None:
    with acting_as(kee):
        asked = post(
            lee,
            poster=kee,
            requires_action=True,
            title="Please look",
            group=Group(resource_ref="pr:7", event_family="ci", flush_class="immediate"),
        )
    deliver()
    with acting_as(northern_lee):
        (entry,) = read(northern_lee).entries
        assert (entry.receipt_ids, entry.kind) == ([asked.receipt_id], "digest_snapshot")
        arrived = find(asked.receipt_id)
        assert arrived.requires_action
        assert arrived.uuid != asked.uuid

    back = make_token(tenant, "Lee North", scopes=[Scope.RECEIPTS_WRITE], source_systems=["lee"])
    southern_kee = make_caller(make_tenant("north"), "Kee South")
    make_remote(northern_lee, door, "south", token=back)
    move_away(northern_lee, southern_kee, "south", "Kee")
    with acting_as(northern_lee):
        answer = post(
            southern_kee, poster=northern_lee, source="lee", pairs_with=str(arrived.uuid), caused_by=asked.receipt_id
        )
    deliver()
    with acting_as(kee):
        came = find(answer.receipt_id)
        assert (came.pairs_with_id, came.caused_by_id) == (asked.id, asked.id)
        assert find(asked.receipt_id).obligation.closed_by_id == came.pk
        assert read(kee).entries[0].receipt_ids == [answer.receipt_id]
        assert unsound() == {}


@pytest.mark.parametrize("endpoint", Endpoint)
def test_deployment_that_sends_to_itself_sends_in_no_circle(
    kee: Caller, lee: Caller, door: str, endpoint: Endpoint
) -> None:
    itself = make_token(make_tenant("acme"), "itself", scopes=[Scope.RECEIPTS_WRITE], source_systems=["github"])
    make_remote(kee, door, token=itself, endpoint=endpoint)
    move_away(kee, lee, remote_name="Lee North")
    written = write(kee, lee)
    for _ in range(3):
        deliver()
    with acting_as(kee):
        assert list(Receipt.objects.values_list("receipt_id", flat=True)) == written
        (dead,) = Delivery.objects.all()
    # It is recognized, or refused.
    recognized = {"came_back", "receipt_id_conflict", "dedupe_conflict"}
    assert dead.state == State.DEAD
    assert dead.failure in recognized or "lives_elsewhere" in (dead.said or "")


@pytest.mark.usefixtures("deployment")
def test_what_was_delivered_is_not_sent_on(kee: Caller, lee: Caller, northern_lee: Caller, remote: Remote) -> None:
    make_remote(northern_lee, remote.url, "further")
    move_away(northern_lee, northern_lee, "further", "Lee")
    write(kee, lee)
    deliver()
    assert (there(), remote.received) == ([], [])
    with acting_as(kee):
        dead = Delivery.objects.get()
        assert (dead.state, dead.failure) == (State.DEAD, "http_422")
        assert "lives_elsewhere" in (dead.said or "")


def test_worker_that_dies_before_it_notes_the_answer_doubles_nothing(
    kee: Caller, lee: Caller, deployment: Target
) -> None:
    written = write(kee, lee)
    with acting_in(kee.tenant_id, "test"):
        claim = services.claim(target_id=deployment.pk)
    assert claim is not None
    services.send(claim)  # and then the process is gone
    assert (there(), states()) == (written, {State.PENDING})
    deliver()
    assert states() == {State.PENDING}
    come_due()
    deliver()
    assert (there(), states()) == (written, {State.DELIVERED})


@pytest.mark.parametrize("task", ["delivery.deliver", None], ids=["targets in turn", "one target"])
def test_concurrent_workers_send_each_delivery_once(
    kee: Caller, lee: Caller, north: Target, remote: Remote, task: str | None
) -> None:
    written = write(kee, lee, 20)
    work = app.tasks[task] if task else partial(services.deliver_to, tenant_id=kee.tenant_id, target_id=north.pk)
    at_once(*[work] * 4)
    deliver()
    assert sorted(one.json["receipt_id"] for one in remote.received) == sorted(written)
    assert states() == {State.DELIVERED}


@pytest.mark.usefixtures("north")
def test_post_to_a_remote_notifies_a_worker_through_the_broker(kee: Caller, lee: Caller, remote: Remote) -> None:
    with listening_at("deliver") as queue:
        write(kee, lee)
        assert take(queue, "delivery.deliver") == []
    app.tasks["delivery.deliver"]()
    assert (len(remote.received), states()) == (1, {State.DELIVERED})


def test_hanging_target_holds_no_lock_and_delays_no_other(
    kee: Caller, lee: Caller, deployment: Target, remote: Remote, tenant: Tenant
) -> None:
    remote.always = remotes.hangs
    slow = make_remote(kee, remote.url, "slow", timeout_seconds=20)
    mo = make_caller(tenant, "Mo")
    move_away(kee, mo, "slow", "Mo")
    write(kee, mo, 3)
    hanging = Other(services.deliver_next)
    while not remote.received:
        assert hanging.is_alive()
    written = write(kee, lee, 3)
    deliver()
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute("set local lock_timeout = '1s'")
        cursor.execute("select from delivery_delivery for update")
        cursor.execute("select from delivery_target for update")
    assert hanging.is_alive()
    assert (there(), len(remote.received)) == (written, 1), "one call at a time goes to a target"
    remote.closing.set()
    assert hanging.ends() is None
    with acting_as_system("test"):
        assert Delivery.objects.get(target=slow, attempts=1).failure == "disconnected"


# Wakes.


@pytest.mark.ci
def test_worker_killed_after_its_call_leads_to_one_more_wake(kee: Caller, agent: Remote) -> None:
    target = make_webhook(kee, agent.url).target
    write(kee, kee)
    digests.queue_wakes()
    pids: list[int] = []
    known = threading.Event()

    def kill(exchange: Exchange) -> None:
        assert known.wait(60)
        os.kill(pids[0], 9)

    agent.script = [kill]
    script = (
        "import django; django.setup()\n"
        "from apps.delivery import services\n"
        f"services.deliver_to(tenant_id={target.tenant_id}, target_id={target.pk})"
    )
    env = with_database(DJANGO_SETTINGS_MODULE="config.settings")
    child = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env=env)
    pids.append(child.pid)
    known.set()
    assert child.wait(timeout=120) == -9
    assert not wake(target), "the claim of the dead process stands"
    with transaction.atomic():
        pass_time(36)
        assert wake(target)
        pass_time(3600)
        assert not wake(target)
    assert [call.headers["webhook-id"] for call in agent.received] == [f"wake_{target.pk}_1"] * 2
    assert reloaded(target).sent == 1


def test_deleting_or_changing_a_target_during_its_call_does_not_deadlock(kee: Caller, agent: Remote) -> None:
    target = make_webhook(kee, agent.url).target

    def rotate() -> None:
        with acting_as(kee):
            services.rotate_secret(principal_id=kee.principal_id, target_id=target.pk, overlap=timedelta(minutes=1))

    def delete() -> None:
        with acting_as(kee):
            services.delete(principal_id=kee.principal_id, target_id=target.pk)

    for change in (rotate, rotate, delete):
        write(kee, kee)
        called, changed = at_once(lambda: wake(target), change)
        assert changed is None
        assert not isinstance(called, Exception)
    with acting_as_system("test"):
        assert not Delivery.objects.exists()


@contextmanager
def _holding(owner: Caller) -> Iterator[None]:
    with acting_as(owner):
        Principal.objects.select_for_update(no_key=True).get(pk=owner.principal_id)
        yield


def test_concurrent_additions_stay_within_the_limit(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.delivery.services.MOST", 1)
    adds = [partial(make_webhook, kee, f"https://agent.example/{number}") for number in range(2)]
    assert {type(one) for one in race_behind(partial(_holding, kee), *adds)} == {TargetWithSecret, Conflict}
    with acting_as(kee):
        assert Target.objects.count() == 1
