"""Enrolling the keys that trust rests on, and revoking them."""

from django.db import transaction

from apps.core.sql import database_now
from apps.workers import signing
from apps.workers.errors import KeyIdTaken
from apps.workers.models import SigningKey, Worker
from apps.workers.services.rows import advance
from apps.workers.trust import Tier


@transaction.atomic
def enroll_key(*, tenant_id: int, key_id: str, public_key: str, ceiling: Tier) -> SigningKey:
    """Trust manifests that a key signs, up to a ceiling. Doing it twice changes nothing.

    :raises BadKey: if the text is no public Ed25519 JWK.
    :raises KeyIdTaken: if the id is another key's, or this key's with another ceiling, or revoked.
    """
    text = signing.public_key(public_key)
    key, _ = SigningKey.objects.get_or_create(
        tenant_id=tenant_id,
        key_id=key_id,
        defaults={"public_key": text, "ceiling": ceiling, "enrolled_at": database_now()},
    )
    if (key.public_key, key.ceiling, key.revoked_at) != (text, ceiling, None):
        raise KeyIdTaken(f"A key {key_id!r} is enrolled that differs from this one.")
    return key


@transaction.atomic
def revoke_key(*, tenant_id: int, key_id: str) -> int:
    """End the trust in a key at once: its workers are untrusted from now on. Returns how many there were."""
    now = database_now()
    SigningKey.objects.filter(tenant_id=tenant_id, key_id=key_id, revoked_at=None).update(revoked_at=now)
    workers = Worker.objects.filter(tenant_id=tenant_id, signing_key__key_id=key_id)
    stripped = workers.exclude(effective_tier=Tier.UNTRUSTED).update(
        effective_tier=Tier.UNTRUSTED, tier_reason=f"the key {key_id} was revoked"
    )
    if stripped:
        advance([tenant_id])
    return stripped
