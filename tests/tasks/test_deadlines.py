"""A task lives so long and no longer, whoever holds it."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.tasks import selectors, services
from apps.tasks.errors import LeaseLost
from apps.tasks.models import FinishedTask, LiveTask, Run, run_key
from apps.tasks.services import Completion, LeaseNext
from tests.factories import make_caller
from tests.tasks.making import NO_RESULT, complete, lease, lease_one, make_type, number, queue, set_queue
from tests.tasks.test_lease import T0, at, beat


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def later(seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "select set_config('gatehouse.now', (statement_timestamp() + make_interval(secs => %s))::text, true)",
            [seconds],
        )


def deadline_of(kee: Caller, task: int) -> datetime:
    with acting_as(kee):
        deadline = LiveTask.objects.get(task_id=task).deadline_at
    assert deadline is not None
    return deadline


@pytest.mark.parametrize("leased", [False, True])
def test_a_task_past_its_deadline_ends_as_a_dead_letter(
    kee: Caller, worker: Caller, leased: bool
) -> None:  # a parameter
    make_type(kee, deadline_seconds=600, lease_seconds=900, max_expiries=1)
    task = number(queue(kee))
    grant = lease_one(worker) if leased else None
    later(595)
    assert services.end_what_must() == 0
    later(601)
    assert [services.end_what_must(), services.end_what_must()] == [1, 0]
    with acting_as(kee):
        record = FinishedTask.objects.get(task_id=task)
        assert (record.status, record.reason, record.fence) == ("failed", "deadline_passed", int(leased))
        assert not LiveTask.objects.exists()
        assert Receipt.objects.filter(event_type="task_failed").count() == 1
        events = [event.event for event in selectors.timeline(f"task_{task}").events]
    assert events == ["queued", *(["leased", "run_revoked"] if leased else []), "failed"]
    if grant is not None:
        with pytest.raises(LeaseLost):
            complete(worker, grant)
        with acting_as(kee):
            assert Run.objects.get(pk=run_key(task, 1)).outcome == "revoked"


def test_a_deadline_begins_when_the_task_may(kee: Caller) -> None:
    make_type(kee, deadline_seconds=600)
    with acting_as(kee), connection.cursor() as cursor:
        cursor.execute("select gatehouse_now() + interval '1 day'")
        (tomorrow,) = cursor.fetchone()
    queue(kee, run_at=tomorrow)
    later(86_000)
    assert services.end_what_must() == 0
    later(86_400 + 601)
    assert services.end_what_must() == 1


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


def test_a_task_past_its_deadline_is_given_to_nobody_and_hinders_nobody(kee: Caller, worker: Caller) -> None:
    make_type(kee, deadline_seconds=60)
    make_type(kee, "endless")
    queue(kee, priority=10)
    other = number(queue(kee, "endless", priority=1))
    later(61)
    assert [grant.task_id for grant in lease(worker, capacity=5)] == [other]
    set_queue(kee, concurrency=5, fair=True)
    assert lease(worker, capacity=5) == []
    set_queue(kee, concurrency=5)
    assert lease(worker, capacity=5) == []
    assert services.end_what_must() == 1


def test_a_repeated_completion_answers_a_lease_cut_by_a_deadline_as_it_was(kee: Caller, worker: Caller) -> None:
    make_type(kee, deadline_seconds=100, lease_seconds=60)
    queue(kee)
    grant = lease_one(worker)
    task = number(queue(kee))
    deadline = deadline_of(kee, task)
    at(deadline - timedelta(milliseconds=400))
    completion = Completion(task_id=grant.task_id, lease_token=grant.lease_token, delivery=NO_RESULT)
    for _ in range(2):
        with acting_as(worker):
            completed = services.complete_many(
                worker=worker, completions=[completion], lease_next=LeaseNext(capacity=1)
            )
        assert [following.lease_ms for following in completed.following] == [400]


def test_a_silent_holder_is_given_no_longer_than_the_type_allows(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=600, max_lease_seconds=900, heartbeat_seconds=30)
    task = number(queue(kee))
    at(T0)
    grant = lease_one(worker, lease_seconds=700)
    assert grant.lease_ms == 30_000
    at(T0 + timedelta(seconds=29))
    assert beat(worker, grant).lease_ms == 30_000
    at(T0 + timedelta(seconds=58))
    assert services.bring_back().requeued == 0
    assert lease(worker) == []
    at(T0 + timedelta(seconds=59))
    again = lease_one(worker)
    assert (again.task_id, again.fence, again.lease_ms) == (task, 2, 30_000)
    assert beat(worker, grant).reason == "superseded"
    at(T0 + timedelta(seconds=89))
    assert services.bring_back().requeued == 1


def test_a_shorter_lease_than_the_longest_silence_stays_as_short(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=60, heartbeat_seconds=30)
    queue(kee)
    assert lease_one(worker, lease_seconds=5).lease_ms == 5000


def test_a_deadline_that_no_calendar_has_is_the_last_day(kee: Caller) -> None:
    make_type(kee, deadline_seconds=31_536_000)
    task = queue(kee, run_at=datetime(9999, 12, 28, tzinfo=UTC))

    with acting_as(kee):
        assert LiveTask.objects.get().deadline_at == datetime(9999, 12, 30, tzinfo=UTC)
        assert selectors.status(task.task_id).status == "scheduled"
