"""Trust in MCP workers: the tiers and what they allow, and the signatures that a tier rests on. Touches no database.

A manifest only claims a tier. The claim counts up to the ceiling of the enrolled key that signed the manifest. Without such
a key it does not count.

A signature is a compact JWS by Ed25519. Its payload is the canonical JSON (RFC 8785) of the manifest without it. The
protected header holds the key id (`kid`), the time of signing (`iat`) and the end of validity (`exp`).
"""

import base64
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import rfc8785
from django.db.models import TextChoices
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from joserfc.registry import HeaderParameter

from apps.core import strict_json
from apps.core.errors import DomainError, Invalid


class BadSignature(Invalid):
    """The manifest's signature does not hold; the code says why."""

    code = "bad_signature"


class Tier(TextChoices):
    TRUSTED = "trusted"
    VERIFIED = "verified"
    SANDBOX = "sandbox"
    UNTRUSTED = "untrusted"


READ: Final = "read"
WRITE: Final = "write"
NETWORK: Final = "network"
EXEC: Final = "exec"
BIDIRECTIONAL: Final = "bidirectional"

ALL_EFFECTS: Final = frozenset({READ, WRITE, NETWORK, EXEC, BIDIRECTIONAL})

ALLOWED: Final[Mapping[Tier, frozenset[str]]] = {
    Tier.TRUSTED: ALL_EFFECTS,
    Tier.VERIFIED: frozenset({READ, NETWORK}),
    Tier.SANDBOX: frozenset({READ}),
    Tier.UNTRUSTED: frozenset(),
}

RATE_MULTIPLIER: Final[Mapping[Tier, float]] = {
    Tier.TRUSTED: 1.0,
    Tier.VERIFIED: 0.5,
    Tier.SANDBOX: 0.1,
    Tier.UNTRUSTED: 0.01,
}

CALLS_PER_HOUR: Final = 10_000
"""The limit of a worker that states none. The tier's multiplier applies to it too."""

RENEW_BEFORE: Final = timedelta(minutes=5)
"""A worker is asked to register again this long before its signature ends."""

_HOUR: Final = 3_600 * 1_000_000

_RANK: Final = {Tier.UNTRUSTED: 0, Tier.SANDBOX: 1, Tier.VERIFIED: 2, Tier.TRUSTED: 3}

_EFFECTS: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "filesystem": {"none": frozenset(), "read": frozenset({READ}), "write": frozenset({READ, WRITE})},
    "network": {
        "none": frozenset(),
        "outbound": frozenset({NETWORK}),
        "bidirectional": frozenset({NETWORK, BIDIRECTIONAL}),
    },
    "execution": {"none": frozenset(), "subprocess": frozenset({EXEC}), "container": frozenset({EXEC})},
}
_UNDECLARED: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset().union(*levels.values()) for kind, levels in _EFFECTS.items()
}


def effective_tier(claimed: Tier, *, ceiling: Tier | None, because: str) -> tuple[Tier, str]:
    """Return the lower one of the claimed tier and the ceiling of the signing key, and why; untrusted without a ceiling.

    :param because: the reason for the ceiling, or for its absence.
    """
    if ceiling is None:
        return Tier.UNTRUSTED, because
    if _RANK[claimed] <= _RANK[ceiling]:
        return claimed, because
    return ceiling, f"{because}; the key grants no more than {ceiling}"


def higher(one: Tier, other: Tier) -> Tier:
    return max(one, other, key=_RANK.__getitem__)


def calls_per_hour(stated: int | None, tier: Tier) -> float:
    """Return how many calls an hour a worker of this tier may be sent."""
    return (CALLS_PER_HOUR if stated is None else stated) * RATE_MULTIPLIER[tier]


def share_of_an_hour(per_hour: float) -> timedelta:
    """Return the time that one call takes of an hour, rounded down, so that all calls fit."""
    return timedelta(microseconds=int(_HOUR / per_hour))


def effects_of(side_effects: Mapping[str, str] | None) -> frozenset[str]:
    """Return the declared effects. A kind that is not declared counts as all effects of its kind."""
    declared = side_effects or {}
    return frozenset().union(
        *(levels.get(declared.get(kind, ""), _UNDECLARED[kind]) for kind, levels in _EFFECTS.items())
    )


def wider(kind: str, one: str, other: str) -> str:
    """The one of two levels of a kind that has more effects."""
    return max(one, other, key=lambda level: len(_EFFECTS[kind][level]))


def in_words(effects: Collection[str]) -> str:
    """What calls touch, for a person who is about to trust it."""
    return "everything" if set(effects) >= ALL_EFFECTS else ", ".join(sorted(effects)) or "nothing"


