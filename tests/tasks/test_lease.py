"""Leases: who gets what, for how long, and how they are lost."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks.models import FinishedTask, LiveTask, Run, run_key
from apps.tasks.services import operating, running
from tests.factories import at, make_caller, make_tenant, refused
from tests.tasks.making import (
    FUTURE,
    asked,
    beat,
    complete,
    lease,
    lease_one,
    leased,
    make_type,
    number,
    queue,
    queue_many,
    release,
)
from tests.waiters import together


def test_priority_then_age_orders_leases(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    ids = [number(queue(kee, priority=priority)) for priority in (5, 10, 1, 10)]

    granted = [number(grant) for grant in lease(worker, capacity=4)]

    assert granted == [ids[1], ids[3], ids[0], ids[2]]


def test_queues_are_tried_in_the_order_named(kee: Caller, worker: Caller) -> None:
    make_type(kee, "a", queue="first")
    make_type(kee, "b", queue="second")
    queue(kee, "b", priority=10)
    queue(kee, "a", priority=1)
    queue(kee, "b", priority=1)

    assert {grant.task_type for grant in lease(worker, queues=("first", "second"), capacity=2)} == {"a", "b"}
    assert len(lease(worker, queues=("first", "second"), capacity=2)) == 1


def test_missing_capability_does_not_block_other_work(kee: Caller, worker: Caller) -> None:
    make_type(kee, "heavy", requires=["gpu", "cuda"])
    make_type(kee, "light")
    for _ in range(3):
        queue(kee, "heavy", priority=10)
    queue(kee, "light", priority=1)

    assert [grant.task_type for grant in lease(worker, capacity=4, capabilities=["gpu"])] == ["light"]
    able = lease(worker, capacity=4, capabilities=["cuda", "gpu", "more"])
    assert [grant.task_type for grant in able] == ["heavy"] * 3


def test_lease_may_name_types_only(kee: Caller, worker: Caller) -> None:
    make_type(kee, "a", queue="first")
    make_type(kee, "b", queue="first")
    queue(kee, "a")
    queue(kee, "b")
    assert [grant.task_type for grant in lease(worker, queues=(), task_types=["b"], capacity=9)] == ["b"]
    assert lease(worker, queues=(), task_types=["nothing"]) == []
    with refused("invalid"):
        lease(worker, queues=())


def test_lease_seconds_are_capped_by_the_type(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=60, max_lease_seconds=90)
    queue(kee)
    queue(kee)
    assert lease_one(worker, lease_seconds=5).lease_ms == 5000
    assert lease_one(worker, lease_seconds=500).lease_ms == 90_000


def test_lease_does_not_cross_tenants(kee: Caller) -> None:
    make_type(kee)
    task = queue(kee)
    stranger = make_caller(make_tenant("globex"), "W", Kind.WORKER)
    make_type(stranger)
    assert lease(stranger) == []
    grant = lease_one(kee)
    assert beat(stranger, grant).reason == "bad_lease_token"
    with refused("bad_lease_token"):
        complete(stranger, grant)
    with acting_as(kee):
        assert LiveTask.objects.get(task_id=number(task)).holder_id == kee.principal_id


@pytest.mark.django_db(transaction=True)
def test_rival_workers_never_share_a_task(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    queue_many(kee, *[asked()] * 40)

    def take(worker: Caller) -> list[int]:
        return [number(grant) for _ in range(30) for grant in lease(worker, capacity=3)]

    workers = [make_caller(tenant, f"W{index}", Kind.WORKER) for index in range(5)]
    granted = [task for taken in together(*(partial(take, worker) for worker in workers)) for task in taken]

    assert (len(granted), len(set(granted))) == (40, 40)


def test_expired_lease_is_claimable_with_its_checkpoint(kee: Caller, worker: Caller, rival: Caller) -> None:
    make_type(kee, lease_seconds=30)
    queue(kee)
    with acting_as(kee):
        at(FUTURE)
        first = lease_one(worker)
        beat(worker, first, checkpoint={"n": [1, 2]})
        at(FUTURE + timedelta(seconds=29, microseconds=999_999))
        assert lease(rival) == []
        at(FUTURE + timedelta(seconds=30))
        second = lease_one(rival)

        assert (second.run_id, second.checkpoint) == (2, {"n": [1, 2]})
        assert Run.objects.get(pk=run_key(number(first), 1)).outcome == "expired"
        assert LiveTask.objects.get(task_id=number(first)).expiries == 1
        assert (beat(worker, first).status, beat(worker, first).reason) == ("lost", "superseded")
        with refused("lease_lost") as refusal:
            complete(worker, first)
        assert refusal.value.extra == {"reason": "superseded"}
        assert complete(rival, second).status == "succeeded"


def test_unclaimed_expired_lease_is_still_good(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=30)
    queue(kee)
    queue(kee)
    with acting_as(kee):
        at(FUTURE)
        one, other = lease(worker, capacity=2)
        at(FUTURE + timedelta(seconds=300))
        assert beat(worker, one).status == "ok"
        assert complete(worker, other).status == "succeeded"


def test_strict_type_refuses_an_expired_lease(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=30, strict=True)
    queue(kee)
    with acting_as(kee):
        at(FUTURE)
        grant = lease_one(worker)
        at(FUTURE + timedelta(seconds=30))
        assert (beat(worker, grant).status, beat(worker, grant).reason) == ("lost", "expired")
        with refused("lease_lost"):
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
def test_forged_token_is_refused_before_any_query(kee: Caller, worker: Caller, spoil: Any) -> None:
    grant = leased(kee, worker)
    with acting_as(worker):
        from django.test.utils import CaptureQueriesContext  # noqa: PLC0415

        with CaptureQueriesContext(connection) as queries, refused("bad_lease_token"):
            running.prove(worker=worker, task_id=number(grant), lease_token=spoil(grant.lease_token))
        assert len(queries) == 0


def test_older_signing_key_still_verifies(kee: Caller, worker: Caller, settings: Any) -> None:
    grant = leased(kee, worker)
    settings.LEASE_KEYS = ["new", *settings.LEASE_KEYS]
    assert beat(worker, grant).status == "ok"
    settings.LEASE_KEYS = ["new"]
    assert beat(worker, grant).reason == "bad_lease_token"


@pytest.fixture
def begins_where_it_left_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "WHOLE_EVERY", 3600.0)


def _put_below(task: int) -> None:
    """As another process does that gives a task back: it stands where it stood."""
    LiveTask.objects.filter(task_id=task).update(ready_at=FUTURE - timedelta(days=365 * 90))


@pytest.mark.usefixtures("begins_where_it_left_off")
def test_claim_looks_at_the_whole_queue_when_too_few_are_found(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    tasks = [number(queue(kee)) for _ in range(4)]
    lease_one(worker)
    with acting_as(kee):
        _put_below(tasks[3])
    assert [number(grant) for grant in lease(worker, capacity=2)] == tasks[1:3]
    assert [number(grant) for grant in lease(worker, capacity=2)] == [tasks[3]]


def test_task_released_elsewhere_is_next_within_a_second(
    kee: Caller, worker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_type(kee)
    tasks = [number(queue(kee)) for _ in range(4)]
    moment = 100.0
    monkeypatch.setattr(running, "_moment", lambda: moment)
    lease_one(worker)
    with acting_as(kee):
        _put_below(tasks[3])
    moment += 0.9 * running.WHOLE_EVERY
    assert number(lease_one(worker)) == tasks[1]
    moment += 0.2 * running.WHOLE_EVERY
    assert number(lease_one(worker)) == tasks[3]


@pytest.mark.usefixtures("begins_where_it_left_off")
def test_task_released_here_is_next_at_once(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    tasks = [number(queue(kee)) for _ in range(3)]
    first = lease_one(worker)
    assert number(lease_one(worker)) == tasks[1]
    release(worker, first)
    assert number(lease_one(worker)) == number(first)


def test_heartbeat_seconds_is_the_longest_silence(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=600, max_lease_seconds=900, heartbeat_seconds=30)
    task = number(queue(kee))
    at(FUTURE)
    grant = lease_one(worker, lease_seconds=700)
    assert grant.lease_ms == 30_000
    at(FUTURE + timedelta(seconds=29))
    assert beat(worker, grant).lease_ms == 30_000
    at(FUTURE + timedelta(seconds=58))
    assert operating.bring_back()[0] == 0
    assert lease(worker) == []
    at(FUTURE + timedelta(seconds=59))
    again = lease_one(worker)
    assert (number(again), again.run_id, again.lease_ms) == (task, 2, 30_000)
    assert beat(worker, grant).reason == "superseded"
    at(FUTURE + timedelta(seconds=89))
    assert operating.bring_back()[0] == 1


def test_lease_shorter_than_heartbeat_seconds_stays_short(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=60, heartbeat_seconds=30)
    queue(kee)
    assert lease_one(worker, lease_seconds=5).lease_ms == 5000
