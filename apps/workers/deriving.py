"""The manifest of a server that knows nothing of this product, made of the tools that it lists; and how far those drift.

What a server says of its tools' harmlessness (`readOnlyHint`, `openWorldHint`) is taken for what a manifest would say:
a declaration. What it leaves unsaid counts as everything (`trust.effects_of`), and nothing here makes anybody trusted.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import rfc8785

from apps.core import foreign_schemas
from apps.core.mcp_client import legible
from apps.workers.endpoints import ListedTool, Seen

_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_DESCRIPTION: Final = 20_000
_STATED: Final = ("capabilities", "constraints", "hints")


def manifest_of(seen: Seen, *, endpoint: str, stated: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The manifest, and why tools were left out of it.

    :param stated: what an operator says of the worker: `worker_id`, `side_effects`, capabilities, constraints, hints.
    """
    tools, left_out = [], []
    effort = foreign_schemas.Effort()
    for tool in seen.tools:
        fault = _fault(tool, effort)
        if fault is None:
            tools.append(_contract(tool, stated.get("side_effects") or {}))
        else:
            left_out.append(f"{legible(tool.name)[:100]} {fault}")
    manifest = {
        "worker_id": stated.get("worker_id") or worker_id(seen.server_name, endpoint),
        "endpoint": endpoint,
        "tools": tools,
        **{name: stated[name] for name in _STATED if stated.get(name)},
    }
    return manifest, left_out


def worker_id(server_name: str, endpoint: str) -> str:
    """Two servers of one name at two addresses are two workers."""
    name = _NOT_IN_AN_ID.sub("-", server_name).strip("-._")[:80] or "worker"
    return f"{name}-{hashlib.blake2b(endpoint.encode(), digest_size=4).hexdigest()}"


def drift(registered: Sequence[Mapping[str, Any]], listed: Sequence[ListedTool]) -> str | None:
    """What a worker's list of tools says otherwise than its manifest; None if they agree.

    A manifest may hold back tools, and may promise outputs of which the list says nothing.
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


def same_but_for_trust(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two manifests say the same of a worker, whoever has signed them."""
    return {**one, "trust": None} == {**other, "trust": None}


def _fault(tool: ListedTool, effort: foreign_schemas.Effort) -> str | None:
    if _NAME.fullmatch(tool.name) is None:
        return "has no usable name"
    if tool.input_schema.get("type", "object") != "object":
        return "takes no object"
    for schema in (tool.input_schema, tool.output_schema or {}):
        if (fault := foreign_schemas.fault_of_schema(schema, effort=effort)) is not None:
            return f"has a schema that does not stand on its own: {legible(fault)}"
        if _canonical(schema) is None:
            return "has a schema without a canonical form"
    return None


def _contract(tool: ListedTool, side_effects: Mapping[str, str]) -> dict[str, Any]:
    claimed = {}
    if tool.claims_read_only:
        claimed["filesystem"] = "read"
    if tool.claims_closed_world:
        claimed["network"] = "none"
    declared = {**claimed, **side_effects}
    contract: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description[:_DESCRIPTION],
        "input_schema": dict(tool.input_schema),
    }
    if tool.output_schema is not None:
        contract["output_schema"] = dict(tool.output_schema)
    if declared:
        contract["side_effects"] = declared
    return contract


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return _canonical(one) == _canonical(other) is not None


def _canonical(schema: Mapping[str, Any]) -> bytes | None:
    try:
        return rfc8785.dumps(dict(schema))
    except (rfc8785.CanonicalizationError, RecursionError):
        return None
