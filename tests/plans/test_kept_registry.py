"""The registry that a process keeps to plan with: it follows the rows at once, in every process."""

import asyncio
import threading
from collections import OrderedDict
from functools import partial

import pytest

from apps.plans import shelf
from apps.plans.catalogue import Catalogue
from apps.principals.tenancy import Caller, acting_as
from apps.workers.services import health
from apps.workers.services import registry as workers
from config.handlers import Application
from tests.factories import make_caller, make_tenant
from tests.plans.making import PLAIN, register_plain_tools
from tests.waiters import together


def names(caller: Caller) -> set[str]:
    with shelf.held(tenant_id=caller.tenant_id) as held:
        return {tool.name for tool in held.catalogue.tools}


def register(caller: Caller, worker_id: str = "second", name: str = "polish_brass") -> None:
    register_plain_tools(caller, worker_id, [name])


def test_registry_follows_registrations_at_once(as_kee: Caller) -> None:
    assert names(as_kee) == set()
    register_plain_tools(as_kee)
    with shelf.held(tenant_id=as_kee.tenant_id) as held:
        library = held.library
    register(as_kee)
    assert names(as_kee) == {*PLAIN, "polish_brass"}

    workers.unregister(caller=as_kee, worker_id="plain")

    assert names(as_kee) == {"polish_brass"}
    with shelf.held(tenant_id=as_kee.tenant_id) as held:
        assert held.library is library
        assert len(library) == 1


def test_offline_worker_stays_in_the_registry_and_is_barred(as_kee: Caller) -> None:
    uids = register_plain_tools(as_kee)
    names(as_kee)

    health.heartbeat(caller=as_kee, worker_id="plain", status="offline", current_load=0.0, available=True)

    with shelf.held(tenant_id=as_kee.tenant_id) as held:
        uid = uids["inspect_alder"]
        assert held.catalogue.open_offers(uid) == ()
        assert [offer.barred for offer in held.catalogue.offers_of(uid)] == ["the worker is offline"]


@pytest.mark.django_db(transaction=True)
def test_concurrent_registrations_are_all_seen(kee: Caller) -> None:
    def work(number: int) -> None:
        for turn in range(4):
            with acting_as(kee):
                if number < 2:
                    register(kee, f"worker-{number}-{turn}", f"tool_{number}_{turn}")
                names(kee)

    together(*(partial(work, number) for number in range(3)))

    with acting_as(kee):
        assert names(kee) == {f"tool_{number}_{turn}" for number in range(2) for turn in range(4)}


def test_least_recently_used_registry_is_dropped(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "_MOST_TENANTS", 3)
    monkeypatch.setattr(shelf, "_registries", OrderedDict())
    callers = [make_caller(make_tenant(slug)) for slug in ("one", "two", "three", "four")]

    def used(number: int) -> Catalogue:
        with acting_as(callers[number]), shelf.held(tenant_id=callers[number].tenant_id) as held:
            return held.catalogue

    before = [used(number) for number in (0, 1, 2, 0)]
    used(3)

    assert before[0] is before[3] is used(0)
    assert used(2) is before[2]
    assert used(1) is not before[1]


def test_registration_is_in_the_next_plan_of_every_process(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    register_plain_tools(as_kee)
    assert names(as_kee) == set(PLAIN)

    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(shelf, "_registries", OrderedDict())
        register(as_kee)
        workers.unregister(caller=as_kee, worker_id="plain")
        assert names(as_kee) == {"polish_brass"}

    assert names(as_kee) == {"polish_brass"}


@pytest.mark.django_db(transaction=True)
def test_starting_process_reads_the_registry(kee: Caller) -> None:
    with acting_as(kee):
        register_plain_tools(kee)
    shelf._registries.clear()

    shelf.warm()

    assert len(shelf._registry(kee.tenant_id).catalogue.by_uid) == 4
    with acting_as(kee):
        assert len(names(kee)) == 4


def test_server_does_not_wait_for_its_start_job() -> None:
    begun, told = threading.Event(), []
    heard = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> object:
        return heard.pop(0)

    async def send(message: dict[str, str]) -> None:
        told.append(message["type"])

    application = Application(pages=None, at_start=begun.set)  # type: ignore[arg-type]  # no request comes
    asyncio.run(application({"type": "lifespan"}, receive, send))

    assert begun.wait(10)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
