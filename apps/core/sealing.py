"""Secrets of others that must be readable again (signing secrets, credentials): at rest they are sealed.

The keys are the deployment's own: the first seals, all of them open, so that a key can be changed while what the old
one has sealed stays readable. Without its key nothing sealed can be recovered.
"""

import base64
import hashlib
import hmac

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


class SealBroken(Exception):
    """No key of this deployment opens this."""


def seal(secret: str) -> str:
    """Encrypt and authenticate a secret; what comes out is ASCII and may be stored."""
    return _keys().encrypt(secret.encode()).decode()


def unseal(sealed: str) -> str:
    """
    :raises SealBroken: if it was sealed with a key that is gone, or has been tampered with.
    """
    try:
        return _keys().decrypt(sealed.encode()).decode()
    except InvalidToken as exc:
        raise SealBroken("None of GATEHOUSE_SEALING_KEYS opens this.") from exc


def _keys() -> MultiFernet:
    return MultiFernet(
        # Keys are long random texts, so one hash makes of each the 32 bytes that Fernet wants.
        [Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest())) for key in settings.SEALING_KEYS]
    )


def keyed_digest(purpose: str, content: bytes) -> bytes:
    """What tells whether contents are the same, and nothing of them to who has not this deployment's keys."""
    return hmac.digest(settings.SEALING_KEYS[0].encode(), purpose.encode() + b"\x00" + content, "sha256")
