"""The registry in memory: written there when it changes, and rebuilt from there after a loss, judged anew."""

from copy import copy
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from apps.core.sql import database_now
from apps.memory import services as memory
from apps.memory.models import Concept, Relationship
from apps.principals import services as principals
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system, acting_in, on_behalf_of
from apps.workers import errors, selectors, services, ticks
from apps.workers.models import Offer, Place, Worker, WorkerEvent
from apps.workers.services import remembering
from tests.factories import make_caller
from tests.ground import analyzed
from tests.workers.factories import (
    NOTHING,
    add_source,
    enroll,
    make_key,
    make_manifest,
    move_clock,
    register,
    signed,
)
from tests.workers.servers import McpServer

pytestmark = pytest.mark.django_db


def lose_the_registry() -> None:
    for model in (WorkerEvent, Offer, Worker):
        model.objects.all().delete()


def relations() -> set[tuple[str, str, str]]:
    found = Relationship.objects.select_related("source", "target")
    return {(one.source.name, one.type, one.target.name) for one in found}


def test_a_registered_worker_is_a_concept_with_what_it_provides_and_who_manages_it(as_kee: Caller) -> None:
    register(as_kee, make_manifest())

    assert services.remember() == 1

    concept = Concept.objects.get(name="code-analyzer-001")
    assert concept.type == "worker"
    assert {name: concept.metadata[name] for name in ("endpoint", "tools", "capabilities", "trust_tier")} == {
        "endpoint": "https://code-analyzer.example.com/mcp",
        "tools": ["analyze_repository"],
        "capabilities": ["code_analysis", "python", "javascript"],
        "trust_tier": "untrusted",
    }
    assert concept.metadata["managed_by_delegate"] == "delegate"
    assert concept.metadata["registered_at"]
    assert relations() == {
        ("delegate", "manages", "code-analyzer-001"),
        *(("code-analyzer-001", "provides", tag) for tag in ("code_analysis", "python", "javascript")),
    }


