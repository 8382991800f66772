"""The registry that a process keeps to plan with: it follows the rows at once, in every process."""

from functools import cache, partial

import pytest

from apps.plans import shelf
from apps.principals.tenancy import Caller, acting_as
from apps.workers import services as registry
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

    registry.unregister(caller=as_kee, worker_id="plain")

    assert names(as_kee) == {"polish_brass"}
    with shelf.held(tenant_id=as_kee.tenant_id) as held:
        assert held.library is library
        assert len(library) == 1


def test_offline_worker_stays_in_the_registry_and_is_barred(as_kee: Caller) -> None:
    uids = register_plain_tools(as_kee)
    names(as_kee)

    registry.heartbeat(caller=as_kee, worker_id="plain", status="offline", current_load=0.0, available=True)

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


def test_registration_is_in_the_next_plan_of_every_process(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    register_plain_tools(as_kee)
    assert names(as_kee) == set(PLAIN)

    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(shelf, "_registry", cache(lambda _tenant_id: shelf._Kept()))
        register(as_kee)
        registry.unregister(caller=as_kee, worker_id="plain")
        assert names(as_kee) == {"polish_brass"}

    assert names(as_kee) == {"polish_brass"}
