"""Manifests of MCP workers: read from a registration, asked of an endpoint, made for a server that has none; their drift.

:func:`look` calls foreign servers: never call it inside a transaction. A server's hints (`readOnlyHint`, `openWorldHint`)
count as declarations. Undeclared effects count as all effects (`trust.effects_of`), and no hint gives trust.
"""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import rfc8785

from apps.core import foreign_schemas, outbound, strict_json
from apps.core.errors import FieldError, Invalid
from apps.core.outbound import CallFailed, NotMCP, legible
from apps.workers import trust
from apps.workers.models import ToolVersion
from apps.workers.shapes import MOST_TOOLS
from apps.workers.trust import Tier

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A checked registration. `original` is what was signed, member by member."""

    worker_id: str
    endpoint: str
    tools: tuple[ToolVersion, ...]
    """As they would be stored, but for the tenant and the time."""
    capabilities: tuple[str, ...]
    constraints: Mapping[str, Any]
    hints: Mapping[str, Any]
    claimed_tier: Tier
    signature: str | None
    key_id: str | None
    original: Mapping[str, Any]


def read(original: Mapping[str, Any]) -> Manifest:
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
        endpoint=endpoint(original["endpoint"]),
        tools=tuple(_contract(tool, number, original, effort) for number, tool in enumerate(original["tools"])),
        capabilities=tuple(dict.fromkeys(original.get("capabilities", ()))),
        constraints=constraints,
        hints=_without_nulls(original.get("hints", {})),
        claimed_tier=Tier(claims.get("tier", Tier.UNTRUSTED)),
        signature=claims.get("signature"),
        key_id=claims.get("key_id"),
        original=original,
    )


def endpoint(url: str) -> str:
    """Return an endpoint that may be called, judged by its text alone. Names are resolved at each call.

    :raises Invalid: `unusable_endpoint`, with the reason.
    """
    if (fault := outbound.fault_of(url)) is not None:
        raise Invalid(f"The endpoint {url[:200]!r} {fault}.", code="unusable_endpoint")
    return url


def tool_uid(contract: Mapping[str, Any]) -> str:
    """Return the name of one version of a tool: a hash of everything that a caller relies on.

    :param contract: name, description, input_schema, output_schema and side_effects.
    """
    return hashlib.blake2b(rfc8785.dumps(dict(contract)), digest_size=16).hexdigest()


def _contract(
    tool: Mapping[str, Any], number: int, original: Mapping[str, Any], effort: foreign_schemas.Effort
) -> ToolVersion:
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
        return ToolVersion(uid=tool_uid(contract), **contract)
    except rfc8785.CanonicalizationError as exc:
        raise _unusable(f"/tools/{number}", f"has no canonical form: {exc}") from exc


def _unusable(pointer: str, fault: str) -> Invalid:
    return Invalid(f"The schema at {pointer} {fault}.", code="unusable_schema", errors=[FieldError(pointer, fault)])


def _without_nulls(stated: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stated.items() if value is not None}


BOOTSTRAP: Final = "worker_bootstrap"
MOST_PAGES: Final = 20
_ANSWER_BYTES: Final = 4 * 1024 * 1024
_SERVER_NAME: Final = 100
_TOOL_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_DESCRIPTION: Final = 20_000
_STATED: Final = ("capabilities", "constraints", "hints")


class TooManyTools(CallFailed):
    """The endpoint lists more tools than a worker may have, or its list has no end."""

    code = "too_many_tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An endpoint's answer, unjudged: its tools, and its manifest where it has a `worker_bootstrap` tool."""

    server_name: str
    revision: str
    tools: "tuple[Tool, ...]"
    manifest: Any = None


def look(endpoint: str, *, deadline: timedelta, with_manifest: bool = True) -> Seen:
    """Ask an endpoint for all its tools and, where it has a `worker_bootstrap` tool, for its manifest.

    :raises CallFailed: one of its kinds.
    """
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS  # noqa: PLC0415  # as below

    from apps.core import mcp_client  # noqa: PLC0415  # takes most of a second, and few processes need it

    async def dialogue(client: "Client") -> Seen:
        if client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            await client.session.send_ping()
        tools = await _all_tools(client)
        has_manifest = with_manifest and any(tool.name == BOOTSTRAP for tool in tools)
        return Seen(
            server_name=client.server_info.name[:_SERVER_NAME] if client.server_info else "",
            revision=client.protocol_version,
            tools=tuple(tool for tool in tools if tool.name != BOOTSTRAP),
            manifest=await _manifest(client) if has_manifest else None,
        )

    return asyncio.run(mcp_client.talk(endpoint, dialogue, deadline=deadline, max_answer_bytes=_ANSWER_BYTES))