def test_memory_is_written_once_for_each_change_and_not_for_a_state(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    assert (services.remember(), services.remember()) == (1, 0)

    services.heartbeat(
        caller=as_kee, worker_id="code-analyzer-001", status="degraded", current_load=0.0, available=True
    )
    assert services.remember() == 0
    register(as_kee, make_manifest(capabilities=["rust"]))
    assert (services.remember(), services.remember()) == (1, 0)
    assert Concept.objects.get(name="code-analyzer-001").metadata["capabilities"] == ["rust"]
    services.unregister(caller=as_kee, worker_id="code-analyzer-001")
    assert services.remember() == 1
    assert Concept.objects.get(name="code-analyzer-001").metadata["unregistered_at"]


def delegate(tenant: Tenant, name: str, kind: Kind = Kind.DELEGATE, parent: Caller | None = None) -> Caller:
    with acting_as_system("test"):
        above = None if parent is None else Principal.objects.get(pk=parent.principal_id)
        made = principals.add_principal(tenant_id=tenant.pk, name=name, kind=kind, parent=above, now=database_now())
        return on_behalf_of(Principal.objects.select_related("tenant").get(pk=made.pk))


def remembered(tenant: Tenant) -> None:
    with acting_in(tenant.pk, "test"):
        services.remember()


def managers(tenant: Tenant) -> dict[str, str]:
    """Who manages whom, as relations say it and as the concepts of the workers do."""
    with acting_in(tenant.pk, "test"):
        related = {one: manager for manager, how, one in relations() if how == "manages"}
        assert len(related) == Relationship.objects.filter(type="manages").count()
        concepts = Concept.objects.filter(type="worker", metadata__unregistered_at=None)
        assert {one.name: one.metadata["managed_by_delegate"] for one in concepts} == related
    return related


def test_each_worker_is_managed_by_the_delegate_under_which_it_registers(tenant: Tenant) -> None:
    general = delegate(tenant, "general-manager")
    code = delegate(tenant, "code-dept", parent=general)
    data = delegate(tenant, "data-dept", parent=general)
    scanner = delegate(tenant, "scanner", Kind.WORKER, parent=code)
    alone = delegate(tenant, "alone", Kind.WORKER)
    (analyze,) = make_manifest()["tools"]
    delegates_too = [analyze, {**analyze, "name": "create_delegation_plan"}]
    for caller, worker_id, tools in (
        (code, "vulnerability-detector", [analyze]),
        (scanner, "code-scanner", [analyze]),
        (data, "data-collector", [analyze]),
        (code, "code-dept-delegate-v2", delegates_too),
        (data, "data-dept", delegates_too),
        (general, "general-manager", delegates_too),
        (alone, "odd-job", [analyze]),
    ):
        with acting_as(caller):
            register(caller, make_manifest(worker_id, tools=tools))

    remembered(tenant)

    assert managers(tenant) == {
        "vulnerability-detector": "code-dept",
        "code-scanner": "code-dept",
        "data-collector": "data-dept",
        "code-dept-delegate-v2": "general-manager",
        "data-dept": "general-manager",
        "general-manager": "delegate",
        "odd-job": "delegate",
    }


def test_a_worker_that_comes_under_another_delegate_leaves_the_one_before(tenant: Tenant) -> None:
    code, data = delegate(tenant, "code-dept"), delegate(tenant, "data-dept")
    with acting_as(code):
        register(code, make_manifest("one"))
        register(code, make_manifest("two"))
    remembered(tenant)
    with acting_as(code):
        services.unregister(caller=code, worker_id="one")
        services.unregister(caller=code, worker_id="two")
    with acting_as(data):
        register(data, make_manifest("one"))

    remembered(tenant)

    assert managers(tenant) == {"one": "data-dept"}


def test_a_pool_that_was_lost_comes_back_under_its_delegate(tenant: Tenant) -> None:
    code, data = delegate(tenant, "code-dept"), delegate(tenant, "data-dept")
    for caller, worker_id in ((code, "code-scanner"), (data, "data-collector")):
        with acting_as(caller):
            register(caller, make_manifest(worker_id))
    remembered(tenant)
    with acting_in(tenant.pk, "test"):
        lose_the_registry()
        services.restore(tenant_id=tenant.pk)
        assert set(Worker.objects.values_list("worker_id", "principal__name")) == {
            ("code-scanner", "code-dept"),
            ("data-collector", "data-dept"),
        }

    remembered(tenant)

    assert managers(tenant) == {"code-scanner": "code-dept", "data-collector": "data-dept"}


def test_a_capability_that_a_worker_has_dropped_is_taken_back_and_what_others_say_of_it_stays(
    tenant: Tenant, as_kee: Caller
) -> None:
    register(as_kee, make_manifest())
    services.remember()
    rival = make_caller(tenant, "rival")
    provides = partial(memory.add_relationship, rel_type="provides", now=database_now())
    with acting_as(rival):
        provides(author=rival, from_concept="code-analyzer-001", to_concept="insight")
    provides(author=as_kee, from_concept="other", to_concept="python")

    register(as_kee, make_manifest(capabilities=["python", "rust"]))
    services.remember()

    assert {one for one in relations() if one[1] == "provides"} == {
        ("code-analyzer-001", "provides", "python"),
        ("code-analyzer-001", "provides", "rust"),
        ("code-analyzer-001", "provides", "insight"),
        ("other", "provides", "python"),
    }


@pytest.mark.parametrize("tag", [" ", "\u3000", "\ufdfa" * 100, "\u3300" * 100])
def test_a_tag_that_no_concept_can_be_called_keeps_no_worker_out_of_memory(as_kee: Caller, tag: str) -> None:
    register(as_kee, make_manifest(capabilities=[tag, "python"]))
    register(as_kee, make_manifest("other", capabilities=["rust"]))

    assert (services.remember(), services.remember()) == (2, 0)

    assert {one for one in relations() if one[1] == "provides"} == {
        ("code-analyzer-001", "provides", "python"),
        ("other", "provides", "rust"),
    }
    assert Concept.objects.get(name="code-analyzer-001").metadata["capabilities"] == [tag, "python"]


def known_workers() -> dict[str, str]:
    """The names of the concepts of workers, and the worker that each speaks of."""
    return {one.name: one.metadata["manifest"]["worker_id"] for one in Concept.objects.filter(type="worker")}


def restored_ids(caller: Caller) -> list[str]:
    lose_the_registry()
    services.restore(tenant_id=caller.tenant_id)
    return sorted(Worker.objects.registered().values_list("worker_id", flat=True))


@pytest.mark.parametrize(
    "taken", [{"name": "Ada", "aliases": ["code-analyzer-001"]}, {"name": "Code-Analyzer-001", "concept_type": "book"}]
)
def test_a_name_that_stands_for_something_else_in_memory_is_left_alone_and_its_worker_has_another(
    as_kee: Caller, taken: dict[str, Any]
) -> None:
    memory.store_concept(author=as_kee, now=database_now(), **taken)
    before = Concept.objects.values().get()
    register(as_kee, make_manifest())
    register(as_kee, make_manifest("other"))

    assert (services.remember(), services.remember()) == (2, 0)

    assert Concept.objects.filter(pk=before["id"]).values().get() == before
    own, other = sorted(known_workers())
    assert (own.partition("~")[0], other) == ("code-analyzer-001", "other")
    assert (own, "provides", "python") in relations()
    assert restored_ids(as_kee) == ["code-analyzer-001", "other"]


def test_a_worker_of_whom_every_name_is_taken_keeps_no_other_out_of_memory(as_kee: Caller) -> None:
    names = ["code-analyzer-001", remembering._own_name("code-analyzer-001")]
    memory.store_concept(author=as_kee, name="Ada", now=database_now(), aliases=names)
    register(as_kee, make_manifest())
    register(as_kee, make_manifest("other"))

    assert (services.remember(), services.remember()) == (2, 0)

    assert list(known_workers()) == ["other"]


def test_workers_whose_ids_differ_in_case_are_told_apart_in_memory_and_both_come_back(
    tenant: Tenant, as_kee: Caller
) -> None:
    rival = make_caller(tenant, "rival", Kind.WORKER)
    register(as_kee, make_manifest("alpha"))
    services.remember()
    with acting_as(rival):
        register(rival, make_manifest("Alpha", capabilities=["rust"]))
    services.remember()
    register(as_kee, make_manifest("alpha", capabilities=["ocr"]))
    with acting_as(rival):
        register(rival, make_manifest("Alpha", capabilities=["go"]))
    services.remember()

    assert {one.partition("~")[0]: worker_id for one, worker_id in known_workers().items()} == {
        "alpha": "alpha",
        "Alpha": "Alpha",
    }
    assert {(one[0].partition("~")[0], one[2]) for one in relations() if one[1] == "provides"} == {
        ("alpha", "ocr"),
        ("Alpha", "go"),
    }
    assert restored_ids(as_kee) == ["Alpha", "alpha"]
    assert dict(Worker.objects.values_list("worker_id", "principal__name")) == {"alpha": "Kee", "Alpha": "rival"}


def test_a_worker_whose_name_in_memory_has_come_free_keeps_the_one_that_it_has_there(as_kee: Caller) -> None:
    memory.store_concept(author=as_kee, name="code-analyzer-001", now=database_now(), concept_type="book")
    register(as_kee, make_manifest())
    services.remember()
    Concept.objects.filter(type="book").delete()
    register(as_kee, make_manifest(capabilities=["rust"]))
    services.remember()

    (name,) = known_workers()
    assert "~" in name


def test_a_worker_comes_back_whose_concept_somebody_had_spelled_otherwise_before(as_kee: Caller) -> None:
    memory.add_relationship(
        author=as_kee, from_concept="CODE-ANALYZER-001", to_concept="x", rel_type="likes", now=database_now()
    )
    register(as_kee, make_manifest())
    services.remember()

    assert known_workers() == {"CODE-ANALYZER-001": "code-analyzer-001"}
    assert restored_ids(as_kee) == ["code-analyzer-001"]


def test_a_lost_registry_comes_back_with_its_tools_and_the_trust_that_its_signatures_still_carry(
    as_kee: Caller,
) -> None:
    key = make_key()
    enroll(as_kee, key)
    register(as_kee, signed(make_manifest(), key))
    register(as_kee, make_manifest("plain", side_effects=NOTHING))
    services.remember()
    lose_the_registry()
    assert selectors.workers() == []

    restored = services.restore(tenant_id=as_kee.tenant_id)

    assert [(one.worker_id, one.tier) for one in restored] == [
        ("code-analyzer-001", "verified"),
        ("plain", "untrusted"),
    ]
    assert [(one.worker.worker_id, one.tools) for one in selectors.workers()] == [
        ("code-analyzer-001", ("analyze_repository",)),
        ("plain", ("analyze_repository",)),
    ]
    assert services.restore(tenant_id=as_kee.tenant_id) == []


def test_a_signature_that_does_not_hold_any_more_gives_no_trust_back(as_kee: Caller) -> None:
    key = make_key()
    enroll(as_kee, key)
    register(as_kee, signed(make_manifest(), key))
    services.remember()
    lose_the_registry()
    concept = Concept.objects.get(name="code-analyzer-001")
    concept.metadata["manifest"]["capabilities"] = ["everything"]
    concept.metadata["trust_tier"] = "trusted"
    concept.save()

    (restored,) = services.restore(tenant_id=as_kee.tenant_id)

    assert restored.tier == "untrusted"
    assert Worker.objects.get().signing_key is None


def test_an_old_signature_gives_no_trust_back(as_kee: Caller) -> None:
    key = make_key()
    enroll(as_kee, key)
    manifest = signed(make_manifest(), key, now=database_now() - timedelta(hours=2), validity=timedelta(hours=1))
    register(as_kee, make_manifest())
    services.remember()
    lose_the_registry()
    concept = Concept.objects.get(name="code-analyzer-001")
    concept.metadata["manifest"] = manifest
    concept.save()

    assert [one.tier for one in services.restore(tenant_id=as_kee.tenant_id)] == ["untrusted"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"manifest": None}, "no manifest"),
        ({"manifest": {"worker_id": "code-analyzer-001"}}, "no manifest"),
        ({"manifest": make_manifest("somebody-else")}, "no manifest"),
        ({"manifest": make_manifest(endpoint="https://10.0.0.1/mcp")}, "endpoint"),
        ({"registered_by": "nobody", "registered_by_key": None}, "no principal 'nobody'"),
        ({"registered_by_key": 2**62}, "no principal 'Kee'"),
    ],
)
def test_what_memory_holds_wrongly_is_left_out_and_named(
    as_kee: Caller, change: dict[str, object], reason: str
) -> None:
    register(as_kee, make_manifest())
    services.remember()
    lose_the_registry()
    concept = Concept.objects.get(name="code-analyzer-001")
    concept.metadata |= change
    concept.save()

    (left_out,) = services.restore(tenant_id=as_kee.tenant_id)

    assert left_out.tier is None
    assert reason in left_out.reason
    assert Worker.objects.count() == 0


