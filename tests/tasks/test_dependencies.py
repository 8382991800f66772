"""Tasks that wait for others."""

import threading
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from apps.core.errors import Invalid
from apps.digests.models import Inbox
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Obligation, Receipt
from apps.tasks import selectors, services
from apps.tasks.errors import UnknownTask
from apps.tasks.models import Dependency, FinishedTask, LiveTask, Task
from apps.tasks.services import Failure
from apps.tasks.states import IfDependencyFails
from tests.factories import make_caller, make_tenant
from tests.tasks.making import complete, lease, lease_one, make_type, number, queue
from tests.tasks.test_sweep import held


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def after(caller: Caller, *tasks: Any, **more: Any) -> int:
    """A task that waits for these."""
    return number(queue(caller, depends_on=tuple(number(task) for task in tasks), **more))


def fail(worker: Caller) -> int:
    grant = lease_one(worker)
    failure = Failure(code="x", message="It broke.", retryable=False)
    with acting_as(worker):
        services.fail(worker=worker, task_id=grant.task_id, lease_token=grant.lease_token, failure=failure)
    return grant.task_id


def status(caller: Caller, task_id: int) -> str:
    with acting_as(caller):
        return str(selectors.status(f"task_{task_id}").status)


def test_a_task_is_ready_when_all_that_it_depends_on_have_succeeded(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first, second = queue(kee), queue(kee)
    last = after(kee, first, second)
    assert status(kee, last) == "waiting"
    complete(worker, lease_one(worker))
    assert services.release_dependants() == 1
    assert status(kee, last) == "waiting"
    complete(worker, lease_one(worker))
    assert lease(worker) == []
    assert services.release_dependants() == 1
    assert lease_one(worker).task_id == last
    with acting_as(kee):
        assert not Dependency.objects.exists()


def test_what_has_succeeded_already_is_not_waited_for(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first = queue(kee)
    complete(worker, lease_one(worker))
    last = after(kee, first)
    assert status(kee, last) == "queued"
    with acting_as(kee):
        assert not Dependency.objects.exists()
        receipt = Receipt.objects.get(event_type="task_queued", metadata__task_id=f"task_{last}")
        assert receipt.metadata["depends_on"] == [first.task_id]


@pytest.mark.parametrize(("policy", "end"), [(None, "canceled"), ("cancel", "canceled"), ("fail", "failed")])
def test_a_failure_ends_what_depends_on_it_by_its_policy(
    kee: Caller, worker: Caller, policy: str | None, end: str
) -> None:
    make_type(kee)
    first = queue(kee)
    more = {} if policy is None else {"if_dependency_fails": IfDependencyFails(policy)}
    last = after(kee, first, **more)
    fail(worker)
    assert services.release_dependants() == 1
    with acting_as(kee):
        record = FinishedTask.objects.get(task_id=last)
        assert (record.status, record.reason, record.fence) == (end, "dependency_failed", 0)
        assert (record.error or {})["details"] == {"task_id": first.task_id}
        assert not LiveTask.objects.filter(task_id=last).exists()
        (receipt,) = Receipt.objects.filter(event_type=f"task_{end}", metadata__task_id=f"task_{last}")
        assert receipt.recipient_id == kee.principal_id
        assert not Obligation.objects.filter(closed_at=None).exists()


def test_a_canceled_task_takes_a_chain_with_it_link_by_link(kee: Caller) -> None:
    make_type(kee)
    first = queue(kee)
    chain = [number(first)]
    for _ in range(4):
        chain.append(after(kee, f"task_{chain[-1]}"))
    with acting_as(kee):
        services.cancel(caller=kee, task_id=chain[0])
    assert [services.release_dependants() for _ in range(5)] == [1, 1, 1, 1, 0]
    assert {status(kee, task) for task in chain} == {"canceled"}


def test_a_dependant_that_waits_for_a_moment_too_waits_for_both(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first = queue(kee)
    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute("select gatehouse_now() + interval '1 hour'")
        (later,) = cursor.fetchone()
    last = after(kee, first, run_at=later)
    complete(worker, lease_one(worker))
    services.release_dependants()
    assert status(kee, last) == "scheduled"
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', (statement_timestamp() + '2 hours')::text, true)")
    assert lease_one(worker).task_id == last


def test_a_dependant_that_was_due_first_waits_on(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", queue="other")
    first = queue(kee, "other")
    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute("select gatehouse_now() + interval '1 hour'")
        (later,) = cursor.fetchone()
    last = after(kee, first, run_at=later)
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', (statement_timestamp() + '2 hours')::text, true)")
    assert lease(worker) == []
    complete(worker, lease_one(worker, queues=("other",)))
    services.release_dependants()
    assert lease_one(worker).task_id == last


def test_a_dependant_with_a_concurrency_key_waits_its_turn(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first = queue(kee, priority=9)
    holds = queue(kee, concurrency_key="k")
    last = after(kee, first, concurrency_key="k")
    complete(worker, lease_one(worker))
    services.release_dependants()
    grant = lease_one(worker)
    assert grant.task_id == number(holds)
    assert lease(worker) == []
    complete(worker, grant)
    assert lease_one(worker).task_id == last


def test_a_dependant_that_is_canceled_waits_for_nothing(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    last = after(kee, queue(kee))
    with acting_as(kee):
        assert services.cancel(caller=kee, task_id=last) == "canceled"
    complete(worker, lease_one(worker))
    services.release_dependants()
    with acting_as(kee):
        assert not Dependency.objects.exists()


def test_only_what_the_requester_may_see_can_be_waited_for(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    hexy, stranger = make_caller(tenant, "Hexy"), make_caller(make_tenant("globex"))
    make_type(stranger)
    for foreign in (queue(hexy).task_id, queue(stranger).task_id, "task_999999999"):
        with pytest.raises(UnknownTask):
            after(kee, foreign)
    with pytest.raises(Invalid):
        queue(kee, depends_on=tuple(range(1, 102)))
    with acting_as(kee):
        assert not Task.objects.filter(requester_id=kee.principal_id).exists()
    told = queue(hexy, recipient="Kee")
    assert status(kee, after(kee, told)) == "waiting"


def test_a_circle_can_not_be_written(kee: Caller) -> None:
    make_type(kee)
    first = queue(kee)
    last = after(kee, first)
    with acting_as(kee), pytest.raises(IntegrityError), transaction.atomic():
        Dependency.objects.create(tenant_id=kee.tenant_id, task_id=number(first), on_task_id=last, if_it_fails="cancel")


@pytest.mark.django_db(transaction=True)
def test_ends_at_the_same_moment_release_what_waits_for_them_all_once() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    make_type(kee)
    firsts = [queue(kee) for _ in range(6)]
    last = after(kee, *firsts)
    grants = lease(worker, capacity=6)
    together = threading.Barrier(6)
    faults: list[BaseException] = []

    def finish(place: int) -> None:
        try:
            together.wait(20)
            complete(worker, grants[place])
            services.release_dependants()
        except BaseException as exc:  # noqa: BLE001  # told by the main thread
            faults.append(exc)
        finally:
            connection.close()

    workers = [threading.Thread(target=finish, args=(place,)) for place in range(6)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(30)
    assert faults == []
    services.release_dependants()
    assert lease_one(worker).task_id == last
    with acting_as(kee):
        assert LiveTask.objects.get(task_id=last).open_dependencies == 0


@pytest.mark.django_db(transaction=True)
def test_a_busy_inbox_keeps_back_no_end_but_its_own() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    hexy, _ = make_caller(tenant, "Hexy"), make_caller(tenant, "Ona")
    make_type(kee)
    queue(kee, recipient="Hexy")
    complete(worker, lease_one(worker))
    first = queue(kee)
    busy, other = (after(kee, first, recipient=name) for name in ("Hexy", "Ona"))
    fail(worker)

    with held(hexy, Inbox.objects.filter(principal_id=hexy.principal_id)):
        assert services.release_dependants() == 1
        assert (status(kee, busy), status(kee, other)) == ("waiting", "canceled")
    assert services.release_dependants() == 1
    assert status(kee, busy) == "canceled"