def forbidden_effects(effects: frozenset[str], tier: Tier) -> frozenset[str]:
    """Return the effects that a tier does not allow."""
    return effects - ALLOWED[tier]


ALGORITHM: Final = "Ed25519"
LONGEST_VALIDITY: Final = timedelta(days=7)
CLOCK_SKEW: Final = timedelta(minutes=2)

# Stricter than a base64 decoder: two decoders can't read the same signature differently.
_COMPACT: Final = re.compile(r"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
HEADERS: Final = jws.JWSRegistry(
    header_registry={"iat": HeaderParameter("Signed at", "int"), "exp": HeaderParameter("Ends at", "int")},
    algorithms=[ALGORITHM],
)


@dataclass(frozen=True, slots=True)
class Signed:
    """The period of a valid signature."""

    signed_at: datetime
    expires_at: datetime


def public_key(text: str) -> str:
    """Return the canonical text of a public key given as JWK.

    :raises Invalid: `bad_key`, if the text is no public Ed25519 key.
    """
    try:
        document = json.loads(text)
        key = OKPKey.import_key({name: document[name] for name in ("kty", "crv", "x")})
    except (ValueError, KeyError, TypeError, JoseError) as exc:
        raise Invalid("The key must be an Ed25519 public key as JWK.", code="bad_key") from exc
    if "d" in document or key.curve_name != "Ed25519":
        raise Invalid("The key must be the public half of an Ed25519 key.", code="bad_key")
    return rfc8785.dumps({"kty": "OKP", "crv": "Ed25519", "x": document["x"]}).decode()


def unsigned(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a signature covers: the manifest without the signature."""
    trust = {name: value for name, value in manifest.get("trust", {}).items() if name != "signature"}
    return {**manifest, "trust": trust}


def payload(manifest: Mapping[str, Any]) -> bytes:
    """Return the bytes that a signature covers."""
    return rfc8785.dumps(unsigned(manifest))


def verify(manifest: Mapping[str, Any], *, signature: str, key_id: str, key: str, now: datetime) -> Signed:
    """Return a signature's period, once it is sure that this key has signed this manifest.

    :raises BadSignature: `malformed_signature`, `wrong_algorithm`, `signature_expired`, `signature_not_yet_valid`;
        `bad_signature` where another key or another manifest was signed, or the manifest has no canonical form.
    """
    header = _header(signature)
    if header.get("alg") != ALGORITHM:
        raise BadSignature(f"Manifests are signed with {ALGORITHM}.", code="wrong_algorithm")
    try:
        found = jws.deserialize_compact(signature, OKPKey.import_key(json.loads(key)), registry=HEADERS)
    except (JoseError, ValueError) as exc:
        raise BadSignature(f"The signature is not by the key {key_id!r}.") from exc
    try:
        signed = payload(manifest)
    except rfc8785.CanonicalizationError as exc:
        raise BadSignature(f"The manifest has no canonical form that could be signed: {exc}") from exc
    if header.get("kid") != key_id or found.payload != signed:
        raise BadSignature("The signature is over another manifest.")
    return _period(header, now)


def _header(signature: str) -> dict[str, Any]:
    compact = _COMPACT.fullmatch(signature)
    if compact is None:
        raise BadSignature("The signature is no compact JWS.", code="malformed_signature")
    encoded = compact[1]
    try:
        header = strict_json.decode(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, DomainError) as exc:
        raise BadSignature("The signature's header can't be read.", code="malformed_signature") from exc
    if not isinstance(header, dict) or "crit" in header:
        raise BadSignature(
            "The signature's header must be a JSON object without extensions (crit).", code="malformed_signature"
        )
    return header


def _period(header: Mapping[str, Any], now: datetime) -> Signed:
    try:
        signed_at = datetime.fromtimestamp(header["iat"], UTC)
        expires_at = datetime.fromtimestamp(header["exp"], UTC)
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as exc:
        raise BadSignature("The signature must have a start (iat) and an end (exp).", code="signature_expired") from exc
    if signed_at - CLOCK_SKEW > now:
        raise BadSignature(
            f"The signature is dated {signed_at.isoformat()}; it is {now.isoformat()}.", code="signature_not_yet_valid"
        )
    if now >= expires_at:
        raise BadSignature(f"The signature expired at {expires_at.isoformat()}.", code="signature_expired")
    if expires_at - signed_at > LONGEST_VALIDITY:
        raise BadSignature(f"A signature is valid for {LONGEST_VALIDITY.days} days at most.", code="signature_expired")
    return Signed(signed_at, expires_at)