def lose_and_restore(caller: Caller) -> list[tuple[str, str | None, str]]:
    services.remember()
    lose_the_registry()
    return [(one.worker_id, one.tier, one.reason) for one in services.restore(tenant_id=caller.tenant_id)]


def test_a_worker_in_quarantine_comes_back_in_quarantine_until_it_is_released(as_kee: Caller) -> None:
    register(as_kee, make_manifest("bad", side_effects=NOTHING))
    services.remember()
    services.quarantine(tenant_id=as_kee.tenant_id, worker_id="bad", why="stole")

    lose_and_restore(as_kee)

    assert selectors.worker_named("bad").state == "quarantined"
    register(as_kee, make_manifest("bad", side_effects=NOTHING))
    assert selectors.terms_of("bad", "analyze_repository").offer.barred == "the worker is quarantined"
    services.release(tenant_id=as_kee.tenant_id, worker_id="bad", why="it did not")
    lose_and_restore(as_kee)
    assert selectors.worker_named("bad").state == "ready"


def test_a_quarantine_is_not_lifted_in_memory_by_who_may_write_there(tenant: Tenant, as_kee: Caller) -> None:
    register(as_kee, make_manifest("bad"))
    services.quarantine(tenant_id=as_kee.tenant_id, worker_id="bad", why="stole")
    services.remember()
    told = Concept.objects.get(name="bad").metadata
    memory.store_concept(author=as_kee, name="bad", now=database_now(), metadata={**told, "state": "ready"})
    memory.retract_relationships(author=as_kee, to_concept="bad", rel_type="quarantines", but=[])

    lose_and_restore(as_kee)

    assert selectors.worker_named("bad").state == "quarantined"


