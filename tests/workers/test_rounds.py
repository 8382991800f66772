"""Rounds of calls: tenants take turns in them, and of one tenant who has been due longest comes first."""

from collections.abc import Callable, Sequence
from copy import copy
from datetime import timedelta
from typing import Any

import pytest

from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.tenancy import Caller, acting_as
from apps.workers.models import Place, Worker, WorkerSource
from apps.workers.services import discovering, probing
from apps.workers.services.rounds import MOST_CLAIMED
from tests.factories import make_caller, make_tenant
from tests.workers.factories import add_source, make_manifest, register

pytestmark = pytest.mark.django_db

MANY = MOST_CLAIMED + 10


def due_worker(caller: Caller) -> Any:
    return register(caller, make_manifest("one")).worker


def due_source(caller: Caller) -> Any:
    return add_source(caller, "https://a.example.com/mcp", name="one")


def due_place(caller: Caller) -> Any:
    source = due_source(caller)
    named = {"key": "one", "stated": {"endpoint": source.address}}
    return Place.objects.create(
        tenant_id=caller.tenant_id, source=source, named_at=database_now(), next_at=database_now(), **named
    )


def claimed_workers() -> list[tuple[int, str]]:
    names = {worker.pk: worker.worker_id for worker in Worker.objects.all()}
    return [(claim.tenant_id, names.get(claim.worker_pk, "")) for claim in probing._claims()]


def claimed_sources() -> list[tuple[int, str]]:
    names = {source.pk: source.name for source in WorkerSource.objects.all()}
    return [(claim.tenant_id, names.get(claim.source_id, "")) for claim in discovering._claim_sources()]


def claimed_places() -> list[tuple[int, str]]:
    names = {place.pk: place.key for place in Place.objects.all()}
    return [(claim.caller.tenant_id, names.get(claim.place_id, "")) for claim in discovering._claim_places()]


def crowd(row: Any, name: str, since: str) -> None:
    """Many more like it, each due a second before the one that it follows, all before the row itself."""
    begun, rows = database_now(), []
    for number in range(MANY):
        one = copy(row)
        one.pk = None
        setattr(one, name, f"crowd-{number}")
        setattr(one, since, begun - timedelta(hours=1, seconds=number))
        rows.append(one)
    type(row).objects.bulk_create(rows)


@pytest.mark.parametrize(
    ("make", "claimed", "name", "since"),
    [
        (due_worker, claimed_workers, "worker_id", "probe_at"),
        (due_source, claimed_sources, "name", "next_at"),
        (due_place, claimed_places, "key", "next_at"),
    ],
)
def test_who_has_much_that_is_due_takes_nobody_elses_turn(
    tenant: Tenant,
    make: Callable[[Caller], Any],
    claimed: Callable[[], Sequence[tuple[int, str]]],
    name: str,
    since: str,
) -> None:
    busy, quiet = make_caller(tenant), make_caller(make_tenant("quiet"))
    with acting_as(quiet):
        make(quiet)
    with acting_as(busy):
        crowd(make(busy), name, since)

        first, second, *rest = claimed()

    assert first == (busy.tenant_id, f"crowd-{MANY - 1}")
    assert second[0] == quiet.tenant_id
    assert [one for _, one in rest] == [f"crowd-{MANY - 2 - number}" for number in range(MOST_CLAIMED - 2)]
