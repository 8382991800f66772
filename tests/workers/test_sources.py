"""Sources that name many workers: a YAML file, etcd, Consul. etcd is the real one.

Consul has no package that the tests could install: a small server here keeps to its documented HTTP contract
(`/v1/health/service/:service`, blocking queries by `index` and `wait`, `X-Consul-Index`; with ACLs `X-Consul-Token`, and
`X-Consul-Results-Filtered-By-ACLs` where a token does not see everything).
"""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from apps.core.outbound import CallFailed
from apps.core.sealing import seal
from apps.core.sql import database_now
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from apps.workers import errors, registries, selectors, services
from apps.workers.hysteresis import Reach
from apps.workers.models import Place, Worker, WorkerSource
from apps.workers.registries import Named, News, Source
from apps.workers.services import discovering, rounds
from apps.workers.states import SourceKind, State
from tests.factories import make_caller
from tests.workers.etcd import Etcd
from tests.workers.etcd import serving as serving_etcd
from tests.workers.factories import NOTHING, add_source, enroll, make_key, make_manifest, move_clock, register, signed
from tests.workers.servers import McpServer, serving


def add(caller: Caller, kind: SourceKind, address: str, *, secret: str = "", **settings: Any) -> None:
    principal = Principal.objects.get(pk=caller.principal_id)
    services.add_source(principal=principal, name="many", kind=kind, address=address, settings=settings, secret=secret)


def discover() -> None:
    """A round in which every source and place is due."""
    WorkerSource.objects.update(next_at="2000-01-01T00:00Z")
    services.discover()


def due_looks() -> list[discovering._LookClaim]:
    WorkerSource.objects.update(next_at="2000-01-01T00:00Z")
    return discovering._claim_sources()


def ids() -> list[str]:
    return sorted(worker.worker_id for worker in Worker.objects.registered())


def source_fault() -> str:
    return WorkerSource.objects.get().fault or ""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "workers.yaml"


def write(file: Path, *workers: Any) -> None:
    file.write_text(yaml.safe_dump({"workers": list(workers)}))


def test_a_file_names_endpoints_and_whole_manifests(as_kee: Caller, shouter: McpServer, file: Path) -> None:
    key = make_key()
    enroll(as_kee, key)
    write(
        file,
        {"endpoint": shouter.endpoint, "worker_id": "loud", "side_effects": NOTHING},
        signed(make_manifest("critical"), key),
    )
    add(as_kee, SourceKind.STATIC, str(file))

    services.discover()

    assert ids() == ["critical", "loud"]
    assert selectors.worker_named("critical").effective_tier == "verified"
    assert selectors.terms_of("loud", "shout").offer.barred is None


def test_a_file_that_changes_is_read_again_and_who_is_named_no_more_leaves(
    as_kee: Caller, shouter: McpServer, file: Path
) -> None:
    write(file, make_manifest("one"), make_manifest("two"))
    add(as_kee, SourceKind.STATIC, str(file))
    services.discover()
    write(file, make_manifest("two"), {"endpoint": shouter.endpoint, "worker_id": "loud"})

    discover()

    assert ids() == ["loud", "two"]
    write(file, make_manifest("one"))
    discover()
    assert ids() == ["one"]


@pytest.mark.parametrize(
    "content",
    [
        "workers: [",
        "workers: 7",
        "- endpoint: x",
        "workers:\n- worker_id: x",
        "workers:\n- endpoint: x\n  since: 2026-01-01",
        "workers:\n- !!python/object/apply:os.system ['true']",
        "workers:\n- {endpoint: x}\n- {endpoint: x}",
    ],
)
def test_a_file_that_can_not_be_read_changes_nothing_and_says_why(as_kee: Caller, file: Path, content: str) -> None:
    write(file, make_manifest("one"))
    add(as_kee, SourceKind.STATIC, str(file))
    services.discover()
    file.write_text(content)

    discover()

    assert source_fault().startswith("bad_source")
    assert ids() == ["one"]


def test_a_file_that_is_not_there_changes_nothing(as_kee: Caller, file: Path) -> None:
    write(file, make_manifest("one"))
    add(as_kee, SourceKind.STATIC, str(file))
    services.discover()
    file.unlink()

    discover()

    assert source_fault().startswith("bad_source: The file can't be read")
    assert ids() == ["one"]


@pytest.fixture(scope="session")
def one_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with serving_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def etcd(one_etcd: Etcd) -> Etcd:
    for prefix in ("/gatehouse/workers/", "/elsewhere/"):
        one_etcd.ask("/v3/kv/deleterange", **registries._etcd_range(_etcd_source(one_etcd, prefix=prefix)))
    return one_etcd


