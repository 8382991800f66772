"""Limits and concurrency keys: never exceeded, and they hold back nothing else."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import selectors
from apps.tasks.models import FairShare, LiveTask, Queue, RateWindow, Run, Task
from apps.tasks.services import operating, queueing, running
from apps.tasks.shapes import Completed, LeasedTask, LeaseNext, Rate
from apps.tasks.states import Status
from tests.factories import at, make_caller, make_tenant, refused
from tests.tasks.making import (
    FUTURE,
    asked,
    codes,
    complete,
    complete_many,
    fail,
    lease,
    lease_one,
    make_type,
    number,
    queue,
    queue_many,
    release,
    set_queue,
)
from tests.waiters import Other, held, together, until_somebody_waits_for_this_transaction


def test_queue_concurrency_limits_leases(kee: Caller, worker: Caller) -> None:
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


def test_expired_lease_counts_until_reclaimed(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=10)
    set_queue(kee, concurrency=1)
    queue_many(kee, *[asked()] * 2)
    with acting_as(kee):
        at(FUTURE)
        first = lease_one(worker)
        at(FUTURE + timedelta(seconds=10))
        again = lease_one(worker)
        assert (again.task_id, again.run_id) == (first.task_id, 2)
        assert lease(worker) == []


def test_type_limit_counts_over_all_queues(kee: Caller, worker: Caller) -> None:
    make_type(kee, "narrow", concurrency=2)
    make_type(kee, "wide", queue="second")
    queue_many(kee, *[asked("narrow", priority=10)] * 3, *[asked("narrow", queue="second", priority=10)] * 3)
    queue_many(kee, *[asked("wide", priority=1)] * 2)

    grants = lease(worker, queues=("default", "second"), capacity=9)

    assert sorted(grant.task_type for grant in grants) == ["narrow", "narrow", "wide", "wide"]
    assert lease(worker, queues=("second", "default"), capacity=9) == []
    complete(worker, next(grant for grant in grants if grant.task_type == "narrow"))
    assert [grant.task_type for grant in lease(worker, queues=("second",), capacity=9)] == ["narrow"]


def test_priority_orders_leases_within_limits(kee: Caller, worker: Caller) -> None:
    make_type(kee, "narrow", concurrency=5)
    make_type(kee, "wide")
    set_queue(kee, concurrency=3)
    wanted = (("wide", 3), ("narrow", 9), ("wide", 8), ("narrow", 1))
    answers = queue_many(kee, *(asked(name, priority=priority) for name, priority in wanted))
    order = [number(answers[place]) for place in (1, 2, 0)]
    assert [number(grant) for grant in lease(worker, capacity=9)] == order


def test_work_out_of_reach_takes_no_room(kee: Caller, worker: Caller) -> None:
    make_type(kee, "heavy", requires=["gpu"])
    make_type(kee, "light")
    set_queue(kee, concurrency=1)
    queue_many(kee, *[asked("heavy", priority=10)] * 3, asked("light", priority=1))
    assert lease_one(worker).task_type == "light"


@pytest.mark.parametrize("of_type", [False, True])
def test_rate_holds_in_any_period(kee: Caller, worker: Caller, *, of_type: bool) -> None:
    rate: dict[str, Any] = {"rate": Rate(leases=3, per_seconds=60)}
    make_type(kee, **(rate if of_type else {}))
    set_queue(kee, **({} if of_type else rate))
    queue_many(kee, *[asked()] * 20)
    with acting_as(kee):
        given = []
        for second in (0, 30, 59.999, 60, 89.999, 90, 500):
            at(FUTURE + timedelta(seconds=second))
            grants = lease(worker, capacity=1 if second == 0 else 9)
            given.append(len(grants))
            for grant in grants:
                complete(worker, grant)
        assert given == [1, 2, 0, 1, 0, 2, 3]
        # What no period reaches any more is not kept, nor anything without a rate.
        assert RateWindow.objects.count() == 1
    make_type(kee, rate=None)
    set_queue(kee)
    with acting_as(kee):
        assert not RateWindow.objects.exists()


def test_retries_and_next_leases_count_against_a_rate(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    set_queue(kee, rate=Rate(leases=2, per_seconds=60))
    queue_many(kee, *[asked()] * 5)
    at(FUTURE)
    fail(worker, lease_one(worker), retry_after=0)
    assert complete_many(worker, [lease_one(worker)], lease_next=LeaseNext(capacity=3)).following == []


def test_completion_at_the_limit_makes_room(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    set_queue(kee, concurrency=1)
    queue_many(kee, *[asked()] * 5)
    assert len(complete_many(worker, [lease_one(worker)], lease_next=LeaseNext(capacity=3)).following) == 1


def test_paused_type_does_not_block_others(kee: Caller, worker: Caller) -> None:
    make_type(kee, "still")
    make_type(kee, "going")
    queue_many(kee, asked("still", priority=10), asked("going"))
    with acting_as(kee):
        queueing.pause(queueing.type_for(tenant_id=kee.tenant_id, name="still"))
    assert [grant.task_type for grant in lease(worker, capacity=9)] == ["going"]
    with acting_as(kee):
        queueing.resume(queueing.type_for(tenant_id=kee.tenant_id, name="still"))
    assert [grant.task_type for grant in lease(worker, capacity=9)] == ["still"]


def test_unknown_queue_or_type_is_not_paused(kee: Caller) -> None:
    with acting_as(kee):
        for code, named in (("unknown_task_type", queueing.type_for), ("unknown_queue", queueing.queue_named)):
            with refused(code):
                named(tenant_id=kee.tenant_id, name="nothing")
        assert not Queue.objects.exists()


def _requesters(caller: Caller, worker: Caller, *, times: int, **more: Any) -> list[int]:
    found = []
    for _ in range(times):
        grants = lease(worker, **more)
        found += _requesters_of(worker, grants)
        for grant in grants:
            complete(worker, grant)
    return found


def _requesters_of(worker: Caller, grants: Sequence[LeasedTask]) -> list[int]:
    with acting_as(worker):
        tasks = Task.objects.in_bulk([number(grant) for grant in grants])
        return [tasks[number(grant)].requester_id for grant in grants]


def test_fair_queue_alternates_between_requesters(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    quiet, late = make_caller(tenant, "Quiet"), make_caller(tenant, "Late")
    make_type(kee)
    set_queue(kee, fair=True)
    queue_many(kee, *[asked(priority=10)] * 30)
    mine = [number(task) for task in queue_many(quiet, asked(priority=1), asked(priority=2), asked(priority=1))]

    first = lease(worker, capacity=4)
    asking = _requesters_of(worker, first)
    assert sorted(asking) == sorted([kee.principal_id, quiet.principal_id] * 2)
    # Within one requester the priority says who goes first.
    given = [number(grant) for grant, who in zip(first, asking, strict=True) if who == quiet.principal_id]
    assert given == [mine[1], mine[0]]
    queue_many(late, asked(), asked())
    turns = _requesters(kee, worker, times=5)
    assert turns.count(quiet.principal_id) == 1
    assert turns.count(late.principal_id) == 2
    assert turns[0] == late.principal_id
    assert _requesters(kee, worker, times=3, capacity=2) == [kee.principal_id] * 6
    with acting_as(kee):
        assert FairShare.objects.count() == 3


def test_queue_that_becomes_fair_includes_waiting_tasks(tenant: Tenant, kee: Caller, worker: Caller) -> None:
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
        assert queueing.settle_fair_shares() == 4
    assert len(lease(worker, capacity=9)) == 4
    assert queueing.settle_fair_shares() == 0


def test_queue_limit_leaves_room_of_the_type_elsewhere(kee: Caller, worker: Caller) -> None:
    make_type(kee, "narrow", queue="first", concurrency=1)
    make_type(kee, "wide", queue="first")
    make_type(kee, "other", queue="second")
    set_queue(kee, "first", concurrency=1)
    wide = number(queue(kee, "wide", priority=9))
    queue(kee, "narrow", priority=1)
    queue(kee, "narrow", queue="second", priority=1)
    narrow = number(queue(kee, "narrow", queue="second", priority=2))
    given = [lease(worker, queues=("first", "second"), capacity=4) for _ in range(3)]
    assert [[number(grant) for grant in grants] for grants in given] == [[wide], [narrow], []]


def test_fair_queue_keeps_all_limits(tenant: Tenant, kee: Caller, worker: Caller) -> None:
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


def _work(worker: Caller) -> None:
    held = lease(worker, capacity=2)
    for _ in range(15):
        for grant in held:
            complete(worker, grant)
        held = lease(worker, capacity=2)
    for grant in held:
        complete(worker, grant)


def _rivals(tenant: Tenant) -> None:
    """Four workers lease and complete at the same time."""
    together(*(partial(_work, make_caller(tenant, f"W{nth}", Kind.WORKER)) for nth in range(4)))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("of_type", [False, True])
def test_rivals_never_exceed_concurrency(tenant: Tenant, kee: Caller, *, of_type: bool) -> None:
    limit: dict[str, Any] = {"concurrency": 3}
    make_type(kee, **(limit if of_type else {}))
    set_queue(kee, fair=True, **({} if of_type else limit))
    queue_many(kee, *[asked()] * 60)

    _rivals(tenant)

    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute("select count(*) from tasks_run")
        assert cursor.fetchone()[0] > 20
        cursor.execute(_MOST_AT_ONCE)
        assert cursor.fetchone() == (3,)


@pytest.mark.django_db(transaction=True)
def test_rivals_never_exceed_a_rate(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    set_queue(kee, rate=Rate(leases=5, per_seconds=1))
    queue_many(kee, *[asked()] * 60)

    _rivals(tenant)

    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute(_MOST_IN_A_PERIOD)
        assert cursor.fetchone() == (5,)


def test_tasks_of_a_key_run_one_at_a_time_by_priority(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", queue="second")
    first, low, urgent, free = queue_many(
        kee,
        asked(concurrency_key="k", priority=9),
        asked(concurrency_key="k", priority=1),
        asked("other", concurrency_key="k", priority=8),
        asked(concurrency_key="another", priority=1),
    )
    assert [task.status for task in (first, low, urgent, free)] == ["queued", "waiting", "waiting", "queued"]

    order = []
    for _ in range(3):
        grants = lease(worker, queues=("default", "second"), capacity=9)
        keyed = [grant for grant in grants if number(grant) != number(free)]
        assert len(keyed) == 1
        order.append(number(keyed[0]))
        complete(worker, keyed[0])
    assert order == [number(first), number(urgent), number(low)]


def test_concurrency_key_belongs_to_its_tenant(kee: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    for caller in (kee, stranger):
        make_type(caller)
        assert queue(caller, concurrency_key="k").status == "queued"


def test_retry_frees_the_key_and_release_keeps_it(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first, second = queue(kee, concurrency_key="k"), queue(kee, concurrency_key="k")
    with acting_as(kee):
        at(FUTURE)
        release(worker, lease_one(worker))
        grant = lease_one(worker)
        assert number(grant) == number(first)
        fail(worker, grant, retry_after=10)
        other = lease_one(worker)
        assert number(other) == number(second)
        at(FUTURE + timedelta(seconds=10))
        assert lease(worker) == []
        assert selectors.status(first.task_id).status == Status.WAITING
        complete(worker, other)
        assert number(lease_one(worker)) == number(first)


def test_due_task_takes_a_free_key(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    with acting_as(kee):
        at(FUTURE)
        soon, later = (queue(kee, concurrency_key="k", run_at=FUTURE + timedelta(seconds=wait)) for wait in (10, 20))
        assert [soon.status, later.status] == ["scheduled", "scheduled"]
        at(FUTURE + timedelta(seconds=10))
        operating.bring_back()
        assert number(lease_one(worker)) == number(soon)
        at(FUTURE + timedelta(seconds=20))
        operating.bring_back()
        assert lease(worker) == []


@pytest.mark.parametrize("leased", [False, True])
def test_canceled_task_frees_its_key(kee: Caller, worker: Caller, *, leased: bool) -> None:
    make_type(kee, lease_seconds=10)
    first, second = queue(kee, concurrency_key="k"), queue(kee, concurrency_key="k")
    with acting_as(kee):
        at(FUTURE)
        if leased:
            lease_one(worker)
        running.cancel(caller=kee, task_id=number(first))
        at(FUTURE + timedelta(seconds=10))
        operating.end_what_must()
        assert number(lease_one(worker)) == number(second)


def test_task_that_waits_for_more_is_passed_over(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", queue="second")
    needed = number(queue(kee, "other"))
    queue(kee, concurrency_key="k")
    depending = number(queue(kee, concurrency_key="k", priority=10, depends_on=[f"task_{needed}"]))
    later = number(queue(kee, concurrency_key="k", priority=10, run_at=FUTURE))
    ready = number(queue(kee, concurrency_key="k", priority=1))

    complete(worker, lease_one(worker))
    (grant,) = lease(worker, capacity=5)
    assert number(grant) == ready
    complete(worker, grant)
    assert lease(worker, capacity=5) == []

    complete(worker, lease_one(worker, queues=("second",)))
    queueing.release_dependants()
    assert [number(grant) for grant in lease(worker, capacity=5)] == [depending]
    with acting_as(kee):
        assert LiveTask.objects.get(task_id=later).ready_at is None


_AT_ONCE = """
select count(*) from tasks_run a join tasks_task s on s.id = a.id >> 16,
       tasks_run b join tasks_task t on t.id = b.id >> 16
