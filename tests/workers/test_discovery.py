"""Workers that are found: known endpoints are asked what they offer, and what they say is judged like any registration."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from pytest_django import Settings

from apps.core.sql import database_now, violated_constraint
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.workers import manifests, selectors
from apps.workers.models import SourceEntry, Worker, WorkerEvent, WorkerSource
from apps.workers.services import discovery, health
from tests.factories import make_caller, make_tenant
from tests.workers.factories import (
    NOTHING,
    READS_ONLY,
    add_source,
    enroll,
    make_key,
    make_manifest,
    move_clock,
    refused,
    register,
    signed,
)
from tests.workers.servers import READS, McpServer, make_tool


def found() -> Worker:
    return Worker.objects.registered().get()


def fault() -> str:
    return SourceEntry.objects.get().fault or ""


def test_any_mcp_server_is_discovered_with_all_tools(as_kee: Caller, shouter: McpServer) -> None:
    shouter.tools = [make_tool(name) for name in ("shout", "whisper", "mutter")]
    shouter.page_size = 2
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    worker = found()
    assert worker.worker_id == manifests._worker_id("shouter", shouter.endpoint)
    assert worker.worker_id.startswith("shouter-")
    assert [tool["name"] for tool in worker.manifest["tools"]] == ["shout", "whisper", "mutter"]
    assert (worker.state, worker.beats) == ("ready", False)
    matches = selectors.search("whisper a text", tenant_id=as_kee.tenant_id)
    assert matches[0].tool_name == "whisper"


def test_discovered_worker_is_untrusted(as_kee: Caller, shouter: McpServer) -> None:
    shouter.tools = [make_tool("shout"), make_tool("look", annotations=READS)]
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    offers = {offer.tool_name: offer for offer in selectors.catalogue().offers}
    assert {offer.tier for offer in offers.values()} == {"untrusted"}
    assert offers["shout"].effects == {"read", "write", "network", "exec", "bidirectional"}
    assert offers["look"].effects == {"read", "exec"}
    assert all(offer.barred for offer in offers.values())


def test_source_states_defaults_for_its_workers(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud", side_effects=NOTHING, capabilities=["noise"])

    discovery.discover()

    worker = selectors.worker_named("loud")
    assert worker.capabilities == ["noise"]
    assert selectors.terms_of("loud", "shout").offer.barred is None


def test_bootstrap_manifest_is_used(as_kee: Caller, shouter: McpServer) -> None:
    manifest = make_manifest("loud", endpoint=shouter.endpoint, side_effects=NOTHING)
    shouter.manifest = lambda: manifest
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    worker = selectors.worker_named("loud")
    assert worker.capabilities == ["code_analysis", "python", "javascript"]
    assert worker.effective_tier == "untrusted"
    assert selectors.manifest_of("loud").trust == {"tier": "verified"}


def test_signed_bootstrap_manifest_is_trusted_up_to_the_ceiling(as_kee: Caller, shouter: McpServer) -> None:
    key = make_key()
    enroll(as_kee, key)
    manifest = signed(make_manifest("loud", endpoint=shouter.endpoint), key)
    shouter.manifest = lambda: manifest
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    assert selectors.worker_named("loud").effective_tier == "verified"


def test_badly_signed_bootstrap_manifest_is_refused(as_kee: Caller, shouter: McpServer) -> None:
    key = make_key()
    enroll(as_kee, key)
    manifest = {**signed(make_manifest("loud", endpoint=shouter.endpoint), key), "capabilities": ["everything"]}
    shouter.manifest = lambda: manifest
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    assert "bad_signature" in fault()
    assert not Worker.objects.exists()


def test_unsigned_manifest_keeps_the_asked_endpoint(as_kee: Caller, shouter: McpServer) -> None:
    shouter.manifest = lambda: make_manifest("loud", endpoint="https://elsewhere.example.com/mcp")
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    assert found().endpoint == shouter.endpoint


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        ({"worker_id": "x"}, "invalid"),
        (make_manifest("../x"), "invalid"),
        (make_manifest(tools=[]), "invalid"),
        (make_manifest(tools=make_manifest()["tools"] * 2), "repeated_tool"),
        ({**make_manifest(), "surprise": True}, "invalid"),
    ],
)
def test_bad_bootstrap_manifest_is_refused(
    as_kee: Caller, shouter: McpServer, manifest: dict[str, Any], code: str
) -> None:
    shouter.manifest = lambda: manifest
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    assert fault().startswith(code)
    assert not Worker.objects.exists()


def test_discovered_worker_can_not_take_a_known_id(as_kee: Caller, shouter: McpServer) -> None:
    register(as_kee, make_manifest("loud"))
    shouter.manifest = lambda: make_manifest("loud", endpoint=shouter.endpoint)
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    assert fault().startswith("worker_id_taken")
    assert selectors.worker_named("loud").endpoint == make_manifest()["endpoint"]


def test_discovered_worker_can_not_take_anothers_id(tenant: Tenant, as_kee: Caller, shouter: McpServer) -> None:
    other = make_caller(tenant, "other", Kind.WORKER)
    with acting_as(other):
        register(other, make_manifest("loud", endpoint=shouter.endpoint))
    shouter.manifest = lambda: make_manifest("loud", endpoint=shouter.endpoint, capabilities=["mine"])
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    assert fault().startswith("worker_id_taken")
    assert selectors.worker_named("loud").capabilities == ["code_analysis", "python", "javascript"]


def test_unusable_tool_is_left_out_with_its_reason(as_kee: Caller, shouter: McpServer) -> None:
    elsewhere = {"type": "object", "properties": {"x": {"$ref": "http://10.0.0.8/schema.json"}}}
    endless = {"type": "object", "allOf": [{"$ref": "#"}]}
    shouter.tools = [
        make_tool("shout"),
        make_tool("fetch").model_copy(update={"input_schema": elsewhere}),
        make_tool("loop").model_copy(update={"input_schema": endless}),
    ]
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    assert [tool["name"] for tool in found().manifest["tools"]] == ["shout"]
    assert "fetch has a schema that does not stand on its own" in fault()
    assert "loop has a schema that does not stand on its own" in fault()


def test_server_without_tools_is_no_worker(as_kee: Caller, shouter: McpServer) -> None:
    shouter.tools = []
    add_source(as_kee, shouter.endpoint)

    discovery.discover()

    assert fault().startswith("nothing_to_offer")
    assert not Worker.objects.exists()


def test_unchanged_worker_changes_nothing(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint)
    move_clock(timedelta(0))
    discovery.discover()
    epoch, events = selectors.epochs(), WorkerEvent.objects.count()

    assert discovery.discover() == 0
    move_clock(discovery.DEFAULT_EVERY)
    assert discovery.discover() == 2

    assert (selectors.epochs(), WorkerEvent.objects.count()) == (epoch, events)


def test_changed_tools_are_registered(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint)
    move_clock(timedelta(0))
    discovery.discover()

    shouter.tools = [make_tool("shout"), make_tool("whisper")]
    move_clock(discovery.DEFAULT_EVERY)
    discovery.discover()

    assert [offer.tool_name for offer in selectors.catalogue().offers if offer.tool_name == "whisper"] == ["whisper"]
    assert WorkerEvent.objects.filter(kind="replaced").count() == 1


def test_operators_signature_holds_while_tools_are_the_same(as_kee: Caller, shouter: McpServer) -> None:
    key = make_key()
    enroll(as_kee, key)
    add_source(as_kee, shouter.endpoint, worker_id="loud", side_effects=READS_ONLY)
    move_clock(timedelta(0))
    discovery.discover()
    assert selectors.terms_of("loud", "shout").offer.barred == "the tier untrusted does not allow read"

    register(as_kee, signed({**found().manifest, "trust": {"tier": "verified"}}, key))
    move_clock(discovery.DEFAULT_EVERY)
    discovery.discover()
    assert selectors.terms_of("loud", "shout").offer.barred is None

    shouter.tools = [make_tool("shout", annotations=READS).model_copy(update={"description": "Now does more."})]
    move_clock(discovery.DEFAULT_EVERY)
    discovery.discover()
    assert selectors.worker_named("loud").effective_tier == "untrusted"


def test_silent_entry_is_asked_ever_more_seldom(as_kee: Caller, shouter: McpServer) -> None:
    shouter.stop()
    add_source(as_kee, shouter.endpoint)
    move_clock(timedelta(0))
    pauses = []

    for _ in range(4):
        discovery.discover()
        place = SourceEntry.objects.get()
        assert place.asked_at is not None
        pauses.append((place.next_at - place.asked_at).total_seconds())
        move_clock(place.next_at - place.asked_at)

    assert pauses == [5, 10, 20, 40]
    assert fault().startswith("unreachable")
    assert not Worker.objects.exists()


def test_removed_source_removes_its_workers(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint)
    discovery.discover()

    assert discovery.remove_source(tenant_id=as_kee.tenant_id, name="found") == 1

    assert not Worker.objects.registered().exists()
    assert not WorkerSource.objects.exists()
    with refused("unknown_source"):
        discovery.remove_source(tenant_id=as_kee.tenant_id, name="found")


def test_worker_with_heartbeats_outlives_its_source(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    discovery.discover()
    health.heartbeat(caller=as_kee, worker_id="loud", status="healthy", current_load=0, available=True)

    assert discovery.remove_source(tenant_id=as_kee.tenant_id, name="found") == 0
    assert selectors.worker_named("loud").state == "ready"


def test_worker_of_two_sources_outlives_one(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint, name="one")
    add_source(as_kee, shouter.endpoint, name="two")
    discovery.discover()

    assert discovery.remove_source(tenant_id=as_kee.tenant_id, name="one") == 0
    assert Worker.objects.registered().count() == 1
    assert discovery.remove_source(tenant_id=as_kee.tenant_id, name="two") == 1


def test_source_names_are_unique(as_kee: Caller) -> None:
    add_source(as_kee, "https://a.example.com/mcp")

    with refused("source_name_taken"):
        add_source(as_kee, "https://b.example.com/mcp")

    assert WorkerSource.objects.get().address == "https://a.example.com/mcp"


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"kind": "ftp"}, "workers_workersource_kind_known"),
        ({"every": timedelta(seconds=1)}, "workers_workersource_not_too_often"),
    ],
)
def test_database_refuses_bad_sources(as_kee: Caller, change: dict[str, Any], constraint: str) -> None:
    add_source(as_kee, "https://a.example.com/mcp")

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        WorkerSource.objects.update(**change)

    assert violated_constraint(refused.value) == constraint


def test_loopback_is_asked_only_if_allowed(as_kee: Caller, shouter: McpServer, settings: Settings) -> None:
    add_source(as_kee, shouter.endpoint)
    settings.ALLOW_LOOPBACK = False

    discovery.discover()

    assert fault().startswith("forbidden_endpoint")
    assert not shouter.asked


@pytest.mark.django_db(transaction=True)
def test_concurrent_sweeps_ask_an_entry_once(tenant: Tenant, shouter: McpServer) -> None:
    kee = make_caller(tenant)
    with acting_as(kee):
        add_source(kee, shouter.endpoint)
    barrier = threading.Barrier(3)

    def run() -> None:
        barrier.wait()
        discovery.discover()
        discovery.discover()
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with acting_as(kee):
        assert Worker.objects.registered().count() == 1
        assert WorkerEvent.objects.filter(kind="registered").count() == 1
        assert SourceEntry.objects.get().fence == 1
    assert shouter.asked.count("tools/list") == 1


def test_tenants_take_turns_in_a_sweep(tenant: Tenant) -> None:
    busy, quiet = make_caller(tenant), make_caller(make_tenant("quiet"))
    with acting_as(quiet):
        add_source(quiet, "https://a.example.com/mcp")
    with acting_as(busy):
        source = add_source(busy, "https://a.example.com/mcp")
        now = database_now()
        SourceEntry.objects.bulk_create(
            SourceEntry(
                tenant_id=busy.tenant_id,
                source=source,
                key=f"crowd-{number}",
                stated={"endpoint": source.address},
                named_at=now,
                next_at=now - timedelta(seconds=number),
            )
            for number in range(health.MOST_CLAIMED + 10)
        )
    with acting_as(quiet):
        SourceEntry.objects.create(
            tenant_id=quiet.tenant_id,
            source=WorkerSource.objects.get(),
            key="quiet",
            stated={"endpoint": source.address},
            named_at=now,
            next_at=now,
        )

    claimed = [entry.key for entry in discovery.claim_entries()]

    assert claimed[:3] == [f"crowd-{health.MOST_CLAIMED + 9}", "quiet", f"crowd-{health.MOST_CLAIMED + 8}"]
    assert len(claimed) == health.MOST_CLAIMED
