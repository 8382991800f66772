"""The registry in memory: workers are written there when they change, and a lost registry is rebuilt and judged anew."""

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from apps.core.sql import database_now
from apps.memory import services as memory
from apps.memory.models import Relationship
from apps.principals import services as principals
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system, acting_in, on_behalf_of
from apps.workers import selectors, ticks
from apps.workers import services as registry
from apps.workers.models import Offer, SourceEntry, Worker, WorkerEvent
from apps.workers.shapes import ListWorkers
from tests.factories import pass_time
from tests.memory.subjects import concepts
from tests.workers.factories import ID, NOTHING, add_source, beat, make_manifest, refused, register, signed
from tests.workers.servers import McpServer

pytestmark = pytest.mark.django_db


def relations() -> set[tuple[str, str, str]]:
    found = Relationship.objects.select_related("source", "target")
    return {(one.source.name, one.type, one.target.name) for one in found}


def lose_and_restore(caller: Caller, **changes: Any) -> list[tuple[str, str | None]]:
    """Rebuild the registry from memory, where the concept of the worker has these changes."""
    registry.remember()
    for model in (WorkerEvent, Offer, Worker):
        model.objects.all().delete()
    if changes:
        concept = concepts().get(name=ID)
        concept.metadata |= changes
        concept.save()
    return [(one.worker_id, one.tier) for one in registry.restore(tenant_id=caller.tenant_id)]


def test_worker_is_a_concept_with_relationships(as_kee: Caller) -> None:
    register(as_kee, make_manifest())

    assert (registry.remember(), registry.remember()) == (1, 0)

    concept = concepts().get(name=ID)
    assert concept.domain == "worker"
    assert {name: concept.metadata[name] for name in ("endpoint", "tools", "capabilities", "trust_tier")} == {
        "endpoint": "https://code-analyzer.example.com/mcp",
        "tools": ["analyze_repository"],
        "capabilities": ["code_analysis", "python", "javascript"],
        "trust_tier": "untrusted",
    }
    assert (concept.metadata["managed_by_delegate"], concept.metadata["unregistered_at"]) == ("delegate", None)
    assert relations() == {
        ("delegate", "manages", ID),
        *((ID, "provides", tag) for tag in ("code_analysis", "python", "javascript")),
    }


def test_memory_follows_changes_of_the_manifest_only(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    registry.remember()

    beat(as_kee, status="degraded")
    assert registry.remember() == 0
    register(as_kee, make_manifest(capabilities=["rust"]))
    assert (registry.remember(), registry.remember()) == (1, 0)
    assert {one for one in relations() if one[1] == "provides"} == {(ID, "provides", "rust")}
    registry.unregister(caller=as_kee, worker_id=ID)
    assert registry.remember() == 1
    assert concepts().get(name=ID).metadata["unregistered_at"]
    assert not [one for one in relations() if one[1] == "manages"]


def test_worker_is_managed_by_the_nearest_delegate(tenant: Tenant) -> None:
    def delegate(name: str, kind: Kind = Kind.DELEGATE, parent: Caller | None = None) -> Caller:
        with acting_as_system("test"):
            above = None if parent is None else Principal.objects.get(pk=parent.principal_id)
            made = principals.add_principal(tenant_id=tenant.pk, name=name, kind=kind, parent=above, now=database_now())
            return on_behalf_of(Principal.objects.select_related("tenant").get(pk=made.pk))

    general = delegate("general-manager")
    code = delegate("code-dept", parent=general)
    scanner = delegate("scanner", Kind.WORKER, parent=code)
    alone = delegate("alone", Kind.WORKER)
    (analyze,) = make_manifest()["tools"]
    delegates_too = [analyze, {**analyze, "name": "create_delegation_plan"}]
    for caller, worker_id, tools in (
        (code, "detector", [analyze]),
        (scanner, "code-scanner", [analyze]),
        (code, "code-dept-v2", delegates_too),
        (general, "general-manager", delegates_too),
        (alone, "odd-job", [analyze]),
    ):
        with acting_as(caller):
            register(caller, make_manifest(worker_id, tools=tools))

    with acting_in(tenant.pk, "test"):
        registry.remember()
        assert {one: manager for manager, how, one in relations() if how == "manages"} == {
            "detector": "code-dept",
            "code-scanner": "code-dept",
            "code-dept-v2": "general-manager",
            "general-manager": "delegate",
            "odd-job": "delegate",
        }


def test_tag_that_is_no_name_is_left_out(as_kee: Caller) -> None:
    register(as_kee, make_manifest(capabilities=[" ", "\ufdfa" * 100, "python"]))

    registry.remember()

    assert {one for one in relations() if one[1] == "provides"} == {(ID, "provides", "python")}


@pytest.mark.parametrize("taken", [{"name": "Ada", "aliases": [ID]}, {"name": ID.upper(), "concept_type": "book"}])
def test_taken_name_leaves_the_worker_out_and_the_others_in(as_kee: Caller, taken: dict[str, Any]) -> None:
    memory.store_concept(author=as_kee, now=database_now(), **taken)
    before = concepts().values().get()
    register(as_kee, make_manifest())
    register(as_kee, make_manifest("other"))

    assert (registry.remember(), registry.remember()) == (2, 0)

    assert concepts().filter(pk=before["id"]).values().get() == before
    assert [one.name for one in concepts().filter(domain="worker")] == ["other"]


def test_lost_registry_comes_back_with_its_tools_and_trust(as_kee: Caller, key: dict[str, str]) -> None:
    register(as_kee, signed(make_manifest(), key))
    register(as_kee, make_manifest("plain", side_effects=NOTHING))

    assert lose_and_restore(as_kee) == [(ID, "verified"), ("plain", "untrusted")]

    assert [(one.worker_id, one.tools) for one in selectors.workers(ListWorkers()).workers] == [
        (ID, ["analyze_repository"]),
        ("plain", ["analyze_repository"]),
    ]
    assert registry.restore(tenant_id=as_kee.tenant_id) == []


def test_trust_comes_from_the_signature_not_from_memory(as_kee: Caller, key: dict[str, str]) -> None:
    manifest = signed(make_manifest(), key)
    register(as_kee, manifest)
    forged = {**manifest, "capabilities": ["everything"]}

    assert lose_and_restore(as_kee, manifest=forged, trust_tier="trusted") == [(ID, "untrusted")]

    assert Worker.objects.get().signing_key is None
    with refused("signature_replayed"):
        register(as_kee, manifest)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"manifest": None}, "no manifest"),
        ({"manifest": {"worker_id": ID}}, "no valid manifest"),
        ({"manifest": make_manifest("somebody-else")}, "no manifest"),
        ({"manifest": make_manifest(endpoint="https://10.0.0.1/mcp")}, "endpoint"),
        ({"registered_by": "nobody"}, "no principal"),
        ({"registered_by": 2**62}, "no principal"),
    ],
)
def test_wrong_memory_is_left_out_with_its_reason(as_kee: Caller, change: dict[str, object], reason: str) -> None:
    register(as_kee, make_manifest())
    assert lose_and_restore(as_kee, **change) == [(ID, None)]

    (left_out,) = registry.restore(tenant_id=as_kee.tenant_id)
    assert reason in left_out.reason
    assert Worker.objects.count() == 0


