"""A running web process on the test database, and the official client to talk to it."""

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from apps.principals.models import Tenant
from config.stack.supervisor import WEB
from tests.commands import with_database
from tests.factories import make_tenant
from tests.waiters import until_nobody_else_is_in_a_transaction


@dataclass(frozen=True)
class Server:
    """Where the web process answers."""

    url: str

    @asynccontextmanager
    async def client(self, token: str, mode: str = "auto", **more: Any) -> AsyncIterator[Client]:
        """The official client: `auto` finds the stateless revision, `legacy` shakes hands."""
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=30) as http,
            Client(streamable_http_client(f"{self.url}/mcp", http_client=http), mode=mode, **more) as client,
        ):
            yield client

    def rests(self) -> None:
        """Return once it has heard of every client that is gone, and nothing is left of what it did for them."""
        httpx2.get(f"{self.url}/mcp", timeout=60)
        until_nobody_else_is_in_a_transaction()


def ask(url: str, token: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool of a deployment answers over MCP."""

    async def answer() -> dict[str, Any]:
        async with Server(url).client(token) as client:
            given = await client.call_tool(tool, arguments)
            assert not given.is_error, given.content
            assert given.structured_content is not None
            content: dict[str, Any] = given.structured_content
            return content

    return anyio.run(answer)


def ready_plan(url: str, token: str, **asked: Any) -> dict[str, Any]:
    """A plan that is ready; what it guesses is confirmed."""
    plan = ask(url, token, "create_delegation_plan", **asked)
    if plan["status"] == "needs_confirmation":
        plan = ask(url, token, "confirm_plan", plan_id=plan["plan_id"])
    assert plan["status"] == "ready", plan
    return plan


def start_server(
    application: str = "config.asgi:application", *, processes: int = 1, **environment: str
) -> tuple[subprocess.Popen[bytes], str]:
    """A deployment on the test's database, once it answers: one web process, or several that share its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    line = WEB.format(fd=listener.fileno()).replace("config.asgi:application", application)
    try:
        process = subprocess.Popen(
            [sys.executable, *line.split(), "--workers", str(processes), "--log-level", "warning"],
            pass_fds=[listener.fileno()],
            env=with_database(GATEHOUSE_PROCESS="web", GATEHOUSE_POOL="4") | environment,
        )
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
    # The socket listens since before the process began, so the first request waits for the process to be ready.
    httpx2.get(f"{url}/mcp", timeout=120)
    return process, url


def end_server(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def started_server(django_db_setup: None) -> Iterator[Server]:
    process, url = start_server()
    yield Server(url)
    end_server(process)


@pytest.fixture
def server(started_server: Server, transactional_db: None) -> Iterator[Server]:
    """A server that is at nothing any more when the test's rows are removed."""
    yield started_server
    started_server.rests()


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    """A tenant that other processes see."""
    return make_tenant("acme")
