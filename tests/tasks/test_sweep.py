"""What happens by itself, whoever stands in the way."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction

from apps.core.sql import hot_cursor
from apps.digests.models import Inbox
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks import registry, selectors, services, sql
from apps.tasks.models import FinishedTask, LiveTask, TaskType
from apps.tasks.services import ending
from tests.factories import make_caller, make_tenant
from tests.ground import as_owner
from tests.tasks import slow_handler  # noqa: F401  # registers the type
from tests.tasks.making import complete, lease, lease_one, make_type, number, queue, set_queue
from tests.tasks.test_ending import snapshot
from tests.tasks.test_lease import beat

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@contextmanager
def held(caller: Caller, rows: object) -> Iterator[None]:
    """Rows locked by somebody else meanwhile."""
    locked, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with acting_as(caller):
                list(rows.select_for_update())  # type: ignore[attr-defined]  # a queryset of whatever model
                locked.set()
                let_go.wait(60)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert locked.wait(20)
        yield
    finally:
        let_go.set()
        thread.join(20)


def _ended(caller: Caller) -> set[int]:
    with acting_as(caller):
        return set(FinishedTask.objects.filter(status="failed").values_list("task_id", flat=True))


@pytest.mark.django_db(transaction=True)
def test_a_busy_inbox_keeps_back_no_end_but_its_own() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    hexy, _ = make_caller(tenant, "Hexy"), make_caller(tenant, "Ona")
    make_type(kee, max_expiries=1)
    queue(kee, recipient="Hexy")
    complete(worker, lease_one(worker))
    # More than a batch of the busy one's stands in front.
    busy = {number(queue(kee, recipient="Hexy")) for _ in range(services.SWEEP_BATCH + 1)}
    others = {number(queue(kee, recipient="Ona")) for _ in range(3)}
    lease(worker, capacity=len(busy) + len(others))
    with acting_as(kee):
        LiveTask.objects.update(lease_expires_at=LONG_AGO)

    with held(hexy, Inbox.objects.filter(principal_id=hexy.principal_id)):
        assert services.end_what_must() == len(others)
        assert _ended(kee) == others
        assert services.end_what_must() == 0
    assert [services.end_what_must() for _ in range(3)] == [services.SWEEP_BATCH, 1, 0]
    assert _ended(kee) == busy | others


@pytest.mark.django_db(transaction=True)
def test_a_task_that_somebody_has_at_hand_keeps_back_no_end_of_another() -> None:
    tenant = make_tenant("acme")
    kee, worker = make_caller(tenant), make_caller(tenant, "W", Kind.WORKER)
    make_type(kee, max_expiries=1)
    at_hand, other = number(queue(kee)), number(queue(kee))
    lease(worker, capacity=2)
    with acting_as(kee):
        LiveTask.objects.update(lease_expires_at=LONG_AGO)

    with held(kee, LiveTask.objects.filter(task_id=at_hand)):
        assert services.end_what_must() == 1
    assert _ended(kee) == {other}
    assert services.end_what_must() == 1


def test_expired_leases_of_every_queue_and_tenant_are_brought_back(tenant: Tenant, kee: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    for caller, name in ((kee, "first"), (kee, "second"), (stranger, "first")):
        make_type(caller, name, queue=name)
        queue(caller, name)
        lease(caller, queues=(name,))
        with acting_as(caller):
            LiveTask.objects.update(lease_expires_at=LONG_AGO)
    # A claim brings back those of its own queues.
    assert [grant.fence for grant in lease(kee, queues=("first",))] == [2]
    assert services.bring_back().requeued == 2
    assert services.bring_back().requeued == 0


def test_work_for_handlers_that_lies_about_is_found_once_a_queue(kee: Caller) -> None:
    make_type(kee)
    queue(kee)
    for _ in range(3):
        queue(kee, "slow_for_tests", {"folder": "/x"})
    assert services.unannounced() == []
    with acting_as(kee):
        LiveTask.objects.update(ready_at=LONG_AGO)
        own = TaskType.objects.select_related("queue").get(name="slow_for_tests")

    (found,) = services.unannounced()
    assert (found.tenant_id, found.queue, found.task_type) == (kee.tenant_id, own.queue.name, own.name)
    assert found.task_type in registry.names()
    with acting_as(kee):
        services.pause_queue(caller=kee, name=own.queue.name, now=LONG_AGO)
    assert services.unannounced() == []


@pytest.mark.parametrize("limited", ["queue", "type"])
def test_where_a_limit_may_keep_work_back_is_found_as_long_as_there_is_any(kee: Caller, limited: str) -> None:
    rate: dict[str, Any] = {"rate": 1, "rate_seconds": 3600.0}
    make_type(kee)
    make_type(kee, "slow", **(rate if limited == "type" else {}))
    for name in ("index", "slow"):
        queue(kee, name)
    assert [(found.queue, found.task_type) for found in services.kept_back()] == (
        [("default", "slow")] if limited == "type" else []
    )
    if limited == "queue":
        set_queue(kee, **rate)
    assert [found.queue for found in services.kept_back()] == ["default"]
    with acting_as(kee):
        services.pause_queue(caller=kee, name="default", now=LONG_AGO)
    assert services.kept_back() == []
    with acting_as(kee):
        services.resume_queue(caller=kee, name="default")
        LiveTask.objects.update(ready_at=None)
    assert services.kept_back() == []


def test_the_health_of_a_queue_tells_ready_waiting_and_leased_apart(kee: Caller) -> None:
    make_type(kee)
    make_type(kee, "idle", queue="idle")
    for _ in range(3):
        queue(kee)
    queue(kee, run_at=datetime(2100, 1, 1, tzinfo=UTC))
    lease(kee, capacity=2)
    with acting_as(kee):
        LiveTask.objects.filter(holder__isnull=False).update(lease_expires_at=LONG_AGO)
        LiveTask.objects.filter(holder=None, ready_at__isnull=False).update(ready_at=LONG_AGO)
        busy, idle = selectors.queue_health(tenant_id=kee.tenant_id).values()

    assert (busy.queue, busy.paused, busy.queued, busy.scheduled, busy.leased, busy.expired) == (
        *("default", False),
        *(1, 1, 2, 2),
    )
    assert busy.oldest_wait_seconds > 86_400
    assert (idle.queue, idle.queued, idle.scheduled, idle.leased, idle.oldest_wait_seconds) == ("idle", 0, 0, 0, 0)


@pytest.mark.django_db(transaction=True)
def test_one_that_can_not_be_ended_keeps_back_no_other_of_its_recipient() -> None:
    tenant = make_tenant("acme")
    kee = make_caller(tenant)
    make_type(kee, max_expiries=1)
    broken, *others = (number(queue(kee)) for _ in range(4))
    lease(kee, capacity=4)
    with acting_as(kee):
        LiveTask.objects.update(lease_expires_at=LONG_AGO)
    with transaction.atomic(), as_owner() as cursor:
        # Its end can't be recorded: there is one already.
        cursor.execute(
            "insert into task_history (task_id, tenant_id, status, fence, summary, receipt_id, finished_at)"
            " values (%s, %s, 'succeeded', 1, '', 'r', now())",
            [broken, tenant.pk],
        )

    assert services.end_what_must() == len(others)
    assert _ended(kee) == set(others)
    with acting_as(kee):
        assert [one.task_id for one in LiveTask.objects.all()] == [broken]


@pytest.mark.parametrize("order", ["last lease", "cancel"])
def test_what_was_found_expired_and_is_held_again_by_then_does_not_end(kee: Caller, order: str) -> None:
    make_type(kee, max_expiries=1 if order == "last lease" else 3)
    task = number(queue(kee))
    grant = lease_one(kee)
    with acting_as(kee):
        if order == "cancel":
            services.cancel(caller=kee, task_id=task)
        LiveTask.objects.update(lease_expires_at=LONG_AGO)
    with acting_as_system("test"), hot_cursor() as cursor:
        cursor.execute(sql.DOOMED)
        assert [found for _, found, _ in cursor.fetchall()] == [task]

    beat(kee, grant)
    before = snapshot(kee)
    with acting_as(kee):
        assert ending.bury(task_ids=[task]) == 0
    assert snapshot(kee) == before

    with acting_as(kee):
        LiveTask.objects.update(lease_expires_at=LONG_AGO)
        assert ending.bury(task_ids=[task]) == 1
