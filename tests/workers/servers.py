"""MCP servers inside the test process that know nothing of this product, and what they may be told to be."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

NO_ARGUMENTS = {"type": "object"}
A_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def make_tool(name: str = "shout", **members: Any) -> Tool:
    return Tool(name=name, description=f"Will {name} a text.", input_schema=A_TEXT, **members)


READS: ToolAnnotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)


@dataclass
class McpServer:
    """Where it answers, and what it offers from now on. `manifest` is what its `worker_bootstrap` answers."""

    endpoint: str = ""
    tools: list[Tool] = field(default_factory=lambda: [make_tool()])
    manifest: Callable[[], Any] | None = None
    structured: dict[str, Any] | None = None
    """What every other tool answers besides its text."""
    page_size: int = 1000
    asked: list[str] = field(default_factory=list)
    stop: Callable[[], None] = lambda: None

    def _listed(self) -> list[Tool]:
        own = [Tool(name="worker_bootstrap", input_schema=NO_ARGUMENTS)] if self.manifest is not None else []
        return [*self.tools, *own]

    async def list_tools(self, _ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        self.asked.append("tools/list")
        start = int(params.cursor) if params is not None and params.cursor else 0
        end = start + self.page_size
        listed = self._listed()
        return ListToolsResult(tools=listed[start:end], next_cursor=str(end) if end < len(listed) else None)

    async def call_tool(self, _ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        self.asked.append(params.name)
        if params.name == "worker_bootstrap" and self.manifest is not None:
            return CallToolResult(content=[], structured_content=self.manifest())
        text = str((params.arguments or {}).get("text", "")).upper()
        return CallToolResult(content=[TextContent(text=text)], structured_content=self.structured)


@contextmanager
def serving(*, name: str = "shouter") -> Iterator[McpServer]:
    """An MCP server on a free loopback port, until the block ends or the test stops it."""
    served = McpServer()
    lowlevel: Server[Any] = Server(name, on_list_tools=served.list_tools, on_call_tool=served.call_tool)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        lowlevel.streamable_http_app(), log_level="critical", log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name="mcp-server")
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(10)
        listener.close()

    served.stop = stop
    served.endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    try:
        yield served
    finally:
        stop()
