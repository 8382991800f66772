"""Limits bite when leases are granted: never exceeded, and what they keep back holds up nothing else."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services, ticks
from apps.tasks.errors import UnknownQueue, UnknownTaskType
from apps.tasks.models import FairShare, LiveTask, Queue, RateWindow
from apps.tasks.services import LeaseNext
from tests.factories import make_caller, make_tenant
from tests.tasks.making import complete, lease, lease_one, make_type, number, own, queue, set_queue
from tests.tasks.test_batches import asked, complete_many, queue_many
from tests.tasks.test_ending import fail, release
from tests.tasks.test_lease import at
from tests.tasks.test_rows import _violates

T0 = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def test_a_queue_gives_out_as_much_as_it_may(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    set_queue(kee, concurrency=2)
    queue_many(kee, *[asked()] * 6)

    one, other = lease(worker, capacity=9)
    assert lease(worker, capacity=9) == []
    complete(worker, one)
    assert len(lease(worker, capacity=9)) == 1
    release(worker, other)
    assert len(lease(worker, capacity=9)) == 1
    set_queue(kee, concurrency=4)
    assert len(lease(worker, capacity=9)) == 2
    set_queue(kee)
    assert len(lease(worker, capacity=9)) == 1


def test_an_expired_lease_counts_until_it_is_taken_back(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=10)
    set_queue(kee, concurrency=1)
    queue_many(kee, *[asked()] * 2)
    with acting_as(kee):
        at(T0)
        first = lease_one(worker)
        at(T0 + timedelta(seconds=10))
        again = lease_one(worker)
        assert (again.task_id, again.fence) == (first.task_id, 2)
        assert lease(worker) == []


def test_a_type_is_limited_over_all_queues_and_holds_up_no_other(kee: Caller, worker: Caller) -> None:
    make_type(kee, "narrow", concurrency=2)
    make_type(kee, "wide", queue="second")
    queue_many(kee, *[asked("narrow", priority=10)] * 3, *[asked("narrow", queue="second", priority=10)] * 3)
    queue_many(kee, *[asked("wide", priority=1)] * 2)

    grants = lease(worker, queues=("default", "second"), capacity=9)

    assert sorted(grant.task_type for grant in grants) == ["narrow", "narrow", "wide", "wide"]
    assert lease(worker, queues=("second", "default"), capacity=9) == []
    complete(worker, next(grant for grant in grants if grant.task_type == "narrow"))
    assert [grant.task_type for grant in lease(worker, queues=("second",), capacity=9)] == ["narrow"]


def test_the_most_urgent_goes_first_within_limits_too(kee: Caller, worker: Caller) -> None:
    make_type(kee, "narrow", concurrency=5)
    make_type(kee, "wide")
    set_queue(kee, concurrency=3)
    answers = queue_many(
        kee,
        asked("wide", priority=3),
        asked("narrow", priority=9),
        asked("wide", priority=8),
        asked("narrow", priority=1),
    )
    order = [number(answers[place]) for place in (1, 2, 0)]
    assert [grant.task_id for grant in lease(worker, capacity=9)] == order


def test_work_that_a_worker_cannot_do_takes_none_of_the_room(kee: Caller, worker: Caller) -> None:
    make_type(kee, "heavy", requires=["gpu"])
    make_type(kee, "light")
    set_queue(kee, concurrency=1)
    queue_many(kee, *[asked("heavy", priority=10)] * 3, asked("light", priority=1))
    assert lease_one(worker).task_type == "light"


@pytest.mark.parametrize("of_type", [False, True])
def test_a_rate_holds_in_any_period(kee: Caller, worker: Caller, *, of_type: bool) -> None:
    rate: dict[str, Any] = {"rate": 3, "rate_seconds": 60.0}
    make_type(kee, **(rate if of_type else {}))
    set_queue(kee, **({} if of_type else rate))
    queue_many(kee, *[asked()] * 20)
    with acting_as(kee):
        given = []
        for second in (0, 30, 59.999, 60, 89.999, 90, 500):
            at(T0 + timedelta(seconds=second))
            grants = lease(worker, capacity=1 if second == 0 else 9)
            given.append(len(grants))
            for grant in grants:
                complete(worker, grant)
        assert given == [1, 2, 0, 1, 0, 2, 3]
        # What no period reaches any more is not kept.
        assert RateWindow.objects.count() == 1


def test_a_retry_and_what_follows_a_completion_count_against_a_rate(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    set_queue(kee, rate=2, rate_seconds=60.0)
    queue_many(kee, *[asked()] * 5)
    with acting_as(kee):
        at(T0)
        fail(worker, lease_one(worker), retry_after=0)
        completed = complete_many(worker, [lease_one(worker)], lease_next=LeaseNext(capacity=3))
        assert completed.following == []


def test_a_completion_at_the_limit_makes_room_for_what_follows_it(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    set_queue(kee, concurrency=1)
    queue_many(kee, *[asked()] * 5)
    completed = complete_many(worker, [lease_one(worker)], lease_next=LeaseNext(capacity=3))
    assert len(completed.following) == 1


def test_a_paused_type_gives_out_nothing_and_holds_up_no_other(kee: Caller, worker: Caller) -> None:
    make_type(kee, "still")
    make_type(kee, "going")
    queue_many(kee, asked("still", priority=10), asked("going"))
    with acting_as(kee):
        services.pause_type(caller=kee, name="still", now=T0)
    assert [grant.task_type for grant in lease(worker, capacity=9)] == ["going"]
    with acting_as(kee):
        services.resume_type(caller=kee, name="still")
    assert [grant.task_type for grant in lease(worker, capacity=9)] == ["still"]


def test_what_is_not_there_is_neither_paused_nor_resumed(kee: Caller) -> None:
    with acting_as(kee):
        for verb in (services.resume_type, services.resume_queue):
            with pytest.raises((UnknownTaskType, UnknownQueue)):
                verb(caller=kee, name="nothing")
        for pause in (services.pause_type, services.pause_queue):
            with pytest.raises((UnknownTaskType, UnknownQueue)):
                pause(caller=kee, name="nothing", now=T0)
        assert not Queue.objects.exists()


def _requesters(caller: Caller, worker: Caller, *, times: int, **more: Any) -> list[int]:
    found = []
    for _ in range(times):
        grants = lease(worker, **more)
        found += [grant.requester_id for grant in grants]
        for grant in grants:
            complete(worker, grant)
    return found


def test_requesters_take_turns_whatever_their_numbers_and_priorities(
    tenant: Tenant, kee: Caller, worker: Caller
) -> None:
    quiet, late = make_caller(tenant, "Quiet"), make_caller(tenant, "Late")
    make_type(kee)
    set_queue(kee, fair=True)
    queue_many(kee, *[asked(priority=10)] * 30)
    mine = [number(task) for task in queue_many(quiet, asked(priority=1), asked(priority=2), asked(priority=1))]

    first = lease(worker, capacity=4)
    assert sorted(grant.requester_id for grant in first) == sorted([kee.principal_id, quiet.principal_id] * 2)
    # Within one requester the priority says who goes first.
    assert [grant.task_id for grant in first if grant.requester_id == quiet.principal_id] == [mine[1], mine[0]]
    queue_many(late, asked(), asked())
    turns = _requesters(kee, worker, times=5)
    assert turns.count(quiet.principal_id) == 1
    assert turns.count(late.principal_id) == 2
    assert turns[0] == late.principal_id
    assert _requesters(kee, worker, times=3, capacity=2) == [kee.principal_id] * 6
    with acting_as(kee):
        assert FairShare.objects.count() == 3


def test_a_queue_that_becomes_fair_puts_what_waits_on_turns(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    quiet = make_caller(tenant, "Quiet")
    make_type(kee)
    queue_many(kee, *[asked(priority=10)] * 5)
    queue(quiet, priority=1)
    set_queue(kee, fair=True)
    assert quiet.principal_id in _requesters(kee, worker, times=2)
    # One that was queued while the queue became fair is found soon.
    with acting_as(kee):
        LiveTask.objects.update(requester=None)
        assert lease(worker) == []
        assert services.settle_fair_shares() == 4
    assert len(lease(worker, capacity=9)) == 4
    assert services.settle_fair_shares() == 0


def test_a_backlog_of_a_queue_that_becomes_fair_is_on_turns_after_one_tick(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    for size in (1_000, 1_000, 1):
        queue_many(kee, *[asked()] * size)
    set_queue(kee, fair=True)
    ticks.settle_fair_shares()
    with acting_as(kee):
        assert not LiveTask.objects.filter(requester=None).exists()


def test_what_a_queues_limit_keeps_back_takes_no_room_of_its_type_elsewhere(kee: Caller, worker: Caller) -> None:
    make_type(kee, "narrow", queue="first", concurrency=1)
    make_type(kee, "wide", queue="first")
    make_type(kee, "other", queue="second")
    set_queue(kee, "first", concurrency=1)
    wide = number(queue(kee, "wide", priority=9))
    queue(kee, "narrow", priority=1)
    queue(kee, "narrow", queue="second", priority=1)
    narrow = number(queue(kee, "narrow", queue="second", priority=2))
    given = lease(worker, queues=("first", "second"), capacity=4)
    assert [grant.task_id for grant in given] == [wide, narrow]


def test_a_fair_queue_keeps_its_limits_and_those_of_types(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    quiet = make_caller(tenant, "Quiet")
    make_type(kee, "narrow", concurrency=1)
    make_type(kee, "wide")
    set_queue(kee, fair=True, concurrency=3)
    queue_many(kee, *[asked("narrow", priority=10)] * 5, *[asked("wide")] * 5)
    queue_many(quiet, *[asked("narrow")] * 2)
    grants = lease(worker, capacity=9)
    assert sorted(grant.task_type for grant in grants) in (["narrow", "wide"], ["narrow", "wide", "wide"])
    rest = lease(worker, capacity=9)
    assert sorted(grant.task_type for grant in (*grants, *rest)) == ["narrow", "wide", "wide"]
    assert lease(worker, capacity=9) == []


_MOST_AT_ONCE = """
select max((select count(*) from tasks_run b where b.started_at <= a.started_at
                                               and coalesce(b.ended_at, 'infinity') > a.started_at))
