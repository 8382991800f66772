"""The official client against a running web process, in both eras of the protocol."""

import pytest
from anyio import run
from mcp import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, Tool

from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from tests.factories import make_token
from tests.mcp.conftest import Server

MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


@MODES
def test_a_client_lists_the_tools_and_calls_one(server: Server, acme: Tenant, mode: str) -> None:
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
def test_bad_arguments_are_a_result_that_says_how_to_mend_the_call(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> CallToolResult:
        async with server.client(token, mode) as client:
            return await client.call_tool("whoami", {"who": "me"})

    token = make_token(acme)
    result = run(converse)

    assert result.is_error
    assert result.structured_content["errors"][0]["pointer"] == "/who"
    assert "Change the arguments" in str(result.content[0])


@MODES
def test_an_unknown_tool_is_an_error_of_the_protocol(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> int:
        async with server.client(token, mode) as client:
            with pytest.raises(MCPError) as refused:
                await client.call_tool("nonesuch", {})
            return refused.value.error.code

    token = make_token(acme)
    assert run(converse) == INVALID_PARAMS


@MODES
def test_without_a_valid_token_there_is_no_connection(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> None:
        async with server.client("nonsense", mode):
            pass

    with pytest.raises(ExceptionGroup) as refused:
        run(converse)

    assert refused.group_contains(MCPError, match="Server returned an error response")
