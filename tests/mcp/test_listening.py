"""`subscriptions/listen` across processes: a client hears from one what another commits."""

from contextlib import aclosing

import anyio
import pytest
from anyio.to_thread import run_sync
from django.dispatch import Signal

from apps.core import cues
from apps.digests.signals import inbox_changed
from apps.mcp.resources import inbox_topic, task_topic
from apps.principals.models import Principal, Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import acting_as_system
from apps.tasks.signals import task_finished
from tests.factories import make_token
from tests.mcp.conftest import Server


def _id_of(name: str) -> int:
    with acting_as_system("test"):
        return Principal.objects.get(name=name).pk


def test_a_client_hears_that_its_inbox_changed(server: Server, acme: Tenant) -> None:
    async def converse() -> tuple[list[str] | None, str]:
        async with server.client(token) as client, client.listen(resource_subscriptions=["inbox://me"]) as heard:
            await run_sync(cues.send, inbox_topic(kee))
            with anyio.fail_after(30):
                event = await anext(aiter(heard))
            return heard.honored.resource_subscriptions, str(event)

    token = make_token(acme)
    kee = _id_of("Kee")
    honored, event = anyio.run(converse)

    assert honored == ["inbox://me"]
    assert event == "ResourceUpdated(uri='inbox://me')"


def test_what_a_caller_may_not_read_is_not_honored(server: Server, acme: Tenant) -> None:
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
        (task_finished, {"task_id": 7, "tenant_id": 1}, task_topic(1, "task_7")),
    ],
)
def test_what_commits_below_is_cued(signal: Signal, facts: dict[str, int], topic: str) -> None:
    async def hear() -> str | None:
        async with aclosing(cues.listen([topic], lasting=30, beat=30)) as heard:
            await anext(heard)
            await run_sync(lambda: signal.send(sender=None, **facts))
            return await anext(heard)

    assert anyio.run(hear) == topic


def test_topics_keep_tenants_apart() -> None:
    assert task_topic(1, "task_7") != task_topic(2, "task_7")
