"""DeleGates in a tree, each with a pool of its own: it plans with the workers that it manages, and with no others."""

from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.errors import DomainError
from apps.plans import selectors, services, shelf
from apps.principals import services as principals
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system, on_behalf_of
from apps.workers import selectors as registry
from apps.workers import services as workers
from tests.factories import T0, ask, make_caller, make_principal, make_tenant, make_token
from tests.memory.subjects import concepts
from tests.plans import making
from tests.waiters import at_once
from tests.workers.factories import NOTHING, make_manifest


def put(tenant: Tenant, name: str, *, parent: str = "delegate") -> Caller:
    """A DeleGate."""
    actor = make_caller(tenant, name, Kind.DELEGATE)
    set_up(tenant, name, parent=parent)
    return actor


def set_up(tenant: Tenant, name: str, *, parent: str = "delegate") -> Principal:
    return services.set_delegate(tenant_id=tenant.pk, delegate_id=name, parent=parent)


def tool(metal: str) -> dict[str, Any]:
    return {"name": f"polish_{metal}", "description": f"Polish {metal}.", "input_schema": {"type": "object"}}


def register(caller: Caller, worker_id: str, metal: str, *more: str) -> None:
    """A worker with one tool of its own, and perhaps tools that say nothing."""
    others = [{**tool(metal), "name": name, "description": "Other."} for name in more]
    manifest = make_manifest(worker_id, tools=[tool(metal), *others], side_effects=NOTHING)
    workers.register(caller=caller, original=manifest)


def create(caller: Caller, delegate_id: str | None, metal: str) -> dict[str, Any]:
    made = making.create(caller, (f"polish_{metal}", {}), intent=f"Polish the {metal}", delegate_id=delegate_id)
    return dict(made.document)


def named(document: dict[str, Any]) -> set[str]:
    """The workers that a plan would have run."""
    return {step["worker_id"] for step in document["steps"] if step.get("worker_id")}


def standing() -> list[Any]:
    return [list(Principal.objects.order_by("pk").values()), registry.epochs()]


def test_delegate_plans_with_its_pool_alone(tenant: Tenant, as_kee: Caller) -> None:
    research = put(tenant, "research")
    papers = put(tenant, "papers", parent="research")
    put(tenant, "code")
    with acting_as_system("test"):
        above = Principal.objects.get(pk=research.principal_id)
        made = principals.add_principal(tenant_id=tenant.pk, name="helper", kind=Kind.WORKER, parent=above, now=T0)
        helper = on_behalf_of(Principal.objects.select_related("tenant").get(pk=made.pk))
    pool_of = {
        "iron": (as_kee, "delegate"),
        "gold": (research, "research"),
        "zinc": (helper, "research"),
        "brass": (papers, "papers"),
    }
    for metal, (caller, _) in pool_of.items():
        register(caller, f"worker-{metal}", metal)
    # DeleGates that register themselves, by their name and by what they offer.
    register(papers, "papers", "tin")
    register(research, "research-door", "lead", "create_delegation_plan")
    pool_of |= {"tin": (papers, "research"), "lead": (research, "delegate")}

    found = {
        (metal, delegate_id)
        for metal in pool_of
        for delegate_id in ("delegate", "research", "papers", "code")
        if create(as_kee, delegate_id, metal)["status"] == "ready"
    }

    assert found == {(metal, delegate_id) for metal, (_, delegate_id) in pool_of.items()}
    refused = create(as_kee, None, "gold")
    assert named(refused) == set()
    assert "not in the pool of delegate" in refused["missing"][0]["detail"]


def test_pools_follow_a_change_at_once(tenant: Tenant, as_kee: Caller) -> None:
    put(tenant, "code")
    register(put(tenant, "code-door"), "code-door", "iron")
    assert (named(create(as_kee, None, "iron")), named(create(as_kee, "code", "iron"))) == ({"code-door"}, set())

    set_up(tenant, "code-door", parent="code")
    assert (named(create(as_kee, None, "iron")), named(create(as_kee, "code", "iron"))) == (set(), {"code-door"})
    before = registry.epochs()
    set_up(tenant, "code-door", parent="code")
    assert registry.epochs() == before


