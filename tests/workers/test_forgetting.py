"""What became of workers is kept for a while, and each one's last event for good."""

from copy import copy
from datetime import timedelta

import pytest
from django.conf import settings

from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.workers import ticks
from apps.workers.models import WorkerEvent
from apps.workers.services import registry
from tests.factories import make_caller, make_tenant
from tests.workers.factories import make_manifest, register

pytestmark = pytest.mark.django_db(transaction=True)

KEPT = settings.WORKER_EVENTS_KEPT


def tell(caller: Caller, worker_id: str, *ages: timedelta) -> list[int]:
    """Have a worker registered with events of these ages and no others; their ids."""
    with acting_as(caller):
        worker = register(caller, make_manifest(worker_id)).worker
        event = worker.events.get()
        worker.events.all().delete()
        now = database_now()
        rows = []
        for age in ages:
            row = copy(event)
            row.pk, row.at = None, now - age
            rows.append(row)
        return [row.pk for row in WorkerEvent.objects.bulk_create(rows)]


def told(caller: Caller) -> set[int]:
    with acting_as(caller):
        return set(WorkerEvent.objects.values_list("pk", flat=True))


def test_old_events_are_deleted_in_every_tenant(tenant: Tenant) -> None:
    kee, other = make_caller(tenant, "Kee", Kind.WORKER), make_caller(make_tenant("other"), "Hexy", Kind.WORKER)
    old, edge, young = tell(
        kee, "one", KEPT + timedelta(days=1), KEPT + timedelta(seconds=1), KEPT - timedelta(hours=1)
    )
    theirs = tell(other, "one", KEPT + timedelta(days=1), timedelta(0))

    assert registry.forget_events() == 3

    assert old not in told(kee)
    assert edge not in told(kee)
    assert told(kee) == {young}
    assert told(other) == {theirs[1]}
    assert registry.forget_events() == 0


def test_last_event_of_a_worker_stays(kee: Caller) -> None:
    ages = [KEPT * 3, KEPT * 2]
    _, last = tell(kee, "one", *ages)
    (only,) = tell(kee, "two", KEPT * 4)

    ticks.forget_events()

    assert told(kee) == {last, only}


def test_kept_events_do_not_stop_the_deletion(kee: Caller) -> None:
    kept = [tell(kee, f"steady-{number}", KEPT * 2)[0] for number in range(5)]
    flapping = tell(kee, "flapping", *([KEPT * 2] * 5), timedelta(0))

    assert registry.forget_events(batch=2) == 5

    assert told(kee) == {*kept, flapping[-1]}
