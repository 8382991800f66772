"""Following an execution: a progressive one tells of each step as it ends, another of all at its end."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest

from apps.core.notifications import in_thread
from apps.executions.models import Execution
from apps.executions.states import Strategy
from apps.executions.wakeups import execution_topic
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller
from tests.executions.making import REPORT, advance, begin, do_task, example_steps, make_plan, make_worker, queue_step
from tests.executions.workers import WorkerServer
from tests.factories import make_caller, make_token
from tests.mcp.conftest import Server
from tests.waiters import until_heard

NOBODY = WorkerServer(endpoint="http://127.0.0.1:9/mcp")
"""Its tools are run as tasks, by hand."""


@dataclass
class Principal:
    """Somebody with a plan of two tasks and a report, and the hands that do the tasks."""

    url: str
    caller: Caller
    token: str
    hands: Caller

    @property
    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=httpx2.Timeout(60)
        )

    def begins(self, strategy: Strategy, steps: list[dict[str, Any]] | None = None) -> Execution:
        chain = [queue_step("a"), queue_step("b", depends_on=["a"]), REPORT]
        execution = begin(self.caller, steps or chain, strategy=strategy)
        advance(execution)
        return execution

    def does_a_task(self, execution: Execution) -> None:
        do_task(self.hands, {"text": "hello", "summary": "Said hello"})
        advance(execution)

    async def when_heard(self, execution: Execution, *actions: Callable[[], None]) -> None:
        await until_heard(execution_topic(self.caller.tenant_id, execution.plan_id))
        for action in actions:
            await in_thread(action)

    @asynccontextmanager
    async def follows(self, plan_id: str, **headers: str) -> AsyncIterator[AsyncIterator[tuple[int, Any]]]:
        path = f"/api/v1/plans/{plan_id}/execution/stream"
        async with self.client as client, client.stream("GET", path, headers=headers) as found:
            assert found.status_code == 200
            yield events(found)


async def events(response: httpx2.Response) -> AsyncIterator[tuple[int, Any]]:
    members: dict[str, str] = {}
    async for line in response.aiter_lines():
        if not line and "data" in members:
            assert members["event"] == "steps"
            yield int(members["id"]), json.loads(members["data"])
            members = {}
        name, _, value = line.partition(": ")
        members |= {name: value} if name else {}


@pytest.fixture
def kee(server: Server, acme: Tenant) -> Principal:
    caller = make_caller(acme)
    make_worker(caller, NOBODY)
    return Principal(server.url, caller, make_token(acme), make_caller(acme, "hands", Kind.WORKER))


def run(story: Callable[[], Awaitable[Any]]) -> Any:
    """Well under the time after which whoever waits looks by itself: only cues make it."""

    async def bounded() -> Any:
        with anyio.fail_after(15):
            return await story()

    return anyio.run(bounded)


def told(event: tuple[int, Any]) -> tuple[int, list[tuple[str, str]], str]:
    number, data = event
    return number, [(step["step_id"], step["status"]) for step in data["steps"]], data["status"]


def test_a_progressive_execution_tells_of_each_step_as_it_ends(kee: Principal) -> None:
    async def story() -> list[Any]:
        heard = []
        async with kee.follows(execution.plan_id) as stream:
            for _ in range(2):
                await in_thread(partial(kee.does_a_task, execution))
                heard.append(await anext(stream))
        return heard

    execution = kee.begins(Strategy.PROGRESSIVE)
    first, last = run(story)

    assert told(first) == (1, [("a", "complete")], "executing")
    assert told(last) == (3, [("b", "complete"), ("report", "complete")], "complete")
    assert first[1]["steps"][0]["key_findings"]["summary"] == "Said hello"
    assert (last[1]["steps_complete"], last[1]["steps_total"]) == (3, 3)


def test_who_comes_again_hears_of_no_step_twice_and_of_none_too_few(kee: Principal) -> None:
    async def story() -> list[Any]:
        async with kee.follows(execution.plan_id) as stream:
            await in_thread(partial(kee.does_a_task, execution))
            heard = [await anext(stream)]
        await in_thread(partial(kee.does_a_task, execution))
        async with kee.follows(execution.plan_id, **{"Last-Event-ID": str(heard[0][0])}) as stream:
            heard.append(await anext(stream))
        return heard

    execution = kee.begins(Strategy.PROGRESSIVE)
    assert [number for event in run(story) for number in [step["number"] for step in event[1]["steps"]]] == [1, 2, 3]


def test_an_execution_that_is_not_progressive_tells_of_all_steps_at_its_end(kee: Principal) -> None:
    async def story() -> Any:
        async with kee.follows(execution.plan_id) as stream:
            for _ in range(2):
                await in_thread(partial(kee.does_a_task, execution))
            return await anext(stream)

    execution = kee.begins(Strategy.SEQUENTIAL)
    only = run(story)

    assert told(only) == (3, [("a", "complete"), ("b", "complete"), ("report", "complete")], "complete")


def test_a_plan_is_followed_before_it_is_begun(kee: Principal) -> None:
    async def story() -> Any:
        async with kee.follows(plan_id) as stream:
            execution = await in_thread(partial(begin, kee.caller, [], strategy=Strategy.PROGRESSIVE, plan_id=plan_id))
            await in_thread(partial(advance, execution))
            return await anext(stream)

    with kee.caller.acting():
        plan_id = make_plan(kee.caller, [REPORT])

    assert told(run(story)) == (1, [("report", "complete")], "complete")


def test_a_stream_of_what_is_not_ones_own_or_lies_ahead_is_refused(kee: Principal, acme: Tenant) -> None:
    async def story() -> list[Any]:
        path = f"/api/v1/plans/{execution.plan_id}/execution/stream"
        async with kee.client as client:
            ahead = await client.get(path, headers={"Last-Event-ID": "1"})
            stranger = await client.get(path, headers={"Authorization": f"Bearer {rival}"})
            unknown = await client.get(path.replace(execution.plan_id, "plan-nobody"))
        return [ahead, stranger, unknown]

    execution = kee.begins(Strategy.PROGRESSIVE)
    rival = make_token(acme, "Rival")
    ahead, stranger, unknown = run(story)

    assert [answer.status_code for answer in (ahead, stranger, unknown)] == [422, 404, 404]
    assert (ahead.json()["code"], ahead.json()["errors"][0]["pointer"]) == ("ahead_of_execution", "/Last-Event-ID")


@pytest.mark.parametrize("strategy", [Strategy.SEQUENTIAL, Strategy.PROGRESSIVE])
def test_a_wait_for_an_execution_ends_with_it(kee: Principal, strategy: Strategy) -> None:
    async def story() -> Any:
        async with kee.client as client, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(kee.when_heard, execution, does, does))
            answer = await client.get(f"/api/v1/plans/{execution.plan_id}/execution?wait=60")
        return answer.json()

    execution = kee.begins(strategy)
    does = partial(kee.does_a_task, execution)
    report = run(story)

    assert (report["status"], report["steps_complete"]) == ("complete", 3)


def test_a_wait_ends_where_the_execution_needs_its_owner(kee: Principal) -> None:
    async def story() -> Any:
        async with kee.client as client, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(kee.when_heard, execution, partial(kee.does_a_task, execution)))
            answer = await client.get(f"/api/v1/plans/{execution.plan_id}/execution?wait=60")
        return answer.json()

    steps = [step for step in example_steps() if step["step_id"] != "step-3"]
    steps[2] = {**steps[2], "aggregate_step_ids": ["step-1"], "depends_on": ["step-2"]}
    execution = kee.begins(Strategy.SEQUENTIAL, steps)
    report = run(story)

    assert report["status"] == "executing"
    assert report["next_actions"] == [
        f"Combine the results and hand them in: submit_step_result({execution.ref}, step-4)."
    ]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.PROGRESSIVE, [(1, 3, "a: complete. Done by hand"), (3, 3, "report: complete")]),
        (Strategy.SEQUENTIAL, []),
    ],
)
def test_a_tool_that_waits_tells_of_a_progressive_execution_meanwhile(
    kee: Principal, server: Server, mode: str, strategy: Strategy, expected: list[Any]
) -> None:
    heard: list[Any] = []
    first_is_told = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))
        first_is_told.set()

    async def does() -> None:
        await kee.when_heard(execution, partial(kee.does_a_task, execution))
        if strategy == Strategy.PROGRESSIVE:
            await first_is_told.wait()
        await in_thread(partial(kee.does_a_task, execution))

    async def story() -> Any:
        async with server.client(kee.token, mode) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(does)
            answer = await client.call_tool(
                "get_plan_status", {"plan_id": execution.plan_id, "wait": 60}, progress_callback=hear
            )
        return answer.structured_content

    execution = kee.begins(strategy)
    report = run(story)

    assert heard == expected
    assert report["status"] == "complete"
