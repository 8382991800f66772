"""Endpoints that mean harm are refused by name, bounded in time and size; endpoints of old MCP revisions are called."""

import gzip
import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from apps.core.outbound import (
    AnswerTooLarge,
    CallFailed,
    Disconnected,
    NotMCP,
    Redirected,
    Refused,
    TimedOut,
)
from apps.executions import calls
from apps.plans.selectors import search_tools
from apps.principals.tenancy import Caller
from apps.workers import services as registry
from apps.workers.manifests import TooManyTools, look
from apps.workers.models import SourceEntry, Worker
from tests import remote as remotes
from tests.remote import Behaviour, Exchange
from tests.workers.factories import NOTHING, add_source, fault, make_manifest
from tests.workers.servers import McpServer, make_tool

DEADLINE = timedelta(seconds=30)
# For those who never come to an end.
SOON = timedelta(seconds=2)


def refused(endpoint: str, *, deadline: timedelta = DEADLINE) -> type[CallFailed]:
    with pytest.raises(CallFailed) as caught:
        look(endpoint, deadline=deadline)
    return type(caught.value)


def headers_without_end(exchange: Exchange) -> None:
    exchange.handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    remotes.repeats(exchange, b"X-More: " + b"x" * 1000 + b"\r\n")


def headers_that_drip(exchange: Exchange) -> None:
    exchange.handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-More: ")
    remotes.repeats(exchange, b"x", pause=0.05)


def events_without_end(exchange: Exchange) -> None:
    _stream(exchange)
    remotes.repeats(exchange, b": still there\n\n", pause=0.02)


def one_event_without_end(exchange: Exchange) -> None:
    _stream(exchange)
    remotes.repeats(exchange, b"data: " + b"x" * 65_536)


def _stream(exchange: Exchange, media_type: str = "text/event-stream") -> None:
    exchange.handler.send_response(200)
    exchange.handler.send_header("Content-Type", media_type)
    exchange.handler.end_headers()


def floods(exchange: Exchange) -> None:
    _stream(exchange, "application/json")
    with suppress(OSError):
        for _ in range(100):
            exchange.handler.wfile.write(b" " * (1024 * 1024))


def drips(exchange: Exchange) -> None:
    _stream(exchange, "application/json")
    remotes.repeats(exchange, b" ", pause=0.05)


def deeply_nested(exchange: Exchange) -> None:
    exchange.answer(200, b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000, {"Content-Type": "application/json"})


HOSTILE: dict[str, tuple[Behaviour, set[type[CallFailed]]]] = {
    "an answer of 100 MB": (floods, {AnswerTooLarge}),
    "an answer that drips": (drips, {TimedOut}),
    "no answer": (remotes.hangs, {TimedOut}),
    "a hang-up": (remotes.hangs_up, {Disconnected}),
    "headers without end": (headers_without_end, {Disconnected}),
    "headers that drip": (headers_that_drip, {TimedOut}),
    "a redirect": (remotes.says(307, b"", Location="http://127.0.0.1:9/mcp"), {Redirected}),
    "no JSON": (remotes.says(200, b"{nope"), {NotMCP, Refused, Disconnected}),
    "JSON that is no MCP": (remotes.says(200, {"hello": "world"}), {NotMCP, Refused, TimedOut}),
    "a page": (remotes.says(200, b"<html>", Content_Type="text/html"), {NotMCP, Refused}),
    "an error": (remotes.says(500, {"x": 1}), {Refused}),
    "JSON without bottom": (deeply_nested, {NotMCP, Refused, Disconnected}),
    "events without end": (events_without_end, {TimedOut}),
    "one event without end": (one_event_without_end, {AnswerTooLarge}),
}


@pytest.mark.parametrize("behaviour", HOSTILE)
def test_hostile_answer_is_named(behaviour: str) -> None:
    always, faults = HOSTILE[behaviour]
    with remotes.serving(always) as remote:
        assert refused(f"{remote.url}/mcp", deadline=SOON if TimedOut in faults else DEADLINE) in faults


def refuses(*, packed: bool) -> Behaviour:
    """Refuses in MCP's words, packed by gzip or as they are."""

    def answer(exchange: Exchange) -> None:
        error = {"code": -32_603, "message": "refused in so many words"}
        body = json.dumps({"jsonrpc": "2.0", "id": exchange.received.json["id"], "error": error}).encode()
        headers = {"Content-Type": "application/json"}
        if packed:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        exchange.answer(200, body, headers)

    return answer


def test_unrequested_compression_is_not_unpacked() -> None:
    with remotes.serving(refuses(packed=False)) as remote, pytest.raises(Refused, match="in so many words"):
        look(f"{remote.url}/mcp", deadline=DEADLINE)

    with remotes.serving(refuses(packed=True)) as remote, pytest.raises(CallFailed) as caught:
        look(f"{remote.url}/mcp", deadline=DEADLINE)

    assert "in so many words" not in str(caught.value)


