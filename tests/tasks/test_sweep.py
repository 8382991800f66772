"""What happens by itself: expired leases, deadlines, announcements of work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.dispatch import Signal

from apps.core.sql import fetch
from apps.digests.models import Inbox
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.receipts.models import Receipt
from apps.tasks import handlers, selectors, sql
from apps.tasks.models import FinishedTask, LiveTask, Run, TaskType, run_key
from apps.tasks.services import operating, queueing, running
from apps.tasks.shapes import LeaseNext, Rate
from apps.tasks.signals import task_queued, tasks_finished
from tests.factories import as_owner, at, make_caller, make_tenant, refused
from tests.tasks.making import (
    FUTURE,
    LONG_AGO,
    asked,
    beat,
    cancel,
    complete,
    complete_many,
    fail_next,
    later,
    lease,
    lease_one,
    leased,
    make_type,
    number,
    pause,
    queue,
    queue_many,
    release,
    set_queue,
    snapshot,
)
from tests.waiters import held


def expire(caller: Caller) -> None:
    """Every lease of this tenant has expired."""
    with acting_as(caller):
        LiveTask.objects.update(lease_expires_at=LONG_AGO)


def _ended(caller: Caller) -> set[int]:
    with acting_as(caller):
        return set(FinishedTask.objects.filter(status="failed").values_list("task_id", flat=True))


@pytest.mark.django_db(transaction=True)
def test_locked_inbox_delays_only_its_own_ends(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    hexy, _ = make_caller(tenant, "Hexy"), make_caller(tenant, "Ona")
    make_type(kee, max_expiries=1)
    queue(kee, recipient_ai="Hexy")
    complete(worker, lease_one(worker))
    # More than a batch of the busy one's stands in front.
    busy = {number(queue(kee, recipient_ai="Hexy")) for _ in range(operating.SWEEP_BATCH + 1)}
    others = {number(queue(kee, recipient_ai="Ona")) for _ in range(3)}
    lease(worker, capacity=len(busy) + len(others))
    expire(kee)

    with held(hexy, Inbox.objects.select_for_update().filter(principal_id=hexy.principal_id).get):
        assert operating.end_what_must() == len(others)
        assert _ended(kee) == others
        assert operating.end_what_must() == 0
    assert [operating.end_what_must() for _ in range(3)] == [operating.SWEEP_BATCH, 1, 0]
    assert _ended(kee) == busy | others


@pytest.mark.django_db(transaction=True)
def test_locked_task_delays_no_other_end(kee: Caller, worker: Caller) -> None:
    make_type(kee, max_expiries=1)
    at_hand, other = number(queue(kee)), number(queue(kee))
    lease(worker, capacity=2)
    expire(kee)

    with held(kee, LiveTask.objects.select_for_update().filter(task_id=at_hand).get):
        assert operating.end_what_must() == 1
    assert _ended(kee) == {other}
    assert operating.end_what_must() == 1


def test_sweep_reclaims_leases_of_every_tenant(tenant: Tenant, kee: Caller) -> None:
    stranger = make_caller(make_tenant("globex"))
    for caller, name in ((kee, "first"), (kee, "second"), (stranger, "first")):
        make_type(caller, name, queue=name)
        queue(caller, name)
        lease(caller, queues=(name,))
        expire(caller)
    # A claim brings back those of its own queues.
    assert [grant.run_id for grant in lease(kee, queues=("first",))] == [2]
    assert operating.bring_back()[0] == 2
    assert operating.bring_back()[0] == 0


def test_unannounced_work_is_found_once_a_queue(kee: Caller) -> None:
    make_type(kee)
    queue(kee)
    for _ in range(3):
        queue(kee, "slow_for_tests", {"folder": "/x"})
    assert operating.ready_again() == []
    with acting_as(kee):
        LiveTask.objects.update(ready_at=LONG_AGO)
        own = TaskType.objects.select_related("queue").get(name="slow_for_tests")

    assert operating.ready_again() == [(kee.tenant_id, own.queue.name, own.name)]
    assert own.name in handlers.names()
    pause(kee, own.queue.name)
    assert operating.ready_again() == []


@pytest.mark.parametrize("limited", ["queue", "type"])
def test_work_kept_back_by_a_limit_is_found(kee: Caller, limited: str) -> None:
    rate: dict[str, Any] = {"rate": Rate(leases=1, per_seconds=3600)}
    make_type(kee)
    make_type(kee, "slow", **(rate if limited == "type" else {}))
    for name in ("index", "slow"):
        queue(kee, name)
    assert [found[1:] for found in operating.ready_again()] == ([("default", "slow")] if limited == "type" else [])
    if limited == "queue":
        set_queue(kee, **rate)
    assert [queue for _, queue, _ in operating.ready_again()] == ["default"]
    pause(kee)
    assert operating.ready_again() == []
    with acting_as(kee):
        queueing.resume(queueing.queue_named(tenant_id=kee.tenant_id, name="default"))
        LiveTask.objects.update(ready_at=None)
    assert operating.ready_again() == []


def test_queue_health_counts_by_status(kee: Caller) -> None:
    make_type(kee)
    make_type(kee, "idle", queue="idle")
    queue_many(kee, *[asked()] * 3)
    queue(kee, run_at=FUTURE)
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
def test_task_that_can_not_end_delays_no_other(tenant: Tenant, kee: Caller) -> None:
    make_type(kee, max_expiries=1)
    broken, *others = (number(queue(kee)) for _ in range(4))
    lease(kee, capacity=4)
    expire(kee)
    with transaction.atomic(), as_owner() as cursor:
        # Its end can't be recorded: there is one already.
        cursor.execute(
            "insert into task_history (task_id, tenant_id, status, fencing_token, summary, receipt_id, finished_at)"
            " values (%s, %s, 'succeeded', 1, '', 'r', now())",
            [broken, tenant.pk],
        )

    assert operating.end_what_must() == len(others)
    assert _ended(kee) == set(others)
    with acting_as(kee):
        assert [one.task_id for one in LiveTask.objects.all()] == [broken]


@pytest.mark.parametrize("order", ["last lease", "cancel"])
def test_renewed_lease_is_not_ended(kee: Caller, order: str) -> None:
    make_type(kee, max_expiries=1 if order == "last lease" else 3)
    task = number(queue(kee))
    grant = lease_one(kee)
    with acting_as(kee):
        if order == "cancel":
            running.cancel(caller=kee, task_id=task)
        LiveTask.objects.update(lease_expires_at=LONG_AGO)
    with acting_as_system("test"):
        assert [found for _, found, _ in fetch(sql.DOOMED, hot=True)] == [task]

    beat(kee, grant)
    before = snapshot(kee)
    with acting_as(kee):
        assert running.bury(tenant_id=kee.tenant_id, task_ids=[task]) == 0
    assert snapshot(kee) == before

    expire(kee)
    with acting_as(kee):
        assert running.bury(tenant_id=kee.tenant_id, task_ids=[task]) == 1


def deadline_of(kee: Caller, task: int) -> datetime:
    with acting_as(kee):
        deadline = LiveTask.objects.get(task_id=task).deadline_at
    assert deadline is not None
    return deadline


@pytest.mark.parametrize("leased", [False, True])
def test_task_past_its_deadline_becomes_a_dead_letter(kee: Caller, worker: Caller, leased: bool) -> None:
    make_type(kee, deadline_seconds=600, lease_seconds=900, max_expiries=1)
    task = number(queue(kee))
    grant = lease_one(worker) if leased else None
    later(595)
    assert operating.end_what_must() == 0
    later(601)
    assert [operating.end_what_must(), operating.end_what_must()] == [1, 0]
    with acting_as(kee):
        record = FinishedTask.objects.get(task_id=task)
        assert (record.status, record.reason, record.fencing_token) == ("failed", "deadline_passed", int(leased))
        assert not LiveTask.objects.exists()
        assert Receipt.objects.filter(event_type="task_failed").count() == 1
        events = [event.event for event in selectors.timeline(f"task_{task}").events]
    assert events == ["queued", *(["leased", "run_revoked"] if leased else []), "failed"]
    if grant is not None:
        with refused("lease_lost"):
            complete(worker, grant)
        with acting_as(kee):
            assert Run.objects.get(pk=run_key(task, 1)).outcome == "revoked"


def test_deadline_counts_from_run_at(kee: Caller) -> None:
    make_type(kee, deadline_seconds=600)
    queue(kee, run_at=FUTURE)
    at(FUTURE + timedelta(seconds=599))
    assert operating.end_what_must() == 0
    at(FUTURE + timedelta(seconds=601))
    assert operating.end_what_must() == 1


def test_no_lease_outlives_the_deadline(kee: Caller, worker: Caller) -> None:
    make_type(kee, deadline_seconds=100, lease_seconds=60, max_lease_seconds=900)
    task = number(queue(kee))
    deadline = deadline_of(kee, task)
    at(deadline - timedelta(seconds=70))
    grant = lease_one(worker, lease_seconds=900)
    assert grant.lease_ms == 70_000
    with acting_as(kee):
        assert LiveTask.objects.get(task_id=task).lease_expires_at == deadline
    at(deadline - timedelta(milliseconds=1500))
    answer = beat(worker, grant)
    assert (answer.status, answer.order, answer.lease_ms) == ("ok", "continue", 1500)
    with acting_as(kee):
        assert LiveTask.objects.get(task_id=task).lease_expires_at == deadline
    at(deadline)
    assert (beat(worker, grant).order, beat(worker, grant).lease_ms) == ("cancel", 0)


def test_task_past_its_deadline_is_not_leased(kee: Caller, worker: Caller) -> None:
    make_type(kee, deadline_seconds=60)
    make_type(kee, "endless")
    queue(kee, priority=10)
    other = number(queue(kee, "endless", priority=1))
    later(61)
    assert [number(grant) for grant in lease(worker, capacity=5)] == [other]
    set_queue(kee, concurrency=5, fair=True)
    assert lease(worker, capacity=5) == []
    set_queue(kee, concurrency=5)
    assert lease(worker, capacity=5) == []
    assert operating.end_what_must() == 1


def test_repeated_next_lease_is_cut_by_the_deadline(kee: Caller, worker: Caller) -> None:
    grant = leased(kee, worker, deadline_seconds=100, lease_seconds=60)
    task = number(queue(kee))
    deadline = deadline_of(kee, task)
    at(deadline - timedelta(milliseconds=400))
    for _ in range(2):
        completed = complete_many(worker, [grant], lease_next=LeaseNext(capacity=1))
        assert [following.lease_ms for following in completed.following] == [400]


def test_deadline_is_capped_at_the_last_day(kee: Caller) -> None:
    make_type(kee, deadline_seconds=31_536_000)
    task = queue(kee, run_at=datetime(9999, 12, 28, tzinfo=UTC))

    with acting_as(kee):
        assert LiveTask.objects.get().deadline_at == datetime(9999, 12, 30, tzinfo=UTC)
        assert selectors.status(task.task_id).status == "scheduled"


@contextmanager
def heard(signal: Signal) -> Iterator[list[dict[str, Any]]]:
    """What a listener hears until the block ends."""
    facts: list[dict[str, Any]] = []

    def listen(*, signal: Signal, sender: object, **told: Any) -> None:
        facts.append(told)

    signal.connect(listen)
    try:
        yield facts
    finally:
        signal.disconnect(listen)


def work(caller: Caller) -> dict[str, Any]:
    return {"tenant_id": caller.tenant_id, "queue": "default", "task_type": "index"}


@pytest.mark.django_db(transaction=True)
def test_queued_task_is_announced_on_commit(kee: Caller) -> None:
    make_type(kee)
    with heard(task_queued) as announced:
        with transaction.atomic():
            queue(kee)
            assert announced == []
        assert announced == [work(kee)]


@pytest.mark.django_db(transaction=True)
def test_rolled_back_repeated_or_later_task_is_not_announced(kee: Caller) -> None:
    make_type(kee)
    queue(kee, idempotency_key="k")
    with heard(task_queued) as announced:
        with transaction.atomic():
            queue(kee)
            transaction.set_rollback(True)
        queue(kee, idempotency_key="k")
        queue(kee, run_at=FUTURE)
        assert announced == []


@pytest.mark.django_db(transaction=True)
def test_released_task_is_announced_again(kee: Caller) -> None:
    make_type(kee)
    queue(kee)
    grant = lease_one(kee)
    with heard(task_queued) as announced:
        release(kee, grant)
        assert announced == [work(kee)]


@pytest.mark.django_db(transaction=True)
def test_resumed_work_is_announced(kee: Caller) -> None:
    make_type(kee)
    make_type(kee, "still", queue="second")
    for task_type, line in (("index", "default"), ("index", "default"), ("still", "default"), ("index", "second")):
        queue(kee, task_type, queue=line)
    with acting_as(kee):
        queueing.pause(queueing.type_for(tenant_id=kee.tenant_id, name="still"))
        queueing.pause(queueing.queue_named(tenant_id=kee.tenant_id, name="default"))

    with heard(task_queued) as announced:
        with acting_as(kee):
            queueing.resume(queueing.queue_named(tenant_id=kee.tenant_id, name="default"))
            assert announced == []
        assert announced == [work(kee)]
        with acting_as(kee):
            queueing.pause(queueing.queue_named(tenant_id=kee.tenant_id, name="second"))
            queueing.resume(queueing.type_for(tenant_id=kee.tenant_id, name="still"))
        assert announced[1:] == [{**work(kee), "task_type": "still"}]
        with acting_as(kee):
            queueing.resume(queueing.type_for(tenant_id=kee.tenant_id, name="index"))
        assert announced[2:] == [work(kee)]


@pytest.mark.django_db(transaction=True)
def test_work_is_announced_when_a_limit_is_lifted(kee: Caller) -> None:
    make_type(kee)
    set_queue(kee, concurrency=1)
    queue(kee)
    queue(kee)
    lease_one(kee)
    with heard(task_queued) as announced:
        set_queue(kee)
        assert announced == [work(kee)]


def cancel_several(caller: Caller, task: int) -> None:
    with acting_as(caller):
        running.cancel_many(caller=caller, task_ids=[task])


ENDS: list[Callable[[Caller, int], object]] = [
    lambda caller, _: complete(caller, lease_one(caller)),
    lambda caller, _: fail_next(caller),
    cancel,
    cancel_several,
]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("end", ENDS)
def test_end_is_announced_on_commit(kee: Caller, end: Callable[[Caller, int], object]) -> None:
    make_type(kee)
    task = number(queue(kee))
    with heard(tasks_finished) as announced:
        with transaction.atomic():
            end(kee, task)
            assert announced == []
        assert announced == [{"tenant_id": kee.tenant_id, "task_ids": [task]}]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("limited", ["queue", "type", None])
def test_end_below_a_limit_announces_more_work(kee: Caller, limited: str | None) -> None:
    make_type(kee, concurrency=1 if limited == "type" else None)
    if limited == "queue":
        set_queue(kee, concurrency=1)
    queue(kee)
    grant = lease_one(kee)
    with heard(task_queued) as announced:
        with transaction.atomic():
            complete(kee, grant)
            assert announced == []
        assert announced == ([work(kee)] if limited else [])
