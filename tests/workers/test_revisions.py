"""Endpoints that know one revision of MCP only: found by pull, searchable and callable in the words of their revision."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from apps.executions import calls
from apps.principals.tenancy import Caller
from apps.workers import selectors
from apps.workers.manifests import look
from apps.workers.models import SourceEntry
from apps.workers.services import discovery
from tests.workers.factories import NOTHING, add_source
from tests.workers.servers import serving

NEWEST = "2026-07-28"
PATIENCE = timedelta(seconds=30)


SHOUT = {
    "name": "shout",
    "description": "Say it louder",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


@dataclass
class OldServer:
    """Knows its revision and nothing of others. `asked` holds each method, with the revision that the headers named."""

    revision: str
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                server = {"name": "old", "version": "1"}
                result: dict[str, Any] = {
                    "protocolVersion": self.revision,
                    "capabilities": {"tools": {}},
                    "serverInfo": server,
                }
            case "ping":
                result = {}
            case "tools/list":
                result = {"tools": [SHOUT]}
            case "tools/call":
                result = {"content": [{"type": "text", "text": params["arguments"]["text"].upper()}]}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}
        return {"result": result}


class Handler(BaseHTTPRequestHandler):
    """Streamable HTTP as far as a server needs it that keeps no session and never streams."""

    def __init__(self, old: OldServer, *args: Any) -> None:
        self.old = old
        super().__init__(*args)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.old.asked.append((message["method"], self.headers["MCP-Protocol-Version"]))
        if "id" not in message:
            self._say(202, b"")
            return
        said = self.old.answer(message["method"], message.get("params", {}))
        self._say(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}).encode())

    def do_GET(self) -> None:
        self._say(405, b"")

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def listening(old: OldServer) -> Iterator[str]:
    """Where it answers, until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, old))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def find_and_call(caller: Caller, endpoint: str) -> dict[str, Any]:
    """What its only tool answers, once it was found where an operator says it is."""
    add_source(caller, endpoint, name="shouter", worker_id="shouter", side_effects=NOTHING)
    discovery.discover()
    assert SourceEntry.objects.get().fault is None
    found = selectors.search("shout", tenant_id=caller.tenant_id)
    assert [(match.worker_id, match.tool_name) for match in found] == [("shouter", "shout")]
    target = calls.target_of(worker_id="shouter", tool_name="shout")
    return calls.call(target=target, params={"text": "hello"}, deadline=PATIENCE).payload


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", "2025-11-25"])
def test_old_mcp_revision_is_discovered_and_called(as_kee: Caller, revision: str) -> None:
    old = OldServer(revision)
    with listening(old) as endpoint:
        assert look(endpoint, deadline=PATIENCE).revision == revision
        assert "HELLO" in str(find_and_call(as_kee, endpoint))

    assert {method for method, _ in old.asked} >= {"initialize", "ping", "tools/list", "tools/call"}
    assert {named for method, named in old.asked if method in {"tools/list", "tools/call"}} == {revision}


def test_newest_mcp_revision_is_discovered_and_called(as_kee: Caller) -> None:
    with serving() as shouter:
        assert look(shouter.endpoint, deadline=PATIENCE).revision == NEWEST
        assert "HELLO" in str(find_and_call(as_kee, shouter.endpoint))
    assert {"tools/list", "shout"} <= set(shouter.asked)
