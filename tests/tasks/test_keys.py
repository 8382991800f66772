"""Concurrency keys: one task of a key at a time, and never none while one could."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.tasks import selectors, services
from apps.tasks.errors import IdempotencyConflict
from apps.tasks.models import LiveTask, Run
from apps.tasks.shapes import QueueRequest
from apps.tasks.states import Status
from tests.factories import make_caller, make_tenant
from tests.tasks.making import complete, lease, lease_one, make_type, number, queue, set_queue
from tests.tasks.test_batches import asked, queue_many
from tests.tasks.test_ending import fail, release
from tests.tasks.test_lease import at
from tests.tasks.test_sweep import held
from tests.waiters import Other, until_somebody_waits_for_this_transaction

T0 = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def test_tasks_of_one_key_run_one_after_another_the_most_urgent_first(kee: Caller, worker: Caller) -> None:
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
        keyed = [grant for grant in grants if grant.task_id != number(free)]
        assert len(keyed) == 1
        order.append(keyed[0].task_id)
        complete(worker, keyed[0])
    assert order == [number(first), number(urgent), number(low)]


def test_a_key_is_its_tenants_own(kee: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    for caller in (kee, stranger):
        make_type(caller)
        assert queue(caller, concurrency_key="k").status == "queued"


def test_a_retry_gives_its_key_up_and_a_release_keeps_it(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first, second = queue(kee, concurrency_key="k"), queue(kee, concurrency_key="k")
    with acting_as(kee):
        at(T0)
        release(worker, lease_one(worker))
        grant = lease_one(worker)
        assert grant.task_id == number(first)
        fail(worker, grant, retry_after=10)
        other = lease_one(worker)
        assert other.task_id == number(second)
        at(T0 + timedelta(seconds=10))
        assert lease(worker) == []
        assert selectors.status(first.task_id).status == Status.WAITING
        complete(worker, other)
        assert lease_one(worker).task_id == number(first)


def test_what_becomes_due_takes_a_free_key(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    with acting_as(kee):
        at(T0)
        soon, later = (queue(kee, concurrency_key="k", run_at=T0 + timedelta(seconds=wait)) for wait in (10, 20))
        assert [soon.status, later.status] == ["scheduled", "scheduled"]
        at(T0 + timedelta(seconds=10))
        services.bring_back()
        assert lease_one(worker).task_id == number(soon)
        at(T0 + timedelta(seconds=20))
        services.bring_back()
        assert lease(worker) == []


@pytest.mark.parametrize("leased", [False, True])
def test_a_canceled_task_gives_its_key_up(kee: Caller, worker: Caller, *, leased: bool) -> None:
    make_type(kee, lease_seconds=10)
    first, second = queue(kee, concurrency_key="k"), queue(kee, concurrency_key="k")
    with acting_as(kee):
        at(T0)
        if leased:
            lease_one(worker)
        services.cancel(caller=kee, task_id=number(first))
        at(T0 + timedelta(seconds=10))
        services.end_what_must()
        assert lease_one(worker).task_id == number(second)


def test_several_of_a_key_canceled_at_once_leave_it_to_the_next(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    ids = [number(queue(kee, concurrency_key="k")) for _ in range(4)]
    with acting_as(kee):
        services.cancel_many(caller=kee, task_ids=ids[:3])
    assert lease_one(worker).task_id == ids[3]


def test_who_waits_for_more_than_its_key_is_passed_over(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", queue="second")
    needed = number(queue(kee, "other"))
    queue(kee, concurrency_key="k")
    depending = number(queue(kee, concurrency_key="k", priority=10, depends_on=(needed,)))
    later = number(queue(kee, concurrency_key="k", priority=10, run_at=T0))
    ready = number(queue(kee, concurrency_key="k", priority=1))

    complete(worker, lease_one(worker))
    (grant,) = lease(worker, capacity=5)
    assert grant.task_id == ready
    complete(worker, grant)
    assert lease(worker, capacity=5) == []

    complete(worker, lease_one(worker, queues=("second",)))
    services.release_dependants()
    assert [grant.task_id for grant in lease(worker, capacity=5)] == [depending]
    with acting_as(kee):
        assert LiveTask.objects.get(task_id=later).ready_at is None


def _work(worker: Caller) -> None:
    for _ in range(60):
        for grant in lease(worker, capacity=2):
            complete(worker, grant)


def _ask(caller: Caller) -> None:
    for nth in range(12):
        queue(caller, concurrency_key=f"k{nth % 2}")


def _together(acts: list[tuple[Callable[[Caller], None], Caller]]) -> None:
    barrier = threading.Barrier(len(acts))

    def act(do: Callable[[Caller], None], caller: Caller) -> None:
        try:
            barrier.wait(10)
            do(caller)
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=one) for one in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


_AT_ONCE = """
select count(*) from tasks_run a join tasks_task s on s.id = a.id >> 16,
       tasks_run b join tasks_task t on t.id = b.id >> 16
