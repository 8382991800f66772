"""The bridge for hosts that only start processes, driven by the official client."""

import os
import subprocess
import sys

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult

from apps.principals.models import Tenant
from tests.factories import make_token
from tests.mcp.conftest import Server


@pytest.mark.parametrize(("mode", "version"), [("2026-07-28", "2026-07-28"), ("legacy", "2025-11-25")])
def test_a_host_that_starts_processes_reaches_the_hub(server: Server, acme: Tenant, mode: str, version: str) -> None:
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
    spoken, tools, result = anyio.run(converse)

    assert spoken == version
    assert "whoami" in tools
    assert result.structured_content is not None
    assert result.structured_content["principal"] == "Kee"


def test_a_hub_that_refuses_or_is_away_is_an_answer_to_the_request(server: Server) -> None:
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


def test_without_a_token_the_bridge_says_how_to_get_one() -> None:
    ran = subprocess.run(
        [sys.executable, "manage.py", "mcp_stdio", "--url", "http://127.0.0.1:9"],
        env={name: value for name, value in os.environ.items() if name != "GATEHOUSE_TOKEN"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert "issue_token" in ran.stderr
