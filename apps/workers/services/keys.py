"""Enrolling the keys that trust rests on, and revoking them. A key is locked before the workers that rest on it."""

from django.db import transaction

from apps.core.sql import database_now
from apps.workers import signing
from apps.workers.errors import KeyIdTaken, UnknownKey
from apps.workers.models import SigningKey, Worker
from apps.workers.services.judging import strip
from apps.workers.trust import Tier


@transaction.atomic
def enroll_key(*, tenant_id: int, key_id: str, public_key: str, ceiling: Tier) -> SigningKey:
    """Trust manifests that a key signs, up to a ceiling. Doing it twice changes nothing.

    Workers that came with this key before it was enrolled are told by their next heartbeat to register anew.

    :raises BadKey: if the text is no public Ed25519 JWK.
    :raises KeyIdTaken: if the id is another key's, or this key's with another ceiling, or revoked.
    """
    text, now = signing.public_key(public_key), database_now()
    key, created = SigningKey.objects.get_or_create(
        tenant_id=tenant_id,
        key_id=key_id,
        defaults={"public_key": text, "ceiling": ceiling, "enrolled_at": now},
    )
    if (key.public_key, key.ceiling, key.revoked_at) != (text, ceiling, None):
        raise KeyIdTaken(f"A key {key_id!r} is enrolled that differs from this one.")
    if created:
        named = Worker.objects.registered().filter(tenant_id=tenant_id, manifest__trust__key_id=key_id)
        named.filter(signing_key=None).update(trust_ends_at=now)
    return key


@transaction.atomic
def revoke_key(*, tenant_id: int, key_id: str, why: str) -> int:
    """End the trust in a key at once and for good: its workers are untrusted from now on. Returns how many there were.

    :raises UnknownKey: if no such key was enrolled.
    """
    now = database_now()
    key = SigningKey.objects.filter(tenant_id=tenant_id, key_id=key_id).select_for_update(no_key=True).first()
    if key is None:
        raise UnknownKey(f"No key {key_id[:100]!r} is enrolled.")
    if key.revoked_at is None:
        key.revoked_at = now
        key.save(update_fields=["revoked_at"])
    resting = Worker.objects.trusted().filter(signing_key=key).select_for_update().order_by("id")
    return strip(resting, f"the key {key_id} was revoked: {why}", now, may_return=False)