async def _all_tools(client: "Client") -> "list[Tool]":
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if len(tools) > MOST_TOOLS + 1:  # the bootstrap tool does not count
            raise TooManyTools(f"The endpoint lists more than {MOST_TOOLS} tools.")
        for tool in page.tools:
            _check_storable([tool.name, tool.description, tool.input_schema, tool.output_schema], "A tool")
        if page.next_cursor is None:
            return tools
        cursor = page.next_cursor
    raise TooManyTools(f"The endpoint's list of tools has more than {MOST_PAGES} pages.")


async def _manifest(client: "Client") -> Any:
    result = await client.call_tool(BOOTSTRAP, {})
    if result.is_error:
        raise NotMCP(f"{BOOTSTRAP} fails.")
    manifest = result.structured_content
    if manifest is None:
        text = "\n".join(block.text for block in result.content if block.type == "text")
        try:
            manifest = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise NotMCP(f"{BOOTSTRAP} answers no JSON.") from exc
    _check_storable(manifest, BOOTSTRAP)
    return manifest


def _check_storable(document: Any, what: str) -> None:
    try:
        strict_json.check(document)
    except strict_json.UnstorableJSON as exc:
        raise NotMCP(f"{what} of the endpoint can't be stored: {legible(exc.detail)}") from exc


def manifest_of(seen: Seen, *, endpoint: str, stated: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a manifest for a server that has none, and the reasons why tools were left out of it.

    :param stated: what the source states of the worker: `worker_id`, `side_effects`, capabilities, constraints, hints.
    """
    tools, left_out = [], []
    effort = foreign_schemas.Effort()
    for tool in seen.tools:
        fault = _fault(tool, effort)
        if fault is not None:
            left_out.append(f"{legible(tool.name)[:100]} {fault}")
            continue
        contract: dict[str, Any] = {
            "name": tool.name,
            "description": (tool.description or "")[:_DESCRIPTION],
            "input_schema": dict(tool.input_schema),
        }
        if tool.output_schema is not None:
            contract["output_schema"] = dict(tool.output_schema)
        if claims := _claims(tool, stated.get("side_effects") or {}):
            contract["side_effects"] = claims
        tools.append(contract)
    manifest = {
        "worker_id": stated.get("worker_id") or _worker_id(seen.server_name, endpoint),
        "endpoint": endpoint,
        "tools": tools,
        **{name: stated[name] for name in _STATED if stated.get(name)},
    }
    return manifest, left_out


def _claims(tool: "Tool", stated: Mapping[str, str | None]) -> dict[str, str]:
    """What calls of a tool touch, by its hints. What is stated of its server counts where the hints say nothing, or less.

    A tool of which nothing is said counts as touching everything.
    """
    hints, claims = tool.annotations, dict[str, str]()
    if hints is not None and {hints.read_only_hint, hints.destructive_hint} != {None}:
        claims["filesystem"] = "read" if hints.read_only_hint else "write"
    if hints is not None and hints.open_world_hint is not None:
        claims["network"] = "outbound" if hints.open_world_hint else "none"
    defaults = {"filesystem": "write", "network": "outbound", "execution": "none"} if claims else {}
    for kind, level in stated.items():
        if level is not None:
            claims[kind] = trust.wider(kind, level, claims.get(kind, level))
    return defaults | claims


def _worker_id(server_name: str, endpoint: str) -> str:
    """Servers of one name at two addresses get two ids."""
    name = _NOT_IN_AN_ID.sub("-", server_name).strip("-._")[:80] or "worker"
    return f"{name}-{hashlib.blake2b(endpoint.encode(), digest_size=4).hexdigest()}"


def _fault(tool: "Tool", effort: foreign_schemas.Effort) -> str | None:
    if _TOOL_NAME.fullmatch(tool.name) is None:
        return "has no usable name"
    if tool.input_schema.get("type", "object") != "object":
        return "takes no object"
    for schema in (tool.input_schema, tool.output_schema or {}):
        if (fault := foreign_schemas.fault_of_schema(schema, effort=effort)) is not None:
            return f"has a schema that does not stand on its own: {legible(fault)}"
        if _canonical(schema) is None:
            return "has a schema without a canonical form"
    return None


def drift(registered: Sequence[Mapping[str, Any]], listed: "Sequence[Tool]") -> str | None:
    """Return the first difference of a listed tool from its manifest; None if there is none.

    A manifest may leave out tools, and may promise outputs that the list does not describe.
    """
    shown = {tool.name: tool for tool in listed}
    for tool in registered:
        now = shown.get(tool["name"])
        if now is None:
            return f"{tool['name']} is not there any more"
        if not _same(tool["input_schema"], now.input_schema):
            return f"{tool['name']} takes other arguments"
        if now.output_schema is not None and not _same(tool.get("output_schema") or {}, now.output_schema):
            return f"{tool['name']} answers otherwise"
    return None


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return _canonical(one) == _canonical(other) is not None


def _canonical(schema: Mapping[str, Any]) -> bytes | None:
    try:
        return rfc8785.dumps(dict(schema))
    except (rfc8785.CanonicalizationError, RecursionError):
        return None
