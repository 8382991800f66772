"""The migrations of the registry on tables that are not empty."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from apps.core.sql import database_now
from apps.principals.tenancy import Caller, acting_as
from apps.workers import services
from apps.workers.models import Worker, WorkerEvent
from tests.factories import make_caller, make_tenant
from tests.workers.factories import NOTHING, enroll, make_key, make_manifest, register, signed

pytestmark = pytest.mark.django_db(transaction=True)


def fill() -> Caller:
    """Workers of every kind: signed for different times, signed and lapsed, claimed, unsigned, and gone."""
    kee = make_caller(make_tenant("acme"))
    key = make_key()
    with acting_as(kee):
        enroll(kee, key)
        for hours in (1, 50, 150):
            register(kee, signed(make_manifest(f"signed-{hours}"), key, validity=timedelta(hours=hours)))
        register(kee, signed(make_manifest("lapsed"), key))
        Worker.objects.filter(worker_id="lapsed").update(trust_ends_at=database_now() - timedelta(minutes=1))
        register(kee, make_manifest("claimed"))
        register(kee, make_manifest("plain", side_effects=NOTHING, trust={}))
        register(kee, signed(make_manifest("gone"), key))
        services.unregister(caller=kee, worker_id="gone")
    return kee


def known(kee: Caller) -> dict[str, dict[str, Any]]:
    with acting_as(kee):
        return {row["worker_id"]: dict(row) for row in Worker.objects.order_by("pk").values()}


def to_the_second(moment: datetime | None) -> datetime | None:
    return moment and moment.replace(microsecond=0)


def test_workers_from_before_signatures_ended_get_the_end_that_their_signature_names() -> None:
    kee = fill()
    before = known(kee)
    with acting_as(kee):
        services.lapse_trust()
        WorkerEvent.objects.filter(kind=WorkerEvent.Kind.TRUST).delete()  # the first migration knows none
    try:
        call_command("migrate", "workers", "0001", verbosity=0)
        with acting_as(kee), connection.cursor() as cursor:
            cursor.execute("select count(*) from workers_worker")
            assert cursor.fetchone() == (len(before),)
    finally:
        call_command("migrate", "workers", verbosity=0)

    after = known(kee)
    assert after.keys() == before.keys()
    ends = {name: row["trust_ends_at"] for name, row in after.items()}
    for name in ("signed-1", "signed-50", "signed-150", "gone"):
        assert ends[name] == to_the_second(before[name]["trust_ends_at"])
    assert [ends[name] for name in ("lapsed", "claimed", "plain")] == [None, None, None]
    kept = ("manifest", "state", "effective_tier", "tier_reason", "signing_key_id", "signed_at", "unregistered_at")
    for name in before.keys() - {"lapsed"}:
        assert {member: after[name][member] for member in kept} == {member: before[name][member] for member in kept}


def test_workers_from_before_memory_was_told_of_them_are_told_of() -> None:
    kee = fill()
    with acting_as(kee):
        services.remember()
    try:
        call_command("migrate", "workers", "0005", verbosity=0)
    finally:
        call_command("migrate", "workers", verbosity=0)

    with acting_as(kee):
        assert services.remember() == len(known(kee))
        assert services.remember() == 0
