"""What a signature is worth: which are refused, and by which name, when trust ends, and what ends it at once."""

import base64
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey

from apps.core.errors import DomainError
from apps.core.sql import database_now
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as, acting_as_system, acting_in
from apps.workers import selectors, signing
from apps.workers.models import SigningKey, ToolVersion, Worker, WorkerEvent
from apps.workers.services import health, registry
from apps.workers.shapes import HeartbeatTaken
from apps.workers.trust import Tier
from tests.factories import make_caller
from tests.workers.factories import (
    NOTHING,
    enroll,
    make_key,
    make_manifest,
    move_clock,
    public_half,
    refused,
    register,
    signed,
)

HOUR = timedelta(hours=1)
Key = dict[str, str]


def heartbeat(caller: Caller, worker_id: str = "code-analyzer-001") -> HeartbeatTaken:
    return health.heartbeat(caller=caller, worker_id=worker_id, status="healthy", current_load=0.0, available=True)


def lapse() -> int:
    with acting_as_system("test"):
        return registry.lapse_trust()


def revoke(caller: Caller, key_id: str = "bundled", why: str = "stolen") -> int:
    return registry.revoke_key(tenant_id=caller.tenant_id, key_id=key_id, why=why)


def tier(worker_id: str = "code-analyzer-001") -> str:
    return Worker.objects.get(worker_id=worker_id).effective_tier


def history(kind: str = "trust") -> list[str]:
    return [event.detail for event in WorkerEvent.objects.filter(kind=kind).order_by("id")]


# Forged, stretched and mangled signatures.


def _with(manifest: dict[str, Any], signature: Any) -> dict[str, Any]:
    return {**manifest, "trust": {"tier": "verified", "key_id": "bundled", "signature": signature}}


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def _payload(manifest: dict[str, Any]) -> bytes:
    return signing.payload(_with(manifest, None))


def _period() -> dict[str, int]:
    now = int(database_now().timestamp())
    return {"iat": now, "exp": now + 3600}


def _signed_under(header: str, manifest: dict[str, Any], key: Key) -> str:
    """A signature that this key has really made, under any header at all."""
    signed_part = f"{_encoded(header.encode())}.{_encoded(_payload(manifest))}"
    made = OKPKey.import_key(dict(key)).private_key.sign(signed_part.encode())  # type: ignore[union-attr]  # it is a private one
    return f"{signed_part}.{_encoded(made)}"


def _header(**more: Any) -> str:
    return json.dumps({"alg": "Ed25519", "kid": "bundled", **_period(), **more})


def unprotected(manifest: dict[str, Any], _key: Key) -> Any:
    header = _encoded(json.dumps({"alg": "none", "kid": "bundled", **_period()}).encode())
    return f"{header}.{_encoded(_payload(manifest))}."


def hmac_with_the_public_key(manifest: dict[str, Any], key: Key) -> Any:
    secret = OctKey.import_key(public_half(key))
    return jws.serialize_compact({"alg": "HS256", "kid": "bundled"}, _payload(manifest), secret)


def es256(manifest: dict[str, Any], _key: Key) -> Any:
    other = ECKey.generate_key("P-256")
    return jws.serialize_compact({"alg": "ES256", "kid": "bundled"}, _payload(manifest), other)


def ed448(manifest: dict[str, Any], _key: Key) -> Any:
    other = OKPKey.generate_key("Ed448")
    registry = jws.JWSRegistry(algorithms=["EdDSA"])
    with pytest.warns(Warning, match="EdDSA"):
        return jws.serialize_compact({"alg": "EdDSA", "kid": "bundled"}, _payload(manifest), other, registry=registry)


def ed448_called_ed25519(manifest: dict[str, Any], _key: Key) -> Any:
    signed_part = f"{_encoded(_header().encode())}.{_encoded(_payload(manifest))}"
    made = OKPKey.generate_key("Ed448").private_key.sign(signed_part.encode())  # type: ignore[union-attr]  # it is a private one
    return f"{signed_part}.{_encoded(made)}"