@pytest.mark.parametrize("leaves", [True, False])
def test_a_worker_in_quarantine_that_was_away_stays_in_quarantine_when_it_comes_again(
    as_kee: Caller, *, leaves: bool
) -> None:
    register(as_kee, make_manifest("bad"))
    services.quarantine(tenant_id=as_kee.tenant_id, worker_id="bad", why="stole")
    owner = Principal.objects.filter(pk=as_kee.principal_id)
    if leaves:
        services.unregister(caller=as_kee, worker_id="bad")
    else:
        owner.update(disabled_at=database_now())

    ((_, tier, reason),) = lose_and_restore(as_kee)

    why = "it had left" if leaves else "its principal 'Kee' is disabled"
    assert (tier, reason) == (None, why)
    assert selectors.workers(available_only=False) == []
    owner.update(disabled_at=None)
    assert register(as_kee, make_manifest("bad")).worker.state == "quarantined"


def test_the_worker_of_a_principal_that_is_disabled_stays_away(tenant: Tenant, as_kee: Caller) -> None:
    rival = make_caller(tenant, "rival", Kind.WORKER)
    register(as_kee, make_manifest("mine"))
    with acting_as(rival):
        register(rival, make_manifest("theirs"))
    Principal.objects.filter(pk=rival.principal_id).update(disabled_at=database_now())

    restored = lose_and_restore(as_kee)

    assert ("theirs", None, "its principal 'rival' is disabled") in restored
    assert list(Worker.objects.registered().values_list("worker_id", flat=True)) == ["mine"]


