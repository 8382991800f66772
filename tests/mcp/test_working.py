"""Agents that ask for work and do it, by the official client against a running web process."""

from typing import Any

import anyio
import pytest
from mcp import Client

from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller
from tests.factories import make_caller, make_token
from tests.mcp.conftest import Server
from tests.tasks.making import make_type

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


def test_task_worker_is_shown_its_tools_only(server: Server, acme: Tenant) -> None:
    async def converse() -> set[str]:
        async with server.client(workers) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    workers = make_token(acme, "W", Kind.WORKER, scopes=[Scope.TASKS_WORK])
    assert anyio.run(converse) == WORKERS_TOOLS


def test_agent_queues_leases_and_ends_many_tasks(server: Server, token: str) -> None:
    async def converse() -> None:
        async with server.client(token) as client:
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
