"""What a heartbeat and the look for late ones cost, however many workers there are."""

from copy import copy
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.workers import selectors
from apps.workers.models import State, Worker, WorkerEvent
from apps.workers.services import health
from apps.workers.shapes import HeartbeatTaken
from tests.factories import make_caller
from tests.workers.factories import make_manifest, refused, register

pytestmark = pytest.mark.django_db


def beat(caller: Caller, status: str = "healthy") -> HeartbeatTaken:
    return health.heartbeat(
        caller=caller, worker_id="code-analyzer-001", status=status, current_load=0.5, available=False
    )


def test_heartbeat_without_news_is_one_statement(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    before = Worker.objects.get().last_heartbeat_at

    with CaptureQueriesContext(connection) as queries:
        assert beat(as_kee).status == "ready"

    assert [query["sql"].split()[0] for query in queries if "SAVEPOINT" not in query["sql"]] == ["update"]
    worker = Worker.objects.get()
    assert (worker.current_load, worker.available) == (0.5, False)
    assert worker.last_heartbeat_at >= before


def test_heartbeat_with_news_changes_the_state(as_kee: Caller) -> None:
    register(as_kee, make_manifest())

    assert beat(as_kee, "maintenance").status == "maintenance"
    assert beat(as_kee, "maintenance").status == "maintenance"
    assert Worker.objects.get().state == State.MAINTENANCE


def test_fast_heartbeat_checks_the_owner(tenant: Tenant, as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    before = Worker.objects.values().get()
    rival = make_caller(tenant, "rival", Kind.WORKER)

    with acting_as(rival), refused("unknown_worker"):
        beat(rival)
    assert Worker.objects.values().get() == before


def versions(caller: Caller, *verdicts: str) -> tuple[int, int]:
    """How many versions of the worker's row these heartbeats write, and how many of them touch no index."""
    asked = "select pg_stat_get_xact_tuples_updated(%s::regclass), pg_stat_get_xact_tuples_hot_updated(%s::regclass)"
    with connection.cursor() as cursor:
        cursor.execute(asked, ["workers_worker"] * 2)
        before = cursor.fetchone()
        for verdict in verdicts:
            beat(caller, verdict)
        cursor.execute(asked, ["workers_worker"] * 2)
        after = cursor.fetchone()
    return after[0] - before[0], after[1] - before[1]


def test_heartbeat_without_news_updates_in_place(as_kee: Caller) -> None:
    tools = [{**make_manifest()["tools"][0], "name": f"tool_{number}"} for number in range(10)]
    register(as_kee, make_manifest(tools=tools))
    epoch, events = selectors.epochs(), WorkerEvent.objects.count()

    assert versions(as_kee, "healthy", "healthy") == (2, 2)

    assert selectors.epochs() == epoch
    assert WorkerEvent.objects.count() == events


def test_only_heartbeats_without_news_skip_the_disk(as_kee: Caller) -> None:
    register(as_kee, make_manifest())

    def waits() -> str:
        with connection.cursor() as cursor:
            cursor.execute("show synchronous_commit")
            (setting,) = cursor.fetchone()
        return str(setting)

    with connection.cursor() as cursor:
        cursor.execute("set local synchronous_commit = on")
    beat(as_kee, "degraded")
    assert waits() == "on"
    beat(as_kee, "degraded")
    assert waits() == "off"


def test_late_workers_are_found_in_two_statements(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    template = Worker.objects.get()
    rows = []
    for number in range(100):
        row = copy(template)
        row.pk, row.worker_id, row.last_heartbeat_at = None, f"filler-{number}", database_now() + timedelta(hours=1)
        rows.append(row)
    Worker.objects.bulk_create(rows)
    with CaptureQueriesContext(connection) as queries:
        assert health.mark_late() == 0
    assert len([query for query in queries if "SAVEPOINT" not in query["sql"]]) == 2

    Worker.objects.filter(worker_id="filler-7").update(last_heartbeat_at=database_now() - health.OFFLINE_AFTER)

    assert health.mark_late() == 1
    assert Worker.objects.exclude(state="ready").get().worker_id == "filler-7"