def test_a_found_worker_comes_back_as_one_of_which_no_heartbeat_is_expected(as_kee: Caller, shouter: McpServer) -> None:
    move_clock(timedelta(0))
    add_source(as_kee, shouter.endpoint, worker_id="loud", side_effects=NOTHING)
    services.discover()
    register(as_kee, make_manifest("beating"))
    services.remember()
    Place.objects.all().delete()

    lose_and_restore(as_kee)
    move_clock(services.OFFLINE_AFTER + timedelta(seconds=1))
    services.probe()
    services.mark_late()

    assert {one: selectors.worker_named(one).state for one in ("loud", "beating")} == {
        "loud": "ready",
        "beating": "offline",
    }


def test_a_worker_comes_back_to_its_principal_by_whatever_name_that_goes_now(tenant: Tenant, as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    services.remember()
    Principal.objects.filter(pk=as_kee.principal_id).update(name="Kea")
    make_caller(tenant, "Kee")

    lose_and_restore(as_kee)

    assert Worker.objects.get().principal_id == as_kee.principal_id


def test_a_worker_that_left_stays_away_and_what_it_was_signed_with_stays_void(tenant: Tenant, as_kee: Caller) -> None:
    move_clock(timedelta(0))
    key = make_key()
    enroll(as_kee, key)
    manifest = signed(make_manifest(), key, validity=timedelta(days=7))
    register(as_kee, manifest)
    services.unregister(caller=as_kee, worker_id="code-analyzer-001")
    move_clock(timedelta(days=6))

    assert lose_and_restore(as_kee) == [("code-analyzer-001", None, "it had left")]

    assert selectors.workers(available_only=False) == []
    with pytest.raises(errors.SignatureReplayed), transaction.atomic():
        register(as_kee, manifest)
    rival = make_caller(tenant, "rival", Kind.WORKER)
    with acting_as(rival), pytest.raises(errors.SignatureReplayed), transaction.atomic():
        register(rival, manifest)


def test_a_worker_that_left_longer_ago_than_a_signature_lasts_is_not_brought_back(as_kee: Caller) -> None:
    move_clock(timedelta(0))
    register(as_kee, make_manifest())
    services.unregister(caller=as_kee, worker_id="code-analyzer-001")
    services.remember()
    move_clock(timedelta(days=7, seconds=1))

    assert lose_and_restore(as_kee) == []
    assert not Worker.objects.exists()


@pytest.mark.parametrize("left", ["yesterday", 7, "2026-01-01T00:00:00"])
def test_a_worker_of_which_memory_can_not_say_when_it_left_has_left(as_kee: Caller, left: object) -> None:
    register(as_kee, make_manifest())
    services.remember()
    concept = Concept.objects.get(name="code-analyzer-001")
    concept.metadata["unregistered_at"] = left
    concept.save()

    assert lose_and_restore(as_kee) == [("code-analyzer-001", None, "it had left")]


def test_what_was_signed_before_an_unsigned_manifest_does_not_come_back_by_way_of_a_rebuild(as_kee: Caller) -> None:
    key = make_key()
    enroll(as_kee, key)
    manifest = signed(make_manifest(), key)
    register(as_kee, manifest)
    services.unregister(caller=as_kee, worker_id="code-analyzer-001")
    register(as_kee, make_manifest())

    lose_and_restore(as_kee)

    with pytest.raises(errors.SignatureReplayed), transaction.atomic():
        register(as_kee, manifest)


@pytest.mark.parametrize(("revoked", "again"), [(False, True), (True, False)])
def test_a_worker_whose_signature_has_ended_meanwhile_is_told_to_register_anew(
    as_kee: Caller, *, revoked: bool, again: bool
) -> None:
    move_clock(timedelta(0))
    key = make_key()
    enroll(as_kee, key)
    register(as_kee, signed(make_manifest(), key))
    services.remember()
    move_clock(timedelta(hours=2))
    lose_the_registry()
    if revoked:
        services.revoke_key(tenant_id=as_kee.tenant_id, key_id="bundled", why="stolen")
    services.restore(tenant_id=as_kee.tenant_id)

    beaten = services.heartbeat(
        caller=as_kee, worker_id="code-analyzer-001", status="healthy", current_load=0, available=True
    )

    assert beaten.register_again is again
    move_clock(timedelta(seconds=1))
    if again:
        assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "verified"


def test_the_look_for_what_memory_does_not_know_goes_by_its_index(as_kee: Caller) -> None:
    template = register(as_kee, make_manifest()).worker
    rows = []
    for number in range(3_000):
        row = copy(template)
        row.pk, row.worker_id, row.remembered_at_epoch = None, f"copy-{number}", 10**9
        rows.append(row)
    Worker.objects.bulk_create(rows)
    analyzed("workers_worker")

    plan = Worker.objects.unremembered().order_by("id").explain()

    assert "Seq Scan on workers_worker" not in plan
    assert "workers_worker_unremembered" in plan


def test_the_tick_writes_and_the_command_restores(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        register(kee, make_manifest())
    ticks.remember()
    with acting_as(kee):
        lose_the_registry()
    said = StringIO()

    call_command("rebuild_registry", "--tenant", tenant.slug, stdout=said)

    assert "code-analyzer-001: untrusted (the manifest is not signed" in said.getvalue()
    assert "1 workers registered again" in said.getvalue()
    with acting_as(kee):
        assert Worker.objects.get().worker_id == "code-analyzer-001"
    with pytest.raises(CommandError):
        call_command("rebuild_registry", "--tenant", "nobody")
