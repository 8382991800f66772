"""The official client against a running web process, over HTTP and over stdio, in both eras of the protocol."""

import os
import subprocess
import sys
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest
from anyio import run
from anyio.to_thread import run_sync
from django.core.management import CommandError, call_command
from django.dispatch import Signal
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp_types import INVALID_PARAMS, CallToolResult

from apps.core import notifications
from apps.core.notifications import in_thread
from apps.digests import selectors
from apps.digests.services import inbox_changed, inbox_topic
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller
from apps.tasks.signals import task_topic, tasks_finished
from tests.asgi import ask
from tests.digests import makers
from tests.factories import make_caller, make_token
from tests.mcp.raw import modern_message
from tests.server import Server
from tests.tasks import making
from tests.waiters import later, until_heard

MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])
WORKERS_TOOLS = {
    "call_tool",
    "complete_task",
    "fail_task",
    "find_tools",
    "heartbeat_tasks",
    "lease_tasks",
    "read_artifact",
    "release_task",
}


@MODES
def test_client_lists_and_calls_tools(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> tuple[str, set[str], CallToolResult, CallToolResult, int]:
        async with server.client(token, mode) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            answers = [await client.call_tool("whoami", given) for given in ({}, {"who": "me"})]
            with pytest.raises(MCPError) as unknown:
                await client.call_tool("nonesuch", {})
            return client.protocol_version, tools, answers[0], answers[1], unknown.value.error.code

    token = make_token(acme, "W", Kind.WORKER, scopes=[Scope.TASKS_WORK])
    version, tools, answer, refused, unknown = run(converse)
    assert version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
    assert tools == WORKERS_TOOLS
    assert answer.structured_content == {
        "principal": "W",
        "kind": "worker",
        "tenant": "acme",
        "scopes": ["tasks:work"],
        "source_systems": [],
    }
    assert refused.is_error
    assert refused.structured_content is None
    assert "- /who: Unknown field." in str(refused.content[0])
    assert "Change the arguments" in str(refused.content[0])
    assert unknown == INVALID_PARAMS


@pytest.mark.ci
@pytest.mark.parametrize(("mode", "version"), [("2026-07-28", "2026-07-28"), ("legacy", "2025-11-25")])
def test_bridge_carries_messages_over_stdio(server: Server, acme: Tenant, mode: str, version: str) -> None:
    async def converse() -> tuple[str, set[str], CallToolResult]:
        bridge = StdioServerParameters(
            command=sys.executable,
            args=["manage.py", "mcp_stdio", "--url", server.url, "--tools", "memory,plans"],
            env={**os.environ, "GATEHOUSE_TOKEN": token},
        )
        async with Client(bridge, mode=mode) as client:
            tools = (await client.list_tools()).tools
            return client.protocol_version, {tool.name for tool in tools}, await client.call_tool("whoami", {})

    token = make_token(acme)
    spoken, tools, result = run(converse)

    assert spoken == version
    assert {"read_inbox", "list_plans"} <= tools
    assert result.structured_content is not None
    assert result.structured_content["principal"] == "Kee"


@pytest.mark.ci
def test_bridge_answers_where_the_hub_refuses_or_is_away(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(url: str) -> str:
        return subprocess.run(
            [sys.executable, "manage.py", "mcp_stdio", "--url", url],
            env={**os.environ, "GATEHOUSE_TOKEN": "nonsense"},
            input=f"\nno json\n{asked % (7, 'initialize')}\n{asked % (8, 'tools/list')}\n",
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout

    asked = '{"jsonrpc": "2.0", "id": %s, "method": "%s", "params": {}}'
    refused = ask(f"{server.url}/mcp")
    assert '"code": -32700' in refused
    for number in (7, 8):  # the second is under way when the input ends
        assert f'"id": {number}, "error": {{"code": -32603, "message": "401' in refused
    assert "does not answer" in ask("http://127.0.0.1:9")
    monkeypatch.delenv("GATEHOUSE_TOKEN", raising=False)
    with pytest.raises(CommandError, match="issue_token"):
        call_command("mcp_stdio", url="http://127.0.0.1:9")


def test_chunked_body_is_read_like_any_other(server: Server, acme: Tenant) -> None:
    answer = httpx2.post(
        f"{server.url}/api/v1/inbox/ack",
        content=iter([b'{"entr', b'ies": ["ent_999999999"]}']),
        headers={"Authorization": f"Bearer {make_token(acme)}", "Content-Type": "application/json"},
        timeout=60,
    )
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_entry")


def post(kee: Caller) -> None:
    with kee.acting():
        makers.post(kee)


def test_client_delegates_is_notified_of_the_end_and_acks_it(server: Server, acme: Tenant) -> None:
    async def converse() -> list[str]:
        async with server.client(token) as client, client.listen(resource_subscriptions=["inbox://me"]) as heard:
            assert heard.honored.resource_subscriptions == ["inbox://me"]
            updates, told = aiter(heard), []
            with anyio.fail_after(30):
                await client.call_tool("memory_bootstrap", {})
                await client.call_tool("queue_task", {"task_type": "index"})
                await in_thread(lambda: making.complete(worker, making.lease_one(worker)))
                told.append(str(await anext(updates)))
                answer = await client.call_tool("read_inbox", {})
                through = (answer.structured_content or {})["entries"][-1]["token"]
                await client.call_tool("ack_through", {"through": through})
                told.append(str(await anext(updates)))
        return told

    token, worker = make_token(acme), make_caller(acme, "W", Kind.WORKER)
    making.make_type(make_caller(acme))
    assert run(converse) == ["ResourceUpdated(uri='inbox://me')"] * 2


def test_client_is_notified_at_once_of_an_unread_entry(server: Server, acme: Tenant) -> None:
    async def converse() -> str:
        async with server.client(token) as client, client.listen(resource_subscriptions=["inbox://me"]) as heard:
            with anyio.fail_after(30):
                return str(await anext(aiter(heard)))

    token, kee = make_token(acme), make_caller(acme)
    post(kee)
    assert run(converse) == "ResourceUpdated(uri='inbox://me')"
    with kee.acting():
        (receipt,) = selectors.inbox_receipts(kee.principal_id)
    assert receipt.delivered_at is None


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_tool_waits_for_the_inbox(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> tuple[Any, Any]:
        async with server.client(token, mode) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(later, kee, partial(in_thread, partial(post, kee)))
                with anyio.fail_after(30):
                    page = await client.call_tool("read_inbox", {"wait": 25})
            nothing = await client.call_tool("read_inbox", {"wait": 0.1, "after": 1})
        return nothing.structured_content, page.structured_content

    token, kee = make_token(acme), make_caller(acme)
    nothing, page = run(converse)

    assert nothing["entries"] == []
    assert [entry["sequence"] for entry in page["entries"]] == [1]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_client_hears_of_a_tasks_progress_and_cancels_it(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> Any:
        heard = anyio.Event()

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            told.append((progress, total, message))
            heard.set()

        async def work() -> None:
            await until_heard(task_topic(kee.tenant_id, grant.task_id))
            await in_thread(lambda: making.beat(worker, grant, percent=40, message="Halfway."))
            await heard.wait()
            async with server.client(token, mode) as another:
                await another.call_tool("cancel_task", {"task_id": grant.task_id})
            await in_thread(lambda: making.release(worker, grant))

        async with server.client(token, mode) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            with anyio.fail_after(60):
                asked = {"task_id": grant.task_id, "wait": 50}
                return await client.call_tool("check_task_status", asked, progress_callback=hear)

    told: list[Any] = []
    token, kee, worker = make_token(acme), make_caller(acme), make_caller(acme, "W", Kind.WORKER)
    grant = making.leased(kee, worker)
    assert run(converse).structured_content["status"] == "canceled"
    assert told == [(40, 100, "Halfway.")]


def test_waiting_tool_sends_heartbeats(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(notifications, "HEARTBEAT_SECONDS", 0.1)
    said: list[bytes] = []

    async def hear(message: Any) -> None:
        said.append(message.get("body", b""))

    async def converse() -> None:
        with anyio.fail_after(30):
            await ask("/mcp", hear, method="POST", body=message, **headers)

    token = make_token(acme)
    message, headers = modern_message("tools/call", {"name": "read_inbox", "arguments": {"wait": 1}}, token)
    run(converse)

    *beats, answer = [event for event in b"".join(said).split(b"\r\n\r\n") if event]
    assert beats
    assert set(beats) == {b": heartbeat"}
    assert answer.startswith(b"event: message\r\ndata: ")


def test_subscription_to_an_unreadable_resource_is_not_honored(server: Server, acme: Tenant) -> None:
    async def converse() -> list[str] | None:
        uris = ["inbox://me", "task://task_404", "nonesuch://x"]
        async with server.client(token) as client, client.listen(resource_subscriptions=uris) as heard:
            return heard.honored.resource_subscriptions

    token = make_token(acme, scopes=[Scope.TASKS_QUEUE])
    assert run(converse) is None


def test_open_streams_hold_no_database_connection(server: Server, acme: Tenant) -> None:
    """There are more streams than the process has connections."""

    async def converse() -> bool:
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                await tasks.start(hold)
            async with server.client(token) as client:
                answer = await client.call_tool("whoami", {})
            tasks.cancel_scope.cancel()
        return answer.is_error

    async def hold(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with server.client(token) as client, client.listen(resource_subscriptions=["inbox://me"]):
            task_status.started()
            await anyio.sleep_forever()

    token = make_token(acme)
    assert run(converse) is False


@pytest.mark.parametrize(
    ("signal", "facts", "topic"),
    [
        (inbox_changed, {"principal_ids": [5], "tenant_id": 1}, inbox_topic(5)),
        (tasks_finished, {"task_ids": [6, 7], "tenant_id": 1}, task_topic(1, "task_7")),
    ],
)
def test_commit_notifies_its_topic(signal: Signal, facts: dict[str, Any], topic: str) -> None:
    async def hear() -> str | None:
        async with aclosing(notifications.listen([topic], lasting=30, heartbeat=30)) as heard:
            await anext(heard)
            await run_sync(lambda: signal.send(sender=None, **facts))
            return await anext(heard)

    assert run(hear) == topic
