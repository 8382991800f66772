"""How far a manifest is to be trusted, and the end of that trust."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from apps.core.sql import database_now
from apps.workers import signing
from apps.workers.errors import KeyRevoked, SignatureReplayed
from apps.workers.manifests import Manifest
from apps.workers.models import SigningKey, Worker, WorkerEvent
from apps.workers.services.rows import advance, record
from apps.workers.trust import Grant, Tier, effective_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """A grant with the key and the times of the signature that it rests on."""

    grant: Grant
    key: SigningKey | None = None
    signed: signing.Signed | None = None


def lock_key(manifest: Manifest) -> SigningKey | None:
    """The enrolled key that a manifest names, locked before its worker is: a key that is being revoked is seen revoked."""
    return SigningKey.objects.filter(key_id=manifest.key_id).select_for_update(no_key=True).first()


def judge(manifest: Manifest, worker: Worker, key: SigningKey | None, now: datetime) -> Trusted:
    """Find out how far a manifest is to be trusted. Unsigned is untrusted; signed wrongly is refused.

    :param key: what :func:`lock_key` has found.
    """
    if manifest.signature is None or manifest.key_id is None:
        return _untrusted(manifest, "the manifest is not signed, or names no key")
    if key is None:
        return _untrusted(manifest, f"the key {manifest.key_id[:100]} is not enrolled")
    if key.revoked_at is not None:
        raise KeyRevoked(f"The key {key.key_id!r} was revoked.")
    signed = signing.verify(
        manifest.original, signature=manifest.signature, key_id=key.key_id, key=key.public_key, now=now
    )
    _refuse_replayed(worker, signed)
    grant = effective_tier(manifest.claimed_tier, ceiling=Tier(key.ceiling), because=f"signed by {key.key_id}")
    return Trusted(grant=grant, key=key, signed=signed)


def _untrusted(manifest: Manifest, because: str) -> Trusted:
    return Trusted(grant=effective_tier(manifest.claimed_tier, ceiling=None, because=because))


def _refuse_replayed(worker: Worker, signed: signing.Signed) -> None:
    if worker.signed_at is not None and signed.signed_at < worker.signed_at:
        raise SignatureReplayed(f"A manifest signed at {worker.signed_at.isoformat()} is known.")
    if signed.signed_at == worker.signed_at and worker.signed_digest not in {None, signed.digest}:
        raise SignatureReplayed("Another manifest that was signed in the same second is known; sign anew.")
    if worker.void_until is not None and signed.signed_at <= worker.void_until:
        raise SignatureReplayed(
            f"The worker was unregistered: what was signed until {worker.void_until.isoformat()} counts no more; sign anew after that."
        )


def grant_trust(worker: Worker, trusted: Trusted, now: datetime) -> bool:
    """Give a worker, in memory, the trust that its manifest has earned; says whether it changed."""
    before, worker.effective_tier = worker.effective_tier, trusted.grant.tier
    worker.tier_reason = trusted.grant.reason[:300]
    worker.signing_key = trusted.key
    worker.trust_ends_at = None
    if trusted.signed is not None:
        worker.signed_at, worker.trust_ends_at = trusted.signed.signed_at, trusted.signed.expires_at
        worker.signed_digest = trusted.signed.digest
    if before == worker.effective_tier:
        return False
    record(worker, WorkerEvent.Kind.TRUST, f"{before} to {worker.effective_tier}: {worker.tier_reason}", now)
    return True


def strip(workers: Iterable[Worker], why: str, now: datetime, *, may_return: bool) -> int:
    """End the trust in these locked workers; says how many there were.

    :param may_return: whether registering anew would help, so that their heartbeats are told to.
    """
    tenants = []
    for worker in workers:
        before, worker.effective_tier, worker.tier_reason = worker.effective_tier, Tier.UNTRUSTED, why[:300]
        if not may_return:
            worker.trust_ends_at = None
        worker.save(update_fields=["effective_tier", "tier_reason", "trust_ends_at"])
        record(worker, WorkerEvent.Kind.TRUST, f"{before} to {Tier.UNTRUSTED}: {why}", now)
        tenants.append(worker.tenant_id)
    advance(tenants)
    return len(tenants)


@transaction.atomic
def lapse_trust() -> int:
    """Call workers untrusted whose signature has ended without a fresh one. Runs as the system."""
    now = database_now()
    lapsed = Worker.objects.trusted().filter(trust_ends_at__lte=now)
    workers = lapsed.select_for_update(skip_locked=True).order_by("id")
    return strip(workers, "the signature has ended", now, may_return=True)
