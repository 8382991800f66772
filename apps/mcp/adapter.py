"""A stdio MCP server at an HTTP address on loopback, so that it can be found and called like any other worker.

Its tools are carried over and nothing else. One process serves everybody who comes.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp.server.lowlevel import Server
from mcp.types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)


class Adapter:
    """One stdio server behind one listener, for as long as both live."""

    def __init__(self, command: Sequence[str], *, inherited: Sequence[str] = ()) -> None:
        """:param inherited: names of variables of our environment that the server is given."""
        environment = {name: os.environ[name] for name in inherited}
        self._process = StdioServerParameters(command=command[0], args=list(command[1:]), env=environment)

    def serve(self, listener: socket.socket, *, ready: Callable[[str], None]) -> None:
        """Start the server, say where it answers, and serve until it ends or somebody interrupts."""
        asyncio.run(self._serve(listener, ready))

    async def _serve(self, listener: socket.socket, ready: Callable[[str], None]) -> None:
        async with Client(self._process, cache=None) as client:
            bridged = _Bridged(client)
            name = client.server_info.name if client.server_info else "stdio"
            server: Server[Any] = Server(name, on_list_tools=bridged.list_tools, on_call_tool=bridged.call_tool)
            config = uvicorn.Config(
                server.streamable_http_app(), log_level="warning", log_config=None, timeout_graceful_shutdown=3
            )
            http = uvicorn.Server(config)
            bridged.on_end = lambda: setattr(http, "should_exit", True)
            host, port = listener.getsockname()[:2]
            ready(f"http://{host}:{port}/mcp")
            await http.serve(sockets=[listener])


class _Bridged:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.on_end: Callable[[], None] = lambda: None

    async def list_tools(self, _ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        try:
            return await self._client.session.list_tools(params=params)
        except MCPError as error:
            self._look_at(error)
            raise

    async def call_tool(self, _ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        # Results are carried over as they are: whoever called judges them.
        request = CallToolRequest(params=CallToolRequestParams(name=params.name, arguments=params.arguments))
        try:
            return await self._client.session.send_request(request, CallToolResult)
        except MCPError as error:
            self._look_at(error)
            raise

    def _look_at(self, error: MCPError) -> None:
        if error.code == CONNECTION_CLOSED:
            self.on_end()
