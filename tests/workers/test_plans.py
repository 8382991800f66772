"""The statements of the registry go by their indexes, past the many rows that they do not ask for."""

from collections.abc import Callable
from copy import copy
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.sql import database_now
from apps.principals.tenancy import Caller, acting_as_system
from apps.workers import selectors, services
from apps.workers.models import Place, Worker, WorkerSource
from apps.workers.services import discovering, probing
from tests.ground import analyzed
from tests.workers.factories import NOTHING, add_source, make_manifest, register

pytestmark = pytest.mark.django_db

MANY = 3_000
LATER = timedelta(days=1)


def copies(row: Any, key: str, **changes: Any) -> None:
    """So many more rows like this one, told apart by their key."""
    rows = []
    for number in range(MANY):
        one = copy(row)
        one.pk = None
        for name, value in {**changes, key: f"copy-{number}"}.items():
            setattr(one, name, value)
        rows.append(one)
    type(row).objects.bulk_create(rows)
    analyzed(row._meta.db_table)


def plan(run: Callable[[], Any], statement: str) -> str:
    """How the first statement that contains this is carried out."""
    with CaptureQueriesContext(connection) as queries:
        run()
    (first, *_) = [query["sql"] for query in queries if statement in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"explain (generic_plan) {first}")
        return "\n".join(line for (line,) in cursor.fetchall())


def as_system_plan(run: Callable[[], Any], statement: str) -> str:
    with acting_as_system("test"):
        return plan(run, statement)


def test_the_look_for_due_probes_goes_by_its_index(as_kee: Caller) -> None:
    worker = register(as_kee, make_manifest()).worker
    copies(worker, "worker_id", probe_at=database_now() + LATER)

    found = as_system_plan(probing._claims, "ROW_NUMBER")

    assert "workers_worker_probe" in found
    assert "Seq Scan on workers_worker" not in found


def test_the_look_for_what_an_index_of_tools_has_missed_goes_by_its_index(as_kee: Caller) -> None:
    worker = register(as_kee, make_manifest()).worker
    copies(worker, "worker_id", described_at_epoch=0)
    selectors.search("repository", tenant_id=as_kee.tenant_id)
    register(as_kee, make_manifest(side_effects=NOTHING))

    found = plan(lambda: selectors.search("repository", tenant_id=as_kee.tenant_id), '"described_at_epoch" >')

    assert "workers_worker_described" in found
    assert "Seq Scan on workers_worker" not in found


def test_the_look_for_sources_goes_by_its_index(as_kee: Caller) -> None:
    source = add_source(as_kee, "https://a.example.com/mcp")
    copies(source, "name", next_at=database_now() + LATER)

    found = as_system_plan(discovering._claim_sources, "ROW_NUMBER")

    assert "workers_workersource_next" in found
    assert "Seq Scan on workers_workersource" not in found


@pytest.fixture
def places(as_kee: Caller) -> Place:
    """One place with a worker, and many that are asked later."""
    add_source(as_kee, "https://a.example.com/mcp")
    worker, now = register(as_kee, make_manifest()).worker, database_now()
    place = Place(
        tenant_id=as_kee.tenant_id,
        source=WorkerSource.objects.get(),
        key="one",
        stated={"endpoint": worker.endpoint},
        named_at=now,
        next_at=now + LATER,
    )
    copies(place, "key")
    place.worker = worker
    place.save()
    return place


@pytest.mark.usefixtures("places")
def test_the_look_for_places_goes_by_its_index() -> None:
    found = as_system_plan(discovering._claim_places, "ROW_NUMBER")

    assert "workers_place_next" in found
    assert "Seq Scan on workers_place" not in found


def test_who_else_names_a_worker_is_found_by_its_index(places: Place) -> None:
    Worker.objects.update(beats=False)

    found = plan(lambda: discovering._dismiss(places, database_now()), 'SELECT 1 AS "a"')

    assert "workers_place_worker" in found
    assert "Seq Scan on workers_place" not in found


def test_a_heartbeat_finds_its_row_by_the_key(as_kee: Caller) -> None:
    worker = register(as_kee, make_manifest()).worker
    copies(worker, "worker_id")

    beat = plan(
        lambda: services.heartbeat(
            caller=as_kee, worker_id=worker.worker_id, status="healthy", current_load=0, available=True
        ),
        "update workers_worker",
    )

    assert "workers_worker_id_once" in beat
    assert "Seq Scan" not in beat
