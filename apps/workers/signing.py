"""A manifest's signature: a compact JWS by Ed25519 whose payload is the canonical JSON (RFC 8785) of the manifest without it.

The protected header names the key (`kid`), when it was signed (`iat`) and until when that counts (`exp`).
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import rfc8785
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from joserfc.registry import HeaderParameter

from apps.core import strict_json
from apps.core.errors import DomainError
from apps.workers.errors import (
    BadKey,
    BadSignature,
    MalformedSignature,
    SignatureExpired,
    SignatureNotYetValid,
    WrongAlgorithm,
)

ALGORITHM: Final = "Ed25519"
LONGEST_VALIDITY: Final = timedelta(days=7)
CLOCK_SKEW: Final = timedelta(minutes=2)

# One reading only: what a lenient decoder would skip is refused before two decoders can differ over it.
_COMPACT: Final = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_REGISTRY: Final = jws.JWSRegistry(
    header_registry={"iat": HeaderParameter("Signed at", "int"), "exp": HeaderParameter("Ends at", "int")},
    algorithms=[ALGORITHM],
)


@dataclass(frozen=True, slots=True)
class Signed:
    """What a valid signature says of itself. `digest` names what it was made over."""

    signed_at: datetime
    expires_at: datetime
    digest: str


def public_key(text: str) -> str:
    """Return the canonical text of a public key given as JWK.

    :raises BadKey: if it is none, or a private one.
    """
    try:
        document = json.loads(text)
        key = OKPKey.import_key({name: document[name] for name in ("kty", "crv", "x")})
    except (ValueError, KeyError, TypeError, JoseError) as exc:
        raise BadKey("The key must be an Ed25519 public key as JWK.") from exc
    if "d" in document or key.curve_name != "Ed25519":
        raise BadKey("The key must be the public half of an Ed25519 key.")
    return rfc8785.dumps({"kty": "OKP", "crv": "Ed25519", "x": document["x"]}).decode()


def payload(manifest: Mapping[str, Any]) -> bytes:
    """Return what is signed of a manifest, as it is signed."""
    return rfc8785.dumps(unsigned(manifest))


def unsigned(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is signed of a manifest: all but the signature."""
    trust = {name: value for name, value in manifest.get("trust", {}).items() if name != "signature"}
    return {**manifest, "trust": trust}


def sign(manifest: Mapping[str, Any], *, private_key: Mapping[str, str], now: datetime, validity: timedelta) -> str:
    """Return the signature of a manifest by a private JWK that has a `kid`."""
    header = {
        "alg": ALGORITHM,
        "kid": private_key["kid"],
        "iat": int(now.timestamp()),
        "exp": int((now + validity).timestamp()),
    }
    return jws.serialize_compact(header, payload(manifest), OKPKey.import_key(dict(private_key)), registry=_REGISTRY)


def verify(manifest: Mapping[str, Any], *, signature: str, key_id: str, key: str, now: datetime) -> Signed:
    """Return what a signature says, once it is sure that this key made it over this manifest.

    :raises MalformedSignature: if it is no compact JWS, writes a header twice, or demands extensions (`crit`).
    :raises WrongAlgorithm: if it was made with anything but Ed25519.
    :raises SignatureExpired: if its time is over, or longer than allowed.
    :raises SignatureNotYetValid: if its time has not begun.
    :raises BadSignature: if it is not this key's, or over something else, or the manifest has no canonical form.
    """
    header = _header(signature)
    if header.get("alg") != ALGORITHM:
        raise WrongAlgorithm(f"Manifests are signed with {ALGORITHM}.")
    try:
        found = jws.deserialize_compact(signature, OKPKey.import_key(json.loads(key)), registry=_REGISTRY)
    except (JoseError, ValueError) as exc:
        raise BadSignature(f"The signature is not by the key {key_id!r}.") from exc
    try:
        signed = payload(manifest)
    except rfc8785.CanonicalizationError as exc:
        raise BadSignature(f"The manifest has no canonical form that could be signed: {exc}") from exc
    if header.get("kid") != key_id or found.payload != signed:
        raise BadSignature("The signature is over another manifest.")
    signed_at, expires_at = _period(header, now)
    return Signed(signed_at, expires_at, hashlib.blake2b(found.payload, digest_size=16).hexdigest())


def _header(signature: str) -> dict[str, Any]:
    compact = _COMPACT.fullmatch(signature)
    if compact is None:
        raise MalformedSignature("The signature is no compact JWS.")
    encoded = compact[1]
    try:
        header = strict_json.decode(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, DomainError) as exc:
        raise MalformedSignature("The signature's header can't be read.") from exc
    if not isinstance(header, dict) or "crit" in header:
        raise MalformedSignature("The signature's header is a JSON object that demands no extensions.")
    return header


def _period(header: Mapping[str, Any], now: datetime) -> tuple[datetime, datetime]:
    try:
        signed_at = datetime.fromtimestamp(header["iat"], UTC)
        expires_at = datetime.fromtimestamp(header["exp"], UTC)
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as exc:
        raise SignatureExpired("The signature must say when it was made (iat) and when it ends (exp).") from exc
    if signed_at - CLOCK_SKEW > now:
        raise SignatureNotYetValid(f"The signature is dated {signed_at.isoformat()}; here it is {now.isoformat()}.")
    if now >= expires_at:
        raise SignatureExpired(f"The signature counted from {signed_at.isoformat()} to {expires_at.isoformat()}.")
    if expires_at - signed_at > LONGEST_VALIDITY:
        raise SignatureExpired(f"A signature counts for {LONGEST_VALIDITY.days} days at most.")
    return signed_at, expires_at
