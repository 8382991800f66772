"""Discovery: MCP endpoints, YAML files, etcd and Consul list workers; what they say is judged like any registration."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp.types import ToolAnnotations

from apps.core.sql import database_now
from apps.plans.selectors import search_tools
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.workers import manifests, selectors, sources
from apps.workers import services as registry
from apps.workers.models import Reach, SourceEntry, SourceKind, State, Worker, WorkerEvent, WorkerSource
from apps.workers.services import _checked
from tests.factories import make_caller, make_tenant, pass_time
from tests.workers.factories import (
    NOTHING,
    READS_ONLY,
    add_source,
    beat,
    discover,
    fault,
    ids,
    make_manifest,
    offers,
    refused,
    register,
    signed,
)
from tests.workers.servers import READS, McpServer, Registry, make_tool, service, serving, serving_registry

Key = dict[str, str]


def source_fault() -> str:
    return WorkerSource.objects.get().fault or ""


def barred(worker_id: str = "loud") -> str | None:
    return selectors.terms_of(worker_id, "shout").offer.barred


# One MCP endpoint


def test_any_mcp_server_is_found_and_untrusted(as_kee: Caller, shouter: McpServer) -> None:
    shouter.tools = [make_tool("shout"), make_tool("whisper"), make_tool("look", annotations=READS)]
    shouter.page_size = 2
    add_source(as_kee, shouter.endpoint)

    registry.discover()

    worker = Worker.objects.get()
    assert worker.worker_id == manifests._worker_id("shouter", shouter.endpoint)
    assert [tool["name"] for tool in worker.manifest["tools"]] == ["shout", "whisper", "look"]
    assert (worker.state, worker.beats) == ("ready", False)
    assert search_tools("whisper a text", tenant_id=as_kee.tenant_id)[0].tool_name == "whisper"
    assert {offer.tier for offer in offers().values()} == {"untrusted"}
    assert offers()["shout"].effects == {"read", "write", "network", "exec", "bidirectional"}
    assert offers()["look"].effects == {"read"}
    assert all(offer.barred for offer in offers().values())


def test_source_states_defaults_for_its_workers(as_kee: Caller, shouter: McpServer) -> None:
    saves = ToolAnnotations(read_only_hint=False)
    looks_around = ToolAnnotations(read_only_hint=True, open_world_hint=True)
    shouter.tools = [
        make_tool("shout"),
        make_tool("save", annotations=saves),
        make_tool("look", annotations=looks_around),
    ]
    add_source(as_kee, shouter.endpoint, worker_id="loud", side_effects=NOTHING, capabilities=["noise"])

    registry.discover()

    assert selectors.worker_named("loud").capabilities == ["noise"]
    assert barred() is None
    found = {name: set(offer.effects) for name, offer in offers().items()}
    assert found == {"shout": set(), "save": {"read", "write"}, "look": {"read", "network"}}


def test_unsigned_bootstrap_manifest_keeps_the_asked_endpoint(as_kee: Caller, shouter: McpServer) -> None:
    shouter.manifest = lambda: make_manifest("loud", endpoint="https://elsewhere.example.com/mcp")
    add_source(as_kee, shouter.endpoint)

    registry.discover()

    worker = selectors.worker_named("loud")
    assert (worker.endpoint, worker.effective_tier) == (shouter.endpoint, "untrusted")
    assert worker.capabilities == ["code_analysis", "python", "javascript"]


def test_signed_bootstrap_manifest_is_trusted(as_kee: Caller, shouter: McpServer, key: Key) -> None:
    manifest = signed(make_manifest("loud", endpoint=shouter.endpoint), key)
    shouter.manifest = lambda: manifest
    add_source(as_kee, shouter.endpoint)
    registry.discover()
    assert selectors.worker_named("loud").effective_tier == "verified"

    shouter.manifest = lambda: {**manifest, "capabilities": ["everything"]}
    discover(ask=True)
    assert "bad_signature" in fault()
    assert selectors.worker_named("loud").capabilities == ["code_analysis", "python", "javascript"]


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        ({"worker_id": "x"}, "invalid"),
        (make_manifest("../x"), "invalid"),
        (make_manifest(tools=make_manifest()["tools"] * 2), "repeated_tool"),
        ({**make_manifest(), "surprise": True}, "invalid"),
    ],
)
def test_bad_bootstrap_manifest_is_refused(
    as_kee: Caller, shouter: McpServer, manifest: dict[str, Any], code: str
) -> None:
    shouter.manifest = lambda: manifest
    add_source(as_kee, shouter.endpoint)

    registry.discover()

    assert fault().startswith(code)
    assert not Worker.objects.exists()


@pytest.mark.parametrize("is_own", [True, False])
def test_discovered_worker_can_not_take_an_id(tenant: Tenant, as_kee: Caller, shouter: McpServer, is_own: bool) -> None:
    owner = as_kee if is_own else make_caller(tenant, "other", Kind.WORKER)
    with acting_as(owner):
        register(owner, make_manifest("loud", **({} if is_own else {"endpoint": shouter.endpoint})))
    before = Worker.objects.values().get()
    shouter.manifest = lambda: make_manifest("loud", endpoint=shouter.endpoint, capabilities=["mine"])
    add_source(as_kee, shouter.endpoint)

    registry.discover()

    assert fault().startswith("worker_id_taken")
    assert Worker.objects.values().get() == before


def test_unusable_tool_is_left_out_with_its_reason(as_kee: Caller, shouter: McpServer) -> None:
    elsewhere = {"type": "object", "properties": {"x": {"$ref": "http://10.0.0.8/schema.json"}}}
    shouter.tools = [make_tool("shout"), make_tool("fetch").model_copy(update={"input_schema": elsewhere})]
    add_source(as_kee, shouter.endpoint)
    registry.discover()

    assert [tool["name"] for tool in Worker.objects.get().manifest["tools"]] == ["shout"]
    assert "fetch has a schema that does not stand on its own" in fault()
    shouter.tools = []
    discover(ask=True)
    assert fault().startswith("nothing_to_offer")


def test_only_changed_tools_are_registered(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint)
    pass_time()
    registry.discover()
    epoch, events = selectors.epochs(), WorkerEvent.objects.count()

    assert registry.discover() == 0
    pass_time(registry.DEFAULT_EVERY)
    assert registry.discover() == 2
    assert (selectors.epochs(), WorkerEvent.objects.count()) == (epoch, events)

    shouter.tools = [make_tool("shout"), make_tool("whisper")]
    discover(ask=True)
    assert set(offers()) == {"shout", "whisper"}
    assert WorkerEvent.objects.filter(kind="replaced").count() == 1


def test_operators_signature_holds_while_tools_are_the_same(as_kee: Caller, shouter: McpServer, key: Key) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud", side_effects=READS_ONLY)
    registry.discover()
    assert barred() == "the tier untrusted does not allow read"

    shown = selectors.manifest_of("loud").model_dump()
    register(as_kee, signed({**_checked(shown), "trust": {"tier": "verified"}}, key))
    discover(ask=True)
    assert barred() is None
    assert not selectors.worker_named("loud").beats

    shouter.tools = [make_tool("shout", annotations=READS).model_copy(update={"description": "Now does more."})]
    discover(ask=True)
    assert selectors.worker_named("loud").effective_tier == "untrusted"


def test_silent_entry_is_asked_ever_more_seldom(as_kee: Caller, shouter: McpServer) -> None:
    shouter.stop()
    add_source(as_kee, shouter.endpoint)
    pass_time()
    pauses = []
    for _ in range(4):
        registry.discover()
        entry = SourceEntry.objects.get()
        assert entry.asked_at is not None
        pauses.append((entry.next_at - entry.asked_at).total_seconds())
        pass_time(entry.next_at - entry.asked_at)

    assert pauses == [5, 10, 20, 40]
    assert fault().startswith("unreachable")


def test_removed_source_removes_the_workers_it_alone_lists(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint, name="one")
    add_source(as_kee, shouter.endpoint, name="two")
    with refused("source_name_taken"):
        add_source(as_kee, shouter.endpoint, name="two")
    registry.discover()

    removed = [registry.remove_source(tenant_id=as_kee.tenant_id, name=name) for name in ("one", "two")]

    assert (removed, ids()) == ([0, 1], [])
    with refused("unknown_source"):
        registry.remove_source(tenant_id=as_kee.tenant_id, name="two")


def test_worker_with_heartbeats_outlives_its_source(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    registry.discover()
    beat(as_kee, "loud")

    assert registry.remove_source(tenant_id=as_kee.tenant_id, name="found") == 0
    assert selectors.worker_named("loud").state == "ready"


@pytest.mark.parametrize("by_principal", [True, False])
def test_disabled_source_or_principal_is_left_alone(as_kee: Caller, shouter: McpServer, *, by_principal: bool) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    registry.discover()
    shouter.asked.clear()
    if by_principal:
        Principal.objects.filter(pk=as_kee.principal_id).update(disabled_at=database_now())
    else:
        WorkerSource.objects.update(enabled=False)

    discover(ask=True)

    assert not shouter.asked


# A YAML file


def write(file: Path, *workers: Any) -> None:
    file.write_text(yaml.safe_dump({"workers": list(workers)}))


def add_file(caller: Caller, file: Path, *workers: Any) -> None:
    write(file, *workers)
    add_source(caller, str(file), kind=SourceKind.STATIC)


def test_file_lists_endpoints_and_manifests(as_kee: Caller, shouter: McpServer, file: Path, key: Key) -> None:
    loud = {"endpoint": shouter.endpoint, "worker_id": "loud", "side_effects": NOTHING}
    add_file(as_kee, file, loud, signed(make_manifest("critical"), key))

    discover()

    assert ids() == ["critical", "loud"]
    assert selectors.worker_named("critical").effective_tier == "verified"
    assert barred() is None
    write(file, make_manifest("other"), loud)
    discover()
    assert ids() == ["loud", "other"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "workers: [",
        "workers: 7",
        "- endpoint: x",
        "workers:\n- endpoint: x\n  since: 2026-01-01",
        "workers:\n- !!python/object/apply:os.system ['true']",
        "workers:\n- {endpoint: x}\n- {endpoint: x}",
        "workers: []\n#" + "x" * 1024 * 1024,
        yaml.safe_dump({"workers": [{"endpoint": f"w{number}"} for number in range(sources.MOST_ENTRIES + 1)]}),
    ],
)
def test_bad_file_changes_nothing(as_kee: Caller, file: Path, content: str | None) -> None:
    add_file(as_kee, file, make_manifest("one"))
    discover()
    if content is None:
        file.unlink()
    else:
        file.write_text(content)

    discover()

    assert source_fault().startswith("bad_source")
    assert ids() == ["one"]


# etcd


def test_etcd_lists_manifests_descriptions_and_endpoints(as_kee: Caller, shouter: McpServer, remote: Registry) -> None:
    remote.put("/gatehouse/workers/critical", make_manifest("critical"))
    remote.put("/gatehouse/workers/loud", {"endpoint": shouter.endpoint, "worker_id": "loud"})
    remote.put("/elsewhere/other", make_manifest("other"))
    add_source(as_kee, remote.url, kind=SourceKind.ETCD)

    discover()

    assert ids() == ["critical", "loud"]
    remote.put("/gatehouse/workers/loud", shouter.endpoint)
    remote.delete("/gatehouse/workers/critical")
    discover()
    assert [worker_id.partition("-")[0] for worker_id in ids()] == ["shouter"]


def test_unreachable_source_removes_nobody(as_kee: Caller) -> None:
    with serving_registry() as remote:
        remote.put("/gatehouse/workers/one", make_manifest("one"))
        add_source(as_kee, remote.url, kind=SourceKind.ETCD)
        discover()

    discover()

    assert source_fault().startswith("unreachable")
    assert ids() == ["one"]


@pytest.mark.parametrize("value", ["", '{"endpoint": 7}', '{"tools": []}', "http://10.0.0.8/mcp"])
def test_bad_entry_is_reported_on_the_entry(as_kee: Caller, remote: Registry, value: str) -> None:
    remote.put("/gatehouse/workers/x", value)
    add_source(as_kee, remote.url, kind=SourceKind.ETCD)

    discover()

    assert (ids(), source_fault()) == ([], "")
    assert fault()


def test_etcd_user_logs_in_and_renews_a_lost_token(as_kee: Caller, remote: Registry) -> None:
    remote.password, remote.token = "a password", "first"
    remote.put("/gatehouse/workers/one", make_manifest("one"))
    add_source(as_kee, remote.url, kind=SourceKind.ETCD, secret="a password", options={"user": "gate"})
    discover()
    assert (ids(), source_fault()) == (["one"], "")

    remote.token = "second"
    remote.put("/gatehouse/workers/two", make_manifest("two"))
    discover()
    assert (ids(), source_fault()) == (["one", "two"], "")

    remote.password, remote.token = "another", "third"
    discover()
    assert source_fault() == "bad_source: The source does not take the user and its password: it answers 400."
    assert ids() == ["one", "two"]


@pytest.mark.parametrize(
    ("kind", "secret", "options"),
    [
        (SourceKind.STATIC, "x", {}),
        (SourceKind.PULL, "x", {}),
        (SourceKind.ETCD, "x", {}),
        (SourceKind.ETCD, "", {"user": "gate"}),
        (SourceKind.ETCD, "", {"prefix": ""}),
        (SourceKind.CONSUL, "x", {"user": "gate"}),
        (SourceKind.PULL, "", {"color": "red"}),
    ],
)
def test_wrong_options_are_refused(as_kee: Caller, kind: SourceKind, secret: str, options: dict[str, Any]) -> None:
    with refused("bad_settings"):
        add_source(as_kee, "http://127.0.0.1:9/mcp", kind=kind, secret=secret, options=options)
    with refused("invalid"):
        add_source(as_kee, "http://127.0.0.1:9/mcp", kind=kind, tier="trusted")
    assert not WorkerSource.objects.exists()


# Consul


def test_consul_lists_instances_of_a_service(as_kee: Caller, shouter: McpServer, remote: Registry) -> None:
    remote.serve(service("loud", shouter.port, Tags=["noise"], Meta={"worker_id": "loud"}))
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL, side_effects=NOTHING)

    discover()

    assert selectors.worker_named("loud").capabilities == ["noise"]
    assert barred() is None
    assert remote.asked == [("/v1/health/service/mcp-worker", {"passing": "true"})]
    remote.serve()
    discover()
    assert ids() == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([7], "What answers there is not Consul."),
        ([service("x", 1) | {"Service": []}], "What answers there is not Consul."),
        ([service("x", 8), service("x", 9)], "The source names 'n1/x' twice."),
        ([service("x", 9, Tags=["a\x00b"])], "What the source says of 'n1/x' can't be stored."),
        (
            [service(f"s{number}", 9) for number in range(sources.MOST_ENTRIES + 1)],
            f"The source names more than {sources.MOST_ENTRIES} MCP workers.",
        ),
    ],
)
def test_bad_list_changes_nothing_and_harms_no_other(
    as_kee: Caller, remote: Registry, shouter: McpServer, answer: list[Any], text: str
) -> None:
    remote.serve(*answer)
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL, name="bad")
    add_source(as_kee, shouter.endpoint, worker_id="loud")

    discover()

    assert (WorkerSource.objects.get(name="bad").fault or "").startswith(f"bad_source: {text}")
    assert ids() == ["loud"]


def test_unseen_instances_of_consul_stay(as_kee: Caller, remote: Registry, shouter: McpServer) -> None:
    remote.serve(service("loud", shouter.port, Meta={"worker_id": "loud"}))
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL)
    discover()
    remote.keeps_back = True
    remote.serve()

    discover()

    assert source_fault().startswith("bad_source: Consul keeps back instances")
    assert ids() == ["loud"]


# All sources


def test_unexpected_exception_is_stored_on_its_source(
    as_kee: Caller, remote: Registry, shouter: McpServer, caplog: pytest.LogCaptureFixture
) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL, name="many")
    WorkerSource.objects.filter(name="many").update(options={"service": 7})  # a row that no service writes

    discover()

    assert WorkerSource.objects.get(name="many").fault == "unexpected: TypeError, as the log says."
    assert ids() == ["loud"]
    assert "one of a sweep broke" in caplog.text


def test_secret_is_sealed_and_replaceable(as_kee: Caller, remote: Registry, settings: Any) -> None:
    remote.token = "token-two"
    remote.serve(service("loud", 9, Meta={"worker_id": "loud"}))
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL, secret="token-one")
    discover()
    assert source_fault() == "bad_source: The source answers 403."
    assert "token-one" not in str(WorkerSource.objects.values().get())

    registry.change_source(tenant_id=as_kee.tenant_id, name="found", secret="token-two")
    registry.discover()

    assert (source_fault(), SourceEntry.objects.get().key) == ("", "n1/loud")
    settings.SEALING_KEYS = ["another deployment's"]
    discover()
    assert source_fault() == "bad_source: The source's secret can't be opened with this deployment's keys."
    assert SourceEntry.objects.exists()


def test_discovered_worker_moves_with_its_only_entry(as_kee: Caller, file: Path) -> None:
    with serving() as one, serving() as two:
        loud, moved = ({"endpoint": server.endpoint, "worker_id": "loud"} for server in (one, two))
        add_source(as_kee, one.endpoint, name="pull", worker_id="loud")
        add_file(as_kee, file, loud)
        discover()
        write(file, moved)
        discover()
        assert Worker.objects.get().endpoint == one.endpoint

        assert registry.remove_source(tenant_id=as_kee.tenant_id, name="pull") == 0
        Worker.objects.update(reach=Reach.DOWN, state=State.OFFLINE)
        discover(ask=True)
        worker = Worker.objects.registered().get()
        assert (worker.worker_id, worker.endpoint, worker.state, fault()) == ("loud", two.endpoint, "ready", "")

        beat(as_kee, "loud")
        write(file, loud)
        discover()
        assert fault() == "worker_id_taken: 'loud' is registered at another endpoint."
        assert Worker.objects.get().endpoint == two.endpoint


def test_entry_with_another_worker_removes_the_former_one(as_kee: Caller, remote: Registry) -> None:
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL)
    with serving() as one, serving() as two:
        remote.serve(service("loud", one.port))
        discover()
        (former,) = ids()
        remote.serve(service("loud", two.port))
        discover()

        (present,) = ids()
        assert (present == former, Worker.objects.registered().get().endpoint) == (False, two.endpoint)


def test_file_does_not_keep_a_silent_worker_alive(as_kee: Caller, file: Path, key: Key) -> None:
    pass_time()
    register(as_kee, signed(make_manifest("one"), key))
    heard_at = Worker.objects.get().last_heartbeat_at
    pass_time(registry.OFFLINE_AFTER + timedelta(seconds=1))
    registry.mark_late()
    add_file(as_kee, file, signed(make_manifest("one", capabilities=["rust"]), key))

    discover()

    worker = Worker.objects.get()
    assert SourceEntry.objects.get().worker == worker
    assert (worker.state, worker.beats, worker.last_heartbeat_at) == ("offline", True, heard_at)
    assert worker.capabilities == ["rust"]


def test_signed_manifest_of_a_removed_worker_is_only_its_owners(
    tenant: Tenant, as_kee: Caller, file: Path, key: Key
) -> None:
    manifest = signed(make_manifest("one"), key)
    add_file(as_kee, file, manifest)
    discover()
    rival = make_caller(tenant, "rival", Kind.WORKER)
    write(file)
    discover()
    assert ids() == []

    with acting_as(rival), refused("signature_replayed"):
        register(rival, manifest)
    write(file, manifest)
    discover()

    worker = Worker.objects.registered().get()
    assert (worker.principal_id, worker.effective_tier) == (as_kee.principal_id, "verified")


def test_signed_manifest_moves_a_worker(as_kee: Caller, file: Path, key: Key) -> None:
    register(as_kee, make_manifest("one"))
    add_file(as_kee, file, signed(make_manifest("one", endpoint="https://new.example.com/mcp"), key))

    discover()

    assert (fault(), Worker.objects.get().endpoint) == ("", "https://new.example.com/mcp")


def test_what_was_changed_meanwhile_keeps_no_answer_of_before(as_kee: Caller, shouter: McpServer) -> None:
    pass_time()
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    (asked,) = registry.due_sources()
    pass_time(1)
    with serving() as other:
        registry.change_source(tenant_id=as_kee.tenant_id, name="found", address=other.endpoint)
        registry.note_listing(asked, registry.look(asked))
        assert not SourceEntry.objects.exists()

        (asked,) = registry.due_sources()
        registry.note_listing(asked, registry.look(asked))
        assert SourceEntry.objects.get().stated["endpoint"] == other.endpoint
        (entry,) = registry.due_entries()
        pass_time(1)
        registry.change_source(tenant_id=as_kee.tenant_id, name="found")
        registry.note_answer(entry, registry.ask(entry))
        assert ids() == []
        registry.discover()
    assert ids() == ["loud"]


def test_tenants_take_turns_in_a_sweep(tenant: Tenant) -> None:
    busy, quiet = make_caller(tenant), make_caller(make_tenant("quiet"))
    for caller, number in ((busy, registry.MOST_AT_ONCE + 10), (quiet, 1)):
        with acting_as(caller):
            source, now = add_source(caller, "https://a.example.com/mcp"), database_now()
            SourceEntry.objects.bulk_create(
                SourceEntry(
                    tenant_id=caller.tenant_id,
                    source=source,
                    key=f"{caller.tenant_slug}-{one}",
                    stated={"endpoint": source.address},
                    named_at=now,
                    next_at=now - timedelta(seconds=one),
                )
                for one in range(number)
            )

    asked = [entry.key for entry in registry.due_entries()]

    assert asked[:3] == [f"acme-{registry.MOST_AT_ONCE + 9}", "quiet-0", f"acme-{registry.MOST_AT_ONCE + 8}"]
    assert len(asked) == registry.MOST_AT_ONCE
