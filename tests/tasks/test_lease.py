"""Leases: who gets what, for how long, and how they are lost."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from apps.core.errors import Invalid
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services
from apps.tasks.errors import BadLeaseToken, LeaseLost
from apps.tasks.models import FinishedTask, LiveTask, Run, Spend, run_key
from apps.tasks.services import Beat, leasing
from tests.factories import make_caller, make_tenant
from tests.tasks.making import SCHEMA, complete, lease, lease_one, make_type, number, queue

# Later than anything that a test queues.
T0 = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


@pytest.fixture
def rival(tenant: Tenant) -> Caller:
    return make_caller(tenant, "V", Kind.WORKER)


def at(moment: datetime) -> None:
    """Set the database's clock for the rest of the test."""
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', %s, true)", [moment.isoformat()])


def beat(caller: Caller, grant: services.Grant, **more: Any) -> services.BeatAnswer:
    with acting_as(caller):
        (answer,) = services.heartbeat(
            worker=caller, beats=[Beat(task_id=grant.task_id, lease_token=grant.lease_token, **more)]
        )
    return answer


def test_a_task_is_queued_leased_and_completed(kee: Caller, worker: Caller) -> None:
    make_type(kee, schema=SCHEMA)
    queued = queue(kee, params={"path": "/x"})

    grant = lease_one(worker)
    finished = complete(worker, grant, {"files": 3})

    assert (grant.task_type, grant.params, grant.fence, grant.lease_ms) == ("index", {"path": "/x"}, 1, 60_000)
    assert (finished.task_id, finished.status) == (queued.task_id, "succeeded")
    assert lease(worker) == []


