"""The product's ASGI application without a server around it: a test is its transport."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from config.asgi import application

Send = Callable[[Any], Awaitable[None]]


async def ask(
    path: str,
    send: Send,
    *,
    method: str = "GET",
    query: str = "",
    body: bytes = b"",
    host: str = "localhost",
    **headers: str,
) -> None:
    """Make one request; its client stays connected for as long as the answer takes."""
    heard: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
    await heard.put({"type": "http.request", "body": body})
    named = {"host": host, "content-length": str(len(body))} | {
        name.lower().replace("_", "-"): value for name, value in headers.items()
    }
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    await application(scope, heard.get, send)
