"""MCP by hand: messages as they stand on the wire."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.test import Client
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY

MODERN = "2026-07-28"
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


@dataclass(frozen=True)
class Answer:
    status_code: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content)


def post(body: object, token: str | None, **headers: str) -> Answer:
    """A body as it is, with the token as bearer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = _carried(token, headers)
    answer = Client(raise_request_exception=False).post(
        "/mcp", content, content_type=headers.pop("Content-Type"), headers=headers
    )
    return Answer(answer.status_code, dict(answer.items()), answer.content)


def _carried(token: str | None, headers: Mapping[str, str]) -> dict[str, str]:
    usual = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    return usual | ({} if token is None else {"Authorization": f"Bearer {token}"}) | dict(headers)


def modern_message(
    method: str, params: Mapping[str, Any] | None, token: str | None, **headers: str
) -> tuple[bytes, dict[str, str]]:
    """A request of the stateless revision, with all that it must carry: its body and its headers."""
    meta = {PROTOCOL_VERSION_META_KEY: MODERN, CLIENT_CAPABILITIES_META_KEY: {}}
    given = {"_meta": meta, **(params or {})}
    required = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    if method in NAMED and isinstance(given.get(NAMED[method]), str):
        required["Mcp-Name"] = given[NAMED[method]]
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": given}
    return json.dumps(message).encode(), _carried(token, required | headers)


def modern(method: str, params: dict[str, Any] | None, token: str | None, **headers: str) -> Answer:
    """As :func:`modern_message`, posted."""
    body, carried = modern_message(method, params, token, **headers)
    return post(body, None, **carried)


def legacy(method: str, params: dict[str, Any] | None, token: str | None, **headers: str) -> Answer:
    """A request of a revision that begins with a handshake, after it."""
    message = {"jsonrpc": "2.0", "id": 7, "method": method} | ({} if params is None else {"params": params})
    return post(message, token, **({"MCP-Protocol-Version": "2025-11-25"} | headers))
