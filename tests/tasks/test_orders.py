"""What heartbeats are told, and what becomes of runs that make no progress."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services
from apps.tasks.errors import LeaseLost, NotLeased, UnknownTask
from apps.tasks.models import FinishedTask, LiveTask, Run
from apps.tasks.services import Beat
from apps.tasks.states import Order
from tests.factories import T0, make_caller, make_tenant
from tests.tasks.making import complete, lease, lease_one, make_type, number, queue
from tests.tasks.test_ending import cancel, release, snapshot, terminal_receipts
from tests.tasks.test_lease import T0 as LATER
from tests.tasks.test_lease import at, beat


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def order(caller: Caller, task_id: int, what: Order) -> None:
    with acting_as(caller):
        services.order(caller=caller, task_id=task_id, what=what)


def test_a_checkpoint_is_asked_for_until_there_is_one(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    order(kee, grant.task_id, Order.CHECKPOINT)
    assert [beat(worker, grant).order for _ in range(2)] == ["checkpoint", "checkpoint"]
    assert beat(worker, grant, percent=10).order == "checkpoint"
    assert beat(worker, grant, checkpoint={"at": 1}).order == "continue"


def test_a_checkpoint_that_comes_late_is_not_the_one_that_was_asked_for(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    beat(worker, grant, checkpoint={"at": 2}, sequence=2)
    order(kee, grant.task_id, Order.CHECKPOINT)
    late = beat(worker, grant, percent=10, checkpoint={"at": 1}, sequence=1)
    assert [late.order, beat(worker, grant, sequence=3).order] == ["checkpoint", "checkpoint"]


def test_the_heaviest_order_is_told(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    order(kee, grant.task_id, Order.CHECKPOINT)
    order(kee, grant.task_id, Order.DRAIN)
    assert beat(worker, grant).order == "drain"
    cancel(kee, grant.task_id)
    assert beat(worker, grant).order == "cancel"


def test_orders_to_one_holder_are_not_for_the_next(kee: Caller, worker: Caller) -> None:
    make_type(kee, strict=True)
    queue(kee)
    first = lease_one(worker)
    order(kee, first.task_id, Order.DRAIN)
    order(kee, first.task_id, Order.CHECKPOINT)
    release(worker, first)
    assert beat(worker, lease_one(worker)).order == "continue"


def test_a_queue_is_drained_of_what_is_leased(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", queue="second")
    for _ in range(2):
        queue(kee)
    queue(kee, "other")
    held, elsewhere = lease_one(worker), lease_one(worker, queues=("second",))
    with acting_as(kee):
        services.pause_queue(caller=kee, name="default", now=T0, drain=True)
    assert (beat(worker, held).order, beat(worker, elsewhere).order) == ("drain", "continue")
    release(worker, held)
    assert lease(worker) == []
    with acting_as(kee):
        services.resume_queue(caller=kee, name="default")
    assert [beat(worker, grant).order for grant in lease(worker, capacity=2)] == ["continue", "continue"]


def test_only_its_parties_order_what_somebody_holds(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    waiting, held = number(queue(kee, priority=1)), number(queue(kee))
    lease_one(worker)
    before = snapshot(kee)
    with pytest.raises(UnknownTask):
        order(make_caller(tenant, "Hexy"), held, Order.DRAIN)
    with pytest.raises(NotLeased):
        order(kee, waiting, Order.DRAIN)
    with pytest.raises(UnknownTask):
        order(kee, 10**15, Order.CHECKPOINT)
    assert snapshot(kee) == before


def test_a_run_that_says_nothing_new_is_stuck_and_shown(kee: Caller, worker: Caller) -> None:
    make_type(kee, stuck_after=3)
    queue(kee)
    grant = lease_one(worker)
    said: list[dict[str, Any]] = [{"percent": 5}, {}, {"percent": 5}, {"percent": 5}]
    assert [beat(worker, grant, **one).stuck for one in said] == [False, False, False, True]
    assert beat(worker, grant).stuck
    assert not beat(worker, grant, percent=6).stuck
    assert [beat(worker, grant).stuck for _ in range(3)] == [False, False, True]
    assert not beat(worker, grant, checkpoint={"at": 1}).stuck
    assert complete(worker, grant).status == "succeeded"


def test_without_a_limit_no_run_is_stuck(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(worker)
    assert not any(beat(worker, grant).stuck for _ in range(5))
    with acting_as(kee):
        assert LiveTask.objects.get().silent_beats == 0


def test_a_stuck_run_is_revoked_by_policy_and_its_task_ends_after_too_many(kee: Caller, worker: Caller) -> None:
    make_type(kee, stuck_after=2, revokes_stuck=True, max_expiries=2)
    task = queue(kee)
    first = lease_one(worker)
    beat(worker, first)
    answer = beat(worker, first)
    assert (answer.status, answer.order, answer.reason) == ("lost", "cancel", "stuck")
    before = snapshot(kee)
    with pytest.raises(LeaseLost):
        complete(worker, first)
    assert beat(worker, first).reason == "requeued"
    assert snapshot(kee) == before

    second = lease_one(worker)
    with acting_as(kee):
        assert (LiveTask.objects.get().expiries, second.fence) == (1, 2)
    assert [beat(worker, second).status for _ in range(2)] == ["ok", "lost"]
    with acting_as(kee):
        record = FinishedTask.objects.get(task_id=number(task))
        assert (record.status, record.reason) == ("failed", "expiries_exhausted")
        assert record.error is not None
        assert record.error["code"] == "stuck"
        assert list(Run.objects.order_by("pk").values_list("outcome", flat=True)) == ["revoked", "revoked"]
    assert len(terminal_receipts(kee, number(task))) == 1


def test_a_run_is_not_stuck_by_the_silence_of_the_one_before(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=10, stuck_after=2, revokes_stuck=True)
    queue(kee)
    with acting_as(kee):
        at(LATER)
        assert beat(worker, lease_one(worker)).status == "ok"
        at(LATER + timedelta(seconds=10))
        services.bring_back()
        again = lease_one(worker)
        assert (again.fence, beat(worker, again).status) == (2, "ok")


def test_one_stuck_run_spoils_no_other_of_its_batch(kee: Caller, worker: Caller) -> None:
    make_type(kee, stuck_after=1, revokes_stuck=True)
    for _ in range(2):
        queue(kee)
    still, moving = lease(worker, capacity=2)
    with acting_as(worker):
        answers = services.heartbeat(
            worker=worker,
            beats=[
                Beat(task_id=still.task_id, lease_token=still.lease_token),
                Beat(task_id=moving.task_id, lease_token=moving.lease_token, percent=1),
            ],
        )
    assert [answer.status for answer in answers] == ["lost", "ok"]


@pytest.mark.django_db(transaction=True)
def test_of_a_completion_and_the_revocation_of_a_stuck_run_one_wins() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    make_type(kee, stuck_after=1, revokes_stuck=True, max_expiries=100)
    for _ in range(8):
        task = queue(kee)
        grant = lease_one(worker)
        barrier = threading.Barrier(2)
        heard: list[str] = []

        def beats(grant: Any = grant, barrier: threading.Barrier = barrier, heard: list[str] = heard) -> None:
            try:
                barrier.wait(10)
                heard.append(str(beat(worker, grant).reason))
            finally:
                connection.close()

        thread = threading.Thread(target=beats)
        thread.start()
        barrier.wait(10)
        try:
            complete(worker, grant)
            completed = True
        except LeaseLost:
            completed = False
        thread.join(30)
        assert heard in (["completed"], ["None"]) if completed else heard == ["stuck"]
        assert len(terminal_receipts(kee, number(task))) == int(completed)
        if not completed:
            complete(worker, lease_one(worker, task_types=["index"]), "again")
