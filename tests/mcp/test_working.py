"""Agents that ask for work and do it, by the official client against a running web process."""

from typing import Any

import anyio
import pytest
from mcp import Client

from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller
from apps.tasks.signals import queue_topic
from tests.factories import make_caller, make_token
from tests.mcp.conftest import Server
from tests.tasks.making import make_type
from tests.waiters import until_heard

WORKERS_TOOLS = {
    "complete_task",
    "complete_tasks",
    "fail_task",
    "fail_tasks",
    "heartbeat_tasks",
    "lease_tasks",
    "list_queues",
    "list_task_types",
    "read_artifact",
    "release_task",
    "release_tasks",
    "whoami",
}
NO_VOICE = {"code": "no_voice", "message": "I have lost my voice."}


@pytest.fixture
def kee(acme: Tenant) -> Caller:
    caller = make_caller(acme)
    make_type(caller, "greeting")
    return caller


@pytest.fixture
def token(kee: Caller, acme: Tenant) -> str:
    """Of Kee, who asks for work and does it."""
    return make_token(acme, scopes=[Scope.TASKS_QUEUE, Scope.TASKS_WORK])


async def _call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def _lease(client: Client, **asked: Any) -> list[dict[str, Any]]:
    """Each as what proves it to the other verbs."""
    leased = await _call(client, "lease_tasks", task_types=["greeting"], **asked)
    return [{name: one[name] for name in ("task_id", "lease_token")} for one in leased["tasks"]]


def _told(answer: Any) -> list[tuple[str, str | None]]:
    return [(one["status"], one["code"]) for one in answer["results"]]


def test_a_worker_is_shown_what_it_works_with_and_nothing_else(server: Server, acme: Tenant) -> None:
    async def converse() -> set[str]:
        async with server.client(workers) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    workers = make_token(acme, "W", Kind.WORKER, scopes=[Scope.TASKS_WORK])
    assert anyio.run(converse) == WORKERS_TOOLS


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_queues_leases_and_ends_many_at_once(server: Server, token: str, mode: str) -> None:
    async def converse() -> None:
        async with server.client(token, mode) as client:
            asked = [{"task_type": "greeting", "params": {"name": name}} for name in ("Ada", "Bob", "Cyd", "Dan")]
            queued = await _call(client, "queue_tasks", tasks=[*asked, {"task_type": "singing"}])
            assert _told(queued) == [("queued", None)] * 4 + [("refused", "unknown_task_type")]

            ada, bob, cyd = held = await _lease(client, capacity=3)
            beaten = await _call(client, "heartbeat_tasks", leases=held)
            assert [(one["status"], one["order"]) for one in beaten["results"]] == [("ok", "continue")] * 3

            completions = [{**ada, "result": "Hello"}, {**bob, "task_id": cyd["task_id"]}]
            completed = await _call(client, "complete_tasks", completions=completions, lease_next=1)
            assert _told(completed) == [("succeeded", None), ("refused", "bad_lease_token")]
            assert completed["next"][0]["params"] == {"name": "Dan"}
            again = await _call(client, "complete_tasks", completions=completions, lease_next=1)
            assert [one["task_id"] for one in again["next"]] == [one["task_id"] for one in completed["next"]]

            failures = [{**one, "error": NO_VOICE, "retryable": False} for one in (bob, ada)]
            assert _told(await _call(client, "fail_tasks", failures=failures)) == [
                ("failed", None),
                ("refused", "already_decided"),
            ]
            assert _told(await _call(client, "release_tasks", releases=[cyd, bob])) == [
                ("queued", None),
                ("refused", "already_decided"),
            ]

    anyio.run(converse)


def test_an_agent_finds_a_dead_letter_and_has_it_done_again(server: Server, token: str) -> None:
    async def converse() -> None:
        async with server.client(token) as client:
            await _call(client, "queue_task", task_type="greeting")
            (held,) = await _lease(client)
            await _call(client, "fail_task", **held, error=NO_VOICE, retryable=False)

            (letter,) = (await _call(client, "list_dead_letters"))["dead_letters"]
            assert (letter["task_id"], letter["error"]) == (held["task_id"], NO_VOICE)
            replayed = await _call(client, "retry_task", task_id=letter["task_id"])

            (again,) = await _lease(client)
            assert again["task_id"] == replayed["task_id"]

    anyio.run(converse)


def test_an_agent_bounds_a_queue_and_sees_how_it_is(server: Server, token: str) -> None:
    async def converse() -> None:
        async with server.client(token) as client:
            policy = await _call(client, "set_queue_limits", queue="default", concurrency=1)
            assert (policy["concurrency"], policy["rate"], policy["fair"]) == (1, None, False)
            await _call(client, "queue_tasks", tasks=[{"task_type": "greeting"}] * 3)

            assert len(await _lease(client, capacity=3)) == 1
            (line,) = (await _call(client, "list_queues"))["queues"]
            assert (line["queue"], line["queued"], line["leased"], line["paused"]) == ("default", 2, 1, False)

    anyio.run(converse)


def test_an_agent_that_waits_for_a_paused_queue_is_given_its_work_when_it_is_resumed(
    server: Server, token: str, kee: Caller
) -> None:
    async def converse() -> None:
        async with server.client(token) as client, server.client(token) as waiting:
            await _call(client, "queue_task", task_type="greeting")
            assert (await _call(client, "pause_queue", queue="default"))["paused"]
            assert await _lease(client) == []

            async def resume() -> None:
                await until_heard(queue_topic(kee.tenant_id, "default"))
                await _call(client, "resume_queue", queue="default")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(resume)
                with anyio.fail_after(60):
                    leased = await _call(waiting, "lease_tasks", queues=["default"], wait_seconds=25)
            assert len(leased["tasks"]) == 1

    anyio.run(converse)