def test_pools_cost_a_plan_no_statement(tenant: Tenant, as_kee: Caller) -> None:
    put(tenant, "code")
    register(as_kee, "own", "iron")

    def looked(delegate: str) -> int:
        found = selectors.delegate_named(delegate)
        with CaptureQueriesContext(connection) as seen, shelf.held(tenant_id=tenant.pk, delegate=found):
            pass
        return len(seen)

    looked("delegate")
    assert (looked("delegate"), looked("code")) == (2, 2)
    register(as_kee, "own", "gold")
    # The model in use, epochs, pools, workers, and what the changed one offers.
    assert looked("code") == 5
    assert looked("delegate") == 2


def test_plan_with_a_tool_outside_the_pool_is_invalid(tenant: Tenant, as_kee: Caller) -> None:
    code = put(tenant, "code")
    register(code, "below", "iron")
    document = create(as_kee, "code", "iron")
    who = {"tenant_id": tenant.pk}
    assert selectors.judged(document, **who)[0] == []

    foreign = {name: value for name, value in document.items() if name != "plan_hash"}
    above, *_ = selectors.judged({**foreign, "delegate_id": "delegate"}, **who)
    unknown, *_ = selectors.judged({**foreign, "delegate_id": "nobody"}, **who)

    assert [(one.code, one.path) for one in above] == [("not_eligible", "/steps/0/worker_id")]
    assert "below may not run this tool: it is not in the pool of delegate" in above[0].message
    assert ("unknown_delegate", "/delegate_id") in {(one.code, one.path) for one in unknown}


def test_moved_delegate_has_its_new_manager_in_memory(tenant: Tenant, as_kee: Caller) -> None:
    register(put(tenant, "papers"), "papers", "tin")
    put(tenant, "research")
    set_up(tenant, "papers", parent="research")

    workers.remember()

    assert concepts().get(name="papers").metadata["managed_by_delegate"] == "research"


REFUSALS: list[tuple[str, dict[str, str]]] = [
    ("delegate_circle", {"name": "delegate", "parent": "one"}),
    ("unknown_delegate", {"name": "one", "parent": "nobody"}),
    ("unknown_delegate", {"name": "nobody"}),
    ("unknown_delegate", {"name": "Kee"}),
    ("delegate_circle", {"name": "one", "parent": "one"}),
    ("delegate_circle", {"name": "one", "parent": "two"}),
]


def test_impossible_delegate_is_refused(tenant: Tenant, as_kee: Caller) -> None:
    put(tenant, "one")
    put(tenant, "two", parent="one")
    before = standing()

    for code, wanted in REFUSALS:
        with pytest.raises(DomainError) as refusal:
            set_up(tenant, **wanted)
        assert refusal.value.code == code
        assert standing() == before, wanted


@pytest.mark.django_db(transaction=True)
def test_of_two_concurrent_moves_into_a_circle_one_is_refused(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        put(tenant, "one")
        put(tenant, "two")

    def move(name: str, parent: str) -> None:
        with acting_as(kee):
            set_up(tenant, name, parent=parent)

    outcomes = at_once(partial(move, "one", "two"), partial(move, "two", "one"))

    assert [one.code for one in outcomes if one is not None] == ["delegate_circle"]


def test_admin_sets_a_delegate_under_another(tenant: Tenant) -> None:
    other = make_tenant("other")
    make_principal(other, "foreign", Kind.DELEGATE)
    for name in ("research", "code"):
        make_principal(tenant, name, Kind.DELEGATE)
    admin, stranger = (make_token(one, "Ada", scopes=[Scope.ADMIN]) for one in (tenant, other))

    status, answer = ask("PUT", "/api/v1/delegates/code", admin, {"parent": "research"})
    assert (status, answer) == (200, {"delegate_id": "code", "parent": "research"})
    # Neither tenant names those of the other.
    assert ask("PUT", "/api/v1/delegates/foreign", stranger, {"parent": "research"})[1]["code"] == "unknown_delegate"
