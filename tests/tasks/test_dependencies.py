"""Tasks that wait for others."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from apps.digests.models import Inbox
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Obligation, Receipt
from apps.tasks.models import Dependency, FinishedTask, LiveTask, Task
from apps.tasks.services import queueing, running
from apps.tasks.shapes import LeasedTask
from apps.tasks.states import IfDependencyFails
from tests.factories import at, make_caller, make_tenant, refused
from tests.tasks.making import FUTURE, complete, fail_next, lease, lease_one, make_type, number, queue, status
from tests.waiters import held, together


def after(caller: Caller, *tasks: Any, **more: Any) -> int:
    """A task that waits for these."""
    return number(queue(caller, depends_on=[f"task_{number(task)}" for task in tasks], **more))


def test_task_is_ready_when_all_dependencies_have_succeeded(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    first, second = queue(kee), queue(kee)
    last = after(kee, first, second)
    assert status(kee, last) == "waiting"
    complete(worker, lease_one(worker))
    assert queueing.release_dependants() == 1
    assert status(kee, last) == "waiting"
    complete(worker, lease_one(worker))
    assert lease(worker) == []
    assert queueing.release_dependants() == 1
    assert number(lease_one(worker)) == last
    with acting_as(kee):
        assert not Dependency.objects.exists()


def test_succeeded_dependency_is_not_waited_for(kee: Caller, worker: Caller) -> None:
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
def test_failed_dependency_ends_its_dependants(kee: Caller, worker: Caller, policy: str | None, end: str) -> None:
    make_type(kee)
    first = queue(kee)
    more = {} if policy is None else {"on_dependency_failure": IfDependencyFails(policy)}
    last = after(kee, first, **more)
    fail_next(worker)
    assert queueing.release_dependants() == 1
    with acting_as(kee):
        record = FinishedTask.objects.get(task_id=last)
        assert (record.status, record.reason, record.fencing_token) == (end, "dependency_failed", 0)
        assert (record.error or {})["details"] == {"task_id": first.task_id}
        assert not LiveTask.objects.filter(task_id=last).exists()
        (receipt,) = Receipt.objects.filter(event_type=f"task_{end}", metadata__task_id=f"task_{last}")
        assert receipt.recipient_id == kee.principal_id
        assert not Obligation.objects.filter(closed_at=None).exists()


def test_canceled_task_cancels_its_chain(kee: Caller) -> None:
    make_type(kee)
    first = queue(kee)
    chain = [number(first)]
    for _ in range(4):
        chain.append(after(kee, f"task_{chain[-1]}"))
    with acting_as(kee):
        running.cancel(caller=kee, task_id=chain[0])
    assert [queueing.release_dependants() for _ in range(5)] == [1, 1, 1, 1, 0]
    assert {status(kee, task) for task in chain} == {"canceled"}


def test_dependant_with_run_at_waits_for_both(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    at(FUTURE)
    first = queue(kee)
    last = after(kee, first, run_at=FUTURE + timedelta(hours=1))
    complete(worker, lease_one(worker))
    queueing.release_dependants()
    assert status(kee, last) == "scheduled"
    at(FUTURE + timedelta(hours=2))
    assert number(lease_one(worker)) == last


def test_due_dependant_waits_for_its_dependency(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    make_type(kee, "other", queue="other")
    at(FUTURE)
    first = queue(kee, "other")
    last = after(kee, first, run_at=FUTURE + timedelta(hours=1))
    at(FUTURE + timedelta(hours=2))
    assert lease(worker) == []
    complete(worker, lease_one(worker, queues=("other",)))
    queueing.release_dependants()
    assert number(lease_one(worker)) == last


def test_canceled_dependant_waits_for_nothing(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    last = after(kee, queue(kee))
    with acting_as(kee):
        assert running.cancel(caller=kee, task_id=last) == "canceled"
    complete(worker, lease_one(worker))
    queueing.release_dependants()
    with acting_as(kee):
        assert not Dependency.objects.exists()


def test_only_visible_tasks_can_be_dependencies(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    hexy, stranger = make_caller(tenant, "Hexy"), make_caller(make_tenant("globex"))
    make_type(stranger)
    for foreign in (queue(hexy).task_id, queue(stranger).task_id, "task_999999999"):
        with refused("unknown_task"):
            after(kee, foreign)
    with acting_as(kee):
        assert not Task.objects.filter(requester_id=kee.principal_id).exists()
    told = queue(hexy, recipient_ai="Kee")
    assert status(kee, after(kee, told)) == "waiting"


def test_cycle_of_dependencies_is_refused(kee: Caller) -> None:
    make_type(kee)
    first = queue(kee)
    last = after(kee, first)
    with acting_as(kee), pytest.raises(IntegrityError), transaction.atomic():
        Dependency.objects.create(tenant_id=kee.tenant_id, task_id=number(first), on_task_id=last, if_it_fails="cancel")


@pytest.mark.django_db(transaction=True)
def test_simultaneous_ends_release_a_dependant_once(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    firsts = [queue(kee) for _ in range(6)]
    last = after(kee, *firsts)

    def finish(grant: LeasedTask) -> None:
        complete(worker, grant)
        queueing.release_dependants()

    together(*(partial(finish, grant) for grant in lease(worker, capacity=6)))
    queueing.release_dependants()
    assert number(lease_one(worker)) == last
    with acting_as(kee):
        assert LiveTask.objects.get(task_id=last).open_dependencies == 0


@pytest.mark.django_db(transaction=True)
def test_locked_inbox_delays_only_its_own_ends(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    hexy, _ = make_caller(tenant, "Hexy"), make_caller(tenant, "Ona")
    make_type(kee)
    queue(kee, recipient_ai="Hexy")
    complete(worker, lease_one(worker))
    first = queue(kee)
    busy, other = (after(kee, first, recipient_ai=name) for name in ("Hexy", "Ona"))
    fail_next(worker)

    with held(hexy, Inbox.objects.select_for_update().filter(principal_id=hexy.principal_id).get):
        assert queueing.release_dependants() == 1
        assert (status(kee, busy), status(kee, other)) == ("waiting", "canceled")
    assert queueing.release_dependants() == 1
    assert status(kee, busy) == "canceled"