where a.id < b.id and s.concurrency_key = t.concurrency_key and a.started_at < b.ended_at and b.started_at < a.ended_at
"""


@pytest.mark.django_db(transaction=True)
def test_rivals_never_run_two_of_a_key_and_leave_none_behind() -> None:
    tenant = make_tenant("acme")
    kee = make_caller(tenant)
    make_type(kee)
    workers = [make_caller(tenant, f"W{nth}", Kind.WORKER) for nth in range(3)]

    _together([(_ask, kee), (_ask, kee), *((_work, worker) for worker in workers)])
    _work(kee)

    with acting_as(kee), connection.cursor() as cursor:
        assert not LiveTask.objects.exists()
        assert Run.objects.count() == 24
        cursor.execute(_AT_ONCE)
        assert cursor.fetchone() == (0,)


@pytest.mark.django_db(transaction=True)
def test_one_who_was_passed_over_while_somebody_had_it_at_hand_gets_the_key_afterwards() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    make_type(kee)
    queue(kee, concurrency_key="k")
    waiting = number(queue(kee, concurrency_key="k"))
    grant = lease_one(worker)

    with held(kee, LiveTask.objects.filter(task_id=waiting)):
        complete(worker, grant)
    assert lease(worker) == []

    assert (services.admit_waiting(), services.admit_waiting()) == (1, 0)
    assert lease_one(worker).task_id == waiting


def test_keys_that_somebody_has_and_tasks_that_wait_for_more_are_left_as_they_are(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    for key in ("had", "held"):
        queue(kee, concurrency_key=key)
        queue(kee, concurrency_key=key)
    queue(kee, concurrency_key="later", run_at=T0)
    first = queue(kee)
    queue(kee, concurrency_key="depends", depends_on=(number(first),))
    lease_one(worker)

    assert services.admit_waiting() == 0


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Those that read the table."""
    if "Relation Name" in plan:
        yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


@pytest.mark.django_db(transaction=True)
def test_a_request_that_a_rivals_key_keeps_out_takes_no_concurrency_key_along() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    make_type(kee)
    answers: list[Any] = []

    with acting_as(kee):
        services.queue(requester=kee, request=QueueRequest(task_type="index", params={}, idempotency_key="i"))
        batch = Other(
            lambda: answers.extend(
                queue_many(kee, asked(idempotency_key="i", concurrency_key="k"), asked(concurrency_key="k"))
            )
        )
        until_somebody_waits_for_this_transaction()
    batch.join()

    assert batch.failure is None
    refused, taken = answers
    assert isinstance(refused, IdempotencyConflict)
    assert number(taken) in {grant.task_id for grant in lease(worker, capacity=5)}


@pytest.mark.django_db(transaction=True)
def test_who_completes_and_leases_the_next_waits_for_nobody_at_a_limit() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    make_type(kee)
    set_queue(kee, concurrency=5)
    queue(kee, concurrency_key="k")
    grant = lease_one(worker)
    queue(kee)
    answers: list[Any] = []

    def complete_and_go_on() -> None:
        delivery = services.prepare(tenant_id=tenant.pk, task_id=grant.task_id, result=None)
        done = services.Completion(
            task_id=grant.task_id, lease_token=grant.lease_token, delivery=delivery, summary=None
        )
        with acting_as(worker):
            answers.append(
                services.complete_many(worker=worker, completions=[done], lease_next=services.LeaseNext(capacity=1))
            )

    with acting_as(kee):
        # Who is at the limit holds it until it commits.
        services.lease(worker=kee, queues=("default",), capacity=1)
        services.queue(requester=kee, request=QueueRequest(task_type="index", params={}))
        going_on = Other(complete_and_go_on)
        going_on.join(20)
        assert not going_on.is_alive()

    assert going_on.failure is None
    (completed,) = answers
    assert completed.following == []
    assert len(lease(worker)) == 1
