"""What a heartbeat and the look for late ones cost, however many workers there are."""

from copy import copy
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.workers import errors, services
from apps.workers.models import Worker
from apps.workers.states import State
from tests.factories import make_caller
from tests.ground import analyzed
from tests.workers.factories import make_manifest, register

pytestmark = pytest.mark.django_db


def beat(caller: Caller, status: str = "healthy") -> Worker:
    return services.heartbeat(
        caller=caller, worker_id="code-analyzer-001", status=status, current_load=0.5, available=False
    )


def test_a_heartbeat_without_news_is_one_statement(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    before = Worker.objects.get().last_heartbeat_at

    with CaptureQueriesContext(connection) as queries:
        assert beat(as_kee).state == "ready"

    assert [query["sql"].split()[0] for query in queries if "SAVEPOINT" not in query["sql"]] == ["update"]
    worker = Worker.objects.get()
    assert (worker.current_load, worker.available) == (0.5, False)
    assert worker.last_heartbeat_at >= before


def test_a_heartbeat_with_news_moves_the_state(as_kee: Caller) -> None:
    register(as_kee, make_manifest())

    assert beat(as_kee, "maintenance").state == "maintenance"
    assert beat(as_kee, "maintenance").state == "maintenance"
    assert Worker.objects.get().state == State.MAINTENANCE


def test_the_short_way_asks_whose_worker_it_is(tenant: Tenant, as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    before = Worker.objects.values().get()
    rival = make_caller(tenant, "rival", Kind.WORKER)

    with acting_as(rival), pytest.raises(errors.UnknownWorker):
        beat(rival)
    assert Worker.objects.values().get() == before


def fill(caller: Caller, count: int, **fields: Any) -> None:
    register(caller, make_manifest())
    template = Worker.objects.get()
    for name, value in fields.items():
        Worker.objects.update(**{name: value})
    rows = []
    for number in range(count):
        row = copy(template)
        row.pk, row.worker_id = None, f"filler-{number}"
        for name, value in fields.items():
            setattr(row, name, value)
        rows.append(row)
    Worker.objects.bulk_create(rows)


def test_the_look_for_late_workers_goes_by_its_index_and_reads_no_others(as_kee: Caller) -> None:
    fill(as_kee, 3_000, last_heartbeat_at=database_now() + timedelta(hours=1))
    late = Worker.objects.registered().filter(last_heartbeat_at__lt=database_now() - timedelta(hours=1))
    late = late.exclude(state__in=[State.OFFLINE, State.QUARANTINED])

    analyzed("workers_worker")
    plan = late.order_by("id").explain()

    assert "Seq Scan on workers_worker" not in plan
    assert "workers_worker_late" in plan
    with CaptureQueriesContext(connection) as queries:
        assert services.mark_late() == 0
    assert len([query for query in queries if "SAVEPOINT" not in query["sql"]]) == 2
