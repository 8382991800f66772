"""The endpoint over plain HTTP: frames, versions, headers, refusals."""

import json
import logging
from collections.abc import Callable, Iterator

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pytest_django.fixtures import Settings

from apps.core import strict_json
from apps.mcp.calls import max_body_of_any
from apps.mcp.methods import HABITS
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.workers import services as registry
from tests.factories import make_caller, make_tenant, make_token
from tests.mcp.raw import MODERN, Answer, legacy, modern, post
from tests.mcp.samples import samples
from tests.memory import subjects
from tests.tasks import making

Ask = Callable[..., Answer]
ERAS = pytest.mark.parametrize("ask", [modern, legacy])


@pytest.fixture
def token(tenant: Tenant) -> str:
    return make_token(tenant)


@pytest.fixture
def sampled() -> Iterator[None]:
    with samples():
        yield


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://testserver", 200),
        ("http://testserver:8000", 200),
        ("https://console.example", 200),
        ("http://evil.example", 403),
        ("http://testserver.evil.example", 403),
        ("null", 403),
        ("http://[broken", 403),
    ],
)
def test_foreign_origin_is_refused(token: str, settings: Settings, origin: str, status: int) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://console.example"]
    assert legacy("ping", None, token, Origin=origin).status_code == status


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff", -32700),
        (b'{"a": 1, "a": 2}', -32700),
        (b'{"jsonrpc": "2.0", "id": NaN, "method": "ping"}', -32700),
        (b"[" * 100_000, -32700),
        ([], -32600),
        ([{"jsonrpc": "2.0", "id": 1, "method": "ping"}], -32600),
        ("ping", -32600),
        ({"jsonrpc": "2.0", "id": 1}, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": "\ud800", "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, -32600),
    ],
)
def test_body_that_is_no_message_is_refused(token: str, body: object, code: int) -> None:
    answer = post(body, token)
    assert answer.status_code == 400
    assert (answer.json()["id"], answer.json()["error"]["code"]) == (None, code)


def test_foreign_media_type_and_large_body_are_refused(token: str) -> None:
    assert post({}, token, **{"Content-Type": "text/plain"}).status_code == 415
    assert post(b" " * (max_body_of_any() + 1), token).status_code == 413


@pytest.mark.parametrize("version", [MODERN, "2025-11-25", None])
def test_notification_is_accepted_without_answer(token: str, version: str | None) -> None:
    headers = {"MCP-Protocol-Version": version} if version else {}
    answer = post({"jsonrpc": "2.0", "method": "notifications/initialized"}, token, **headers)
    assert (answer.status_code, answer.content) == (202, b"")


@pytest.mark.parametrize("version", ["2099-01-01", "nonsense"])
def test_unknown_version_is_refused_with_those_supported(token: str, version: str) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}
    answer = modern("tools/list", {"_meta": meta}, token, **{"MCP-Protocol-Version": version})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == -32022
    assert answer.json()["error"]["data"] == {"supported": [MODERN], "requested": version}


@pytest.mark.parametrize(
    "headers",
    [
        {"MCP-Protocol-Version": "2025-11-25"},
        {"MCP-Protocol-Version": "2099-01-01"},
        {"Mcp-Method": "tools/call"},
        {"Mcp-Method": f"{MODERN},{MODERN}"},
    ],
)
def test_contradicting_headers_are_refused(token: str, headers: dict[str, str]) -> None:
    answer = modern("tools/list", {}, token, **headers)
    assert (answer.status_code, answer.json()["id"], answer.json()["error"]["code"]) == (400, 7, -32020)
    assert modern("tools/call", {"name": "whoami"}, token, **{"Mcp-Name": "other"}).json()["error"]["code"] == -32020


@pytest.mark.parametrize("version", [*HANDSHAKE_PROTOCOL_VERSIONS, "2099-01-01"])
def test_handshake_agrees_on_a_version(token: str, version: str) -> None:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    answer = post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}, token)
    result = answer.json()["result"]
    assert result["protocolVersion"] == (version if version in HANDSHAKE_PROTOCOL_VERSIONS else "2025-11-25")
    assert "instructions" in result
    assert "Mcp-Session-Id" not in answer.headers


