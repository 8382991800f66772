"""The official client against a running web process, over HTTP and over stdio, in both eras of the protocol."""

import os
import subprocess
import sys

import httpx2
import pytest
from anyio import run
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp_types import INVALID_PARAMS, CallToolResult, Tool

from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from tests.factories import make_token
from tests.mcp.conftest import Server

MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


@MODES
def test_client_lists_and_calls_tools(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> tuple[str, list[Tool], CallToolResult]:
        async with server.client(token, mode) as client:
            listed = await client.list_tools()
            return client.protocol_version, listed.tools, await client.call_tool("whoami", {})

    token = make_token(acme, scopes=[Scope.INBOX])
    version, tools, result = run(converse)

    assert version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
    assert "whoami" in {tool.name for tool in tools}
    assert not result.is_error
    assert result.structured_content == {
        "principal": "Kee",
        "kind": "ai",
        "tenant": "acme",
        "scopes": ["inbox"],
        "source_systems": [],
    }


@MODES
def test_bad_arguments_are_a_result_that_helps(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> CallToolResult:
        async with server.client(token, mode) as client:
            return await client.call_tool("whoami", {"who": "me"})

    token = make_token(acme)
    result = run(converse)

    assert result.is_error
    assert result.structured_content["errors"][0]["pointer"] == "/who"
    assert "Change the arguments" in str(result.content[0])


@MODES
def test_unknown_tool_is_a_protocol_error(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> int:
        async with server.client(token, mode) as client:
            with pytest.raises(MCPError) as refused:
                await client.call_tool("nonesuch", {})
            return refused.value.error.code

    token = make_token(acme)
    assert run(converse) == INVALID_PARAMS


@MODES
def test_client_without_a_valid_token_is_refused(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> None:
        async with server.client("nonsense", mode):
            pass

    with pytest.raises(ExceptionGroup) as refused:
        run(converse)

    assert refused.group_contains(MCPError, match="Server returned an error response")


@pytest.mark.parametrize(("mode", "version"), [("2026-07-28", "2026-07-28"), ("legacy", "2025-11-25")])
def test_bridge_carries_messages_over_stdio(server: Server, acme: Tenant, mode: str, version: str) -> None:
    async def converse() -> tuple[str, set[str], CallToolResult]:
        bridge = StdioServerParameters(
            command=sys.executable,
            args=["manage.py", "mcp_stdio", "--url", server.url],
            env={**os.environ, "GATEHOUSE_TOKEN": token},
        )
        async with Client(bridge, mode=mode) as client:
            tools = (await client.list_tools()).tools
            return client.protocol_version, {tool.name for tool in tools}, await client.call_tool("whoami", {})

    token = make_token(acme)
    spoken, tools, result = run(converse)

    assert spoken == version
    assert "whoami" in tools
    assert result.structured_content is not None
    assert result.structured_content["principal"] == "Kee"


def test_bridge_answers_where_the_hub_refuses_or_is_away(server: Server) -> None:
    def ask(url: str, line: str) -> str:
        return subprocess.run(
            [sys.executable, "manage.py", "mcp_stdio", "--url", url],
            env={**os.environ, "GATEHOUSE_TOKEN": "nonsense"},
            input=f'\nno json\n{{"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {line}}}\n',
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout

    assert '"code": -32700' in ask(server.url, "{}")
    assert '"id": 7, "error": {"code": -32603, "message": "401' in ask(server.url, "{}")
    assert "does not answer" in ask("http://127.0.0.1:9", "{}")


def test_bridge_without_a_token_says_how_to_get_one() -> None:
    ran = subprocess.run(
        [sys.executable, "manage.py", "mcp_stdio", "--url", "http://127.0.0.1:9"],
        env={name: value for name, value in os.environ.items() if name != "GATEHOUSE_TOKEN"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert "issue_token" in ran.stderr


@pytest.mark.parametrize(
    ("chunks", "status", "code"),
    [
        ([b'{"entries"', b': ["ent_1"], "nonsense": 1}'], 422, "invalid"),
        ([b'{"entr', b'ies": ["ent_999999999"]}'], 404, "unknown_entry"),
    ],
)
def test_chunked_body_is_read_like_any_other(
    server: Server, acme: Tenant, chunks: list[bytes], status: int, code: str
) -> None:
    answer = httpx2.post(
        f"{server.url}/api/v1/inbox/ack",
        content=iter(chunks),
        headers={"Authorization": f"Bearer {make_token(acme)}", "Content-Type": "application/json"},
        timeout=60,
    )
    assert (answer.status_code, answer.json()["code"]) == (status, code)