def test_the_most_urgent_goes_first_then_the_oldest(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    ids = [number(queue(kee, priority=priority)) for priority in (5, 10, 1, 10)]

    granted = [grant.task_id for grant in lease(worker, capacity=4)]

    assert granted == [ids[1], ids[3], ids[0], ids[2]]


def test_queues_are_tried_in_the_order_named_and_no_more_is_locked_than_taken(kee: Caller, worker: Caller) -> None:
    make_type(kee, "a", queue="first")
    make_type(kee, "b", queue="second")
    queue(kee, "b", priority=10)
    queue(kee, "a", priority=1)
    queue(kee, "b", priority=1)

    assert {grant.task_type for grant in lease(worker, queues=("first", "second"), capacity=2)} == {"a", "b"}
    assert len(lease(worker, queues=("first", "second"), capacity=2)) == 1


def test_work_that_a_worker_cannot_do_holds_nothing_up(kee: Caller, worker: Caller) -> None:
    make_type(kee, "heavy", requires=["gpu", "cuda"])
    make_type(kee, "light")
    for _ in range(3):
        queue(kee, "heavy", priority=10)
    queue(kee, "light", priority=1)

    assert [grant.task_type for grant in lease(worker, capacity=4, capabilities=["gpu"])] == ["light"]
    able = lease(worker, capacity=4, capabilities=["cuda", "gpu", "more"])
    assert [grant.task_type for grant in able] == ["heavy"] * 3


def test_a_worker_may_name_types_only(kee: Caller, worker: Caller) -> None:
    make_type(kee, "a", queue="first")
    make_type(kee, "b", queue="first")
    queue(kee, "a")
    queue(kee, "b")
    assert [grant.task_type for grant in lease(worker, queues=(), task_types=["b"], capacity=9)] == ["b"]
    assert lease(worker, queues=(), task_types=["nothing"]) == []
    with pytest.raises(Invalid):
        lease(worker, queues=())


def test_a_paused_queue_gives_out_nothing(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    with acting_as(kee):
        services.pause_queue(caller=kee, name="default", now=T0)
    assert lease(worker) == []
    with acting_as(kee):
        services.resume_queue(caller=kee, name="default")
    assert len(lease(worker)) == 1


def test_the_length_asked_for_is_capped_by_the_type(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=60, max_lease_seconds=90)
    queue(kee)
    queue(kee)
    assert lease_one(worker, lease_seconds=5).lease_ms == 5000
    assert lease_one(worker, lease_seconds=500).lease_ms == 90_000


def test_no_worker_of_another_tenant_is_given_anything(kee: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    stranger = make_caller(make_tenant("globex"), "W", Kind.WORKER)
    make_type(stranger)
    assert lease(stranger) == []
    grant = lease_one(kee)
    assert beat(stranger, grant).reason == "bad_lease_token"
    with pytest.raises(BadLeaseToken):
        complete(stranger, grant)
    with acting_as(kee):
        assert LiveTask.objects.get(task_id=number(task)).holder_id == kee.principal_id


@pytest.mark.django_db(transaction=True)
def test_rival_workers_never_share_a_task() -> None:
    tenant = make_tenant("acme")
    kee = make_caller(tenant)
    make_type(kee)
    for _ in range(40):
        queue(kee)
    workers = [make_caller(tenant, f"W{index}", Kind.WORKER) for index in range(5)]
    barrier = threading.Barrier(len(workers))
    granted: list[int] = []

    def take(worker: Caller) -> None:
        try:
            barrier.wait(10)
            for _ in range(30):
                granted.extend(grant.task_id for grant in lease(worker, capacity=3))
        finally:
            connection.close()

    threads = [threading.Thread(target=take, args=[worker]) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert (len(granted), len(set(granted))) == (40, 40)


def test_a_heartbeat_renews_tells_and_saves(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=30)
    task = queue(kee)
    with acting_as(kee):
        at(T0)
        grant = lease_one(worker)
        at(T0 + timedelta(seconds=20))
        answer = beat(worker, grant, percent=40, message="reading", checkpoint={"at": 7}, tokens=100, cost_usd=0.25)

        hot = LiveTask.objects.get(task_id=number(task))
        run = Run.objects.get(pk=run_key(number(task), 1))
        assert (answer.status, answer.order, answer.lease_ms) == ("ok", "continue", 30_000)
        assert hot.lease_expires_at == T0 + timedelta(seconds=50)
        assert (run.percent, run.message, run.checkpoint) == (40, "reading", {"at": 7})
        assert [spend.tokens for spend in Spend.objects.all()] == [100]


def test_one_lost_lease_does_not_spoil_the_batch(kee: Caller, worker: Caller, rival: Caller) -> None:
    make_type(kee)
    for _ in range(3):
        queue(kee)
    mine, done, foreign = lease_one(worker), lease_one(worker), lease_one(rival)
    complete(worker, done)
    with acting_as(worker):
        answers = services.heartbeat(
            worker=worker,
            beats=[Beat(task_id=grant.task_id, lease_token=grant.lease_token) for grant in (done, foreign, mine)],
        )
    assert [(answer.status, answer.reason) for answer in answers] == [
        ("lost", "completed"),
        ("lost", "bad_lease_token"),
        ("ok", None),
    ]


@pytest.mark.django_db(transaction=True)
def test_a_row_that_somebody_else_has_at_hand_is_not_a_loss() -> None:
    kee = make_caller(make_tenant("acme"))
    make_type(kee)
    queue(kee)
    grant = lease_one(kee)
    locked, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with acting_as(kee):
                LiveTask.objects.select_for_update().get(task_id=grant.task_id)
                locked.set()
                let_go.wait(20)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(20)
    during = beat(kee, grant)
    let_go.set()
    thread.join(20)

    assert (during.status, during.reason) == ("retry", None)
    assert beat(kee, grant).status == "ok"


def test_a_lease_ends_at_its_deadline_exactly_and_the_next_run_sees_the_checkpoint(
    kee: Caller, worker: Caller, rival: Caller
) -> None:
    make_type(kee, lease_seconds=30)
    queue(kee)
    with acting_as(kee):
        at(T0)
        first = lease_one(worker)
        beat(worker, first, checkpoint=[1, 2])
        at(T0 + timedelta(seconds=29, microseconds=999_999))
        assert lease(rival) == []
        at(T0 + timedelta(seconds=30))
        second = lease_one(rival)

        assert (second.fence, second.checkpoint) == (2, [1, 2])
        assert Run.objects.get(pk=run_key(first.task_id, 1)).outcome == "expired"
        assert LiveTask.objects.get(task_id=first.task_id).expiries == 1
        assert (beat(worker, first).status, beat(worker, first).reason) == ("lost", "superseded")
        with pytest.raises(LeaseLost) as lost:
            complete(worker, first)
        assert lost.value.extra == {"reason": "superseded"}
        assert complete(rival, second).status == "succeeded"


def test_an_expired_lease_that_nobody_has_moved_on_is_still_good(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=30)
    queue(kee)
    queue(kee)
    with acting_as(kee):
        at(T0)
        one, other = lease(worker, capacity=2)
        at(T0 + timedelta(seconds=300))
        assert beat(worker, one).status == "ok"
        assert complete(worker, other).status == "succeeded"


def test_a_strict_type_refuses_an_expired_lease(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=30, strict=True)
    queue(kee)
    with acting_as(kee):
        at(T0)
        grant = lease_one(worker)
        at(T0 + timedelta(seconds=30))
        assert (beat(worker, grant).status, beat(worker, grant).reason) == ("lost", "expired")
        with pytest.raises(LeaseLost):
            complete(worker, grant)
        assert not FinishedTask.objects.exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
        lambda token: token.replace(".1.", ".2."),
        lambda token: "lt_" + ("8" if token[3] == "9" else "9") + token[4:],
        lambda _: "nonsense",
        lambda _: "",
        lambda token: token + "\n",
    ],
)
def test_a_token_that_was_not_issued_is_refused_before_any_query(kee: Caller, worker: Caller, spoil: Any) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    with acting_as(worker):
        from django.test.utils import CaptureQueriesContext  # noqa: PLC0415

        with CaptureQueriesContext(connection) as queries, pytest.raises(BadLeaseToken):
            services.prove(worker=worker, task_id=grant.task_id, lease_token=spoil(grant.lease_token))
        assert len(queries) == 0


def test_a_retired_key_still_verifies(kee: Caller, worker: Caller, settings: Any) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    settings.LEASE_KEYS = ["new", *settings.LEASE_KEYS]
    assert beat(worker, grant).status == "ok"
    settings.LEASE_KEYS = ["new"]
    assert beat(worker, grant).reason == "bad_lease_token"


@pytest.fixture
def begins_where_it_left_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "WHOLE_EVERY", 3600.0)


def _put_below(task: int) -> None:
    """As another process does that gives a task back: it stands where it stood."""
    LiveTask.objects.filter(task_id=task).update(ready_at=T0 - timedelta(days=365 * 90))


@pytest.mark.usefixtures("begins_where_it_left_off")
def test_a_claim_that_finds_too_few_where_it_left_off_looks_at_all(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    tasks = [number(queue(kee)) for _ in range(4)]
    lease_one(worker)
    with acting_as(kee):
        _put_below(tasks[3])
    assert [grant.task_id for grant in lease(worker, capacity=2)] == tasks[1:3]
    assert [grant.task_id for grant in lease(worker, capacity=2)] == [tasks[3]]


def test_what_another_process_gave_back_is_next_within_a_second(
    kee: Caller, worker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_type(kee)
    tasks = [number(queue(kee)) for _ in range(4)]
    moment = 100.0
    monkeypatch.setattr(leasing, "_moment", lambda: moment)
    lease_one(worker)
    with acting_as(kee):
        _put_below(tasks[3])
    moment += 0.9 * leasing.WHOLE_EVERY
    assert lease_one(worker).task_id == tasks[1]
    moment += 0.2 * leasing.WHOLE_EVERY
    assert lease_one(worker).task_id == tasks[3]


@pytest.mark.usefixtures("begins_where_it_left_off")
def test_what_goes_back_here_is_next_at_once(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    tasks = [number(queue(kee)) for _ in range(3)]
    first = lease_one(worker)
    assert lease_one(worker).task_id == tasks[1]
    with acting_as(worker):
        services.release(worker=worker, task_id=first.task_id, lease_token=first.lease_token)
    assert lease_one(worker).task_id == first.task_id


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ([{"checkpoint": {"n": 1}}, {"percent": 50.0}], {"n": 1}),
        ([{"percent": 50.0, "message": "half"}, {"checkpoint": {"n": 1}}], {"n": 1}),
        ([{"checkpoint": {"n": 1}}, {"checkpoint": {"n": 2}}, {"message": "more"}], {"n": 2}),
    ],
)
def test_of_several_beats_of_one_lease_in_a_batch_all_is_kept(
    kee: Caller, worker: Caller, told: list[dict[str, Any]], kept: dict[str, int]
) -> None:
    make_type(kee, lease_seconds=10)
    queue(kee)
    with acting_as(worker):
        at(T0)
        grant = lease_one(worker)
        beats = [Beat(task_id=grant.task_id, lease_token=grant.lease_token, **one) for one in told]
        answers = services.heartbeat(worker=worker, beats=beats)
        assert [answer.status for answer in answers] == ["ok"] * len(told)

        at(T0 + timedelta(seconds=20))
        assert lease_one(worker).checkpoint == kept
