"""What an MCP endpoint says of itself, within bounds. Speaks with strangers: call it outside of transactions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from mcp import Client
from mcp.types import TextContent, Tool
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from apps.core import mcp_client, strict_json
from apps.core.mcp_client import NotMCP
from apps.core.outbound import CallFailed
from apps.workers.shapes import MOST_TOOLS

BOOTSTRAP: Final = "worker_bootstrap"
MOST_PAGES: Final = 20
_ANSWER_BYTES: Final = 4 * 1024 * 1024
_NAME: Final = 100


class TooManyTools(CallFailed):
    """The endpoint lists more tools than a worker may have."""

    code = "too_many_tools"


class EndlessList(CallFailed):
    """The endpoint's list of tools has no end."""

    code = "endless_list"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool as `tools/list` shows it. What it says of its harmlessness is a claim."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    claims_read_only: bool
    claims_closed_world: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an endpoint has shown: its tools, and its manifest where it keeps one. Nothing of it is judged."""

    server_name: str
    revision: str
    tools: tuple[ListedTool, ...]
    manifest: Any = None


def look(endpoint: str, *, deadline: timedelta, with_manifest: bool = True) -> Seen:
    """Ask an endpoint for all its tools and, where it has a `worker_bootstrap`, for its manifest.

    :raises CallFailed: one of its kinds.
    """

    async def dialogue(client: Client) -> Seen:
        if client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
            await client.session.send_ping()
        tools = await _all_tools(client)
        keeps_manifest = with_manifest and any(tool.name == BOOTSTRAP for tool in tools)
        return Seen(
            server_name=client.server_info.name[:_NAME] if client.server_info else "",
            revision=client.protocol_version,
            tools=tuple(_listed(tool) for tool in tools if tool.name != BOOTSTRAP),
            manifest=await _manifest(client) if keeps_manifest else None,
        )

    return mcp_client.converse(endpoint, dialogue, deadline=deadline, max_answer_bytes=_ANSWER_BYTES)


async def _all_tools(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if len(tools) > MOST_TOOLS + 1:  # the bootstrap tool is not one of the worker's
            raise TooManyTools(f"The endpoint lists more than {MOST_TOOLS} tools.")
        if page.next_cursor is None:
            return tools
        if page.next_cursor == cursor:
            raise EndlessList("The endpoint's list of tools leads back to itself.")
        cursor = page.next_cursor
    raise EndlessList(f"The endpoint's list of tools has more than {MOST_PAGES} pages.")


async def _manifest(client: Client) -> Any:
    result = await client.call_tool(BOOTSTRAP, {})
    if result.is_error:
        raise NotMCP(f"{BOOTSTRAP} fails.")
    manifest = result.structured_content
    if manifest is None:
        manifest = _decoded("\n".join(block.text for block in result.content if isinstance(block, TextContent)))
    _check(manifest, BOOTSTRAP)
    return manifest


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise NotMCP(f"{BOOTSTRAP} answers no JSON.") from exc


def _listed(tool: Tool) -> ListedTool:
    hints = tool.annotations
    listed = ListedTool(
        name=tool.name,
        description=tool.description or "",
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        claims_read_only=hints is not None and hints.read_only_hint is True,
        claims_closed_world=hints is not None and hints.open_world_hint is False,
    )
    _check([listed.name, listed.description, listed.input_schema, listed.output_schema], "A tool")
    return listed


def _check(document: Any, what: str) -> None:
    try:
        strict_json.check(document)
    except strict_json.UnstorableJSON as exc:
        raise NotMCP(f"{what} of the endpoint can't be stored: {mcp_client.legible(exc.detail)}") from exc