def eddsa(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(alg="EdDSA"), manifest, key)


def critical(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(crit=["exp"]), manifest, key)


def unencoded_payload(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(b64=False, crit=["b64"]), manifest, key)


def header_written_twice(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header().replace('"alg"', '"kid": "other", "alg"'), manifest, key)


def header_of_no_object(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under("[]", manifest, key)


def header_of_no_json(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under("{", manifest, key)


def two_signatures(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(), manifest, key) + "." + _encoded(b"x" * 64)


def json_with_two_signatures(manifest: dict[str, Any], key: Key) -> Any:
    one: jws.HeaderDict = {"protected": {"alg": "Ed25519", "kid": "bundled"}}
    made = jws.serialize_json(
        [one, one], _payload(manifest), OKPKey.import_key(dict(key)), registry=jws.JWSRegistry(algorithms=["Ed25519"])
    )
    return json.dumps(made)


def padded(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(), manifest, key) + "="


def with_a_line_break(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(), manifest, key) + "\n"


def two_parts(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(), manifest, key).rpartition(".")[0]


def empty(_manifest: dict[str, Any], _key: Key) -> Any:
    return ""


def detached(manifest: dict[str, Any], key: Key) -> Any:
    header, _, made = _signed_under(_header(), manifest, key).split(".")
    return f"{header}..{made}"


def cut_short(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(), manifest, key)[:-4]


def another_key_in_the_header(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(kid="other"), manifest, key)


def its_own_key_in_the_header(manifest: dict[str, Any], _key: Key) -> Any:
    stranger = make_key()
    return _signed_under(_header(jwk=json.loads(public_half(stranger))), manifest, stranger)


def without_an_end(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(json.dumps({"alg": "Ed25519", "kid": "bundled", "iat": _period()["iat"]}), manifest, key)


def ended_a_second_ago(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(exp=_period()["iat"] - 1, iat=_period()["iat"] - 60), manifest, key)


def good_for_a_month(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(exp=_period()["iat"] + 30 * 86_400), manifest, key)


def signed_tomorrow(manifest: dict[str, Any], key: Key) -> Any:
    tomorrow = _period()["iat"] + 86_400
    return _signed_under(_header(iat=tomorrow, exp=tomorrow + 60), manifest, key)


def of_another_worker(manifest: dict[str, Any], key: Key) -> Any:
    return _signed_under(_header(), {**manifest, "worker_id": "somebody-else"}, key)


REFUSED: list[tuple[Callable[[dict[str, Any], Key], Any], str]] = [
    (unprotected, "wrong_algorithm"),
    (hmac_with_the_public_key, "wrong_algorithm"),
    (es256, "wrong_algorithm"),
    (ed448, "wrong_algorithm"),
    (eddsa, "wrong_algorithm"),
    (ed448_called_ed25519, "bad_signature"),
    (critical, "malformed_signature"),
    (unencoded_payload, "malformed_signature"),
    (header_written_twice, "malformed_signature"),
    (header_of_no_object, "malformed_signature"),
    (header_of_no_json, "malformed_signature"),
    (two_signatures, "malformed_signature"),
    (json_with_two_signatures, "malformed_signature"),
    (padded, "malformed_signature"),
    (with_a_line_break, "malformed_signature"),
    (two_parts, "malformed_signature"),
    (detached, "malformed_signature"),
    (empty, "malformed_signature"),
    (cut_short, "bad_signature"),
    (another_key_in_the_header, "bad_signature"),
    (its_own_key_in_the_header, "bad_signature"),
    (of_another_worker, "bad_signature"),
    (without_an_end, "signature_expired"),
    (ended_a_second_ago, "signature_expired"),
    (good_for_a_month, "signature_expired"),
    (signed_tomorrow, "signature_not_yet_valid"),
]


@pytest.mark.parametrize(("forge", "refusal"), REFUSED, ids=[forge.__name__ for forge, _ in REFUSED])
def test_a_forged_or_mangled_signature_is_refused_by_its_name_and_changes_nothing(
    as_kee: Caller, forge: Callable[[dict[str, Any], Key], Any], refusal: str
) -> None:
    key = make_key()
    enroll(as_kee, key, Tier.TRUSTED)
    manifest = make_manifest()
    standing = register(as_kee, make_manifest("standing")).worker
    before = (Worker.objects.count(), ToolVersion.objects.count(), WorkerEvent.objects.count(), selectors.epochs())

    with refused(refusal):
        register(as_kee, _with(manifest, forge(manifest, key)))

    assert before == (
        Worker.objects.count(), ToolVersion.objects.count(), WorkerEvent.objects.count(), selectors.epochs()
    )  # fmt: skip
    assert Worker.objects.get() == standing


def test_a_manifest_without_a_canonical_form_is_refused_however_it_is_signed(as_kee: Caller) -> None:
    key = make_key()
    enroll(as_kee, key)
    manifest = signed(make_manifest(), key)

    with refused("bad_signature", "no canonical form"):
        register(as_kee, {**manifest, "constraints": {"max_payload_bytes": 2**53}})

    assert Worker.objects.count() == 0


def test_members_in_another_order_are_the_same_manifest(as_kee: Caller) -> None:
    key = make_key()
    enroll(as_kee, key)
    manifest = signed(make_manifest(), key)

    done = register(as_kee, dict(reversed(manifest.items())))

    assert done.worker.effective_tier == "verified"


# The same signature again.


def test_its_owner_may_present_a_signature_again_until_it_ends(as_kee: Caller) -> None:
    key = make_key()
    enroll(as_kee, key)
    manifest = signed(make_manifest(), key)
    register(as_kee, manifest)
    events = WorkerEvent.objects.count()
    epochs = selectors.epochs()

    assert register(as_kee, manifest).worker.effective_tier == "verified"
    assert (WorkerEvent.objects.count(), selectors.epochs()) == (events, epochs)
    move_clock(HOUR)
    with refused("signature_expired"):
        register(as_kee, manifest)


def test_nobody_else_may_present_it_while_the_worker_is_registered_nor_afterwards(
    tenant: Tenant, as_kee: Caller
) -> None:
    key = make_key()
    enroll(as_kee, key)
    manifest = signed(make_manifest(), key)
    register(as_kee, manifest)
    rival = make_caller(tenant, "rival", Kind.WORKER)

    with acting_as(rival), refused("worker_id_taken"):
        register(rival, manifest)
    registry.unregister(caller=as_kee, worker_id="code-analyzer-001")
    with acting_as(rival), refused("signature_replayed"):
        register(rival, manifest)

    assert Worker.objects.get().principal_id == as_kee.principal_id
    assert Worker.objects.get().unregistered_at is not None


def test_after_an_unregistration_only_a_younger_signature_counts_even_by_way_of_an_unsigned_manifest(
    tenant: Tenant, as_kee: Caller
) -> None:
    key = make_key()
    enroll(as_kee, key)
    old = signed(make_manifest(), key)
    register(as_kee, old)
    registry.unregister(caller=as_kee, worker_id="code-analyzer-001")
    with refused("signature_replayed"):
        register(as_kee, old)
    rival = make_caller(tenant, "rival", Kind.WORKER)
    with acting_as(rival):
        assert register(rival, make_manifest()).worker.effective_tier == "untrusted"
        with refused("signature_replayed"):
            register(rival, old)
        registry.unregister(caller=rival, worker_id="code-analyzer-001")

    move_clock(timedelta(seconds=1))
    assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "verified"


def test_what_signed_a_worker_before_an_operator_put_it_out_counts_no_more(as_kee: Caller) -> None:
    key = make_key()
    enroll(as_kee, key)
    old = signed(make_manifest(), key)
    register(as_kee, old)

    registry.expel(tenant_id=as_kee.tenant_id, worker_id="code-analyzer-001", why="odd answers")

    with refused("signature_replayed", "unregistered"):
        register(as_kee, old)
    move_clock(signing.CLOCK_SKEW + timedelta(seconds=1))
    assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "verified"


def test_a_signature_dated_ahead_is_void_too_once_its_worker_is_put_out(as_kee: Caller) -> None:
    key = make_key()
    enroll(as_kee, key)
    ahead = signed(make_manifest(), key, now=database_now() + timedelta(seconds=110))
    register(as_kee, ahead)

    registry.expel(tenant_id=as_kee.tenant_id, worker_id="code-analyzer-001", why="odd answers")

    with refused("signature_replayed", "unregistered"):
        register(as_kee, ahead)
    move_clock(signing.CLOCK_SKEW + timedelta(seconds=1))
    assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "verified"


# When trust ends.


def test_trust_ends_with_the_signature_unless_a_fresh_one_has_come(as_kee: Caller) -> None:
    move_clock(timedelta(0))
    key = make_key()
    enroll(as_kee, key)
    register(as_kee, signed(make_manifest(), key))
    register(as_kee, signed(make_manifest("renewing"), key))
    assert heartbeat(as_kee).register_again is False
    move_clock(timedelta(minutes=56))
    assert heartbeat(as_kee).register_again is True
    epoch = selectors.epochs()
    register(as_kee, signed(make_manifest("renewing"), key))
    assert selectors.epochs() == epoch
    assert lapse() == 0
    move_clock(timedelta(minutes=4))

    assert lapse() == 1

    assert (tier(), tier("renewing")) == ("untrusted", "verified")
    assert selectors.epochs() != epoch
    assert history()[-1] == "verified to untrusted: the signature has ended"
    assert lapse() == 0
    assert heartbeat(as_kee).register_again is True
    assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "verified"
    assert heartbeat(as_kee).register_again is False


def test_trust_that_has_ended_allows_no_call_before_its_end_is_noted(as_kee: Caller) -> None:
    move_clock(timedelta(0))
    key = make_key()
    enroll(as_kee, key)
    begun = database_now().replace(microsecond=0)
    register(as_kee, signed(make_manifest(), key, now=begun))
    move_clock(begun + HOUR - timedelta(microseconds=1) - database_now())
    assert selectors.terms_of("code-analyzer-001", "analyze_repository").offer.barred is None
    registry.take_call(worker_id="code-analyzer-001")

    move_clock(timedelta(microseconds=1))

    found = selectors.terms_of("code-analyzer-001", "analyze_repository").offer
    assert (found.tier, found.barred) == ("untrusted", "the tier untrusted does not allow read")
    with refused("worker_rate_limited", "1 calls an hour"):
        registry.take_call(worker_id="code-analyzer-001")
    assert tier() == "verified"


def test_a_signature_ends_at_its_end_exactly(as_kee: Caller) -> None:
    key, begun = make_key(), database_now().replace(microsecond=0)
    manifest = signed(make_manifest(), key, now=begun)

    def verified(at: datetime) -> timedelta:
        signature = manifest["trust"]["signature"]
        found = signing.verify(manifest, signature=signature, key_id="bundled", key=public_half(key), now=at)
        return found.expires_at - found.signed_at

    assert verified(begun - timedelta(minutes=2)) == HOUR
    assert verified(begun + HOUR - timedelta(microseconds=1)) == HOUR
    with refused("signature_expired"):
        verified(begun + HOUR)
    with refused("signature_not_yet_valid"):
        verified(begun - timedelta(minutes=2) - timedelta(microseconds=1))


def test_a_fresh_signature_over_the_same_manifest_replaces_nothing(as_kee: Caller) -> None:
    key = make_key()
    enroll(as_kee, key)
    first = register(as_kee, signed(make_manifest(), key, now=database_now() - timedelta(minutes=10)))
    epoch = selectors.epochs()

    fresh = register(as_kee, signed(make_manifest(), key))

    assert history("replaced") == []
    assert selectors.epochs() == epoch
    assert first.worker.trust_ends_at is not None
    assert fresh.worker.trust_ends_at is not None
    assert fresh.worker.trust_ends_at > first.worker.trust_ends_at


def test_a_worker_hears_that_its_key_has_been_enrolled_since(as_kee: Caller) -> None:
    key = make_key()
    register(as_kee, signed(make_manifest(), key))
    register(as_kee, make_manifest("unsigned"))
    assert heartbeat(as_kee).register_again is False

    enroll(as_kee, key)

    assert tier() == "untrusted"
    assert heartbeat(as_kee).register_again is True
    assert heartbeat(as_kee, "unsigned").register_again is False
    assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "verified"
    assert heartbeat(as_kee).register_again is False


# Revocation.


def test_a_revoked_key_takes_all_that_rests_on_it_at_once_and_each_history_says_why(as_kee: Caller) -> None:
    key, other = make_key(), make_key("other")
    enroll(as_kee, key)
    enroll(as_kee, other)
    for worker_id in ("one", "two"):
        register(as_kee, signed(make_manifest(worker_id), key))
    register(as_kee, signed(make_manifest("three"), other))
    epoch = selectors.epochs()

    assert revoke(as_kee, why="the laptop is gone") == 2

    assert [tier(name) for name in ("one", "two", "three")] == ["untrusted", "untrusted", "verified"]
    assert selectors.epochs()[0] == epoch[0] + 1
    assert {offer.worker_id: offer.barred for offer in selectors.catalogue().offers} == {
        "one": "the tier untrusted does not allow read",
        "two": "the tier untrusted does not allow read",
        "three": None,
    }
    assert history()[-2:] == ["verified to untrusted: the key bundled was revoked: the laptop is gone"] * 2
    assert heartbeat(as_kee, "one").register_again is False
    assert revoke(as_kee) == 0
    with refused("unknown_key"):
        revoke(as_kee, "nobody")


def test_the_database_refuses_trust_that_never_ends(as_kee: Caller) -> None:
    key = make_key()
    enroll(as_kee, key)
    register(as_kee, signed(make_manifest(), key))

    with pytest.raises(IntegrityError, match="workers_worker_trust_is_signed"), transaction.atomic():
        Worker.objects.update(trust_ends_at=None)


def test_a_key_of_somebody_else_is_enrolled_by_its_public_half_and_revoked_by_command(
    tenant: Tenant, as_kee: Caller, tmp_path: Path
) -> None:
    key = make_key()
    file = tmp_path / "public.json"
    file.write_text(public_half(key))
    said = StringIO()
    call_command(
        "enroll_worker_key",
        *["--tenant", "acme", "--name", "ocr", "--ceiling", "sandbox", "--public-file", str(file)],
        stdout=said,
    )
    key["kid"] = SigningKey.objects.get().key_id
    assert said.getvalue() == f"{key['kid']} may grant sandbox\n"
    assert register(as_kee, signed(make_manifest(), key)).worker.effective_tier == "sandbox"

    call_command("revoke_worker_key", "--tenant", "acme", "--key-id", key["kid"], "--why", "left us", stdout=said)

    assert tier() == "untrusted"
    assert said.getvalue().endswith("is revoked; 1 workers are untrusted now\n")
    with pytest.raises(CommandError, match="No key 'nobody' is enrolled"):
        call_command("revoke_worker_key", "--tenant", "acme", "--key-id", "nobody", "--why", "x")
    file.write_text(json.dumps(key))
    with pytest.raises(CommandError, match="public half"):
        call_command(
            "enroll_worker_key",
            *["--tenant", "acme", "--name", "ocr", "--ceiling", "sandbox", "--public-file", str(file)],
        )


# Races.


def at_once(*acts: Callable[[], object]) -> list[object]:
    """What became of these, begun at the same moment on threads of their own; refusals are answers."""
    barrier = threading.Barrier(len(acts))
    answers: list[object] = [None] * len(acts)

    def run(place: int, act: Callable[[], object]) -> None:
        barrier.wait()
        try:
            answers[place] = act()
        except DomainError as refusal:
            answers[place] = refusal
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return answers


def registering(caller: Caller, manifest: dict[str, Any]) -> Callable[[], registry.Registration]:
    def act() -> registry.Registration:
        with acting_as(caller):
            return register(caller, manifest)

    return act


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("known", [True, False])
def test_after_a_revocation_and_registrations_at_once_nothing_rests_on_the_key(tenant: Tenant, known: bool) -> None:
    kee = make_caller(tenant, "kee", Kind.WORKER)
    for round_ in range(5):
        key = make_key(f"key-{round_}")
        names = [f"worker-{round_}-{number}" for number in range(3)]
        with acting_as(kee):
            enroll(kee, key)
            if known:
                for name in names:
                    register(kee, signed(make_manifest(name), key))

        def revoking(key_id: str = key["kid"]) -> int:
            with acting_in(kee.tenant_id, "test"):
                return revoke(kee, key_id)

        with acting_as(kee):
            fresh = [signed(make_manifest(name), key) for name in names]
        answers = at_once(revoking, *(registering(kee, manifest) for manifest in fresh))

        for answer in answers[1:]:
            assert isinstance(answer, registry.Registration) or getattr(answer, "code", "") == "key_revoked"
        with acting_as(kee):
            assert not Worker.objects.trusted().exists()


@pytest.mark.django_db(transaction=True)
def test_of_two_principals_who_register_one_id_at_once_one_has_it(tenant: Tenant) -> None:
    rivals = [make_caller(tenant, name, Kind.WORKER) for name in ("one", "two")]
    for round_ in range(5):
        manifest = make_manifest(f"wanted-{round_}", side_effects=NOTHING)

        answers = at_once(*(registering(rival, manifest) for rival in rivals))

        (won,) = [answer for answer in answers if isinstance(answer, registry.Registration)]
        assert [getattr(answer, "code", "") for answer in answers].count("worker_id_taken") == 1
        with acting_as(rivals[0]):
            assert Worker.objects.get(worker_id=f"wanted-{round_}").principal_id == won.worker.principal_id


@pytest.mark.django_db(transaction=True)
def test_a_registration_and_an_unregistration_at_once_leave_one_or_the_other(tenant: Tenant) -> None:
    kee = make_caller(tenant, "kee", Kind.WORKER)
    for _ in range(5):
        with acting_as(kee):
            register(kee, make_manifest())

        def leaving() -> Worker:
            with acting_as(kee):
                return registry.unregister(caller=kee, worker_id="code-analyzer-001")

        at_once(leaving, registering(kee, make_manifest()))

        with acting_as(kee):
            standing = Worker.objects.get().unregistered_at is None
            last = WorkerEvent.objects.order_by("id").last()
            assert last is not None
            assert (last.kind == "unregistered") == (not standing)
            assert len(selectors.catalogue().offers) == standing


def test_an_operator_with_the_scope_may_unregister_any_worker(tenant: Tenant, as_kee: Caller) -> None:
    register(as_kee, make_manifest())
    boss = replace(make_caller(tenant, "boss", Kind.SERVICE), scopes=frozenset({Scope.ADMIN}))

    with acting_as(boss):
        registry.unregister(caller=boss, worker_id="code-analyzer-001")

    assert Worker.objects.get().unregistered_at is not None
