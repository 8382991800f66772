"""The registry: what a manifest must be, what its claims are worth, its limit of calls, and what is kept of a worker."""

import re
from copy import copy
from datetime import timedelta
from decimal import Decimal
from ipaddress import ip_network
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.core.errors import Invalid
from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.workers import manifests, selectors
from apps.workers import services as registry
from apps.workers.models import Offer, Worker, WorkerEvent, WorkerRateLimited
from apps.workers.shapes import ListWorkers
from apps.workers.trust import (
    CALLS_PER_HOUR,
    Tier,
    calls_per_hour,
    effective_tier,
    effects_of,
    forbidden_effects,
    share_of_an_hour,
)
from tests.factories import ask, make_caller, make_tenant, make_token, pass_time
from tests.workers.factories import (
    ID,
    NOTHING,
    at_once,
    beat,
    enroll,
    make_key,
    make_manifest,
    refused,
    register,
    signed,
)

ALL = {"read", "write", "network", "exec", "bidirectional"}
INSIDE = [ip_network("10.8.0.0/16"), ip_network("127.9.0.0/16")]

# Manifests


def may_be_registered(url: str) -> bool:
    try:
        return manifests.endpoint(url) == url
    except Invalid as refusal:
        return not re.search("endpoint|address|machine", str(refusal))


@pytest.mark.parametrize(
    ("networks", "url", "allowed"),
    [
        ([], "ftp://example.com/mcp", False),
        ([], "http://example.com/mcp", False),
        ([], "https://10.0.0.1/mcp", False),
        ([], "https://user@example.com/mcp", False),
        ([], "https://example.com/mcp#part", False),
        ([], "https://example.com:0/mcp", False),
        ([], "https://localhost/mcp", False),
        ([], "http://[::1]/mcp", False),
        ([], "https://example.com/mcp", True),
        (INSIDE, "http://10.8.0.1:9000/mcp", True),
        (INSIDE, "http://worker.inside/mcp", True),
        (INSIDE, "http://127.9.0.1/mcp", True),
        (INSIDE, "https://10.9.0.1/mcp", False),
        (INSIDE, "http://1.1.1.1/mcp", False),
        (INSIDE, "http://127.0.0.1/mcp", False),
        (INSIDE, "http://localhost/mcp", False),
    ],
)
def test_endpoint_is_public_and_https_or_in_an_allowed_network(
    settings: Any, networks: list[Any], url: str, allowed: bool
) -> None:
    settings.ALLOW_LOOPBACK, settings.ALLOWED_NETWORKS = False, networks
    assert may_be_registered(url) == allowed


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "https://example.com/schema.json"},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "array"},
        {"type": "object", "maxProperties": 2**60, "x": 2**60},
    ],
)
def test_unusable_schema_is_refused(as_kee: Caller, schema: dict[str, Any]) -> None:
    manifest = make_manifest(tools=[{"name": "t", "input_schema": schema}])

    with refused("unusable_schema") as caught:
        register(as_kee, manifest)

    assert caught.value.errors[0].pointer.startswith("/tools/0")


def test_null_members_count_as_left_out(as_kee: Caller) -> None:
    constraints = {"rate_limit_per_hour": None, "rate_limit": 0, "timeout_seconds": None}
    hints = {"cost_estimate": None, "cost_band": None, "latency_band": "fast"}

    register(as_kee, make_manifest(constraints=constraints, hints=hints, side_effects=NOTHING))

    worker = Worker.objects.get()
    assert (worker.constraints, worker.hints) == ({"rate_limit_per_hour": 0}, {"latency_band": "fast"})
    assert worker.manifest["hints"] == hints
    (offer,) = selectors.catalogue().offers
    assert (offer.cost, offer.calls_per_hour, offer.barred) == (0.0, 0.0, "its limit is no calls at all")


@pytest.fixture
def token(tenant: Tenant) -> str:
    return make_token(tenant, ID, Kind.WORKER)


