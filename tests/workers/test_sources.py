"""Sources that list many MCP workers: a YAML file, etcd, Consul; and their command."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.core.outbound import CallFailed
from apps.core.sql import database_now
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.workers import selectors, sources
from apps.workers.management.commands.worker_sources import Command
from apps.workers.models import Reach, SourceEntry, SourceKind, State, Worker, WorkerSource
from apps.workers.services import discovery, health
from apps.workers.sources import Entry, Listing
from tests.factories import make_caller
from tests.workers.factories import (
    NOTHING,
    add_source,
    enroll,
    make_key,
    make_manifest,
    move_clock,
    refused,
    register,
    signed,
)
from tests.workers.registries import Registry, service, serving_registry
from tests.workers.servers import McpServer, serving

LONG_AGO = "2000-01-01T00:00Z"


def discover(*, ask: bool = False) -> None:
    """Look at every source, and ask the entries that are due, or all."""
    WorkerSource.objects.update(next_at=LONG_AGO)
    if ask:
        SourceEntry.objects.update(next_at=LONG_AGO)
    discovery.discover()


def ids() -> list[str]:
    return sorted(worker.worker_id for worker in Worker.objects.registered())


def source_fault() -> str:
    return WorkerSource.objects.get().fault or ""


def port_of(server: McpServer) -> int:
    return int(server.endpoint.rsplit(":", 1)[1].split("/")[0])


@pytest.fixture
def remote() -> Iterator[Registry]:
    """A server that is etcd and Consul."""
    with serving_registry() as server:
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "workers.yaml"


def write(file: Path, *workers: Any) -> None:
    file.write_text(yaml.safe_dump({"workers": list(workers)}))


def add_file(caller: Caller, file: Path, *workers: Any) -> None:
    write(file, *workers)
    add_source(caller, str(file), kind=SourceKind.STATIC)


def test_file_lists_endpoints_and_manifests(as_kee: Caller, shouter: McpServer, file: Path) -> None:
    key = make_key()
    enroll(as_kee, key)
    loud = {"endpoint": shouter.endpoint, "worker_id": "loud", "side_effects": NOTHING}
    add_file(as_kee, file, loud, signed(make_manifest("critical"), key))

    discover()

    assert ids() == ["critical", "loud"]
    assert selectors.worker_named("critical").effective_tier == "verified"
    assert selectors.terms_of("loud", "shout").offer.barred is None


def test_changed_file_adds_and_removes_workers(as_kee: Caller, shouter: McpServer, file: Path) -> None:
    add_file(as_kee, file, make_manifest("one"), make_manifest("two"))
    discover()
    write(file, make_manifest("two"), {"endpoint": shouter.endpoint, "worker_id": "loud"})

    discover()

    assert ids() == ["loud", "two"]
    write(file, make_manifest("one"))
    discover()
    assert ids() == ["one"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "workers: [",
        "workers: 7",
        "- endpoint: x",
        "workers:\n- worker_id: x",
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


def test_etcd_lists_manifests_descriptions_and_endpoints(as_kee: Caller, shouter: McpServer, remote: Registry) -> None:
    remote.put("/gatehouse/workers/critical", make_manifest("critical"))
    remote.put("/gatehouse/workers/loud", {"endpoint": shouter.endpoint, "worker_id": "loud"})
    remote.put("/elsewhere/other", make_manifest("other"))
    add_source(as_kee, remote.url, kind=SourceKind.ETCD)

    discover()

    assert ids() == ["critical", "loud"]
    remote.put("/gatehouse/workers/loud", shouter.endpoint)
    discover()
    assert ids()[1].startswith("shouter-")


def test_etcd_is_watched(as_kee: Caller, remote: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "WAIT", timedelta(seconds=15))
    remote.put("/gatehouse/workers/one", make_manifest("one"))
    add_source(as_kee, remote.url, kind=SourceKind.ETCD)
    discover()

    changing = threading.Timer(0.2, remote.delete, ["/gatehouse/workers/one"])
    changing.start()
    discover()
    changing.join()

    assert ids() == []
    assert [path for path, _ in remote.asked] == ["/v3/kv/range", "/v3/watch", "/v3/kv/range"]
    assert remote.asked[1][1]["create_request"]["start_revision"] == 12


def test_quiet_watch_reads_no_list(as_kee: Caller, remote: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "WAIT", timedelta(seconds=0.3))
    add_source(as_kee, remote.url, kind=SourceKind.ETCD)
    discover()
    discover()

    assert [path for path, _ in remote.asked] == ["/v3/kv/range", "/v3/watch"]
    assert source_fault() == ""


def test_etcd_restored_from_a_backup_is_listed_again(
    as_kee: Caller, remote: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "WAIT", timedelta(seconds=0.3))
    add_source(as_kee, remote.url, kind=SourceKind.ETCD)
    discover()
    remote.put("/gatehouse/workers/two", make_manifest("two"))
    WorkerSource.objects.update(cursor="1000")

    discover()

    assert (ids(), source_fault(), WorkerSource.objects.get().cursor) == (["two"], "", "11")


def test_unreachable_source_removes_nobody(as_kee: Caller) -> None:
    with serving_registry() as remote:
        remote.put("/gatehouse/workers/one", make_manifest("one"))
        add_source(as_kee, remote.url, kind=SourceKind.ETCD)
        discover()

    discover()

    assert source_fault().startswith("unreachable")
    assert ids() == ["one"]


@pytest.mark.parametrize("value", ["", "nonsense", '{"endpoint": 7}', '{"tools": []}', "[1]", "http://10.0.0.8/mcp"])
def test_bad_entry_is_reported_on_the_entry(as_kee: Caller, remote: Registry, value: str) -> None:
    remote.put("/gatehouse/workers/x", value)
    add_source(as_kee, remote.url, kind=SourceKind.ETCD)

    discover()

    assert (ids(), source_fault()) == ([], "")
    assert SourceEntry.objects.get().fault


def test_keys_that_read_alike_change_nothing(as_kee: Caller, remote: Registry) -> None:
    add_source(as_kee, remote.url, kind=SourceKind.ETCD)
    for end in (b"\xff", b"\xfe"):
        remote.put(b"/gatehouse/workers/" + end, "https://a.example.com/mcp")

    discover()

    assert source_fault().startswith("bad_source: The source names '/gatehouse/workers/")
    assert not SourceEntry.objects.exists()


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
    with refused("invalid"):
        add_source(as_kee, "http://127.0.0.1:9/mcp", kind=kind, worker_id="a b")
    assert not WorkerSource.objects.exists()


def test_consul_lists_instances_of_a_service(as_kee: Caller, shouter: McpServer, remote: Registry) -> None:
    remote.serve(service("loud", port_of(shouter), Tags=["noise"], Meta={"worker_id": "loud"}))
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL, side_effects=NOTHING)

    discover()

    assert selectors.worker_named("loud").capabilities == ["noise"]
    assert selectors.terms_of("loud", "shout").offer.barred is None
    assert remote.asked == [("/v1/health/service/mcp-worker", {"passing": "true", "wait": "1s"})]


def test_consul_is_watched(
    as_kee: Caller, shouter: McpServer, remote: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "WAIT", timedelta(seconds=15))
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL)
    discover()

    loud = service("loud", port_of(shouter), Meta={"worker_id": "loud"})
    changing = threading.Timer(0.2, remote.serve, [loud])
    changing.start()
    discover()
    changing.join()

    assert remote.asked[1][1]["index"] == "10"
    assert ids() == ["loud"]
    remote.serve()
    discover()
    assert ids() == []


def test_consul_index_that_goes_back_is_dropped(as_kee: Caller, remote: Registry) -> None:
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL)
    discover()
    remote.revision = 3

    discover()
    assert WorkerSource.objects.get().cursor == ""
    discover()

    assert "index" not in remote.asked[2][1]
    assert WorkerSource.objects.get().cursor == "3"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ([7], "What answers there is not Consul."),
        ([{}], "What answers there is not Consul."),
        ([service("x", 1) | {"Service": []}], "What answers there is not Consul."),
        ([service("x", 8), service("x", 9)], "The source names 'n1/x' twice."),
        ([service("x", 9, Tags=["a\x00b"])], "What the source says of 'n1/x' can't be stored."),
        ([service("x", 9, Tags=["a\ud800b"])], "What the source says of 'n1/x' can't be stored."),
        (
            [service(f"s{number}", 9) for number in range(sources.MOST_ENTRIES + 1)],
            f"The source names more than {sources.MOST_ENTRIES} workers.",
        ),
    ],
)
def test_bad_list_changes_nothing_and_harms_no_other(
    as_kee: Caller, remote: Registry, shouter: McpServer, answer: list[Any], fault: str
) -> None:
    remote.serve(*answer)
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL, name="bad")
    add_source(as_kee, shouter.endpoint, worker_id="loud")

    discover()

    assert (WorkerSource.objects.get(name="bad").fault or "").startswith(f"bad_source: {fault}")
    assert ids() == ["loud"]


def test_unseen_instances_of_consul_stay(as_kee: Caller, remote: Registry, shouter: McpServer) -> None:
    remote.serve(service("loud", port_of(shouter), Meta={"worker_id": "loud"}))
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL)
    discover()
    remote.keeps_back = True
    remote.serve()

    discover()

    assert source_fault().startswith("bad_source: Consul keeps back instances")
    assert ids() == ["loud"]


def test_unexpected_exception_is_stored_on_its_source(
    as_kee: Caller, remote: Registry, shouter: McpServer, caplog: pytest.LogCaptureFixture
) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL, name="many")
    remote.revision = 10**100  # longer than its column

    discover()

    assert WorkerSource.objects.get(name="many").fault == "unexpected: DataError, as the log says."
    assert ids() == ["loud"]
    assert "one of a sweep broke" in caplog.text


def test_unexpected_exception_leaves_the_other_calls_alone() -> None:
    noted: dict[int, float | CallFailed] = {}

    def call(number: int) -> float:
        return 1 / number

    assert health.do_all([0, 1, 2], call, noted.__setitem__) == 3

    broken = noted.pop(0)
    assert (type(broken), str(broken)) == (health.Unexpected, "ZeroDivisionError, as the log says.")
    assert noted == {1: 1.0, 2: 0.5}


def test_secret_is_sealed_and_replaceable(as_kee: Caller, remote: Registry, settings: Any) -> None:
    remote.token = "token-two"
    remote.serve(service("loud", 9, Meta={"worker_id": "loud"}))
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL, secret="token-one")
    discover()
    assert source_fault() == "bad_source: The source answers 403."
    assert "token-one" not in str(WorkerSource.objects.values().get())

    discovery.change_secret(tenant_id=as_kee.tenant_id, name="found", secret="token-two")
    discovery.discover()

    assert (source_fault(), SourceEntry.objects.get().key) == ("", "n1/loud")
    settings.SEALING_KEYS = ["another deployment's"]
    discover()
    assert source_fault() == "bad_source: The source's secret can't be opened with this deployment's keys."
    assert SourceEntry.objects.exists()


def lists_in_file(caller: Caller, file: Path, _remote: Registry) -> Callable[[McpServer], None]:
    add_file(caller, file)
    return lambda server: write(file, {"endpoint": server.endpoint, "worker_id": "loud"})


def lists_in_consul(caller: Caller, _file: Path, remote: Registry) -> Callable[[McpServer], None]:
    add_source(caller, remote.url, kind=SourceKind.CONSUL)
    return lambda server: remote.serve(service("loud", port_of(server), Meta={"worker_id": "loud"}))


def lists_in_etcd(caller: Caller, _file: Path, remote: Registry) -> Callable[[McpServer], None]:
    add_source(caller, remote.url, kind=SourceKind.ETCD)
    return lambda server: remote.put("/gatehouse/workers/loud", {"endpoint": server.endpoint, "worker_id": "loud"})


@pytest.mark.parametrize("lists_in", [lists_in_file, lists_in_consul, lists_in_etcd])
def test_discovered_worker_moves_with_its_entry(
    as_kee: Caller, file: Path, remote: Registry, lists_in: Callable[..., Callable[[McpServer], None]]
) -> None:
    lists = lists_in(as_kee, file, remote)
    with serving() as one, serving() as two:
        lists(one)
        discover()
        Worker.objects.update(reach=Reach.DOWN, state=State.OFFLINE)
        lists(two)
        discover()

        worker = Worker.objects.registered().get()
        assert (worker.worker_id, worker.endpoint, worker.state) == ("loud", two.endpoint, "ready")
        assert SourceEntry.objects.get().fault is None


def test_worker_with_heartbeats_is_not_moved(as_kee: Caller, file: Path) -> None:
    with serving() as one, serving() as two:
        add_file(as_kee, file, {"endpoint": one.endpoint, "worker_id": "loud"})
        discover()
        health.heartbeat(caller=as_kee, worker_id="loud", status="healthy", current_load=0, available=True)
        write(file, {"endpoint": two.endpoint, "worker_id": "loud"})
        discover()

        assert SourceEntry.objects.get().fault == "worker_id_taken: 'loud' is registered at another endpoint."
        assert Worker.objects.get().endpoint == one.endpoint


def test_worker_of_two_entries_moves_when_one_is_removed(as_kee: Caller, file: Path) -> None:
    with serving() as one, serving() as two:
        add_source(as_kee, one.endpoint, name="pull", worker_id="loud")
        add_file(as_kee, file, {"endpoint": one.endpoint, "worker_id": "loud"})
        discover()
        write(file, {"endpoint": two.endpoint, "worker_id": "loud"})
        discover()
        assert Worker.objects.get().endpoint == one.endpoint

        assert discovery.remove_source(tenant_id=as_kee.tenant_id, name="pull") == 0
        discover(ask=True)

        assert Worker.objects.registered().get().endpoint == two.endpoint


def test_entry_with_another_worker_removes_the_former_one(as_kee: Caller, remote: Registry) -> None:
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL)
    with serving() as one, serving() as two:
        remote.serve(service("loud", port_of(one)))
        discover()
        (former,) = ids()
        remote.serve(service("loud", port_of(two)))
        discover()

        (present,) = ids()
        assert (present == former, Worker.objects.registered().get().endpoint) == (False, two.endpoint)
        remote.serve()
        discover()
        assert ids() == []


@pytest.mark.parametrize("change", [{}, {"capabilities": ["rust"]}])
def test_file_does_not_keep_a_silent_worker_alive(as_kee: Caller, file: Path, change: dict[str, Any]) -> None:
    key = make_key()
    enroll(as_kee, key)
    move_clock(timedelta(0))
    register(as_kee, signed(make_manifest("one"), key))
    heard_at = Worker.objects.get().last_heartbeat_at
    move_clock(health.OFFLINE_AFTER + timedelta(seconds=1))
    health.mark_late()
    add_file(as_kee, file, signed(make_manifest("one", **change), key))

    discover()

    worker = Worker.objects.get()
    assert SourceEntry.objects.get().worker == worker
    assert (worker.state, worker.beats, worker.last_heartbeat_at) == ("offline", True, heard_at)
    assert worker.capabilities == change.get("capabilities", make_manifest()["capabilities"])


def test_signed_manifest_of_a_removed_worker_is_only_its_owners(tenant: Tenant, as_kee: Caller, file: Path) -> None:
    key = make_key()
    enroll(as_kee, key)
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

    assert Worker.objects.registered().get().principal_id == as_kee.principal_id
    assert Worker.objects.get().effective_tier == "verified"


def test_signed_manifest_moves_a_worker(as_kee: Caller, file: Path) -> None:
    key = make_key()
    enroll(as_kee, key)
    register(as_kee, make_manifest("one"))
    add_file(as_kee, file, signed(make_manifest("one", endpoint="https://new.example.com/mcp"), key))

    discover()

    assert SourceEntry.objects.get().fault is None
    assert Worker.objects.get().endpoint == "https://new.example.com/mcp"


def test_outdated_claims_are_not_stored(as_kee: Caller, remote: Registry, shouter: McpServer) -> None:
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL)
    (late,) = discovery.claim_sources()
    WorkerSource.objects.update(next_at=LONG_AGO)
    (current,) = discovery.claim_sources()
    entry = Entry(key="x", stated={"endpoint": shouter.endpoint, "worker_id": "loud"})

    discovery.note_listing(late, Listing(cursor="7", entries=[entry]))
    assert (WorkerSource.objects.get().looked_at, SourceEntry.objects.count()) == (None, 0)
    discovery.note_listing(current, Listing(cursor="8", entries=[entry]))
    assert WorkerSource.objects.get().cursor == "8"

    (late_entry,) = discovery.claim_entries()
    SourceEntry.objects.update(next_at=LONG_AGO)
    (current_entry,) = discovery.claim_entries()
    discovery.note_answer(late_entry, discovery.ask(late_entry))
    assert (SourceEntry.objects.get().asked_at, ids()) == (None, [])
    discovery.note_answer(current_entry, discovery.ask(current_entry))
    assert ids() == ["loud"]


def test_unchanged_source_leaves_its_entries_alone(as_kee: Caller, remote: Registry) -> None:
    add_source(as_kee, remote.url, kind=SourceKind.CONSUL)
    (claimed,) = discovery.claim_sources()

    with CaptureQueriesContext(connection) as queries:
        discovery.note_listing(claimed, Listing(cursor="7", entries=None))

    assert not [query["sql"] for query in queries if "workers_sourceentry" in query["sql"]]


@pytest.mark.parametrize("by_principal", [True, False])
def test_disabled_source_or_principal_is_left_alone(as_kee: Caller, shouter: McpServer, *, by_principal: bool) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    discovery.discover()
    shouter.asked.clear()
    if by_principal:
        Principal.objects.filter(pk=as_kee.principal_id).update(disabled_at=database_now())
    else:
        WorkerSource.objects.update(enabled=False)

    discover(ask=True)

    assert not shouter.asked


def run(*command: str, **given: Any) -> str:
    answer = StringIO()
    call_command("worker_sources", *command, "--tenant", "acme", stdout=answer, **given)
    return answer.getvalue()


def test_command_adds_lists_and_removes_a_source(as_kee: Caller, file: Path, tmp_path: Path) -> None:
    write(file, make_manifest("one"))
    secret = tmp_path / "token"
    added = run("add", "mine", "--kind", "static", "--address", str(file), "--principal", "Kee")
    discovery.discover()
    (source,) = json.loads(run("list", "--json"))

    assert added == "mine is looked at from now on, and its workers every 300 s\n"
    assert source["entries"] == [{"key": "one", "worker_id": "one", "fault": None}]
    assert "mine is removed; 1 workers have left" in run("remove", "mine")
    for content, fault in ((None, "can't be read"), ("\n", "is empty"), ("x", "There is no source 'mine'")):
        if content is not None:
            secret.write_text(content)
        with pytest.raises(CommandError, match=fault), transaction.atomic():
            run("secret", "mine", "--secret-file", str(secret))


def test_command_takes_the_options_of_every_kind(as_kee: Caller, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a password\n")
    there = ["--address", "http://127.0.0.1:9/mcp", "--principal", "Kee"]

    run("add", "e", "--kind", "etcd", *there, "--prefix", "/w/", "--user", "gate", "--secret-file", str(secret))
    run("add", "c", "--kind", "consul", *there, "--service", "mcp", "--secret-file", str(secret))
    run("add", "p", "--kind", "pull", *there, "--worker", '{"worker_id": "files"}', "--every", "60")

    assert {source.name: source.options for source in WorkerSource.objects.all()} == {
        "e": {"prefix": "/w/", "user": "gate"},
        "c": {"service": "mcp"},
        "p": {"worker": {"worker_id": "files"}},
    }
    with pytest.raises(CommandError, match="is no JSON object"):
        run("add", "q", "--kind", "pull", *there, "--worker", "[]")


@pytest.mark.ci
def test_no_option_collides_with_djangos_in_a_shell() -> None:
    """Run as a process: `call_command` does not go through Django's own parsing of `--settings`."""
    words = ["add", "x", "--kind", "etcd", "--address", "http://127.0.0.1:9", "--principal", "nobody"]
    options = ["--prefix", "/w/", "--user", "gate", "--service", "s", "--worker", "{}", "--tenant", "nobody"]

    done = subprocess.run(
        [sys.executable, "manage.py", "worker_sources", *words, *options],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "There is no tenant" in done.stderr
    assert "Traceback" not in done.stderr
    own = {option for action in Command().create_parser("manage.py", "x")._actions for option in action.option_strings}
    assert not own & {"--prefix", "--user", "--service", "--worker"}
