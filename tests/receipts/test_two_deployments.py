"""Two deployments: the remote is this product's real door, and rivals, kills and lost messages are real."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection
from pytest_django.live_server_helper import LiveServer

from apps.core import outbound
from apps.core.sql import database_now
from apps.digests.services import Group
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system, acting_in
from apps.receipts import jobs, services
from apps.receipts.models import Letter, Receipt, RemoteTarget
from apps.receipts.selectors import find, target_named
from apps.receipts.signals import letters_due
from apps.receipts.states import Breaker, Door, LetterState
from config.celery import app
from tests import remote as remotes
from tests.broker import listening_at, take
from tests.digests.makers import post, read, unsound
from tests.digests.test_races import race, race_behind
from tests.factories import make_caller, make_tenant, make_token
from tests.receipts.mailing import STORED, make_target, move_away, only_ticks, tick
from tests.remote import Received, Remote, says

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def door(live_server: LiveServer) -> str:
    return live_server.url.replace("localhost", "127.0.0.1")


@pytest.fixture
def lee(tenant: Tenant) -> Caller:
    """Lee of the north, as the south knows it."""
    return make_caller(tenant, "Lee North")


@pytest.fixture
def far(db: None) -> Tenant:
    return make_tenant("north")


@pytest.fixture
def northern_lee(far: Tenant) -> Caller:
    return make_caller(far, "Lee")


@pytest.fixture
def token(far: Tenant, northern_lee: Caller) -> str:
    """With which the south posts in the north."""
    return make_token(far, "south", scopes=[Scope.RECEIPTS_WRITE], source_systems=["github", "asyncgate"])


@pytest.fixture
def north(kee: Caller, lee: Caller, door: str, token: str) -> RemoteTarget:
    target = make_target(kee, door, token=token)
    move_away(kee, lee)
    return target


@pytest.fixture
def remote() -> Iterator[Remote]:
    with remotes.serving(says(200, STORED)) as running:
        yield running


def target_url(caller: Caller) -> str:
    with acting_as(caller):
        return target_named("north").base_url


def write(kee: Caller, lee: Caller, number: int = 1) -> list[str]:
    with acting_as(kee):
        return [post(lee, poster=kee).receipt_id for _ in range(number)]


def there() -> list[str]:
    """The receipts that the north has, in its order."""
    with acting_as_system("test"):
        return list(Receipt.objects.filter(tenant__slug="north").order_by("id").values_list("receipt_id", flat=True))


def states() -> set[str]:
    with acting_as_system("test"):
        return set(Letter.objects.values_list("state", flat=True))


def come_due() -> None:
    """Claims and pauses run out."""
    with acting_as_system("test"):
        Letter.objects.filter(state=LetterState.PENDING).update(due_at=database_now())


@pytest.mark.usefixtures("north")
def test_what_is_posted_here_is_in_the_inbox_there_and_the_answer_comes_back_into_the_chain(
    kee: Caller, lee: Caller, northern_lee: Caller, tenant: Tenant, far: Tenant
) -> None:
    with acting_as(kee):
        asked = post(
            lee,
            poster=kee,
            requires_action=True,
            title="Please look",
            group=Group(resource_ref="pr:7", event_family="ci", flush_class="immediate"),
        )
    tick()

    with acting_as(northern_lee):
        (entry,) = read(northern_lee).entries
        assert (entry.receipt_ids, entry.kind) == ([asked.receipt_id], "digest_snapshot")
        arrived = find(asked.receipt_id)
        assert arrived.requires_action
        assert arrived.uuid != asked.uuid

    back = make_token(tenant, "Lee North", scopes=[Scope.RECEIPTS_WRITE], source_systems=["lee"])
    southern_kee = make_caller(far, "Kee South")
    make_target(northern_lee, target_url(kee), "south", token=back)
    move_away(northern_lee, southern_kee, "south", "Kee")
    with acting_as(northern_lee):
        answer = post(
            southern_kee, poster=northern_lee, source="lee", pairs_with=str(arrived.uuid), caused_by=asked.receipt_id
        )
    tick()

    with acting_as(kee):
        came = find(answer.receipt_id)
        assert (came.pairs_with_id, came.caused_by_id) == (asked.id, asked.id)
        assert find(asked.receipt_id).obligation.closed_by_id == came.pk
        assert read(kee).entries[0].receipt_ids == [answer.receipt_id]
        assert unsound() == {}


@pytest.mark.parametrize("name", ["inbox", "universal", "gatehouse"])
@pytest.mark.parametrize("known_as", ["elsewhere", None])
def test_deployments_that_send_to_each_other_or_to_themselves_send_in_no_circle(
    kee: Caller, tenant: Tenant, door: str, name: str, known_as: str | None
) -> None:
    itself = make_token(
        tenant, "itself", scopes=[Scope.RECEIPTS_WRITE], source_systems=["github", *([known_as] if known_as else [])]
    )
    lee = make_caller(tenant, "Lee")
    make_target(kee, door, token=itself, door=Door(name), known_as=known_as)
    move_away(kee, lee)
    written = write(kee, lee)
    for _ in range(3):
        tick()

    with acting_as(kee):
        assert list(Receipt.objects.values_list("receipt_id", flat=True)) == written
        (dead,) = Letter.objects.all()
        # By whatever it is known again; what is not known again is refused.
        known_again = {"came_back", "receipt_id_conflict", "dedupe_conflict"}
        assert dead.state == LetterState.DEAD
        assert dead.failure in known_again or "lives_elsewhere" in (dead.said or "")


@pytest.mark.usefixtures("north")
def test_what_comes_by_a_letter_is_not_sent_on(kee: Caller, lee: Caller, northern_lee: Caller, remote: Remote) -> None:
    make_target(northern_lee, remote.url, "further")
    move_away(northern_lee, northern_lee, "further", "Lee")
    write(kee, lee)
    tick()
    tick()

    assert (there(), remote.received) == ([], [])
    with acting_as(kee):
        dead = Letter.objects.get()
        assert (dead.state, dead.failure) == (LetterState.DEAD, "http_422")
        assert "lives_elsewhere" in (dead.said or "")


def test_a_deliverer_that_dies_before_it_notes_the_answer_doubles_nothing(
    kee: Caller, lee: Caller, north: RemoteTarget
) -> None:
    written = write(kee, lee)
    with acting_in(kee.tenant_id, "test"):
        claim = services.claim(tenant_id=kee.tenant_id, target_id=north.pk)
    assert claim is not None
    jobs._send(claim)  # and then the process is gone
    assert (there(), states()) == (written, {LetterState.PENDING})

    tick()
    assert states() == {LetterState.PENDING}
    come_due()
    tick()

    assert (there(), states()) == (written, {LetterState.DELIVERED})


@pytest.mark.usefixtures("north")
def test_a_reply_that_is_dropped_after_the_remotes_commit_doubles_nothing(
    kee: Caller, lee: Caller, door: str, token: str, remote: Remote
) -> None:
    def pass_on(received: Received) -> None:
        headers = {"X-Service-Token": received.headers["X-Service-Token"], "Content-Type": "application/json"}
        outbound.post(f"{door}{received.path}", body=received.body, headers=headers, deadline=timedelta(seconds=20))

    remote.script = [remotes.then_hangs_up(pass_on)]
    make_target(kee, remote.url, token=token)
    written = write(kee, lee)
    tick()
    assert (there(), states()) == (written, {LetterState.PENDING})

    make_target(kee, door, token=token)
    tick()
    assert (there(), states()) == (written, {LetterState.DELIVERED})


def test_rival_deliverers_never_send_one_letter_at_the_same_time(
    kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    make_target(kee, remote.url)
    written = write(kee, lee, 20)

    outcomes = race(*[partial(jobs.work, kee.tenant_id, north.pk)] * 4)

    assert outcomes == [True] * 4
    assert sorted(one.json["receipt_id"] for one in remote.received) == sorted(written)
    assert states() == {LetterState.DELIVERED}


@contextmanager
def _holding(target: RemoteTarget) -> Iterator[None]:
    with acting_as_system("test"):
        RemoteTarget.objects.select_for_update(no_key=True).get(pk=target.pk)
        yield


def test_of_rivals_at_a_target_that_has_cooled_down_one_sends_a_probe(
    kee: Caller, lee: Caller, north: RemoteTarget
) -> None:
    write(kee, lee, 4)
    with acting_as_system("test"):
        RemoteTarget.objects.update(breaker=Breaker.OPEN, retry_at=database_now(), failures_in_a_row=5)

    def claim() -> services.Claim | None:
        with acting_in(kee.tenant_id, "test"):
            return services.claim(tenant_id=kee.tenant_id, target_id=north.pk)

    claims = race_behind(partial(_holding, north), *[claim] * 4)

    assert sorted(type(one).__name__ for one in claims) == ["Claim", "NoneType", "NoneType", "NoneType"]
    with acting_as_system("test"):
        assert Letter.objects.filter(attempts__gt=0).count() == 1


@contextmanager
def _hints() -> Iterator[list[int]]:
    """The targets that are announced meanwhile."""
    heard: list[int] = []

    def hear(target_id: int, **_: object) -> None:
        heard.append(target_id)

    letters_due.connect(hear)
    try:
        yield heard
    finally:
        letters_due.disconnect(hear)


def test_what_is_posted_or_replayed_is_announced_on_commit(kee: Caller, lee: Caller, remote: Remote) -> None:
    other = make_target(kee, remote.url, "other")
    move_away(kee, lee, "other")
    with _hints() as posted:
        write(kee, lee)
    assert posted == [other.pk]

    remote.always = says(422, {"error": "invalid"})
    jobs.work(kee.tenant_id, other.pk)
    for announced in ([other.pk], []):  # what is alive is not replayed
        with _hints() as replayed, acting_as(kee):
            services.replay(target=other)
        assert replayed == announced


def test_what_is_announced_is_delivered_through_the_broker(
    kee: Caller, lee: Caller, north: RemoteTarget, northern_lee: Caller
) -> None:
    written = write(kee, lee)
    with listening_at("deliver") as deliver:
        letters_due.send(sender=None, tenant_id=kee.tenant_id, target_id=north.pk)
        arguments = take(deliver, "receipts.deliver")
    assert arguments == [kee.tenant_id, north.pk]
    app.tasks["receipts.deliver"](*arguments)
    assert (there(), states()) == (written, {LetterState.DELIVERED})


def test_every_message_lost_loses_nothing(kee: Caller, lee: Caller, north: RemoteTarget) -> None:
    with only_ticks():
        letters_due.disconnect(dispatch_uid="test")
        written = write(kee, lee, 5)
    tick()

    assert (there(), states()) == (written, {LetterState.DELIVERED})


def test_every_message_doubled_doubles_nothing(kee: Caller, lee: Caller, north: RemoteTarget) -> None:
    written = write(kee, lee, 5)
    race(*[partial(jobs.deliver, kee.tenant_id, north.pk)] * 2)
    jobs.deliver(kee.tenant_id, north.pk)

    assert (sorted(there()), states()) == (sorted(written), {LetterState.DELIVERED})


def test_a_target_that_hangs_holds_nothing_in_the_database_and_delays_no_other(
    kee: Caller, lee: Caller, north: RemoteTarget, remote: Remote
) -> None:
    remote.always = remotes.hangs
    slow = make_target(kee, remote.url, "slow", timeout_seconds=20)
    mo = make_caller(make_tenant(kee.tenant_slug), "Mo")
    move_away(kee, mo, "slow", "Mo")
    write(kee, mo)
    hanging = threading.Thread(target=_and_close(partial(jobs.work, kee.tenant_id, slow.pk)))
    hanging.start()
    while not remote.received:
        assert hanging.is_alive()

    written = write(kee, lee, 3)
    jobs.work(kee.tenant_id, north.pk)
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute("set local lock_timeout = '1s'")
        cursor.execute("select from receipts_letter for update")
        cursor.execute("select from receipts_remotetarget for update")

    assert hanging.is_alive()
    assert there() == written
    remote.closing.set()
    hanging.join(timeout=30)
    with acting_as_system("test"):
        assert Letter.objects.get(target=slow).failure == "disconnected"


def _and_close(run: Callable[[], object]) -> Callable[[], None]:
    def rival() -> None:
        run()
        connection.close()

    return rival