def test_worker_is_registered_listed_read_found_and_removed(token: str) -> None:
    answers = [ask("POST", "/workers/register", token, make_manifest()) for _ in range(2)]
    said = {"status": "healthy", "current_load": 0.3, "available": True}
    beaten = ask("POST", f"/workers/{ID}/heartbeat", token, said)
    headers = {"Authorization": f"Bearer {token}"}

    listed = Client().get("/api/v1/workers?capability=python", headers=headers).json()
    manifest = Client().get(f"/api/v1/workers/{ID}/manifest", headers=headers).json()
    found = Client().get("/api/v1/capabilities/search?query=repository+analysis", headers=headers).json()

    assert [(one["worker_id"], one["tools"], one["status"]) for one in listed["workers"]] == [
        (ID, ["analyze_repository"], "ready")
    ]
    assert [status for status, _ in answers] == [201, 200]
    assert answers[0][1]["tools"][0]["name"] == "analyze_repository"
    assert beaten == (200, {"status": "ready", "next_heartbeat_seconds": 30, "register_again": False})
    assert manifest["tools"] == make_manifest()["tools"]
    assert found["matches"][0]["tool_name"] == "analyze_repository"
    assert Client().delete(f"/workers/{ID}", headers=headers).json()["status"] == "unregistered"
    assert Client().get(f"/api/v1/workers/{ID}/manifest", headers=headers).status_code == 404
    assert ask("POST", "/workers/nobody/heartbeat", token, said)[0] == 404


# Registrations


def test_repeated_registration_changes_nothing(as_kee: Caller) -> None:
    first = register(as_kee, make_manifest())
    epoch = selectors.epochs()
    again = register(as_kee, make_manifest())

    assert (first.created, again.created) == (True, False)
    assert first.tools[0].uid == again.tools[0].uid
    assert selectors.epochs() == epoch
    assert [event.kind for event in WorkerEvent.objects.all()] == ["registered"]
    assert Offer.objects.count() == 1