def test_too_many_tools_are_refused(shouter: McpServer) -> None:
    shouter.tools = [make_tool(f"tool_{number}") for number in range(5_000)]

    assert refused(shouter.endpoint) is TooManyTools


def test_endless_list_is_refused(shouter: McpServer) -> None:
    shouter.tools = [make_tool(f"tool_{number}") for number in range(100)]
    shouter.page_size = 1

    assert refused(shouter.endpoint) is TooManyTools
    assert shouter.asked.count("tools/list") == 20


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


def test_large_schema_is_not_read(shouter: McpServer) -> None:
    large = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(200_000)}}
    shouter.tools = [make_tool().model_copy(update={"input_schema": large})]

    with pytest.raises(AnswerTooLarge):
        look(shouter.endpoint, deadline=timedelta(seconds=30))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema"}}},
        {"type": "object", "properties": {"x": {"$ref": "file:///etc/passwd"}}},
        {"$ref": "#"},
        {"type": "object", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$dynamicRef": "#x", "type": "object"},
        {"type": "object", "properties": 7},
        {"type": "array"},
    ],
)
def test_bad_schema_leaves_the_tool_out(as_kee: Caller, shouter: McpServer, schema: dict[str, Any]) -> None:
    shouter.tools = [make_tool().model_copy(update={"input_schema": {"type": "object", **schema}})]
    add_source(as_kee, shouter.endpoint)

    registry.discover()

    assert fault().split(":")[0] in {"nothing_to_offer", "not_mcp", "refused"}
    assert not Worker.objects.exists()


def test_deep_manifest_or_schema_is_refused(as_kee: Caller, shouter: McpServer) -> None:
    shouter.manifest = lambda: {**make_manifest(), "hints": nested(60)}
    add_source(as_kee, shouter.endpoint)

    registry.discover()

    assert fault().startswith("not_mcp")
    assert not Worker.objects.exists()
    shouter.manifest, shouter.tools = None, [make_tool().model_copy(update={"input_schema": nested(60)})]
    assert refused(shouter.endpoint) is NotMCP


def test_hanging_endpoint_delays_no_other(as_kee: Caller, shouter: McpServer) -> None:
    with remotes.serving(remotes.hangs) as hanging:
        add_source(as_kee, f"{hanging.url}/mcp", name="hanging")
        add_source(as_kee, shouter.endpoint, name="well")

        registry.discover()

        faults = {place.source.name: place.fault for place in SourceEntry.objects.select_related("source")}
    assert faults["well"] is None
    assert (faults["hanging"] or "").startswith("timed_out")
    assert Worker.objects.count() == 1


# Old revisions of MCP


def knows_only(revision: str) -> Behaviour:
    """A server of one tool that knows this revision, keeps no session and never streams."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    server = {"name": "old", "version": "1"}

    def answer(exchange: Exchange) -> None:
        message = exchange.received.json
        if "id" not in message:
            exchange.answer(202, b"", {})
            return
        results: dict[str, Any] = {
            "initialize": {"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": server},
            "ping": {},
            "tools/list": {"tools": [{"name": "shout", "description": "Say it louder", "inputSchema": schema}]},
            "tools/call": {"content": [{"type": "text", "text": "HELLO"}]},
        }
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        said = {"result": results[message["method"]]} if message["method"] in results else unknown
        remotes.says(200, {"jsonrpc": "2.0", "id": message["id"], **said})(exchange)

    return answer


def find_and_call(caller: Caller, endpoint: str) -> str:
    """The answer of its only tool, once it was found where an operator says it is."""
    add_source(caller, endpoint, worker_id="shouter", side_effects=NOTHING)
    registry.discover()
    assert fault() == ""
    found = search_tools("shout", tenant_id=caller.tenant_id)
    assert [(match.worker_id, match.tool_name) for match in found] == [("shouter", "shout")]
    target = calls.target_of(worker_id="shouter", tool_name="shout")
    return str(calls.call(target=target, params={"text": "hello"}, deadline=DEADLINE).payload)


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-06-18", "2025-11-25"])
def test_old_mcp_revision_is_discovered_and_called(as_kee: Caller, revision: str) -> None:
    with remotes.serving(knows_only(revision)) as old:
        assert look(f"{old.url}/mcp", deadline=DEADLINE).revision == revision
        assert "HELLO" in find_and_call(as_kee, f"{old.url}/mcp")

    asked = {(one.json["method"], one.headers.get("mcp-protocol-version")) for one in old.received}
    assert {method for method, _ in asked} >= {"initialize", "ping", "tools/list", "tools/call"}
    assert {named for method, named in asked if method in {"tools/list", "tools/call"}} == {revision}


def test_newest_mcp_revision_is_discovered_and_called(as_kee: Caller, shouter: McpServer) -> None:
    assert look(shouter.endpoint, deadline=DEADLINE).revision == "2026-07-28"
    assert "HELLO" in find_and_call(as_kee, shouter.endpoint)
