"""Standard Webhooks 1.0: the secret, and the headers that prove who sent a body, when, and as which message."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32


def new_secret() -> str:
    """A fresh signing secret: `whsec_` and 256 random bits in base64."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def headers(*, message_id: str, timestamp: int, body: bytes, signed_with: Sequence[str]) -> Mapping[str, str]:
    """The headers of a message, with one signature for each secret, so that either side of a rotation verifies it."""
    signatures = [_signature(secret, message_id, timestamp, body) for secret in signed_with]
    return {
        "content-type": "application/json",
        "user-agent": "Gatehouse-Activation",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


def _signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
