"""Checks of an MCP worker's manifest before it is stored: its endpoint, its schemas, and the hash of each tool version."""

import hashlib
import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import rfc8785

from apps.core import foreign_schemas
from apps.core.errors import FieldError, Invalid
from apps.workers import trust
from apps.workers.trust import Tier

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContract:
    """One tool of a manifest, with the hash that names this version of the tool."""

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
    """A checked registration. `original` is what was signed, member by member."""

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
    """Return the manifest of a registration that :class:`apps.workers.shapes.RegisterWorker` has accepted.

    :raises Invalid: `repeated_tool`; `unusable_endpoint`; `unusable_schema`, if a tool's schema is broken, refers to
        another document, or does not describe an object.
    """
    claims = original.get("trust", {})
    names = Counter(tool["name"] for tool in original["tools"])
    if repeated := sorted(name for name, times in names.items() if times > 1):
        raise Invalid(f"The manifest names a tool twice: {repeated[0]}.", code="repeated_tool")
    constraints = _without_nulls(original.get("constraints", {}))
    if (limit := constraints.pop("rate_limit", None)) is not None:
        constraints.setdefault("rate_limit_per_hour", limit)
    effort = foreign_schemas.Effort()
    return Manifest(
        worker_id=original["worker_id"],
        endpoint=endpoint(original["endpoint"], allow_loopback=allow_loopback, networks=networks),
        tools=tuple(_contract(tool, number, original, effort) for number, tool in enumerate(original["tools"])),
        capabilities=tuple(dict.fromkeys(original.get("capabilities", ()))),
        constraints=constraints,
        hints=_without_nulls(original.get("hints", {})),
        claimed_tier=Tier(claims.get("tier", Tier.UNTRUSTED)),
        signature=claims.get("signature"),
        key_id=claims.get("key_id"),
        original=original,
    )


def endpoint(url: str, *, allow_loopback: bool, networks: Sequence[Network] = ()) -> str:
    """Return an endpoint that may be called, judged by its text alone. Names are resolved at each call.

    :param networks: private networks that may be called.
    :raises Invalid: `unusable_endpoint`, with the reason.
    """
    fault = _fault_of(url, allow_loopback=allow_loopback, networks=networks)
    if fault is not None:
        raise Invalid(fault, code="unusable_endpoint")
    return url


def _fault_of(url: str, *, allow_loopback: bool, networks: Sequence[Network]) -> str | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return f"{url[:200]!r} is no address."
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        return "An endpoint is an http or https address."
    if parts.username or parts.password or parts.fragment:
        return "An endpoint holds no credentials and no fragment."
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is None:
        is_loopback = host.casefold().rstrip(".") in _LOOPBACK_NAMES
        # A name may lead into an allowed network: each call checks the resolved address.
        is_allowed, is_public = bool(networks) and not is_loopback, True
    else:
        is_loopback, is_public = address.is_loopback, address.is_global
        is_allowed = any(address in network for network in networks)
    if is_loopback and not allow_loopback and not is_allowed:
        return "This deployment calls no workers on its own machine."
    if not (is_loopback or is_allowed or (parts.scheme == "https" and is_public)):
        return "An endpoint is public and served over https, or in a network that may be called."
    return None


def tool_uid(contract: Mapping[str, Any]) -> str:
    """Return the name of one version of a tool: a hash of everything that a caller relies on.

    :param contract: name, description, input_schema, output_schema and side_effects.
    """
    return hashlib.blake2b(rfc8785.dumps(dict(contract)), digest_size=16).hexdigest()


def _contract(
    tool: Mapping[str, Any], number: int, original: Mapping[str, Any], effort: foreign_schemas.Effort
) -> ToolContract:
    input_schema, output_schema = tool["input_schema"], tool.get("output_schema") or {}
    for name, schema in (("input_schema", input_schema), ("output_schema", output_schema)):
        if (fault := foreign_schemas.fault_of_schema(schema, effort=effort)) is not None:
            raise _unusable(f"/tools/{number}/{name}", f"is no JSON Schema that stands on its own: {fault}")
    if input_schema.get("type", "object") != "object":
        raise _unusable(f"/tools/{number}/input_schema", "describes no object")
    contract = {
        "name": tool["name"],
        "description": tool.get("description", ""),
        "input_schema": input_schema,
        "output_schema": output_schema,
        "side_effects": tool.get("side_effects") or original.get("side_effects"),
    }
    try:
        return ToolContract(uid=tool_uid(contract), **contract)
    except rfc8785.CanonicalizationError as exc:
        raise _unusable(f"/tools/{number}", f"has no canonical form: {exc}") from exc


def _unusable(pointer: str, fault: str) -> Invalid:
    return Invalid(f"The schema at {pointer} {fault}.", code="unusable_schema", errors=[FieldError(pointer, fault)])


def _without_nulls(stated: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stated.items() if value is not None}