from tasks_run a
"""
_MOST_IN_A_PERIOD = """
select max((select count(*) from tasks_run b
            where b.started_at >= a.started_at and b.started_at < a.started_at + interval '1 second'))
from tasks_run a
"""


def _rivals(workers: list[Caller], act: Callable[[Caller], None]) -> None:
    barrier = threading.Barrier(len(workers))

    def go(worker: Caller) -> None:
        try:
            barrier.wait(10)
            act(worker)
        finally:
            connection.close()

    threads = [threading.Thread(target=go, args=[worker]) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def _work(worker: Caller) -> None:
    held = lease(worker, capacity=2)
    for _ in range(15):
        for grant in held:
            complete(worker, grant)
        held = lease(worker, capacity=2)
    for grant in held:
        complete(worker, grant)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("of_type", [False, True])
def test_rivals_never_hold_more_than_the_limit(*, of_type: bool) -> None:
    tenant = make_tenant("acme")
    kee = make_caller(tenant)
    limit: dict[str, Any] = {"concurrency": 3}
    make_type(kee, **(limit if of_type else {}))
    set_queue(kee, fair=True, **({} if of_type else limit))
    queue_many(kee, *[asked()] * 60)

    _rivals([make_caller(tenant, f"W{nth}", Kind.WORKER) for nth in range(4)], _work)

    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute("select count(*) from tasks_run")
        assert cursor.fetchone()[0] > 20
        cursor.execute(_MOST_AT_ONCE)
        assert cursor.fetchone() == (3,)


@pytest.mark.django_db(transaction=True)
def test_rivals_never_get_more_leases_in_a_period_than_the_rate() -> None:
    tenant = make_tenant("acme")
    kee = make_caller(tenant)
    make_type(kee)
    set_queue(kee, rate=5, rate_seconds=1.0)
    queue_many(kee, *[asked()] * 60)

    _rivals([make_caller(tenant, f"W{nth}", Kind.WORKER) for nth in range(4)], _work)

    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute(_MOST_IN_A_PERIOD)
        assert cursor.fetchone() == (5,)


def test_a_claim_without_limits_is_one_statement_and_three_with_them(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "narrow", queue="second", concurrency=3)
    queue_many(kee, *[asked()] * 3, *[asked("narrow")] * 3)
    counts = []
    with acting_as(worker):
        for task_types in (["index"], None):
            with CaptureQueriesContext(connection) as captured:
                services.lease(worker=worker, queues=["default", "second"], capacity=2, task_types=task_types)
            counts.append(len([query for query in captured if own(query)]))
    assert counts == [1, 3]


def test_counts_of_leases_are_in_no_impossible_state(kee: Caller) -> None:
    make_type(kee)
    stamp = {"tenant_id": kee.tenant_id, "granted_at": T0}
    with acting_as(kee):
        line = Queue.objects.get()
        of_neither = "tasks_ratewindow_of_a_queue_or_a_type"
        _violates(of_neither, lambda: RateWindow.objects.create(leases=1, **stamp))
        _violates("tasks_ratewindow_counts_something", lambda: RateWindow.objects.create(queue=line, leases=0, **stamp))
        turn = {"tenant_id": kee.tenant_id, "queue": line, "requester_id": kee.principal_id}
        FairShare.objects.create(served=1, **turn)
        _violates("tasks_fairshare_once", lambda: FairShare.objects.create(served=2, **turn))
