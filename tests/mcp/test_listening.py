"""`subscriptions/listen` across processes: a client hears from one what another commits."""

from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync
from django.dispatch import Signal

from apps.core import notifications
from apps.core.notifications import in_thread
from apps.digests import selectors
from apps.digests.services import inbox_changed, inbox_topic
from apps.mcp.resources import task_topic
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.tasks.signals import tasks_finished
from tests.asgi import ask
from tests.digests import makers
from tests.factories import make_caller, make_token
from tests.mcp.conftest import Server
from tests.mcp.raw import modern_message
from tests.waiters import later


def test_client_is_notified_of_a_post_and_of_an_ack(server: Server, acme: Tenant) -> None:
    async def converse() -> list[str]:
        async with server.client(token) as client, client.listen(resource_subscriptions=["inbox://me"]) as heard:
            assert heard.honored.resource_subscriptions == ["inbox://me"]
            updates, told = aiter(heard), []
            with anyio.fail_after(30):
                await in_thread(post)
                told.append(str(await anext(updates)))
                answer = await client.call_tool("read_inbox", {})
                through = (answer.structured_content or {})["entries"][-1]["token"]
                await client.call_tool("ack_through", {"through": through})
                told.append(str(await anext(updates)))
        return told

    def post() -> None:
        with kee.acting():
            makers.post(kee)

    token, kee = make_token(acme), make_caller(acme)
    assert anyio.run(converse) == ["ResourceUpdated(uri='inbox://me')"] * 2


def test_client_is_notified_at_once_of_an_unread_entry(server: Server, acme: Tenant) -> None:
    async def converse() -> str:
        async with server.client(token) as client, client.listen(resource_subscriptions=["inbox://me"]) as heard:
            with anyio.fail_after(30):
                return str(await anext(aiter(heard)))

    token, kee = make_token(acme), make_caller(acme)
    with kee.acting():
        makers.post(kee)

    assert anyio.run(converse) == "ResourceUpdated(uri='inbox://me')"
    with kee.acting():
        (receipt,) = selectors.inbox_receipts(kee.principal_id)
    assert receipt.delivered_at is None


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_tool_waits_for_the_inbox(server: Server, acme: Tenant, mode: str) -> None:
    async def converse() -> tuple[Any, Any]:
        async with server.client(token, mode) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(later, kee, partial(in_thread, post))
                with anyio.fail_after(30):
                    page = await client.call_tool("read_inbox", {"wait": 25})
            nothing = await client.call_tool("read_inbox", {"wait": 0.1, "after": 1})
        return nothing.structured_content, page.structured_content

    def post() -> None:
        with kee.acting():
            makers.post(kee)

    token, kee = make_token(acme), make_caller(acme)
    nothing, page = anyio.run(converse)

    assert nothing["entries"] == []
    assert [entry["sequence"] for entry in page["entries"]] == [1]


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
    message, headers = modern_message("tools/call", {"name": "read_inbox", "arguments": {"wait": 5}}, token)
    anyio.run(converse)

    *beats, answer = [event for event in b"".join(said).split(b"\r\n\r\n") if event]
    assert beats
    assert set(beats) == {b": heartbeat"}
    assert answer.startswith(b"event: message\r\ndata: ")


def test_tool_refuses_too_long_a_wait(server: Server, acme: Tenant) -> None:
    async def converse() -> Any:
        async with server.client(token) as client:
            return await client.call_tool("read_inbox", {"wait": 61})

    token = make_token(acme)
    answer = anyio.run(converse)
    assert answer.is_error
    assert "/wait" in str(answer.content)


def test_subscription_to_an_unreadable_resource_is_not_honored(server: Server, acme: Tenant) -> None:
    async def converse() -> list[str] | None:
        uris = ["inbox://me", "task://task_404", "nonesuch://x"]
        async with server.client(token) as client, client.listen(resource_subscriptions=uris) as heard:
            return heard.honored.resource_subscriptions

    token = make_token(acme, scopes=[Scope.TASKS_QUEUE])
    assert anyio.run(converse) is None


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
    assert anyio.run(converse) is False


@pytest.mark.parametrize(
    ("signal", "facts", "topic"),
    [
        (inbox_changed, {"principal_id": 5, "tenant_id": 1}, inbox_topic(5)),
        (tasks_finished, {"task_ids": [6, 7], "tenant_id": 1}, task_topic(1, "task_7")),
    ],
)
def test_commit_notifies_its_topic(signal: Signal, facts: dict[str, Any], topic: str) -> None:
    async def hear() -> str | None:
        async with aclosing(notifications.listen([topic], lasting=30, heartbeat=30)) as heard:
            await anext(heard)
            await run_sync(lambda: signal.send(sender=None, **facts))
            return await anext(heard)

    assert anyio.run(hear) == topic
