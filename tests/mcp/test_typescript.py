"""The official clients in TypeScript: an agent behind them reads every refusal."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from apps.mcp import calls
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from tests.factories import make_token
from tests.mcp.node import run_node
from tests.server import Server

pytestmark = pytest.mark.ci

INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"


def test_every_refusal_is_readable_after_the_tools_are_listed(server: Server, acme: Tenant, packages: Path) -> None:
    token = make_token(acme, "all", Kind.SERVICE, scopes=set(Scope))
    read = json.loads(run_node(packages / "refuse.mjs", f"{server.url}/mcp?tools=all", token).stdout)

    assert set(read) >= {declared.name for declared in calls.tools()}
    for name, result in read.items():
        assert result["isError"], name
        assert "structuredContent" not in result, name
        assert "/nonesuch" in result["content"][0]["text"], name


def test_inspector_shows_every_refusal_of_an_agents_tools(server: Server, acme: Tenant, packages: Path) -> None:
    def inspect(*arguments: str) -> CompletedProcess[str]:
        address = ["--server-url", f"{server.url}/mcp", "--header", f"Authorization: Bearer {token}"]
        return run_node(packages / INSPECTOR, "--cli", *address, *arguments, check=False)

    def refuse(name: str) -> str:
        called = inspect("--method", "tools/call", "--tool-name", name, "--tool-arg", "nonesuch=1")
        return called.stdout + called.stderr

    token = make_token(acme)
    listed = json.loads(inspect("--method", "tools/list").stdout)["tools"]
    with ThreadPoolExecutor(2) as together:
        names = [tool["name"] for tool in listed]
        said = dict(zip(names, together.map(refuse, names), strict=True))

    assert len(said) > 5
    assert {name: text for name, text in said.items() if "/nonesuch" not in text} == {}
