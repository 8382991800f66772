"""Services lock the rows of the registry in one order, the registry's own row last, so that they do not deadlock."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from apps.principals.models import Principal, Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system, acting_in
from apps.workers import services as registry
from apps.workers import ticks
from apps.workers.models import Offer, SourceEntry, SourceKind, Worker, WorkerEvent, WorkerSource
from tests.waiters import together, until_somebody_waits_for_this_transaction
from tests.workers.factories import beat, make_manifest, register

pytestmark = pytest.mark.django_db(transaction=True)


def meeting(holding: AbstractContextManager[object], then: Callable[[], object], rival: Callable[[], object]) -> None:
    """Hold something, and do the rest once the rival waits for it; both come through."""
    held = threading.Event()

    def first() -> None:
        with holding:
            held.set()
            until_somebody_waits_for_this_transaction()
            then()

    def second() -> None:
        assert held.wait(20)
        rival()

    together(first, second)


@contextmanager
def holding_worker(caller: Caller, worker_id: str) -> Iterator[None]:
    with acting_as(caller):
        Worker.objects.select_for_update().get(worker_id=worker_id)
        yield


def find(caller: Caller, file: Path, *worker_ids: str) -> None:
    file.write_text(yaml.safe_dump({"workers": [make_manifest(worker_id) for worker_id in worker_ids]}))
    with acting_as(caller):
        principal = Principal.objects.get(pk=caller.principal_id)
        registry.add_source(principal=principal, name="many", kind=SourceKind.STATIC, address=str(file), options={})
    registry.discover()


def test_source_removal_and_heartbeat_do_not_deadlock(tenant: Tenant, kee: Caller, file: Path) -> None:
    find(kee, file, "a", "b")

    def remove() -> None:
        with acting_in(tenant.pk, "test"):
            registry.remove_source(tenant_id=tenant.pk, name="many")

    meeting(holding_worker(kee, "b"), lambda: beat(kee, "b", "degraded"), remove)

    with acting_as(kee):
        assert not WorkerSource.objects.exists()
        assert Worker.objects.registered().get().worker_id == "b"


def test_entry_change_and_heartbeat_do_not_deadlock(tenant: Tenant, kee: Caller, file: Path) -> None:
    find(kee, file, "a")
    with acting_as(kee):
        SourceEntry.objects.update(stated=make_manifest("b"), next_at="2000-01-01T00:00Z")

    meeting(holding_worker(kee, "a"), lambda: beat(kee, "a", "degraded"), registry.discover)

    with acting_as(kee):
        place = SourceEntry.objects.get()
        assert place.fault is None
        assert place.worker == Worker.objects.get(worker_id="b")


def test_rebuild_and_registration_do_not_deadlock(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        for worker_id in ("a", "b"):
            register(kee, make_manifest(worker_id))
    ticks.remember()
    with acting_as(kee):
        for model in (WorkerEvent, Offer, Worker):
            model.objects.all().delete()

    @contextmanager
    def coming_back() -> Iterator[None]:
        # Its row is there, and the registry's is still to be moved.
        with acting_as(kee):
            Worker.objects.create(
                tenant_id=tenant.pk,
                worker_id="b",
                principal_id=kee.principal_id,
                endpoint=make_manifest()["endpoint"],
                manifest=make_manifest("b"),
                effective_tier="untrusted",
                last_heartbeat_at="2026-01-01T00:00Z",
                registered_at="2026-01-01T00:00Z",
            )
            yield

    meeting(
        coming_back(),
        lambda: register(kee, make_manifest("b", capabilities=["rust"])),
        lambda: registry.restore(tenant_id=tenant.pk),
    )

    with acting_as(kee):
        assert sorted(Worker.objects.values_list("worker_id", flat=True)) == ["a", "b"]


def test_new_manifest_and_counting_do_not_deadlock(tenant: Tenant, kee: Caller) -> None:

    def announce(*names: str) -> None:
        with acting_as(kee):
            register(kee, make_manifest(tools=[{"name": name, "input_schema": {"type": "object"}} for name in names]))

    announce("one")
    announce("one", "two")
    with acting_as(kee):
        for name in ("one", "two"):
            registry.record_call(worker_id="code-analyzer-001", tool_name=name, ok=True, seconds=1, cost=Decimal(0))

    @contextmanager
    def counting() -> Iterator[None]:
        with acting_as_system("test"):
            Offer.objects.select_for_update().get(name="one")
            yield

    meeting(counting(), registry.fold_calls, lambda: announce("one"))

    with acting_as(kee):
        assert list(Offer.objects.order_by("id").values_list("name", "runs")) == [("one", 1), ("two", 1)]
        assert Offer.objects.get(withdrawn_at=None).name == "one"
