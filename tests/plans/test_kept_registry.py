"""The registry that a process keeps to plan with: it follows the rows at once, and is never built anew for that."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.plans import lexindex, selectors, services, shelf, validation
from apps.plans.catalogue import Catalogue
from apps.plans.lexindex import Base, Frozen
from apps.plans.ranking import Ranker
from apps.plans.tools import CreatePlan, create_delegation_plan
from apps.plans.validation import Limits, Problem
from apps.principals.tenancy import Caller, acting_as
from apps.workers.services import health
from apps.workers.services import registry as workers
from tests.factories import make_caller, make_tenant
from tests.plans.test_lessons import NOTHING, register_plain_tools
from tests.workers.factories import make_manifest


def names(caller: Caller) -> set[str]:
    with shelf.held(tenant_id=caller.tenant_id) as held:
        return {tool.name for tool in held.ranker.catalogue.tools}


def test_what_is_registered_and_what_leaves_is_known_at_once(as_kee: Caller) -> None:
    assert names(as_kee) == set()
    register_plain_tools(as_kee)
    with shelf.held(tenant_id=as_kee.tenant_id) as held:
        ranker = held.ranker
    tool = {"name": "polish_brass", "description": "Polishes.", "input_schema": {"type": "object"}}
    workers.register(caller=as_kee, original=make_manifest("second", tools=[tool], side_effects=NOTHING))
    assert names(as_kee) == {"inspect_alder", "inspect_birch", "inspect_cedar", "inspect_maple", "polish_brass"}

    workers.unregister(caller=as_kee, worker_id="plain")

    assert names(as_kee) == {"polish_brass"}
    with shelf.held(tenant_id=as_kee.tenant_id) as held:
        assert held.ranker is ranker


def test_a_merge_that_broke_is_made_with_the_next_plan(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    broke: list[threading.ExceptHookArgs] = []
    merged = lexindex.merged

    def merged_at_last(frozen: Frozen) -> Base:
        if not broke:
            raise MemoryError
        return merged(frozen)

    monkeypatch.setattr(threading, "excepthook", broke.append)
    monkeypatch.setattr(shelf, "merged", merged_at_last)
    monkeypatch.setattr(lexindex, "_DELTA", 0)
    register_plain_tools(as_kee)
    needed = []
    for _ in range(2):
        names(as_kee)
        for thread in threading.enumerate():
            if thread.name == "merge-index":
                thread.join(30)
        with shelf.held(tenant_id=as_kee.tenant_id) as held:
            needed.append(held.ranker.index.needs_merge())

    assert (len(broke), needed[-1]) == (1, False)


def test_a_worker_that_fell_ill_is_held_but_may_not_be_used(as_kee: Caller) -> None:
    uids = register_plain_tools(as_kee)
    names(as_kee)

    health.heartbeat(caller=as_kee, worker_id="plain", status="offline", current_load=0.0, available=True)

    with shelf.held(tenant_id=as_kee.tenant_id) as held:
        uid = uids["inspect_alder"]
        assert held.ranker.catalogue.open_offers(uid) == ()
        assert [offer.barred for offer in held.ranker.catalogue.offers_of(uid)] == ["the worker is offline"]


def test_only_what_changed_is_read_again(as_kee: Caller) -> None:
    register_plain_tools(as_kee)
    names(as_kee)
    with CaptureQueriesContext(connection) as still:
        names(as_kee)
    register_plain_tools(as_kee, "again")
    with CaptureQueriesContext(connection) as moved:
        names(as_kee)

    assert len(still) == 2
    assert len(moved) == 6


@pytest.mark.django_db(transaction=True)
def test_registering_and_planning_at_once_ends_with_all_that_was_registered(kee: Caller) -> None:
    barrier, failures = threading.Barrier(3), []

    def work(number: int) -> None:
        try:
            barrier.wait()
            for turn in range(4):
                with acting_as(kee):
                    if number < 2:
                        tool = {
                            "name": f"tool_{number}_{turn}",
                            "description": "One.",
                            "input_schema": {"type": "object"},
                        }
                        worker_id = f"worker-{number}-{turn}"
                        workers.register(
                            caller=kee, original=make_manifest(worker_id, tools=[tool], side_effects=NOTHING)
                        )
                    names(kee)
        except Exception as failure:  # noqa: BLE001
            failures.append(failure)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    with acting_as(kee):
        assert names(kee) == {f"tool_{number}_{turn}" for number in range(2) for turn in range(4)}


def test_a_plan_is_judged_while_others_plan_and_by_what_was_offered_when_it_came(
    as_kee: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_plain_tools(as_kee)
    judge, lock_was_free = validation.validate, []

    def judged(document: object, catalogue: Catalogue, *, limits: Limits | None = None) -> list[Problem]:
        lock_was_free.append(free(shelf._kept(as_kee.tenant_id).lock))
        workers.unregister(caller=as_kee, worker_id="plain")
        assert names(as_kee) == set()
        return judge(document, catalogue, limits=limits)

    monkeypatch.setattr(validation, "validate", judged)
    call = {"step_id": "a", "step_type": "call_worker", "worker_id": "plain", "tool_name": "inspect_alder"}
    report = {"step_id": "b", "step_type": "escalate", "report_summary": "Done.", "decision_required": False}
    document = {
        "plan_id": "mine",
        "delegate_id": "delegate",
        "principal_ai": "Kee",
        "intent": "Inspect",
        "scope": "trees",
        "created_at": "2026-01-03T20:15:00Z",
        "steps": [{**call, "params": {}}, report],
    }

    found = selectors.problems_of(document, tenant_id=as_kee.tenant_id, principal_id=as_kee.principal_id)

    assert lock_was_free == [True]
    assert not {one.code for one in found} & {"unknown_worker", "unknown_tool"}


@pytest.fixture
def few_held(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that may hold three tenants of four tools each, and not five more offers."""
    monkeypatch.setattr(shelf, "_MOST_HELD", 3 * 14 + 4)
    shelf._registries.clear()
    yield
    shelf._registries.clear()


