"""The registry: what a manifest must be, what its signature is worth, how workers fall silent and come back."""

import threading
from datetime import timedelta
from decimal import Decimal
from ipaddress import ip_network
from typing import Any

import pytest
from django.db import connection, transaction
from joserfc import jws
from joserfc.jwk import OctKey

from apps.core.errors import Conflict, Invalid
from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.workers import manifests, selectors, trust
from apps.workers.models import TRANSITIONS, Offer, State, Worker, WorkerEvent
from apps.workers.services import health, registry
from apps.workers.shapes import HeartbeatTaken
from apps.workers.trust import Tier, effective_tier, effects_of, forbidden_effects
from tests.factories import make_caller
from tests.workers.factories import NOTHING, enroll, make_key, make_manifest, move_clock, refused, register, signed


def heartbeat(caller: Caller, worker_id: str = "code-analyzer-001", status: str = "healthy") -> HeartbeatTaken:
    with transaction.atomic():
        return health.heartbeat(caller=caller, worker_id=worker_id, status=status, current_load=0.3, available=True)


def test_repeated_registration_changes_nothing(as_kee: Caller) -> None:
    first = register(as_kee, make_manifest())
    epoch = selectors.epochs()
    again = register(as_kee, make_manifest())

    assert (first.created, again.created) == (True, False)
    assert first.tools[0].uid == again.tools[0].uid
    assert selectors.epochs() == epoch
    assert [event.kind for event in WorkerEvent.objects.all()] == ["registered"]
    assert Offer.objects.count() == 1


def test_unsigned_claim_allows_no_effects(as_kee: Caller) -> None:
    done = register(as_kee, make_manifest(trust={"tier": "trusted"}))
    register(as_kee, make_manifest("harmless", trust={"tier": "trusted"}, side_effects=NOTHING))
    register(as_kee, {**make_manifest("silent"), "side_effects": None})

    assert (done.worker.effective_tier, done.worker.tier_reason) == (
        "untrusted",
        "the manifest is not signed, or names no key",
    )
    barred = {offer.worker_id: offer.barred for offer in selectors.catalogue().offers}
    assert barred == {
        "code-analyzer-001": "the tier untrusted does not allow read",
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


def test_unknown_key_gives_no_trust(as_kee: Caller) -> None:
    done = register(as_kee, signed(make_manifest(), make_key("stranger")))
    claimed = register(
        as_kee, make_manifest("claimed", trust={"tier": "verified", "signature": "...", "key_id": "..."})
    )

    assert (done.worker.effective_tier, done.worker.tier_reason) == ("untrusted", "the key stranger is not enrolled")
    assert claimed.worker.effective_tier == "untrusted"


def _other_key(manifest: dict[str, Any], _key: dict[str, str]) -> dict[str, Any]:
    return signed(manifest, {**make_key(), "kid": "bundled"})


def _changed(manifest: dict[str, Any], key: dict[str, str]) -> dict[str, Any]:
    return {**signed(manifest, key), "endpoint": "https://evil.example.com/mcp"}


def _raised_claim(manifest: dict[str, Any], key: dict[str, str]) -> dict[str, Any]:
    done = signed(manifest, key)
    return {**done, "trust": {**done["trust"], "tier": "trusted"}}


def _expired(manifest: dict[str, Any], key: dict[str, str]) -> dict[str, Any]:
    return signed(manifest, key, now=database_now() - timedelta(days=1))


def _from_the_future(manifest: dict[str, Any], key: dict[str, str]) -> dict[str, Any]:
    return signed(manifest, key, now=database_now() + timedelta(hours=1))


def _endless(manifest: dict[str, Any], key: dict[str, str]) -> dict[str, Any]:
    return signed(manifest, key, validity=timedelta(days=400))


def _symmetric(manifest: dict[str, Any], key: dict[str, str]) -> dict[str, Any]:
    manifest = {**manifest, "trust": {"tier": "verified", "key_id": "bundled"}}
    secret = OctKey.import_key(key["x"] * 2)
    text = jws.serialize_compact({"alg": "HS256", "kid": "bundled"}, trust.payload(manifest), secret)
    return {**manifest, "trust": {**manifest["trust"], "signature": text}}


def _unsigned_header(manifest: dict[str, Any], _key: dict[str, str]) -> dict[str, Any]:
    return {**manifest, "trust": {"tier": "verified", "key_id": "bundled", "signature": "eyJhbGciOiJub25lIn0.e30."}}


def _garbage(manifest: dict[str, Any], _key: dict[str, str]) -> dict[str, Any]:
    return {**manifest, "trust": {"tier": "verified", "key_id": "bundled", "signature": "Ü.a"}}


@pytest.mark.parametrize(
    "endpoint",
    [
        "ftp://example.com/mcp",
        "http://example.com/mcp",
        "https://10.0.0.1/mcp",
        "https://169.254.169.254/latest",
        "https://[::ffff:10.0.0.1]/mcp",
        "https://user:secret@example.com/mcp",
        "https://user@example.com/mcp",
        "https://example.com/mcp#part",
        "https://example.com:0/mcp",
        "https://example.com:99999/mcp",
        "https:///mcp",
        "nonsense",
        "https://[half",
    ],
)
def test_unsafe_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(Invalid, match=r"endpoint|address|machine"):
        manifests.endpoint(endpoint, allow_loopback=True)


def test_loopback_must_be_allowed() -> None:
    assert manifests.endpoint("http://127.0.0.1:8801/mcp", allow_loopback=True)
    for url in ("http://127.0.0.1:8801/mcp", "https://localhost/mcp", "http://[::1]/mcp"):
        with pytest.raises(Invalid, match=r"endpoint|address|machine"):
            manifests.endpoint(url, allow_loopback=False)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://10.8.0.1:9000/mcp", True),
        ("https://10.8.0.1/mcp", True),
        ("http://worker.inside/mcp", True),
        ("http://127.9.0.1/mcp", True),
        ("https://10.9.0.1/mcp", False),
        ("http://1.1.1.1/mcp", False),
        ("http://127.0.0.1/mcp", False),
        ("http://localhost/mcp", False),
    ],
)
def test_allowed_network_may_be_registered(url: str, allowed: bool) -> None:
    networks = [ip_network("10.8.0.0/16"), ip_network("127.9.0.0/16")]

    if allowed:
        assert manifests.endpoint(url, allow_loopback=False, networks=networks) == url
    else:
        with pytest.raises(Invalid, match=r"endpoint|address|machine"):
            manifests.endpoint(url, allow_loopback=False, networks=networks)


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


