"""A worker's manifest, judged before it is stored: its endpoint, its schemas, and what names each tool's version."""

import hashlib
import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import rfc8785

from apps.core import foreign_schemas
from apps.core.errors import FieldError
from apps.core.foreign_schemas import Effort
from apps.workers import trust
from apps.workers.errors import RepeatedTool, UnusableEndpoint, UnusableSchema
from apps.workers.trust import Tier

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContract:
    """One tool as a manifest states it, with the hash that names this version of it."""

    uid: str
    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any]
    side_effects: Mapping[str, str] | None

    @property
    def effects(self) -> frozenset[str]:
        return trust.effects_of(self.side_effects)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A registration, checked. `original` is what was signed, member by member."""

    worker_id: str
    endpoint: str
    tools: tuple[ToolContract, ...]
    capabilities: tuple[str, ...]
    constraints: Mapping[str, Any]
    hints: Mapping[str, Any]
    claimed_tier: Tier
    signature: str | None
    key_id: str | None
    original: Mapping[str, Any]


def read(original: Mapping[str, Any], *, allow_loopback: bool, networks: Sequence[Network] = ()) -> Manifest:
    """Return a manifest whose form is already known to be right.

    :raises RepeatedTool: if two tools have one name.
    :raises UnusableEndpoint: if no call could go there.
    :raises UnusableSchema: if a tool's schema is broken, fetches from elsewhere, or is no object's.
    """
    claims = original.get("trust", {})
    names = Counter(tool["name"] for tool in original["tools"])
    if repeated := sorted(name for name, times in names.items() if times > 1):
        raise RepeatedTool(f"The manifest names a tool twice: {repeated[0]}.")
    effort = Effort()
    return Manifest(
        worker_id=original["worker_id"],
        endpoint=endpoint(original["endpoint"], allow_loopback=allow_loopback, networks=networks),
        tools=tuple(_contract(tool, number, original, effort) for number, tool in enumerate(original["tools"])),
        capabilities=tuple(dict.fromkeys(original.get("capabilities", ()))),
        constraints=_constraints(original.get("constraints", {})),
        hints=_said(original.get("hints", {})),
        claimed_tier=Tier(claims.get("tier", Tier.UNTRUSTED)),
        signature=claims.get("signature"),
        key_id=claims.get("key_id"),
        original=original,
    )


def endpoint(url: str, *, allow_loopback: bool, networks: Sequence[Network] = ()) -> str:
    """Return an endpoint that a call could go to, by its text alone; names are resolved when a call is made.

    :param networks: private ones that may be called.
    :raises UnusableEndpoint: naming the reason.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as exc:
        raise UnusableEndpoint(f"{url[:200]!r} is no address.") from exc
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        raise UnusableEndpoint("An endpoint is an http or https address.")
    if parts.username or parts.password or parts.fragment:
        raise UnusableEndpoint("An endpoint holds no credentials and no fragment.")
    if _is_loopback(host) and not allow_loopback and not _is_within(host, networks):
        raise UnusableEndpoint("This deployment calls no workers on its own machine.")
    if not (_is_loopback(host) or _is_within(host, networks) or (parts.scheme == "https" and _is_public(host))):
        raise UnusableEndpoint("An endpoint is public and served over https, or in a network that may be called.")
    return url


def tool_uid(*, name: str, description: str, input_schema: object, output_schema: object, side_effects: object) -> str:
    """Return the name of one version of a tool: a hash of all that a caller relies on."""
    body = {
        "name": name,
        "description": description,
        "input_schema": input_schema,
        "output_schema": output_schema,
        "side_effects": side_effects,
    }
    return hashlib.blake2b(rfc8785.dumps(body), digest_size=16).hexdigest()  # type: ignore[arg-type]  # JSON values by contract


def _contract(tool: Mapping[str, Any], number: int, original: Mapping[str, Any], effort: Effort) -> ToolContract:
    input_schema, output_schema = tool["input_schema"], tool.get("output_schema") or {}
    for name, schema in (("input_schema", input_schema), ("output_schema", output_schema)):
        _check_schema(schema, f"/tools/{number}/{name}", effort)
    if input_schema.get("type", "object") != "object":
        raise _unusable(f"/tools/{number}/input_schema", "describes no object")
    stated = {
        "name": tool["name"],
        "description": tool.get("description", ""),
        "input_schema": input_schema,
        "output_schema": output_schema,
        "side_effects": tool.get("side_effects") or original.get("side_effects"),
    }
    try:
        return ToolContract(uid=tool_uid(**stated), **stated)
    except rfc8785.CanonicalizationError as exc:
        raise _unusable(f"/tools/{number}", f"has no canonical form: {exc}") from exc


def _check_schema(schema: Mapping[str, Any], pointer: str, effort: Effort) -> None:
    if (fault := foreign_schemas.fault_of_schema(schema, effort=effort)) is not None:
        raise _unusable(pointer, f"is no JSON Schema that stands on its own: {fault}")


def _unusable(pointer: str, fault: str) -> UnusableSchema:
    return UnusableSchema(f"The schema at {pointer} {fault}.", errors=[FieldError(pointer, fault)])


def _constraints(stated: Mapping[str, Any]) -> Mapping[str, Any]:
    """A manifest may say `rate_limit` for `rate_limit_per_hour`."""
    named = _said(stated)
    if (limit := named.pop("rate_limit", None)) is not None:
        named.setdefault("rate_limit_per_hour", limit)
    return named


def _said(stated: Mapping[str, Any]) -> dict[str, Any]:
    """What is said to be null is left out."""
    return {name: value for name, value in stated.items() if value is not None}


def _is_loopback(host: str) -> bool:
    if host.casefold().rstrip(".") in _LOOPBACK_NAMES:
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _is_within(host: str, networks: Sequence[Network]) -> bool:
    """Whether it is in one of the networks, or may be: where a name leads is seen when a call is made."""
    address = _address(host)
    if address is None:
        return bool(networks) and not _is_loopback(host)
    return any(address in network for network in networks)


def _is_public(host: str) -> bool:
    address = _address(host)
    return address is None or address.is_global


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