def _completion(kind: str, name: str, argument: str) -> dict[str, object]:
    ref = {"type": f"ref/{kind}", "uri" if kind == "resource" else "name": name}
    return {"ref": ref, "argument": {"name": argument, "value": ""}}


@pytest.mark.parametrize(
    ("asks", "method", "params", "code"),
    [
        ([modern, legacy], "no/such", {}, -32601),
        ([modern], "initialize", {}, -32601),
        ([modern], "ping", {}, -32601),
        ([modern], "logging/setLevel", {}, -32601),
        ([modern], "resources/subscribe", {}, -32601),
        ([legacy], "server/discover", {}, -32601),
        ([legacy], "logging/setLevel", {"level": "loud"}, -32602),
        ([modern, legacy], "tools/list", {"cursor": "abc"}, -32602),
        ([modern, legacy], "tools/call", {}, -32602),
        ([modern, legacy], "tools/call", {"arguments": {}}, -32602),
        ([modern, legacy], "tools/call", {"name": "whoami", "arguments": []}, -32602),
        ([modern, legacy], "tools/call", {"name": "\ud800"}, -32602),
        ([modern, legacy], "prompts/get", {"name": "nonesuch"}, -32602),
        ([modern, legacy], "prompts/get", {"name": "delegate"}, -32602),
        ([modern, legacy], "prompts/get", {"name": "close_session", "arguments": {"mood": "good"}}, -32602),
        ([modern, legacy], "completion/complete", _completion("resource", "task://{id}", "id"), None),
        ([modern, legacy], "completion/complete", _completion("resource", "task://{id}", "name"), -32602),
        ([modern, legacy], "completion/complete", _completion("resource", "nonesuch://{id}", "id"), -32602),
        ([modern, legacy], "completion/complete", _completion("prompt", "delegate", "intent"), None),
        ([modern, legacy], "completion/complete", _completion("prompt", "nonesuch", "intent"), -32602),
    ],
)
def test_method_and_parameters_are_checked(
    token: str, asks: list[Ask], method: str, params: dict[str, object], code: int | None
) -> None:
    for ask in asks:
        answer = ask(method, params, token)
        assert answer.json().get("error", {}).get("code") == code
        assert answer.status_code == (
            404 if ask is modern and code == -32601 else 400 if ask is modern and code else 200
        )


def test_unknown_tool_is_answered_with_the_nearest_name(token: str) -> None:
    refusal = modern("tools/call", {"name": "read_imbox"}, token).json()["error"]
    assert refusal["message"].startswith("Unknown tool: read_imbox. Did you mean read_inbox? find_tools ")


@ERAS
def test_tool_is_listed_only_with_its_scope(tenant: Tenant, sampled: None, ask: Ask) -> None:
    def shown(scopes: list[Scope]) -> set[str]:
        listed = ask("tools/list", {}, make_token(tenant, scopes=scopes)).json()
        return {tool["name"] for tool in listed["result"]["tools"]}

    assert "sample_say" not in shown([Scope.INBOX])
    assert "sample_say" in shown([Scope.MEMORY])


@ERAS
@pytest.mark.parametrize(
    ("call", "code"),
    [
        ({"name": "sample_say", "arguments": {}}, "invalid"),
        ({"name": "sample_say", "arguments": {"text": 5}}, "invalid"),
        ({"name": "sample_say", "arguments": {"text": "a\x00b"}}, "unstorable_json"),
        ({"name": "sample_say", "arguments": {"text": "\ud800"}}, "unstorable_json"),
        ({"name": "sample_say", "arguments": {"text": "x" * 30_000}}, "too_large"),
        ({"name": "sample_wait", "arguments": {"text": "x"}}, "rate_limited"),
    ],
)
def test_refusal_is_a_readable_result(token: str, sampled: None, ask: Ask, call: dict[str, object], code: str) -> None:
    answer = ask("tools/call", call, token)
    result = answer.json()["result"]
    assert answer.status_code == 200
    assert result["isError"]
    assert "structuredContent" not in result
    assert result["_meta"]["gatehouse/refusal"]["code"] == code
    assert result["content"][0]["text"].startswith(code)