def _etcd_source(etcd: Etcd, cursor: str = "", **settings: str) -> Source:
    return Source(kind=SourceKind.ETCD, address=etcd.url, settings=settings, cursor=cursor)


@pytest.mark.ci
def test_etcd_names_workers_by_manifest_by_description_and_by_endpoint(
    as_kee: Caller, shouter: McpServer, etcd: Etcd
) -> None:
    etcd.put("/gatehouse/workers/critical", make_manifest("critical"))
    etcd.put("/gatehouse/workers/loud", {"endpoint": shouter.endpoint, "worker_id": "loud"})
    etcd.put("/elsewhere/other", make_manifest("other"))
    add(as_kee, SourceKind.ETCD, etcd.url)

    services.discover()

    assert ids() == ["critical", "loud"]
    etcd.put("/gatehouse/workers/loud", shouter.endpoint)
    discover()
    assert ids()[0] == "critical"
    assert ids()[1].startswith("shouter-")


@pytest.mark.ci
def test_etcd_is_watched_from_the_revision_that_was_read(as_kee: Caller, etcd: Etcd) -> None:
    etcd.put("/gatehouse/workers/one", make_manifest("one"))
    add(as_kee, SourceKind.ETCD, etcd.url)
    services.discover()
    first = WorkerSource.objects.get().cursor

    etcd.put("/gatehouse/workers/two", make_manifest("two"))
    etcd.delete("/gatehouse/workers/one")
    news = registries.look(_etcd_source(etcd, cursor=first))
    discover()

    assert not news.complete
    assert ids() == ["two"]
    assert int(WorkerSource.objects.get().cursor) > int(first)


@pytest.mark.ci
def test_a_worker_whose_lease_in_etcd_ends_leaves_and_may_come_back(as_kee: Caller, etcd: Etcd) -> None:
    key = make_key()
    enroll(as_kee, key)
    manifest = signed(make_manifest("one"), key)
    lease = etcd.lease()
    etcd.put("/gatehouse/workers/one", manifest, lease=lease)
    add(as_kee, SourceKind.ETCD, etcd.url)
    services.discover()

    etcd.revoke(lease)
    discover()
    assert ids() == []
    etcd.put("/gatehouse/workers/one", manifest)
    discover()

    assert ids() == ["one"]
    assert selectors.worker_named("one").effective_tier == "verified"


@pytest.mark.ci
def test_what_happened_in_etcd_before_a_compaction_is_found_by_listing_anew(as_kee: Caller, etcd: Etcd) -> None:
    etcd.put("/gatehouse/workers/one", make_manifest("one"))
    add(as_kee, SourceKind.ETCD, etcd.url)
    services.discover()
    etcd.delete("/gatehouse/workers/one")
    etcd.put("/gatehouse/workers/two", make_manifest("two"))
    etcd.compact(etcd.put("/elsewhere/x", "1"))

    discover()

    assert ids() == ["two"]


@pytest.mark.ci
def test_an_etcd_that_was_restored_to_an_earlier_revision_is_listed_anew(as_kee: Caller, etcd: Etcd) -> None:
    etcd.put("/gatehouse/workers/one", make_manifest("one"))
    add(as_kee, SourceKind.ETCD, etcd.url)
    services.discover()
    etcd.delete("/gatehouse/workers/one")
    revision = etcd.put("/gatehouse/workers/two", make_manifest("two"))
    WorkerSource.objects.update(cursor=str(revision + 1000))

    discover()

    assert (ids(), source_fault()) == (["two"], "")
    assert WorkerSource.objects.get().cursor == str(revision)
    etcd.put("/gatehouse/workers/three", make_manifest("three"))
    discover()
    assert ids() == ["three", "two"]


@pytest.mark.ci
def test_what_is_more_than_a_watch_may_tell_is_found_by_listing_anew(as_kee: Caller, etcd: Etcd) -> None:
    add(as_kee, SourceKind.ETCD, etcd.url)
    services.discover()
    for _ in range(8):
        etcd.put("/gatehouse/workers/one", "x" * 1_000_000)
    etcd.put("/gatehouse/workers/one", make_manifest("one"))

    discover()

    assert (ids(), source_fault()) == (["one"], "")