def test_changed_tool_is_a_new_version(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    register(as_kee, make_manifest("two"))
    assert (len(selectors.catalogue().tools), len(selectors.catalogue().offers)) == (1, 2)
    epoch, _ = selectors.epochs()
    changed = make_manifest()
    changed["tools"][0]["description"] = "Analyze anything."

    done = register(as_kee, changed)

    assert selectors.epochs()[0] == epoch + 1
    own = Offer.objects.filter(worker__worker_id=ID)
    assert {offer.withdrawn_at is None for offer in own} == {True, False}
    assert own.get(withdrawn_at=None).tool.uid == done.tools[0].uid
    register(as_kee, make_manifest())
    assert own.count() == 2


def test_anothers_worker_is_unknown_and_its_id_taken(tenant: Tenant, as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    other = make_caller(tenant, "rival", Kind.WORKER)

    with acting_as(other):
        with refused("unknown_worker"):
            registry.unregister(caller=other, worker_id=ID)
        with refused("worker_id_taken"):
            register(other, make_manifest(endpoint="https://evil.example.com/mcp"))

    assert selectors.worker_named(ID).endpoint == "https://code-analyzer.example.com/mcp"


def test_unregistered_worker_may_come_back(as_kee: Caller) -> None:
    register(as_kee, make_manifest())

    registry.unregister(caller=as_kee, worker_id=ID)

    with refused("unknown_worker"):
        selectors.worker_named(ID)
    assert selectors.catalogue().offers == ()
    with refused("unknown_worker"):
        beat(as_kee)
    assert register(as_kee, make_manifest()).created is False
    assert len(selectors.catalogue().offers) == 1


@pytest.mark.django_db(transaction=True)
def test_concurrent_first_registrations_make_one_worker(kee: Caller) -> None:
    def run() -> bool:
        with acting_as(kee):
            return register(kee, make_manifest()).created

    assert sorted(map(bool, at_once(*[run] * 4))) == [False, False, False, True]
    with acting_as(kee):
        assert (Worker.objects.count(), Offer.objects.count()) == (1, 1)


def test_list_has_pages_and_reads_no_manifest(as_kee: Caller) -> None:
    names = [f"w{number}" for number in range(5)]
    for name in names:
        register(as_kee, make_manifest(name))
    register(as_kee, make_manifest("w0", tools=[{"name": "other", "input_schema": {"type": "object"}}]))

    with CaptureQueriesContext(connection) as queries:
        pages = [selectors.workers(ListWorkers(limit=2))]
        while pages[-1].next:
            pages.append(selectors.workers(ListWorkers(limit=2, cursor=pages[-1].next)))
    assert len(queries) == 6

    assert [[one.worker_id for one in page.workers] for page in pages] == [names[:2], names[2:4], names[4:]]
    assert [one.tools for one in pages[0].workers] == [["other"], ["analyze_repository"]]
    with refused("bad_cursor"):
        selectors.workers(ListWorkers(cursor="nonsense"))
    with CaptureQueriesContext(connection) as more:
        selectors.catalogue()
        assert selectors.terms_of("w1", "analyze_repository").offer.worker_id == "w1"
    assert not any('"manifest"' in query["sql"] for query in [*queries, *more])


# Trust


@pytest.mark.parametrize(
    ("declared", "effects"),
    [
        (None, ALL),
        ({}, ALL),
        ({"filesystem": "read"}, ALL - {"write"}),
        ({"filesystem": "none", "network": "none", "execution": "none"}, set()),
        ({"filesystem": "write", "network": "outbound", "execution": "container"}, ALL - {"bidirectional"}),
    ],
)
def test_undeclared_effects_count_as_all(declared: dict[str, str] | None, effects: set[str]) -> None:
    assert effects_of(declared) == effects


def test_tiers_allow_what_the_table_says() -> None:
    everything = effects_of(None)

    assert forbidden_effects(everything, Tier.TRUSTED) == frozenset()
    assert forbidden_effects(everything, Tier.VERIFIED) == {"write", "exec", "bidirectional"}
    assert forbidden_effects(everything, Tier.SANDBOX) == {"write", "exec", "bidirectional", "network"}
    assert forbidden_effects(everything, Tier.UNTRUSTED) == everything
    assert effective_tier(Tier.TRUSTED, ceiling=None, because="unsigned")[0] == Tier.UNTRUSTED


def test_unsigned_claim_allows_no_effects(as_kee: Caller) -> None:
    done = register(as_kee, make_manifest(trust={"tier": "trusted"}))
    register(as_kee, make_manifest("harmless", trust={"tier": "trusted"}, side_effects=NOTHING))
    register(as_kee, {**make_manifest("silent"), "side_effects": None})
    stranger = register(as_kee, signed(make_manifest("signed"), make_key("stranger")))

    assert done.worker.tier_reason == "the manifest is not signed, or names no key"
    assert stranger.worker.tier_reason == "the key stranger is not enrolled"
    assert {offer.tier for offer in selectors.catalogue().offers} == {"untrusted"}
    assert {offer.worker_id: offer.barred for offer in selectors.catalogue().offers} == {
        ID: "the tier untrusted does not allow read",
        "signed": "the tier untrusted does not allow read",
        "harmless": None,
        "silent": "the tier untrusted does not allow bidirectional, exec, network, read, write",
    }


@pytest.mark.parametrize(
    ("claim", "ceiling", "granted"),
    [
        ("verified", Tier.VERIFIED, "verified"),
        ("trusted", Tier.VERIFIED, "verified"),
        ("sandbox", Tier.TRUSTED, "sandbox"),
    ],
)
def test_key_grants_the_claim_up_to_its_ceiling(as_kee: Caller, claim: str, ceiling: Tier, granted: str) -> None:
    key = make_key()
    enroll(as_kee, key, ceiling)

    done = register(as_kee, signed(make_manifest(trust={"tier": claim}), key))

    assert done.worker.effective_tier == granted
    assert "signed by bundled" in done.worker.tier_reason


# Calls and their limit


def test_recorded_calls_are_counted_by_the_job(as_kee: Caller) -> None:
    register(as_kee, make_manifest(side_effects=NOTHING))
    given: dict[str, Any] = {"worker_id": ID, "tool_name": "analyze_repository", "cost": Decimal("0.01")}
    for number in range(20):
        registry.record_call(**given, ok=number != 3, seconds=float(number))
    before = selectors.epochs()

    with acting_as_system("test"):
        assert registry.fold_calls() == 20
        assert registry.fold_calls() == 0

    offer = selectors.terms_of(ID, "analyze_repository").offer
    assert (offer.runs, offer.successes, offer.p50_seconds, offer.p95_seconds) == (
        20,
        19,
        10.0,
        19.0,
    )  # of the successes
    assert offer.cost == 0.01
    assert selectors.epochs() == (before[0], before[1] + 1)
    with refused("unknown_tool"):
        registry.record_call(**{**given, "tool_name": "x"}, ok=True, seconds=1)


def limited(caller: Caller, per_hour: int, tier: Tier = Tier.TRUSTED) -> None:
    key = make_key("limiting")
    enroll(caller, key, tier)
    constraints = {"rate_limit_per_hour": per_hour}
    manifest = make_manifest("w", constraints=constraints, side_effects=NOTHING, trust={"tier": tier.value})
    register(caller, signed(manifest, key, validity=timedelta(days=1)))


def taken(most: int = 50) -> int:
    """How many calls there is room for now."""
    for number in range(most):
        try:
            registry.take_call(worker_id="w")
        except WorkerRateLimited:
            return number
    return most


@pytest.mark.parametrize(
    ("tier", "stated", "an_hour"),
    [
        (Tier.TRUSTED, 100, 100),
        (Tier.VERIFIED, 100, 50),
        (Tier.SANDBOX, 100, 10),
        (Tier.UNTRUSTED, 100, 1),
        (Tier.UNTRUSTED, None, CALLS_PER_HOUR / 100),
        (Tier.TRUSTED, 0, 0),
    ],
)
def test_tier_scales_the_limit(tier: Tier, stated: int | None, an_hour: float) -> None:
    assert calls_per_hour(stated, tier) == pytest.approx(an_hour)


@pytest.mark.parametrize("per_hour", [1, 7, 3_600, 9_999])
def test_hour_fits_all_its_calls(per_hour: int) -> None:
    assert timedelta(0) <= timedelta(hours=1) - share_of_an_hour(per_hour) * per_hour < timedelta(milliseconds=10)


@pytest.mark.parametrize(("tier", "room"), [(Tier.TRUSTED, 20), (Tier.SANDBOX, 2), (Tier.UNTRUSTED, 1)])
def test_limit_allows_a_burst_and_then_a_steady_rate(as_kee: Caller, tier: Tier, room: int) -> None:
    pass_time()
    limited(as_kee, 20, tier)

    assert taken() == room
    with pytest.raises(WorkerRateLimited) as refused:
        registry.take_call(worker_id="w")
    assert refused.value.retry_after == (3_600 // room if room > 1 else 5 * 3_600)
    pass_time(timedelta(seconds=refused.value.retry_after - 1))
    assert taken() == 0
    pass_time(timedelta(seconds=1))
    assert taken() == 1
    pass_time(timedelta(hours=6))
    assert taken() == room


def test_lost_tier_limits_the_next_call(as_kee: Caller) -> None:
    pass_time()
    limited(as_kee, 100)
    registry.take_call(worker_id="w")

    registry.revoke_key(tenant_id=as_kee.tenant_id, key_id="limiting", why="stolen")

    assert taken() == 0


def test_limit_of_zero_bars_the_worker(as_kee: Caller) -> None:
    limited(as_kee, 0)

    assert [offer.barred for offer in selectors.catalogue().offers] == ["its limit is no calls at all"]
    assert taken() == 0


@pytest.mark.django_db(transaction=True)
def test_concurrent_callers_share_the_limit(kee: Caller) -> None:
    with acting_as(kee):
        limited(kee, 10)

    def run() -> list[int]:
        granted = []
        for _ in range(5):
            with acting_as(kee):
                granted.append(taken(most=1))
        return granted

    answers: list[Any] = at_once(*[run] * 4)
    assert sum(map(sum, answers)) == 10


# Events

KEPT = settings.WORKER_EVENTS_KEPT


def tell(caller: Caller, worker_id: str, *ages: timedelta) -> list[int]:
    """Have a worker registered with events of these ages and no others; their ids."""
    with acting_as(caller):
        worker = register(caller, make_manifest(worker_id)).worker
        event = worker.events.get()
        worker.events.all().delete()
        rows = []
        for age in ages:
            row = copy(event)
            row.pk, row.at = None, database_now() - age
            rows.append(row)
        return [row.pk for row in WorkerEvent.objects.bulk_create(rows)]


def told(caller: Caller) -> set[int]:
    with acting_as(caller):
        return set(WorkerEvent.objects.values_list("pk", flat=True))


@pytest.mark.django_db(transaction=True)
def test_old_events_are_deleted_but_the_last_of_a_worker(kee: Caller) -> None:
    other = make_caller(make_tenant("other"), "Hexy", Kind.WORKER)
    *_, young = tell(kee, "one", KEPT * 2, KEPT + timedelta(seconds=1), KEPT - timedelta(hours=1))
    _, last = tell(kee, "steady", KEPT * 3, KEPT * 2)
    _, theirs = tell(other, "one", KEPT * 2, timedelta(0))

    registry.forget_events()

    assert (told(kee), told(other)) == ({young, last}, {theirs})
    assert registry.forget_events() == 0


@pytest.mark.django_db(transaction=True)
def test_kept_events_do_not_stop_the_deletion(kee: Caller) -> None:
    kept = [tell(kee, f"steady-{number}", KEPT * 2)[0] for number in range(5)]
    flapping = tell(kee, "flapping", *([KEPT * 2] * 5), timedelta(0))

    assert registry.forget_events(batch=2) == 5

    assert told(kee) == {*kept, flapping[-1]}
