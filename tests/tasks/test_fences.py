"""Runs of one worker are told apart by their fence alone: all the hub's own executors lease as one principal."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Receipt
from apps.tasks import services
from apps.tasks.errors import BadLeaseToken, LeaseLost
from apps.tasks.models import FinishedTask, LiveTask, Run, Spend
from apps.tasks.services import Beat, BeatAnswer, Grant
from apps.tasks.shapes import Failure
from tests.factories import make_caller
from tests.tasks.making import complete, lease_one, make_type, queue

# Later than anything that a test queues.
T0 = datetime(2100, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def at(moment: datetime) -> None:
    """Set the database's clock for the rest of the test."""
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', %s, true)", [moment.isoformat()])


def beat(worker: Caller, task_id: int, lease_token: str, **more: Any) -> BeatAnswer:
    with acting_as(worker):
        (answer,) = services.heartbeat(worker=worker, beats=[Beat(task_id=task_id, lease_token=lease_token, **more)])
    return answer


def fail(worker: Caller, grant: Grant, *, retryable: bool) -> Any:
    with acting_as(worker):
        return services.fail(
            worker=worker,
            task_id=grant.task_id,
            lease_token=grant.lease_token,
            failure=Failure(code="broken", message="It broke.", retryable=retryable),
        )


def fail_for_good(worker: Caller, grant: Grant) -> Any:
    return fail(worker, grant, retryable=False)


def fail_for_now(worker: Caller, grant: Grant) -> Any:
    return fail(worker, grant, retryable=True)


def release(worker: Caller, grant: Grant) -> Any:
    with acting_as(worker):
        return services.release(worker=worker, task_id=grant.task_id, lease_token=grant.lease_token)


ENDINGS = [complete, fail_for_good, fail_for_now, release]


def snapshot(caller: Caller) -> list[Any]:
    """Every row that a verb of a lease could change."""
    with acting_as(caller):
        return [list(model.objects.order_by("pk").values()) for model in (LiveTask, Run, Spend, FinishedTask, Receipt)]


def leased_again(worker: Caller) -> tuple[Grant, Grant]:
    """The lost lease and the current one of a task that one worker has leased twice; the clock stands at the second."""
    at(T0)
    stale = lease_one(worker)
    at(T0 + LEASE)
    current = lease_one(worker)
    assert (stale.task_id, stale.fence, current.fence) == (current.task_id, 1, 2)
    return stale, current


def test_a_lost_runs_heartbeat_does_not_renew_the_next_run_of_the_same_worker(kee: Caller, worker: Caller) -> None:
    make_type(kee, lease_seconds=30)
    queue(kee)
    with acting_as(kee):
        stale, current = leased_again(worker)
        before = snapshot(kee)
        at(T0 + LEASE + timedelta(seconds=10))

        answer = beat(worker, stale.task_id, stale.lease_token)

        assert (answer.status, answer.order, answer.reason) == ("lost", "cancel", "superseded")
        assert snapshot(kee) == before
        assert beat(worker, current.task_id, current.lease_token).status == "ok"


@pytest.mark.parametrize("end", ENDINGS)
def test_a_lost_run_does_not_end_the_next_run_of_the_same_worker(
    kee: Caller, worker: Caller, end: Callable[[Caller, Grant], Any]
) -> None:
    make_type(kee, lease_seconds=30)
    queue(kee)
    with acting_as(kee):
        stale, current = leased_again(worker)
        before = snapshot(kee)

        with pytest.raises(LeaseLost) as lost:
            end(worker, stale)

        assert lost.value.extra == {"reason": "superseded"}
        assert snapshot(kee) == before
        assert complete(worker, current).status == "succeeded"


@pytest.mark.parametrize("end", ENDINGS)
def test_a_token_is_good_for_its_own_task_only(
    kee: Caller, worker: Caller, end: Callable[[Caller, Grant], Any]
) -> None:
    make_type(kee)
    queue(kee)
    queue(kee)
    one, other = lease_one(worker), lease_one(worker)
    swapped = Grant(**{**{name: getattr(other, name) for name in Grant.__slots__}, "lease_token": one.lease_token})
    before = snapshot(kee)

    with pytest.raises(BadLeaseToken):
        end(worker, swapped)
    answer = beat(worker, other.task_id, one.lease_token, percent=50)

    assert (answer.status, answer.reason) == ("lost", "bad_lease_token")
    assert snapshot(kee) == before


def superseded(worker: Caller, grant: Grant) -> None:
    lease_one(worker)


def requeued(worker: Caller, grant: Grant) -> None:
    assert services.bring_back().requeued == 1


def completed(worker: Caller, grant: Grant) -> None:
    complete(worker, grant)


@pytest.mark.parametrize("lose", [superseded, requeued, completed])
def test_a_lost_runs_heartbeat_writes_neither_progress_nor_checkpoint_nor_spend(
    kee: Caller, worker: Caller, lose: Callable[[Caller, Grant], None]
) -> None:
    make_type(kee, lease_seconds=30)
    queue(kee)
    with acting_as(kee):
        at(T0)
        lost = lease_one(worker)
        at(T0 + LEASE)
        lose(worker, lost)
        before = snapshot(kee)

        answer = beat(
            worker,
            lost.task_id,
            lost.lease_token,
            percent=90,
            message="nearly",
            checkpoint={"at": 9},
            tokens=500,
            cost_usd=1.5,
        )

        assert (answer.status, answer.reason) == ("lost", lose.__name__)
        assert snapshot(kee) == before