@ERAS
def test_defect_is_answered_by_its_trace_id_only(
    token: str, sampled: None, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = ask("tools/call", {"name": "sample_break", "arguments": {"text": "x"}}, token).json()
    assert answer["error"]["code"] == -32603
    assert answer["error"]["data"]["trace_id"]
    assert "secret" not in json.dumps(answer)
    assert "a secret of the house" in caplog.text


@ERAS
def test_missing_output_is_an_empty_one(token: str, sampled: None, ask: Ask) -> None:
    result = ask("tools/call", {"name": "sample_nothing", "arguments": {"text": "x"}}, token).json()["result"]
    assert result["structuredContent"] == {"said": None}
    assert strict_json.loads(result["content"][0]["text"].encode()) == result["structuredContent"]


@ERAS
def test_resource_is_read_by_its_uri(token: str, sampled: None, ask: Ask) -> None:
    templates = ask("resources/templates/list", {}, token).json()["result"]["resourceTemplates"]
    assert "inbox://me/entries/{ref}" in {template["uriTemplate"] for template in templates}

    result = ask("resources/read", {"uri": "inbox://me/entries/ent_42"}, token).json()["result"]
    assert json.loads(result["contents"][0]["text"]) == {"said": "ent_42"}
    assert result["contents"][0]["mimeType"] == "application/json"


@pytest.mark.parametrize(("ask", "code"), [(modern, -32602), (legacy, -32002)])
@pytest.mark.parametrize("uri", ["inbox://me/entries/ent_404", "nonesuch://x", "no uri"])
def test_unknown_resource_is_refused(token: str, sampled: None, ask: Ask, code: int, uri: str) -> None:
    error = ask("resources/read", {"uri": uri}, token).json()["error"]
    assert (error["code"], error["data"]["uri"]) == (code, uri)


@ERAS
def test_resource_needs_its_scope(tenant: Tenant, sampled: None, ask: Ask) -> None:
    token = make_token(tenant, scopes=[Scope.ADMIN])
    assert ask("resources/templates/list", {}, token).json()["result"]["resourceTemplates"] == []
    answer = ask("resources/read", {"uri": "inbox://me/entries/ent_42"}, token).json()
    assert answer["error"]["data"]["code"] == "missing_scope"


@ERAS
def test_prompts_are_listed_and_filled(token: str, ask: Ask) -> None:
    listed = ask("prompts/list", {}, token).json()["result"]["prompts"]
    assert {prompt["name"] for prompt in listed} == {habit.name for habit in HABITS}

    filled = ask("prompts/get", {"name": "delegate", "arguments": {"intent": "Count {stars}"}}, token).json()
    assert "Count {stars}" in filled["result"]["messages"][0]["content"]["text"]


@pytest.mark.parametrize(
    ("of", "typed", "values"),
    [
        (("prompt", "delegate", "tool"), "e", ["echo"]),
        (("resource", "worker://{id}/manifest", "id"), "text", ["texter"]),
        (("resource", "envelope://{subject_id}", "subject_id"), "USER:", ["USER:alice"]),
    ],
)
def test_names_are_completed_for_who_may_see_them(
    tenant: Tenant, of: tuple[str, str, str], typed: str, values: list[str]
) -> None:
    kee, another = make_caller(tenant), make_caller(make_tenant("other"))
    for caller, mark in ((kee, ""), (another, "x")):
        making.make_type(caller, f"index{mark}", queue=f"imports{mark}")
        tools = [{"name": f"echo{mark}", "input_schema": {"type": "object"}}]
        manifest = {"worker_id": f"texter{mark}", "endpoint": "https://w.example/mcp", "tools": tools}
        with caller.acting():
            registry.register(caller=caller, original=manifest)
    for author, subject_id, shared in ((kee, "USER:alice", None), (make_caller(tenant, "Rex"), "USER:bob", ["Rex"])):
        with author.acting():
            subjects.add(author, subject_id, share_with=shared)
    params = _completion(*of) | {"argument": {"name": of[2], "value": typed}}

    def completed(token: str) -> list[str]:
        return modern("completion/complete", params, token).json()["result"]["completion"]["values"]  # type: ignore[no-any-return]

    assert completed(make_token(tenant)) == values
    assert completed(make_token(tenant, "Poster", scopes=[Scope.RECEIPTS_WRITE])) == []