def test_a_watch_brings_no_more_places_than_a_list_may_and_all_are_listed_the_next_time(as_kee: Caller) -> None:
    def look(cursor: str, *keys: str, gone: str = "", complete: bool = False) -> tuple[int, str, str]:
        (claim,) = due_looks()
        named = tuple(Named(key=key, stated={"endpoint": key}) for key in keys)
        news = News(cursor=cursor, complete=complete, named=named, gone=frozenset([gone] if gone else []))
        discovering._note_look(claim, news)
        source = WorkerSource.objects.get()
        return Place.objects.standing().count(), source.cursor, source.fault or ""

    add(as_kee, SourceKind.ETCD, "http://127.0.0.1:9")
    most, fault = registries.MOST_PLACES, f"bad_source: The source names more than {registries.MOST_PLACES} workers."
    everybody = [f"w{number}" for number in range(most - 1)]

    assert look("1", *everybody, complete=True) == (most - 1, "1", "")
    assert look("2", "one", "two") == (most - 1, "", fault)
    assert look("3", "w0", "one") == (most, "3", "")
    assert look("4", "two", gone="w1") == (most, "4", "")
    assert look("5", gone="w2") == (most - 1, "5", "")


@pytest.mark.ci
def test_etcd_that_is_away_takes_nobody_along(as_kee: Caller, tmp_path: Path) -> None:
    with serving_etcd(tmp_path / "data") as etcd:
        etcd.put("/gatehouse/workers/one", make_manifest("one"))
        add(as_kee, SourceKind.ETCD, etcd.url)
        services.discover()

    discover()

    assert source_fault().startswith("unreachable")
    assert ids() == ["one"]


@pytest.mark.ci
@pytest.mark.parametrize("value", ["", "nonsense", '{"endpoint": 7}', '{"tools": []}', "[1]", "http://10.0.0.8/mcp"])
def test_what_etcd_holds_that_is_no_worker_is_named_as_such(as_kee: Caller, etcd: Etcd, value: str) -> None:
    etcd.put("/gatehouse/workers/x", value)
    add(as_kee, SourceKind.ETCD, etcd.url)

    services.discover()

    assert ids() == []
    assert Place.objects.get().fault


