"""Serve a stdio MCP server over HTTP on loopback: `manage.py mcp_adapter --port 8765 -- npx -y some-mcp-server DIR`.

So it can be registered and called like any other MCP worker. Its tools are carried over and nothing else. One process
serves every client.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand, CommandError, CommandParser
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


class Command(BaseCommand):
    """It ends when the server does, and the server ends with it."""

    help = "Serve a stdio MCP server over HTTP on loopback."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=0, help="port to listen on; left out, a free one")
        parser.add_argument(
            "--env", action="append", default=[], metavar="NAME", help="a variable of the environment to hand on"
        )
        parser.add_argument("server", nargs="+", metavar="COMMAND", help="the server and its arguments, after --")

    def handle(self, *_args: Any, port: int, env: list[str], server: list[str], **_options: Any) -> None:
        if missing := [name for name in env if name not in os.environ]:
            raise CommandError(f"The environment has no {missing[0]}.")
        try:
            with socket.create_server(("127.0.0.1", port)) as listener:
                process = StdioServerParameters(
                    command=server[0], args=server[1:], env={name: os.environ[name] for name in env}
                )
                asyncio.run(_serve(process, listener, ready=self._say))
        except OSError as refusal:
            raise CommandError(f"{server[0]} can't be served: {refusal}") from refusal

    def _say(self, endpoint: str) -> None:
        self.stdout.write(f"ready {endpoint}")
        self.stdout.flush()


async def _serve(process: StdioServerParameters, listener: socket.socket, *, ready: Callable[[str], None]) -> None:
    """Start the server, say where it answers, and serve until it ends or somebody interrupts."""
    async with Client(process, cache=None) as client:
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