where a.id < b.id and s.concurrency_key = t.concurrency_key and a.started_at < b.ended_at and b.started_at < a.ended_at
"""


@pytest.mark.django_db(transaction=True)
def test_rivals_never_run_two_tasks_of_a_key(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)

    def ask() -> None:
        for nth in range(12):
            queue(kee, concurrency_key=f"k{nth % 2}")

    def work(worker: Caller) -> None:
        for _ in range(60):
            for grant in lease(worker, capacity=2):
                complete(worker, grant)

    workers = [make_caller(tenant, f"W{nth}", Kind.WORKER) for nth in range(3)]
    together(ask, ask, *(partial(work, worker) for worker in workers))
    work(kee)

    with acting_as(kee), connection.cursor() as cursor:
        assert not LiveTask.objects.exists()
        assert Run.objects.count() == 24
        cursor.execute(_AT_ONCE)
        assert cursor.fetchone() == (0,)


@pytest.mark.django_db(transaction=True)
def test_locked_task_gets_its_key_later(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee, concurrency_key="k")
    waiting = number(queue(kee, concurrency_key="k"))
    grant = lease_one(worker)

    with held(kee, LiveTask.objects.select_for_update().filter(task_id=waiting).get):
        complete(worker, grant)
    assert lease(worker) == []

    assert (operating.admit_waiting(), operating.admit_waiting()) == (1, 0)
    assert number(lease_one(worker)) == waiting


@pytest.mark.django_db(transaction=True)
def test_refused_rival_frees_its_concurrency_key(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    answers: list[Any] = []

    with acting_as(kee):
        queueing.queue(requester=kee, request=asked(idempotency_key="i"))
        batch = Other(
            lambda: answers.extend(
                queue_many(kee, asked(idempotency_key="i", concurrency_key="k"), asked(concurrency_key="k"))
            )
        )
        until_somebody_waits_for_this_transaction()
    batch.join()

    assert batch.failure is None
    assert codes(answers) == ["idempotency_conflict", "waiting"]
    assert number(answers[1]) in {number(grant) for grant in lease(worker, capacity=5)}


@pytest.mark.django_db(transaction=True)
def test_completion_that_leases_next_does_not_wait_at_a_limit(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    set_queue(kee, concurrency=5)
    queue(kee, concurrency_key="k")
    grant = lease_one(worker)
    queue(kee)
    answers: list[Completed] = []

    with acting_as(kee):
        # Who is at the limit holds it until it commits.
        running.lease(worker=kee, queues=("default",), capacity=1)
        queueing.queue(requester=kee, request=asked())
        going_on = Other(lambda: answers.append(complete_many(worker, [grant], lease_next=LeaseNext(capacity=1))))
        going_on.join(20)
        assert not going_on.is_alive()

    assert going_on.failure is None
    (completed,) = answers
    assert completed.following == []
    assert len(lease(worker)) == 1
