"""Servers inside the test process: MCP servers that know nothing of this product, and stand-ins for etcd and Consul.

The stand-ins do as much of the documented HTTP APIs as discovery uses.
"""

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ToolsListChanged
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextContent,
    Tool,
    ToolAnnotations,
)

from tests.remote import Behaviour, Exchange, Received, says
from tests.remote import serving as serving_remote

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
    traces: list[str] = field(default_factory=list)
    """The trace of each call, as its message names it."""
    changes: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)
    loop: asyncio.AbstractEventLoop | None = None
    stop: Callable[[], None] = lambda: None

    @property
    def port(self) -> int:
        return urlsplit(self.endpoint).port or 0

    def _listed(self) -> list[Tool]:
        own = [Tool(name="worker_bootstrap", input_schema=NO_ARGUMENTS)] if self.manifest is not None else []
        return [*self.tools, *own]

    def say_that_tools_changed(self) -> None:
        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(self.changes.publish(ToolsListChanged()), self.loop).result(10)

    async def listen(self, ctx: Any, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        self.loop = asyncio.get_running_loop()
        self.loop.call_later(0.2, self.asked.append, "subscriptions/listen")
        return await ListenHandler(self.changes)(ctx, params)

    async def list_tools(self, _ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        self.asked.append("tools/list")
        start = int(params.cursor) if params is not None and params.cursor else 0
        end = start + self.page_size
        listed = self._listed()
        return ListToolsResult(tools=listed[start:end], next_cursor=str(end) if end < len(listed) else None)

    async def call_tool(self, _ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        self.asked.append(params.name)
        self.traces.append(str((params.meta or {}).get("traceparent")))
        if params.name == "worker_bootstrap" and self.manifest is not None:
            return CallToolResult(content=[], structured_content=self.manifest())
        text = str((params.arguments or {}).get("text", "")).upper()
        return CallToolResult(content=[TextContent(text=text)], structured_content=self.structured)


@contextmanager
def serving(*, name: str = "shouter") -> Iterator[McpServer]:
    """An MCP server on a free loopback port, until the block ends or the test stops it."""
    served = McpServer()
    lowlevel: Server[Any] = Server(
        name,
        on_list_tools=served.list_tools,
        on_call_tool=served.call_tool,
        on_subscriptions_listen=served.listen,
    )
    served.endpoint, served.stop = begin_serving(lowlevel.streamable_http_app())
    try:
        yield served
    finally:
        served.stop()


def begin_serving(app: Any) -> tuple[str, Callable[[], None]]:
    """The MCP endpoint of an application on a free loopback port, and what stops it."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), name="mcp-server")
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(10)
        listener.close()

    return f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", stop


def encoded(text: str | bytes) -> str:
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


@dataclass
class Registry:
    """etcd at `/v3/…` and Consul at `/v1/…`."""

    url: str = ""
    keys: dict[str, str] = field(default_factory=dict)
    """Of etcd: keys and values in base64."""
    services: list[Any] = field(default_factory=list)
    """Of Consul."""
    password: str = ""
    """Of etcd's user, where etcd asks for one."""
    token: str = ""
    """The token that etcd accepts now, or that Consul asks for."""
    keeps_back: bool = False
    """Consul's token does not see all instances."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def put(self, key: str | bytes, value: Any) -> None:
        self.keys[encoded(key)] = encoded(value if isinstance(value, str) else json.dumps(value))

    def delete(self, key: str | bytes) -> None:
        del self.keys[encoded(key)]

    def serve(self, *services: Any) -> None:
        self.services = list(services)

    def answer(self, exchange: Exchange) -> None:
        """As etcd where something is posted, else as Consul."""
        answered = self._as_etcd if exchange.handler.command == "POST" else self._as_consul
        answered(exchange.received)(exchange)

    def _as_etcd(self, received: Received) -> Behaviour:
        self.asked.append((received.path, received.json))
        if received.path == "/v3/auth/authenticate":
            is_right = self.password and received.json["password"] == self.password
            return says(200, {"token": self.token}) if is_right else says(400, {"error": "failed"})
        if self.password and received.headers.get("Authorization") != self.token:
            return says(401, {"error": "invalid auth token"})
        return says(200, self.range(received.json))

    def _as_consul(self, received: Received) -> Behaviour:
        url = urlsplit(received.path)
        self.asked.append((url.path, {name: values[0] for name, values in parse_qs(url.query).items()}))
        if self.token and received.headers.get("X-Consul-Token") != self.token:
            return says(403, {"error": "Permission denied"})
        kept_back = {"X-Consul-Results-Filtered-By-ACLs": "true"} if self.keeps_back else {}
        return says(200, self.services, **{"X-Consul-Index": "11"}, **kept_back)

    def range(self, asked: dict[str, Any]) -> dict[str, Any]:
        first, end = base64.b64decode(asked["key"]), base64.b64decode(asked["range_end"])
        found = [(key, value) for key, value in sorted(self.keys.items()) if first <= base64.b64decode(key) < end]
        kvs = [{"key": key, "value": value} for key, value in found[: asked["limit"]]]
        return {"header": {"revision": "11"}, **({"kvs": kvs} if kvs else {})}


def service(name: str, port: int, **members: Any) -> dict[str, Any]:
    """An instance of a service as Consul lists it."""
    about = {"ID": name, "Service": "mcp-worker", "Address": "", "Port": port, "Tags": [], "Meta": {}, **members}
    return {"Node": {"Node": "n1", "Address": "127.0.0.1"}, "Service": about, "Checks": [{"Status": "passing"}]}


@contextmanager
def serving_registry() -> Iterator[Registry]:
    registry = Registry()
    with serving_remote(registry.answer) as remote:
        registry.url = remote.url
        yield registry
