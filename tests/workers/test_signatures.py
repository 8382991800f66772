"""Signatures of manifests and the keys behind them: which are refused, when trust ends, and what ends it at once."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey

from apps.core.errors import DomainError
from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as, acting_in
from apps.workers import selectors, trust
from apps.workers import services as registry
from apps.workers.models import ToolVersion, Worker, WorkerEvent
from apps.workers.trust import Tier
from tests.factories import make_caller, pass_time
from tests.workers.factories import (
    ID,
    NOTHING,
    at_once,
    beat,
    enroll,
    events,
    make_key,
    make_manifest,
    public_half,
    refused,
    register,
    signed,
)

HOUR = timedelta(hours=1)
Key = dict[str, str]


def again(caller: Caller, worker_id: str = ID) -> bool:
    """Whether a heartbeat asks for a new registration."""
    return beat(caller, worker_id).register_again


def lapse() -> int:
    return registry.lapse_trust(batch=1)


def tier(worker_id: str = ID) -> str:
    return Worker.objects.get(worker_id=worker_id).effective_tier


def registering(caller: Caller, manifest: dict[str, Any]) -> Callable[[], registry.Registration]:
    def act() -> registry.Registration:
        with acting_as(caller):
            return register(caller, manifest)

    return act


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def payload(**changes: Any) -> bytes:
    return trust.payload({**make_manifest(**changes), "trust": {"tier": "verified", "key_id": "bundled"}})


def header(**more: Any) -> str:
    now = int(database_now().timestamp())
    return json.dumps({"alg": "Ed25519", "kid": "bundled", "iat": now, "exp": now + 3600, **more})


def period(start: int, end: int) -> dict[str, int]:
    now = int(database_now().timestamp())
    return {"iat": now + start, "exp": now + end}


def compact(key: Key, head: str, body: bytes | None = None, made_by: OKPKey | None = None) -> str:
    """A signature that a key has really made, under any header at all."""
    part = f"{encoded(head.encode())}.{encoded(payload() if body is None else body)}"
    private: Any = (made_by or OKPKey.import_key(dict(key))).private_key
    return f"{part}.{encoded(private.sign(part.encode()))}"


def as_json(key: Key) -> str:
    one: jws.HeaderDict = {"protected": {"alg": "Ed25519", "kid": "bundled"}}
    algorithms = jws.JWSRegistry(algorithms=["Ed25519"])
    return json.dumps(jws.serialize_json([one], payload(), OKPKey.import_key(dict(key)), registry=algorithms))


def by_another_algorithm(name: str, key: Any) -> str:
    return jws.serialize_compact({"alg": name, "kid": "bundled"}, payload(), key)


def with_its_own_key() -> str:
    stranger = make_key()
    return compact(stranger, header(jwk=json.loads(public_half(stranger))))


FORGED: dict[str, tuple[str, Callable[[Key], str]]] = {
    "unprotected": ("wrong_algorithm", lambda _: f"{encoded(header(alg='none').encode())}.{encoded(payload())}."),
    "HMAC with the public key": (
        "wrong_algorithm",
        lambda key: by_another_algorithm("HS256", OctKey.import_key(public_half(key))),
    ),
    "ES256": ("wrong_algorithm", lambda _: by_another_algorithm("ES256", ECKey.generate_key("P-256"))),
    "EdDSA": ("wrong_algorithm", lambda key: compact(key, header(alg="EdDSA"))),
    "Ed448 as Ed25519": ("bad_signature", lambda key: compact(key, header(), None, OKPKey.generate_key("Ed448"))),
    "critical": ("malformed_signature", lambda key: compact(key, header(crit=["exp"]))),
    "a header twice": ("malformed_signature", lambda key: compact(key, header().replace('"alg"', '"kid": "x", "alg"'))),
    "a header that is a list": ("malformed_signature", lambda key: compact(key, "[]")),
    "two signatures": ("malformed_signature", lambda key: f"{compact(key, header())}.{encoded(b'x' * 64)}"),
    "JSON": ("malformed_signature", as_json),
    "padded": ("malformed_signature", lambda key: compact(key, header()) + "="),
    "detached": ("malformed_signature", lambda key: compact(key, header(), b"")),
    "garbage": ("malformed_signature", lambda _: "Ü.a"),
    "another key id": ("bad_signature", lambda key: compact(key, header(kid="other"))),
    "another key": ("bad_signature", lambda _: compact(make_key(), header())),
    "its own key": ("bad_signature", lambda _: with_its_own_key()),
    "another manifest": ("bad_signature", lambda key: compact(key, header(), payload(worker_id="somebody-else"))),
    "another endpoint": (
        "bad_signature",
        lambda key: compact(key, header(), payload(endpoint="https://e.example.com")),
    ),
    "no end": ("signature_expired", lambda key: compact(key, json.dumps({"alg": "Ed25519", "kid": "bundled"}))),
    "ended": ("signature_expired", lambda key: compact(key, header(**period(-60, -1)))),
    "a month": ("signature_expired", lambda key: compact(key, header(**period(0, 30 * 86_400)))),
    "from tomorrow": ("signature_not_yet_valid", lambda key: compact(key, header(**period(86_400, 86_460)))),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_signature_is_refused_and_changes_nothing(as_kee: Caller, name: str) -> None:
    key, (code, forge) = make_key(), FORGED[name]
    enroll(as_kee, key, Tier.TRUSTED)
    register(as_kee, make_manifest("standing"))
    models = (Worker, ToolVersion, WorkerEvent)
    before = [list(model.objects.values()) for model in models], selectors.epochs()
    trust = {"tier": "verified", "key_id": "bundled", "signature": forge(key)}

    with refused(code):
        register(as_kee, make_manifest(trust=trust))

    assert ([list(model.objects.values()) for model in models], selectors.epochs()) == before


def test_signature_covers_the_canonical_manifest(as_kee: Caller, key: Key) -> None:
    manifest = signed(make_manifest(), key)

    assert register(as_kee, dict(reversed(manifest.items()))).worker.effective_tier == "verified"
    with refused("bad_signature", "no canonical form"):
        register(as_kee, {**manifest, "constraints": {"max_payload_bytes": 2**53}})
    with refused("bad_signature", "another manifest"):
        register(as_kee, {**manifest, "trust": {**manifest["trust"], "tier": "trusted"}})


def test_owner_may_repeat_a_signature_until_it_ends(as_kee: Caller, key: Key) -> None:
    manifest = signed(make_manifest(), key)
    register(as_kee, manifest)
    before = WorkerEvent.objects.count(), selectors.epochs()

    assert register(as_kee, manifest).worker.effective_tier == "verified"
    assert (WorkerEvent.objects.count(), selectors.epochs()) == before
    pass_time(HOUR)
    with refused("signature_expired"):
        register(as_kee, manifest)


def test_older_signature_is_a_replay(as_kee: Caller, key: Key) -> None:
    old = signed(make_manifest(), key, now=database_now() - timedelta(minutes=10))
    register(as_kee, old)
    register(as_kee, signed(make_manifest(endpoint="https://new.example.com/mcp"), key))

    with refused("signature_replayed"):
        register(as_kee, old)
    assert selectors.worker_named(ID).endpoint == "https://new.example.com/mcp"
    register(as_kee, make_manifest())
    with refused("signature_replayed"):
        register(as_kee, old)


def test_unregistering_voids_signatures_for_everybody(tenant: Tenant, as_kee: Caller, key: Key) -> None:
    old = signed(make_manifest(), key)
    register(as_kee, old)
    rival = make_caller(tenant, "rival", Kind.WORKER)
    with acting_as(rival), refused("worker_id_taken"):
        register(rival, old)
    registry.unregister(caller=as_kee, worker_id=ID)
    with refused("signature_replayed"):
        register(as_kee, old)
    with acting_as(rival):
        with refused("signature_replayed"):
            register(rival, old)
        assert register(rival, make_manifest()).worker.effective_tier == "untrusted"
        with refused("signature_replayed"):
            register(rival, old)
        registry.unregister(caller=rival, worker_id=ID)

    pass_time(timedelta(seconds=1))
    assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "verified"


def test_expelling_voids_the_last_signature_even_if_dated_ahead(as_kee: Caller, key: Key) -> None:
    ahead = signed(make_manifest(), key, now=database_now() + timedelta(seconds=110))
    register(as_kee, ahead)

    registry.expel(tenant_id=as_kee.tenant_id, worker_id=ID, why="odd answers")

    with refused("signature_replayed"):
        register(as_kee, ahead)
    pass_time(trust.CLOCK_SKEW + timedelta(seconds=1))
    assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "verified"


def test_administrator_may_unregister_any_worker(tenant: Tenant, as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    boss = replace(make_caller(tenant, "boss", Kind.SERVICE), scopes=frozenset({Scope.ADMIN}))

    with acting_as(boss):
        registry.unregister(caller=boss, worker_id=ID)

    assert Worker.objects.get().unregistered_at is not None


def test_trust_ends_with_the_signature(as_kee: Caller, key: Key) -> None:
    pass_time()
    register(as_kee, signed(make_manifest(), key))
    register(as_kee, signed(make_manifest("renewing"), key))
    assert again(as_kee) is False
    pass_time(timedelta(minutes=56))
    assert again(as_kee) is True
    epoch = selectors.epochs()
    register(as_kee, signed(make_manifest("renewing"), key))
    assert (selectors.epochs(), lapse()) == (epoch, 0)
    pass_time(timedelta(minutes=4))

    assert lapse() == 1

    assert (tier(), tier("renewing")) == ("untrusted", "verified")
    assert selectors.epochs() != epoch
    assert events("trust")[-1] == "verified to untrusted: the signature has ended"
    assert (lapse(), again(as_kee)) == (0, True)
    assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "verified"
    assert again(as_kee) is False
    assert register(as_kee, make_manifest()).worker.trust_ends_at is None


def test_expired_trust_allows_no_call_before_the_job_runs(as_kee: Caller, key: Key) -> None:
    pass_time()
    begun = database_now().replace(microsecond=0)
    register(as_kee, signed(make_manifest(), key, now=begun))
    pass_time(begun + HOUR - timedelta(microseconds=1) - database_now())
    assert selectors.terms_of(ID, "analyze_repository").offer.barred is None
    registry.take_call(worker_id=ID)

    pass_time(timedelta(microseconds=1))

    found = selectors.terms_of(ID, "analyze_repository").offer
    assert (found.tier, found.barred) == ("untrusted", "the tier untrusted does not allow read")
    with refused("worker_rate_limited", "1 calls an hour"):
        registry.take_call(worker_id=ID)
    assert tier() == "verified"


def test_period_of_a_signature_is_exact() -> None:
    key, begun = make_key(), datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    manifest = signed(make_manifest(), key, now=begun)

    def verified(at: datetime) -> timedelta | str:
        signature = manifest["trust"]["signature"]
        try:
            found = trust.verify(manifest, signature=signature, key_id="bundled", key=public_half(key), now=at)
        except DomainError as refusal:
            return refusal.code
        return found.expires_at - found.signed_at

    tick = timedelta(microseconds=1)
    assert verified(begun - trust.CLOCK_SKEW) == verified(begun + HOUR - tick) == HOUR
    assert verified(begun + HOUR) == "signature_expired"
    assert verified(begun - trust.CLOCK_SKEW - tick) == "signature_not_yet_valid"


def test_heartbeat_asks_to_register_once_the_key_is_enrolled(as_kee: Caller) -> None:
    key = make_key()
    register(as_kee, signed(make_manifest(), key))
    register(as_kee, make_manifest("unsigned"))
    assert again(as_kee) is False

    enroll(as_kee, key)

    assert (tier(), again(as_kee), again(as_kee, "unsigned")) == ("untrusted", True, False)
    assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "verified"
    assert again(as_kee) is False


def test_revoked_key_ends_trust_at_once(as_kee: Caller) -> None:
    key, other = make_key(), make_key("other")
    for one in (key, other):
        enroll(as_kee, one)
    for worker_id, one in (("one", key), ("two", key), ("three", other)):
        register(as_kee, signed(make_manifest(worker_id), one))
    epoch = selectors.epochs()

    def revoke(key_id: str) -> int:
        return registry.revoke_key(tenant_id=as_kee.tenant_id, key_id=key_id, why="the laptop is gone")

    assert revoke("bundled") == 2

    assert [tier(name) for name in ("one", "two", "three")] == ["untrusted", "untrusted", "verified"]
    assert selectors.epochs()[0] == epoch[0] + 1
    assert events("trust")[-2:] == ["verified to untrusted: the key bundled was revoked: the laptop is gone"] * 2
    assert again(as_kee, "one") is False
    assert revoke("bundled") == 0
    with refused("unknown_key"):
        revoke("nobody")
    with refused("key_revoked"):
        register(as_kee, signed(make_manifest("one"), key))
    with refused("key_id_taken"):
        enroll(as_kee, key)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("known", [True, False])
def test_no_trust_survives_a_concurrent_revocation(kee: Caller, known: bool) -> None:
    for number in range(5):
        key = make_key(f"key-{number}")
        names = [f"worker-{number}-{one}" for one in range(3)]
        with acting_as(kee):
            enroll(kee, key)
            for name in names if known else []:
                register(kee, signed(make_manifest(name), key))
            fresh = [signed(make_manifest(name), key) for name in names]

        def revoking(key_id: str = key["kid"]) -> int:
            with acting_in(kee.tenant_id, "test"):
                return registry.revoke_key(tenant_id=kee.tenant_id, key_id=key_id, why="stolen")

        answers = at_once(revoking, *(registering(kee, manifest) for manifest in fresh))

        assert all(answer == "key_revoked" or isinstance(answer, registry.Registration) for answer in answers[1:])
        with acting_as(kee):
            assert not Worker.objects.trusted().exists()


@pytest.mark.django_db(transaction=True)
def test_one_of_two_rivals_gets_an_id(tenant: Tenant) -> None:
    rivals = [make_caller(tenant, name, Kind.WORKER) for name in ("one", "two")]
    for number in range(5):
        manifest = make_manifest(f"wanted-{number}", side_effects=NOTHING)

        answers = at_once(*(registering(rival, manifest) for rival in rivals))

        (won,) = [answer for answer in answers if isinstance(answer, registry.Registration)]
        assert answers.count("worker_id_taken") == 1
        with acting_as(rivals[0]):
            assert Worker.objects.get(worker_id=f"wanted-{number}").principal_id == won.worker.principal_id


@pytest.mark.django_db(transaction=True)
def test_registration_and_unregistration_do_not_mix(kee: Caller) -> None:
    for _ in range(5):
        with acting_as(kee):
            register(kee, make_manifest())

        def leaving() -> Worker:
            with acting_as(kee):
                return registry.unregister(caller=kee, worker_id=ID)

        at_once(leaving, registering(kee, make_manifest()))

        with acting_as(kee):
            is_registered = Worker.objects.get().unregistered_at is None
            last = WorkerEvent.objects.order_by("id").last()
            assert last is not None
            assert (last.kind == "unregistered") == (not is_registered)
            assert len(selectors.catalogue().offers) == is_registered