@pytest.mark.ci
def test_keys_of_etcd_that_read_alike_change_nothing(as_kee: Caller, etcd: Etcd) -> None:
    add(as_kee, SourceKind.ETCD, etcd.url)
    alike = [base64.b64encode(b"/gatehouse/workers/" + end).decode() for end in (b"\xff", b"\xfe")]
    for key in alike:
        etcd.ask("/v3/kv/put", key=key, value=base64.b64encode(b"https://a.example.com/mcp").decode())

    services.discover()
    assert source_fault().startswith("bad_source: The source names '/gatehouse/workers/")
    etcd.ask("/v3/kv/deleterange", key=alike[0])
    discover()

    assert source_fault() == ""
    assert Place.objects.standing().count() == 1


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd that asks who looks, with a user `gate` who may read what workers are found by."""
    with serving_etcd(tmp_path / "guarded") as etcd:
        etcd.put("/gatehouse/workers/one", make_manifest("one"))
        etcd.guard(reader="gate", password="a password", prefix="/gatehouse/workers/")
        yield etcd


@pytest.mark.ci
def test_etcd_that_asks_who_looks_is_told_a_user_and_its_password(as_kee: Caller, guarded: Etcd) -> None:
    add(as_kee, SourceKind.ETCD, guarded.url, user="gate", secret="a password")
    services.discover()
    assert (ids(), source_fault()) == (["one"], "")
    first = WorkerSource.objects.get().cursor

    guarded.put("/gatehouse/workers/two", make_manifest("two"), token=guarded.login("root", "root"))
    news = registries.look(replace(_etcd_source(guarded, cursor=first, user="gate"), secret="a password"))
    discover()

    assert not news.complete
    assert (ids(), source_fault()) == (["one", "two"], "")


@pytest.mark.ci
def test_a_token_that_etcd_no_longer_knows_is_asked_for_anew(as_kee: Caller, guarded: Etcd) -> None:
    add(as_kee, SourceKind.ETCD, guarded.url, user="gate", secret="a password")
    services.discover()
    root = guarded.login("root", "root")

    # Who changes a user's password ends all tokens of the user.
    guarded.ask("/v3/auth/user/changepw", token=root, name="gate", password="a password")
    guarded.put("/gatehouse/workers/two", make_manifest("two"), token=root)
    discover()

    assert (ids(), source_fault()) == (["one", "two"], "")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("secret", "settings"), [("", {}), ("another", {"user": "gate"}), ("a password", {"user": "nobody"})]
)
def test_etcd_that_refuses_who_looks_takes_nobody_along(
    as_kee: Caller, guarded: Etcd, secret: str, settings: dict[str, str]
) -> None:
    add(as_kee, SourceKind.ETCD, guarded.url, user="gate", secret="a password")
    services.discover()
    WorkerSource.objects.update(settings=settings, sealed_secret=seal(secret) if secret else "")

    discover()

    assert source_fault().startswith("bad_source")
    assert "another" not in source_fault()
    assert ids() == ["one"]


@pytest.mark.ci
def test_etcd_shows_a_user_no_more_than_it_may_read(as_kee: Caller, guarded: Etcd) -> None:
    add(as_kee, SourceKind.ETCD, guarded.url, user="gate", secret="a password", prefix="/elsewhere/")

    services.discover()

    assert source_fault() == "bad_source: The source answers 403."


@pytest.mark.parametrize(
    ("kind", "secret", "settings"),
    [
        (SourceKind.STATIC, "x", {}),
        (SourceKind.PULL, "x", {}),
        (SourceKind.ETCD, "x", {}),
        (SourceKind.ETCD, "", {"user": "gate"}),
        (SourceKind.CONSUL, "x", {"user": "gate"}),
    ],
)
def test_a_secret_is_for_those_who_ask_for_one(
    as_kee: Caller, kind: SourceKind, secret: str, settings: dict[str, str]
) -> None:
    with pytest.raises(errors.BadSettings):
        add(as_kee, kind, "http://127.0.0.1:9/mcp", secret=secret, **settings)
    assert not WorkerSource.objects.exists()


@dataclass
class Consul:
    """By the documented contract: an index that grows, and queries that wait until it has grown beyond theirs."""

    url: str = ""
    index: int = 10
    entries: list[dict[str, Any]] = field(default_factory=list)
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    token: str = ""
    keeps_back: bool = False

    def set(self, *entries: dict[str, Any]) -> None:
        with self.changed:
            self.entries, self.index = list(entries), self.index + 1
            self.changed.notify_all()

    def answer(self, query: dict[str, list[str]]) -> tuple[int, list[dict[str, Any]]]:
        known = int(query.get("index", ["0"])[0])
        wait = float(query.get("wait", ["300s"])[0].removesuffix("s"))
        with self.changed:
            self.queries.append(query)
            if known:
                self.changed.wait_for(lambda: self.index > known or self.index < known, timeout=wait)
            return self.index, self.entries


def service(name: str, port: int, **members: Any) -> dict[str, Any]:
    return {
        "Node": {"Node": "n1", "Address": "127.0.0.1"},
        "Service": {
            "ID": name,
            "Service": "mcp-worker",
            "Address": "",
            "Port": port,
            "Tags": [],
            "Meta": {},
            **members,
        },
        "Checks": [{"Status": "passing"}],
    }


@contextmanager
def serving_consul() -> Iterator[Consul]:
    consul = Consul()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if consul.token and self.headers.get("X-Consul-Token") != consul.token:
                self.send_error(403, "Permission denied")
                return
            found = url.path == "/v1/health/service/mcp-worker"
            index, entries = consul.answer(parse_qs(url.query)) if found else (1, [])
            body = json.dumps(entries).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Consul-Index", str(index))
            if consul.keeps_back:
                self.send_header("X-Consul-Results-Filtered-By-ACLs", "true")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it so
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    consul.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield consul
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def consul() -> Iterator[Consul]:
    with serving_consul() as server:
        yield server


def port_of(server: McpServer) -> int:
    return int(server.endpoint.rsplit(":", 1)[1].split("/")[0])


def test_consul_names_workers_by_their_service(as_kee: Caller, shouter: McpServer, consul: Consul) -> None:
    consul.set(service("loud", port_of(shouter), Tags=["noise"], Meta={"worker_id": "loud"}))
    add(as_kee, SourceKind.CONSUL, consul.url, worker={"side_effects": NOTHING})

    services.discover()

    assert selectors.worker_named("loud").capabilities == ("noise",)
    assert selectors.terms_of("loud", "shout").offer.barred is None
    assert consul.queries[0]["passing"] == ["true"]
    assert "index" not in consul.queries[0]


def test_consul_is_asked_for_what_came_after_the_index_that_was_read(
    as_kee: Caller, shouter: McpServer, consul: Consul, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "WAIT", timedelta(seconds=15))
    add(as_kee, SourceKind.CONSUL, consul.url)
    services.discover()
    assert WorkerSource.objects.get().cursor == "10"

    changing = threading.Timer(0.2, consul.set, [service("loud", port_of(shouter), Meta={"worker_id": "loud"})])
    changing.start()
    discover()
    changing.join()

    assert consul.queries[1]["index"] == ["10"]
    assert ids() == ["loud"]
    consul.set()
    discover()
    assert ids() == []


def test_a_look_that_brings_nothing_new_leaves_all_places_alone(as_kee: Caller, consul: Consul) -> None:
    consul.set(service("loud", 9, Meta={"worker_id": "loud"}))
    add(as_kee, SourceKind.CONSUL, consul.url)
    services.discover()
    (claim,) = due_looks()
    news = registries.look(claim.source)

    with CaptureQueriesContext(connection) as queries:
        discovering._note_look(claim, news)

    assert not [query["sql"] for query in queries if "workers_place" in query["sql"]]
    assert WorkerSource.objects.get().fault is None
    assert Place.objects.standing().count() == 1


def ask_all() -> None:
    """A round in which every place is asked, and every source that is due is looked at."""
    Place.objects.update(next_at="2000-01-01T00:00Z")
    services.discover()


def names_in_file(caller: Caller, file: Path) -> Callable[[McpServer], None]:
    def names(server: McpServer) -> None:
        write(file, {"endpoint": server.endpoint, "worker_id": "loud"})

    write(file)
    add(caller, SourceKind.STATIC, str(file))
    return names


def names_in_consul(caller: Caller, consul: Consul) -> Callable[[McpServer], None]:
    add(caller, SourceKind.CONSUL, consul.url)
    return lambda server: consul.set(service("loud", port_of(server), Meta={"worker_id": "loud"}))


def names_in_etcd(caller: Caller, etcd: Etcd) -> Callable[[McpServer], None]:
    def names(server: McpServer) -> None:
        etcd.put("/gatehouse/workers/loud", {"endpoint": server.endpoint, "worker_id": "loud"})

    add(caller, SourceKind.ETCD, etcd.url)
    return names


@pytest.mark.parametrize(
    ("source", "names_in"),
    [
        ("file", names_in_file),
        ("consul", names_in_consul),
        pytest.param("etcd", names_in_etcd, marks=pytest.mark.ci),
    ],
)
def test_a_found_worker_moves_with_its_place(
    as_kee: Caller, request: pytest.FixtureRequest, source: str, names_in: Callable[[Caller, Any], Any]
) -> None:
    names = names_in(as_kee, request.getfixturevalue(source))
    with serving() as one, serving() as two:
        names(one)
        discover()
        Worker.objects.update(reach=Reach.DOWN, state=State.OFFLINE)
        names(two)
        discover()

        worker = Worker.objects.registered().get()
        assert (worker.worker_id, worker.endpoint, worker.state) == ("loud", two.endpoint, "ready")
        assert Place.objects.get().fault is None


def test_a_worker_that_beats_is_moved_by_no_place(as_kee: Caller, file: Path) -> None:
    with serving() as one, serving() as two:
        names_in_file(as_kee, file)(one)
        discover()
        services.heartbeat(caller=as_kee, worker_id="loud", status="healthy", current_load=0, available=True)
        write(file, {"endpoint": two.endpoint, "worker_id": "loud"})
        discover()

        assert Place.objects.get().fault == "worker_id_taken: 'loud' is registered at another endpoint."
        assert Worker.objects.get().endpoint == one.endpoint


def test_a_worker_that_two_places_name_is_moved_by_neither(as_kee: Caller, file: Path) -> None:
    with serving() as one, serving() as two:
        names_in_file(as_kee, file)(one)
        add_source(as_kee, one.endpoint, worker_id="loud")
        discover()
        write(file, {"endpoint": two.endpoint, "worker_id": "loud"})
        discover()
        assert Worker.objects.get().endpoint == one.endpoint

        services.remove_source(tenant_id=as_kee.tenant_id, name="found")
        ask_all()

        assert Worker.objects.registered().get().endpoint == two.endpoint


def test_a_place_where_another_worker_is_found_now_takes_the_former_one_out(as_kee: Caller, consul: Consul) -> None:
    add(as_kee, SourceKind.CONSUL, consul.url)
    with serving() as one, serving() as two:
        consul.set(service("loud", port_of(one)))
        discover()
        (former,) = ids()
        consul.set(service("loud", port_of(two)))
        discover()

        (present,) = ids()
        assert (present == former, Worker.objects.registered().get().endpoint) == (False, two.endpoint)
        consul.set()
        discover()
        assert ids() == []


def test_a_place_that_goes_before_its_new_address_was_asked_takes_its_worker_along(as_kee: Caller, file: Path) -> None:
    with serving() as one:
        names_in_file(as_kee, file)(one)
        discover()
    write(file, {"endpoint": "http://127.0.0.1:9/mcp", "worker_id": "loud"})
    discover()
    assert ids() == ["loud"]

    write(file)
    discover()

    assert ids() == []


def test_who_has_come_under_another_key_is_taken_as_soon_as_the_old_one_is_gone(as_kee: Caller, consul: Consul) -> None:
    move_clock(timedelta(0))
    add(as_kee, SourceKind.CONSUL, consul.url)
    with serving() as one, serving() as two:
        old, new = (service(f"loud-{port_of(at)}", port_of(at), Meta={"worker_id": "loud"}) for at in (one, two))
        consul.set(old)
        services.discover()
        consul.set(old, new)
        services.discover()
        assert Worker.objects.get().endpoint == one.endpoint
        consul.set(new)
        services.discover()

        assert Worker.objects.registered().get().endpoint == two.endpoint


@pytest.mark.parametrize("change", [{}, {"capabilities": ["rust"]}])
def test_a_file_that_names_a_worker_that_beats_does_not_keep_it_alive(
    as_kee: Caller, file: Path, change: dict[str, Any]
) -> None:
    key = make_key()
    enroll(as_kee, key)
    move_clock(timedelta(0))
    register(as_kee, signed(make_manifest("one"), key))
    heard_at = Worker.objects.get().last_heartbeat_at
    move_clock(services.OFFLINE_AFTER + timedelta(seconds=1))
    services.mark_late()
    write(file, signed(make_manifest("one", **change), key))
    add(as_kee, SourceKind.STATIC, str(file))

    services.discover()

    worker = Worker.objects.get()
    assert Place.objects.get().worker == worker
    assert (worker.state, worker.beats, worker.last_heartbeat_at) == ("offline", True, heard_at)
    assert worker.capabilities == change.get("capabilities", make_manifest()["capabilities"])


def test_who_has_seen_the_signed_manifest_of_a_worker_that_has_gone_can_not_register_with_it(
    tenant: Tenant, as_kee: Caller, file: Path
) -> None:
    key = make_key()
    enroll(as_kee, key)
    manifest = signed(make_manifest("one"), key)
    write(file, manifest)
    add(as_kee, SourceKind.STATIC, str(file))
    services.discover()
    rival = make_caller(tenant, "rival", Kind.WORKER)
    write(file)
    discover()
    assert ids() == []

    with acting_as(rival), pytest.raises(errors.SignatureReplayed), transaction.atomic():
        register(rival, manifest)
    write(file, manifest)
    discover()

    assert Worker.objects.registered().get().principal_id == as_kee.principal_id


def test_a_place_that_has_been_gone_for_a_day_is_forgotten_when_the_next_one_goes(as_kee: Caller, file: Path) -> None:
    write(file, *(make_manifest(name) for name in ("one", "two", "three")))
    add(as_kee, SourceKind.STATIC, str(file))
    services.discover()
    write(file, make_manifest("two"), make_manifest("three"))
    discover()
    Place.objects.filter(key="one").update(gone_at=database_now() - timedelta(hours=25))

    write(file, make_manifest("three"))
    discover()

    assert {place.key: place.gone_at is None for place in Place.objects.all()} == {"two": False, "three": True}
    assert ids() == ["three"]
    write(file, make_manifest("one"))
    discover()
    assert ids() == ["one"]


def test_an_index_of_consul_that_goes_back_is_dropped(as_kee: Caller, consul: Consul) -> None:
    add(as_kee, SourceKind.CONSUL, consul.url)
    services.discover()
    consul.index = 3

    discover()
    assert WorkerSource.objects.get().cursor == ""
    discover()

    assert "index" not in consul.queries[2]
    assert WorkerSource.objects.get().cursor == "3"


@pytest.mark.parametrize("entry", [7, {}, {"Node": {}, "Service": {}}, service("x", 1) | {"Service": []}])
def test_what_consul_does_not_say_as_documented_changes_nothing(as_kee: Caller, consul: Consul, entry: Any) -> None:
    consul.set(entry)
    add(as_kee, SourceKind.CONSUL, consul.url)

    services.discover()

    assert source_fault().startswith("bad_source")
    assert not Place.objects.exists()


@pytest.mark.parametrize("unstorable", ["\x00", "\ud800"])
def test_what_can_not_be_stored_is_named_at_its_source_and_hinders_no_other(
    as_kee: Caller, consul: Consul, shouter: McpServer, unstorable: str
) -> None:
    consul.set(service("quiet", 9, Tags=[f"a{unstorable}b"]))
    add(as_kee, SourceKind.CONSUL, consul.url)
    add_source(as_kee, shouter.endpoint, worker_id="loud")

    services.discover()

    fault = WorkerSource.objects.get(name="many").fault or ""
    assert fault.startswith("bad_source: What the source says of 'n1/quiet' can't be stored.")
    assert ids() == ["loud"]


def test_a_service_that_consul_names_twice_changes_nothing(as_kee: Caller, consul: Consul) -> None:
    consul.set(service("loud", 8), service("loud", 9))
    add(as_kee, SourceKind.CONSUL, consul.url)

    services.discover()

    assert source_fault() == "bad_source: The source names 'n1/loud' twice."
    assert not Place.objects.exists()


def test_what_breaks_unexpectedly_at_one_source_is_noted_there_and_hinders_no_other(
    as_kee: Caller, consul: Consul, shouter: McpServer, caplog: pytest.LogCaptureFixture
) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    add(as_kee, SourceKind.CONSUL, consul.url)
    consul.index = 10**100  # longer than its column

    services.discover()

    assert WorkerSource.objects.get(name="many").fault == "unexpected: DataError, as the log says."
    assert ids() == ["loud"]
    assert "one of a round broke" in caplog.text


def test_a_call_that_breaks_unexpectedly_is_noted_and_the_others_of_its_round_too() -> None:
    noted: dict[int, float | CallFailed] = {}

    def call(number: int) -> float:
        return 1 / number

    assert rounds.do_all([0, 1, 2], call, noted.__setitem__) == 3

    broken = noted.pop(0)
    assert (type(broken), str(broken)) == (rounds.Unexpected, "ZeroDivisionError, as the log says.")
    assert noted == {1: 1.0, 2: 0.5}


def test_a_secret_is_stored_sealed_and_another_one_takes_its_place(as_kee: Caller, consul: Consul) -> None:
    consul.token = "token-two"
    consul.set(service("loud", 9, Meta={"worker_id": "loud"}))
    add(as_kee, SourceKind.CONSUL, consul.url, secret="token-one")
    services.discover()
    assert source_fault() == "bad_source: The source answers 403."
    assert "token-one" not in str(WorkerSource.objects.values().get())

    services.change_secret(tenant_id=as_kee.tenant_id, name="many", secret="token-two")
    services.discover()

    assert source_fault() == ""
    assert Place.objects.get().key == "n1/loud"
    assert "token-two" not in str(WorkerSource.objects.values().get())


def test_a_secret_that_no_key_opens_is_named_and_takes_nobody_along(
    as_kee: Caller, consul: Consul, shouter: McpServer, settings: Any
) -> None:
    consul.token = "first"
    consul.set(service("loud", port_of(shouter), Meta={"worker_id": "loud"}))
    add(as_kee, SourceKind.CONSUL, consul.url, secret="first")
    services.discover()
    settings.SEALING_KEYS = ["another deployment's"]

    discover()

    assert source_fault() == "bad_source: The source's secret can't be opened with this deployment's keys."
    assert ids() == ["loud"]


def test_what_consul_keeps_back_from_a_token_has_not_gone(as_kee: Caller, consul: Consul, shouter: McpServer) -> None:
    consul.set(service("loud", port_of(shouter), Meta={"worker_id": "loud"}))
    add(as_kee, SourceKind.CONSUL, consul.url)
    services.discover()
    consul.keeps_back = True
    consul.set()

    discover()

    assert source_fault().startswith("bad_source: Consul keeps back instances")
    assert ids() == ["loud"]


def test_the_command_adds_lists_and_removes_a_source(as_kee: Caller, file: Path) -> None:
    write(file, make_manifest("one"))
    told = StringIO()
    of_acme = ["--tenant", "acme"]

    call_command(
        *("worker_sources", "add", "mine", "--kind", "static", "--address", str(file), "--principal", "Kee", *of_acme),
        stdout=told,
    )
    services.discover()
    call_command("worker_sources", "list", "--json", *of_acme, stdout=(listed := StringIO()))
    call_command("worker_sources", "remove", "mine", *of_acme, stdout=told)

    (source,) = json.loads(listed.getvalue())
    assert source["places"] == [{"key": "one", "worker_id": "one", "fault": None}]
    assert "mine is removed; 1 workers have left" in told.getvalue()
    with pytest.raises(CommandError, match="There is no source 'mine'"):
        call_command("worker_sources", "remove", "mine", *of_acme)


def test_the_command_takes_a_secret_from_a_file_and_another_one_later(
    as_kee: Caller, consul: Consul, tmp_path: Path
) -> None:
    consul.token = "second"
    secret = tmp_path / "token"
    secret.write_text("first\n")
    of_acme = ["--tenant", "acme"]
    told = ["--secret-file", str(secret), *of_acme]
    there = ["--kind", "consul", "--address", consul.url, "--principal", "Kee"]

    call_command("worker_sources", "add", "many", *there, *told, stdout=StringIO())
    services.discover()
    assert source_fault() == "bad_source: The source answers 403."
    secret.write_text("second\n")
    call_command("worker_sources", "secret", "many", *told, stdout=StringIO())
    services.discover()

    assert source_fault() == ""
    secret.write_text("\n")
    with pytest.raises(CommandError, match="is empty"):
        call_command("worker_sources", "secret", "many", *told)
    with pytest.raises(CommandError, match="can't be read"):
        call_command("worker_sources", "secret", "many", "--secret-file", str(tmp_path / "none"), *of_acme)


def test_a_look_that_comes_back_after_another_has_taken_over_is_not_noted(as_kee: Caller, consul: Consul) -> None:
    add(as_kee, SourceKind.CONSUL, consul.url)
    (late,) = due_looks()
    (current,) = due_looks()

    discovering._note_look(late, News(cursor="7", complete=True, named=(Named(key="x", stated={"endpoint": "x"}),)))
    assert (WorkerSource.objects.get().looked_at, Place.objects.count()) == (None, 0)
    discovering._note_look(current, News(cursor="8", complete=True))

    assert WorkerSource.objects.get().cursor == "8"


def test_an_answer_that_comes_after_another_has_asked_is_not_noted(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    services.discover()
    Worker.objects.update(unregistered_at=database_now())
    Place.objects.update(next_at="2000-01-01T00:00Z", worker=None)
    (late,) = discovering._claim_places()
    Place.objects.update(next_at="2000-01-01T00:00Z", asked_at=None)
    (current,) = discovering._claim_places()

    discovering._note_answer(late, discovering._ask(late))
    assert (Place.objects.get().asked_at, ids()) == (None, [])
    discovering._note_answer(current, discovering._ask(current))

    assert ids() == ["loud"]


def test_nobody_looks_at_a_source_that_is_switched_off_nor_asks_at_its_places(
    as_kee: Caller, shouter: McpServer
) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    services.discover()
    shouter.asked.clear()
    WorkerSource.objects.update(enabled=False, next_at="2000-01-01T00:00Z")
    Place.objects.update(next_at="2000-01-01T00:00Z")

    assert services.discover() == 0
    assert not shouter.asked
    WorkerSource.objects.update(enabled=True)
    assert services.discover() == 2


def test_nobody_asks_at_the_places_of_a_disabled_principal(as_kee: Caller, shouter: McpServer) -> None:
    add_source(as_kee, shouter.endpoint, worker_id="loud")
    services.discover()
    shouter.asked.clear()
    Principal.objects.filter(pk=as_kee.principal_id).update(disabled_at=database_now())

    WorkerSource.objects.update(next_at="2000-01-01T00:00Z")
    ask_all()

    assert not shouter.asked


def test_what_is_found_signed_moves_a_worker_wherever_it_is_known(as_kee: Caller, file: Path) -> None:
    key = make_key()
    enroll(as_kee, key)
    register(as_kee, make_manifest("one"))
    write(file, signed(make_manifest("one", endpoint="https://new.example.com/mcp"), key))
    add(as_kee, SourceKind.STATIC, str(file))

    services.discover()

    assert Place.objects.get().fault is None
    assert Worker.objects.get().endpoint == "https://new.example.com/mcp"


def test_a_source_that_names_more_than_it_may_changes_nothing(as_kee: Caller, file: Path, consul: Consul) -> None:
    fault = f"bad_source: The source names more than {registries.MOST_PLACES} workers."
    add(as_kee, SourceKind.CONSUL, consul.url)
    services.add_source(
        principal=Principal.objects.get(pk=as_kee.principal_id),
        name="file",
        kind=SourceKind.STATIC,
        address=str(file),
        settings={},
    )
    write(file, *({"endpoint": f"w{number}"} for number in range(registries.MOST_PLACES + 1)))
    consul.set(*(service(f"s{number}", 9) for number in range(registries.MOST_PLACES + 1)))

    services.discover()

    assert set(WorkerSource.objects.values_list("fault", flat=True)) == {fault}
    assert not Place.objects.exists()


def test_a_file_that_is_too_long_is_not_read(as_kee: Caller, file: Path) -> None:
    write(file, {"endpoint": "https://a.example.com/mcp"})
    with file.open("a") as more:
        more.write("#" * (1024 * 1024 - file.stat().st_size))
    add(as_kee, SourceKind.STATIC, str(file))
    services.discover()
    assert source_fault() == ""

    with file.open("a") as more:
        more.write("#")
    discover()

    assert source_fault() == "bad_source: The file is over 1048576 bytes."