def of_tenants(*slugs: str) -> list[Caller]:
    """An agent each in tenants with four tools."""
    found = [make_caller(make_tenant(slug)) for slug in slugs]
    for one in found:
        with acting_as(one):
            register_plain_tools(one)
    return found


def used(one: Caller) -> Ranker:
    with acting_as(one), shelf.held(tenant_id=one.tenant_id) as held:
        return held.ranker


def test_who_was_not_used_for_longest_goes_once_more_would_be_held_than_may_be(few_held: None, db: None) -> None:
    first, second, third, fourth = of_tenants("one", "two", "three", "four")
    before = [used(one) for one in (first, second, third, first)]
    assert before[0] is before[3]

    used(fourth)

    assert used(first) is before[0]
    assert used(third) is before[2]
    assert used(second) is not before[1]


def test_what_is_alone_larger_than_may_be_held_is_held(
    few_held: None, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = of_tenants("one", "two")
    used(second)
    monkeypatch.setattr(shelf, "_MOST_HELD", 5)

    ranker = used(first)

    assert used(first) is ranker
    assert {tool.name for tool in ranker.catalogue.tools} == names_of_plain_tools()


def names_of_plain_tools() -> set[str]:
    return {"inspect_alder", "inspect_birch", "inspect_cedar", "inspect_maple"}


def test_hundreds_of_small_tenants_are_held_at_once() -> None:
    shelf._registries.clear()

    kept = [shelf._kept(tenant_id) for tenant_id in range(1, 500)]

    assert [shelf._kept(tenant_id) for tenant_id in range(1, 500)] == kept
    shelf._registries.clear()


def test_of_what_is_held_nothing_is_built_again(as_kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    register_plain_tools(as_kee)
    names(as_kee)
    monkeypatch.setattr(shelf, "_take_in", None)

    services.prepare(caller=as_kee)

    assert names(as_kee) == names_of_plain_tools()


@pytest.mark.django_db(transaction=True)
def test_a_registry_is_built_in_no_transaction_and_under_no_lock(kee: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    with acting_as(kee):
        register_plain_tools(kee)
    shelf._registries.clear()
    take_in, seen = shelf._take_in, []

    def looked(*given: Any) -> None:
        seen.append((connection.in_atomic_block, free(shelf._kept(kee.tenant_id).lock)))
        take_in(*given)

    monkeypatch.setattr(shelf, "_take_in", looked)
    create_delegation_plan(kee, CreatePlan(intent="Inspect the alder"))

    assert seen == [(False, True)]
    assert used(kee) is used(kee)
    assert {tool.name for tool in used(kee).catalogue.tools} == names_of_plain_tools()


def free(lock: Any) -> bool:
    """Could another thread have it?"""
    found: list[bool] = []

    def tried() -> None:
        found.append(lock.acquire(timeout=5))
        lock.release()

    other = threading.Thread(target=tried)
    other.start()
    other.join(30)
    return found == [True]