def test_quarantine_survives_and_can_not_be_lifted_in_memory(as_kee: Caller) -> None:
    register(as_kee, make_manifest(side_effects=NOTHING))
    registry.quarantine(tenant_id=as_kee.tenant_id, worker_id=ID, why="stole")
    registry.remember()
    memory.retract_relationships(author=as_kee, to_concept=ID, rel_type="quarantines", but=[])

    lose_and_restore(as_kee)

    assert selectors.worker_named(ID).state == "quarantined"
    registry.release(tenant_id=as_kee.tenant_id, worker_id=ID, why="it did not")
    lose_and_restore(as_kee)
    assert selectors.worker_named(ID).state == "ready"


@pytest.mark.parametrize("leaves", [True, False])
def test_worker_that_had_left_stays_away_with_void_signatures(
    as_kee: Caller, key: dict[str, str], *, leaves: bool
) -> None:
    manifest = signed(make_manifest(), key)
    register(as_kee, manifest)
    owner = Principal.objects.filter(pk=as_kee.principal_id)
    if leaves:
        registry.unregister(caller=as_kee, worker_id=ID)
    else:
        owner.update(disabled_at=database_now())

    assert lose_and_restore(as_kee) == [(ID, None)]

    assert selectors.workers(ListWorkers(available_only=False)).workers == []
    owner.update(disabled_at=None)
    with refused("signature_replayed"):
        register(as_kee, manifest)


def test_discovered_worker_comes_back_without_heartbeats(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud", side_effects=NOTHING)
    registry.discover()
    register(as_kee, make_manifest())
    registry.remember()
    SourceEntry.objects.all().delete()

    lose_and_restore(as_kee)

    assert dict(Worker.objects.values_list("worker_id", "beats")) == {"loud": False, ID: True}


@pytest.mark.parametrize(("revoked", "again"), [(False, True), (True, False)])
def test_expired_signature_asks_for_a_new_registration(
    as_kee: Caller, key: dict[str, str], *, revoked: bool, again: bool
) -> None:
    pass_time()
    register(as_kee, signed(make_manifest(), key))
    registry.remember()
    pass_time(timedelta(hours=2))
    if revoked:
        registry.revoke_key(tenant_id=as_kee.tenant_id, key_id="bundled", why="stolen")

    assert lose_and_restore(as_kee) == [(ID, "untrusted")]

    assert beat(as_kee).register_again is again


def test_periodic_job_writes_and_command_restores(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        register(kee, make_manifest())
    ticks.remember()
    with acting_as(kee):
        for model in (WorkerEvent, Offer, Worker):
            model.objects.all().delete()
    answer = StringIO()

    call_command("mcp_workers", "rebuild", "--tenant", tenant.slug, stdout=answer)

    assert f"{ID}: untrusted (the manifest is not signed" in answer.getvalue()
    assert "1 MCP workers registered again" in answer.getvalue()
    with acting_as(kee):
        assert Worker.objects.get().worker_id == ID
