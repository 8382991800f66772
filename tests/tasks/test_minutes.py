"""How fast and how well queues are worked, without reading their history."""

import math

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks import latencies, selectors, services
from apps.tasks.models import LiveTask
from apps.tasks.services import Failure
from tests.factories import make_caller, make_tenant, make_token
from tests.tasks.making import complete, lease_one, make_type, queue
from tests.tasks.test_http import get
from tests.tasks.test_sweep import LONG_AGO


@pytest.fixture
def worker(tenant: Tenant) -> Caller:
    return make_caller(tenant, "W", Kind.WORKER)


def _later(seconds: float) -> None:
    """Move the database's clock, for the rest of the test."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select set_config('gatehouse.now', (statement_timestamp() + make_interval(secs => %s))::text, true)",
            [seconds],
        )


def _fail(worker: Caller) -> None:
    grant = lease_one(worker)
    with acting_as(worker):
        services.fail(
            worker=worker,
            task_id=grant.task_id,
            lease_token=grant.lease_token,
            failure=Failure(code="x", message="x", retryable=False),
        )


def test_what_ended_is_counted_once_by_queue_and_kind_of_end(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    for _ in range(4):
        queue(kee)
    for _ in range(3):
        complete(worker, lease_one(worker))
    _fail(worker)
    assert services.count_minutes() == 0, "what has just ended may not be committed everywhere"
    _later(6)

    assert [services.count_minutes(), services.count_minutes()] == [4, 0]
    with acting_as(kee):
        (found,) = selectors.queue_figures(tenant_id=kee.tenant_id).values()
    assert (found.failure_rate, found.expiries, found.dead_letters) == (0.25, 0, 1)
    assert 4 / 6 <= found.finished_per_minute <= 4 / 5
    assert found.latency_p99_seconds is not None
    assert 0 < found.latency_p99_seconds < 60
    queue(kee)
    complete(worker, lease_one(worker))
    _later(12)
    assert services.count_minutes() == 1


def test_a_batch_of_ends_at_one_moment_is_counted_whole(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.tasks.services.minutes.MINUTES_BATCH", 2)
    make_type(kee)
    for _ in range(5):
        queue(kee)
    with connection.cursor() as cursor, acting_as(kee):
        cursor.execute(
            """insert into task_history (task_id, tenant_id, status, fence, summary, receipt_id, finished_at)
               select task_id, tenant_id, 'succeeded', 0, '', 'r', now() - interval '1 minute' from task_live"""
        )
    assert [services.count_minutes(), services.count_minutes()] == [5, 0]


def test_expired_leases_count_with_the_task_that_ended(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    for _ in range(2):
        lease_one(worker)
        with acting_as(kee):
            LiveTask.objects.update(lease_expires_at=LONG_AGO)
    complete(worker, lease_one(worker))
    _later(6)
    services.count_minutes()
    with acting_as(kee):
        (found,) = selectors.queue_figures(tenant_id=kee.tenant_id).values()
    assert found.expiries == 2


def test_minutes_of_long_ago_are_forgotten(kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    complete(worker, lease_one(worker))
    _later(6)
    services.count_minutes()
    assert services.forget_minutes() == 0
    _later(3 * 86_400)
    assert services.forget_minutes() == 1


def test_a_queues_figures_are_its_tenants_alone(tenant: Tenant, kee: Caller, worker: Caller) -> None:
    make_type(kee)
    queue(kee)
    complete(worker, lease_one(worker))
    stranger = make_tenant("globex")
    make_type(make_caller(stranger))
    _later(6)
    services.count_minutes()
    status, found = get(make_token(tenant, "Kee"), "queues")
    assert (status, found["queues"][0]["finished_per_minute"] > 0) == (200, True)
    assert get(make_token(stranger), "queues")[1]["queues"][0]["finished_per_minute"] == 0
    with acting_as_system("test"):
        assert sum(one.finished_per_minute > 0 for one in selectors.queue_figures(tenant_id=None).values()) == 1


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.5, 3, 60, 86_400])
def test_a_quantile_is_at_most_a_fifth_above_what_was_measured(seconds: float) -> None:

    measured = max(0, math.ceil(latencies.CLASSES_PER_DOUBLING * math.log2(seconds * 1000)))
    (p50,) = latencies.quantiles({measured: 10}, [0.5])
    assert p50 is not None
    assert seconds <= p50 * 1.000001 <= seconds * 1.2


def test_quantiles_are_told_apart() -> None:
    counts = {0: 50, 40: 45, 80: 5}
    assert latencies.quantiles(counts, [0.5, 0.95, 0.99]) == [latencies.bound_of(c) for c in (0, 40, 80)]
    assert latencies.quantiles({}, [0.5]) == [None]