def test_stored_null_hint_is_ignored(as_kee: Caller) -> None:
    register(as_kee, make_manifest("other", hints={"cost_estimate": 2}))
    register(as_kee, make_manifest("odd"))
    Worker.objects.filter(worker_id="odd").update(hints={"cost_estimate": None, "cost_band": None})

    assert {offer.worker_id: offer.cost for offer in selectors.catalogue().offers} == {"other": 2.0, "odd": 0.0}


def test_repeated_tool_is_refused(as_kee: Caller) -> None:
    tools = make_manifest()["tools"]

    with refused("repeated_tool"):
        register(as_kee, make_manifest(tools=tools * 2))


def test_changed_tool_is_a_new_version(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    epoch, _ = selectors.epochs()
    changed = make_manifest()
    changed["tools"][0]["description"] = "Analyze anything."

    done = register(as_kee, changed)

    assert selectors.epochs()[0] == epoch + 1
    assert {offer.withdrawn_at is None for offer in Offer.objects.all()} == {True, False}
    assert [offer.tool_uid for offer in selectors.catalogue().offers] == [done.tools[0].uid]
    register(as_kee, make_manifest())
    assert Offer.objects.count() == 2


def test_equal_tools_share_a_version(as_kee: Caller) -> None:
    register(as_kee, make_manifest("one"))
    register(as_kee, make_manifest("two"))

    view = selectors.catalogue()
    assert (len(view.tools), len(view.offers)) == (1, 2)


def test_silent_worker_is_degraded_then_offline(as_kee: Caller) -> None:
    move_clock(timedelta(0))
    register(as_kee, make_manifest(side_effects=NOTHING))

    def state_after(pause: timedelta) -> str:
        move_clock(pause)
        with acting_as_system("test"):
            health.mark_late()
        return selectors.worker_named("code-analyzer-001").state

    assert state_after(health.LATE_AFTER) == "ready"
    assert state_after(timedelta(microseconds=1)) == "degraded"
    assert selectors.catalogue().offers[0].barred == "the worker is degraded"
    assert state_after(health.OFFLINE_AFTER) == "offline"
    assert selectors.workers().workers == []
    assert heartbeat(as_kee).status == "ready"
    assert selectors.catalogue().offers[0].barred is None
    assert [event.detail for event in WorkerEvent.objects.filter(kind="state").order_by("id")] == [
        "ready to degraded: no heartbeat",
        "degraded to offline: no heartbeat",
        "offline to ready: the worker says healthy",
    ]


def test_heartbeat_without_news_keeps_the_epoch(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    epoch = selectors.epochs()

    heartbeat(as_kee)
    assert selectors.epochs() == epoch
    heartbeat(as_kee, status="maintenance")
    assert selectors.epochs() != epoch


def test_quarantine_outlasts_heartbeat_and_registration(as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    Worker.objects.update(state=State.QUARANTINED)

    assert heartbeat(as_kee).status == "quarantined"
    assert register(as_kee, make_manifest()).worker.state == "quarantined"


def test_anothers_worker_is_unknown_and_its_id_taken(tenant: Tenant, as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    other = make_caller(tenant, "rival", Kind.WORKER)

    with acting_as(other):
        with refused("unknown_worker"):
            heartbeat(other)
        with refused("unknown_worker"):
            registry.unregister(caller=other, worker_id="code-analyzer-001")
        with refused("worker_id_taken"):
            register(other, make_manifest(endpoint="https://evil.example.com/mcp"))

    assert selectors.worker_named("code-analyzer-001").endpoint == "https://code-analyzer.example.com/mcp"


def test_unregistered_worker_may_come_back(as_kee: Caller) -> None:
    register(as_kee, make_manifest())

    registry.unregister(caller=as_kee, worker_id="code-analyzer-001")

    with refused("unknown_worker"):
        selectors.worker_named("code-analyzer-001")
    assert selectors.catalogue().offers == ()
    with refused("unknown_worker"):
        heartbeat(as_kee)
    assert register(as_kee, make_manifest()).created is False
    assert len(selectors.catalogue().offers) == 1


def test_recorded_calls_are_counted_by_the_job(as_kee: Caller) -> None:
    register(as_kee, make_manifest(side_effects=NOTHING))
    for number in range(20):
        registry.record_call(
            worker_id="code-analyzer-001",
            tool_name="analyze_repository",
            ok=number != 3,
            seconds=float(number),
            cost=Decimal("0.01"),
        )
    before = selectors.epochs()

    with acting_as_system("test"):
        assert registry.fold_calls() == 20
        assert registry.fold_calls() == 0

    offer = selectors.terms_of("code-analyzer-001", "analyze_repository").offer
    assert (offer.runs, offer.successes, offer.p50_seconds, offer.p95_seconds) == (20, 19, 9.5, 18.0)
    assert offer.cost == 0.01
    assert selectors.epochs() == (before[0], before[1] + 1)
    with refused("unknown_tool"):
        registry.record_call(worker_id="code-analyzer-001", tool_name="x", ok=True, seconds=1, cost=Decimal(0))


@pytest.mark.parametrize("source", list(State))
@pytest.mark.parametrize("target", list(State))
def test_states_follow_the_table(source: State, target: State) -> None:
    worker = Worker(worker_id="w", state=source)

    if target in TRANSITIONS[source]:
        worker.move_to(target)
        assert worker.state == target
    else:
        with pytest.raises(Conflict, match="cannot go from"):
            worker.move_to(target)
        assert worker.state == source


@pytest.mark.parametrize(
    ("declared", "effects"),
    [
        (None, {"read", "write", "network", "exec", "bidirectional"}),
        ({}, {"read", "write", "network", "exec", "bidirectional"}),
        ({"filesystem": "read"}, {"read", "network", "exec", "bidirectional"}),
        ({"filesystem": "none", "network": "none", "execution": "none"}, set()),
        (
            {"filesystem": "write", "network": "outbound", "execution": "container"},
            {"read", "write", "network", "exec"},
        ),
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
    assert effective_tier(Tier.TRUSTED, ceiling=None, because="unsigned").tier == Tier.UNTRUSTED


@pytest.mark.django_db(transaction=True)
def test_concurrent_first_registrations_make_one_worker(tenant: Tenant) -> None:
    kee = make_caller(tenant)
    barrier = threading.Barrier(4)
    created: list[bool] = []

    def run() -> None:
        barrier.wait()
        with acting_as(kee):
            done = register(kee, make_manifest())
        created.append(done.created)
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(created) == [False, False, False, True]
    with acting_as(kee):
        assert (Worker.objects.count(), Offer.objects.count()) == (1, 1)
