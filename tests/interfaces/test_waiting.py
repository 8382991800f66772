"""Long polls and streams against a running web process: the inbox, work to lease, and executions."""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import httpx2
import psutil
import pytest

from apps.core import notifications
from apps.core.notifications import in_thread
from apps.core.operations import find
from apps.core.sql import fetch
from apps.digests import services as digests
from apps.digests.services import inbox_topic
from apps.digests.tools import ReadInbox, read_inbox
from apps.executions.models import Execution
from apps.executions.states import Strategy
from apps.executions.wakeups import execution_topic
from apps.principals import services as principals
from apps.principals.models import Tenant, Token
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.tasks.services import queueing
from apps.tasks.signals import queue_topic, type_topic
from tests.asgi import ask
from tests.digests import makers
from tests.executions.making import REPORT, advance, begin, do_task, make_worker, queue_step
from tests.executions.workers import WorkerServer
from tests.factories import T0, make_caller, make_token
from tests.server import Server, end_server, start_server
from tests.tasks.making import lease_one, make_type, queue, release
from tests.waiters import later, run, until_heard

pytestmark = pytest.mark.ci


@dataclass
class Agent:
    """An agent with a token, and those who post to it."""

    url: str
    caller: Caller
    token: str
    posted: list[str] = field(default_factory=list)

    @property
    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=httpx2.Timeout(60)
        )

    async def gets(self, path: str, **headers: str) -> httpx2.Response:
        async with self.client as client:
            return await client.get(path, headers=headers)

    async def posts(self, path: str, **body: Any) -> httpx2.Response:
        async with self.client as client:
            return await client.post(path, json=body)

    async def does(self, work: Callable[[], Any]) -> Any:
        """Work in this agent's name, in a transaction that others see when it is over."""

        def acting() -> Any:
            with self.caller.acting():
                return work()

        return await in_thread(acting)

    async def receives(self, **changes: Any) -> str:
        posted = await self.does(partial(makers.post, self.caller, **changes))
        self.posted.append(posted.receipt_id)
        return str(posted.receipt_id)


@dataclass
class Event:
    """One server-sent event."""

    id: int
    name: str
    data: Any


class Stream:
    """The events of one connection."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def __anext__(self) -> Event:
        members: dict[str, str] = {}
        async for line in self._lines:
            if not line and "data" in members:
                return Event(int(members["id"]), members["event"], json.loads(members["data"]))
            name, _, value = line.partition(": ")
            members |= {name: value} if name else {}
        raise StopAsyncIteration

    def __aiter__(self) -> "Stream":
        return self


@asynccontextmanager
async def stream(
    agent: Agent, query: str = "", path: str = "/api/v1/inbox/stream", **headers: str
) -> AsyncIterator[Stream]:
    async with agent.client as client, client.stream("GET", f"{path}{query}", headers=headers) as found:
        yield Stream(found)


def shown(page: Any) -> list[str]:
    return [receipt for entry in page["entries"] for receipt in entry["receipt_ids"]]


async def while_waiting(
    request: Awaitable[httpx2.Response], topic: str, action: Callable[[], Awaitable[Any]]
) -> httpx2.Response:
    """The answer to a request that waits, where something happens as soon as it does."""

    async def act() -> None:
        await until_heard(topic)
        await action()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(act)
        answer = await request
    return answer  # noqa: RET504  # a return inside would look as if a task group could end without one


@pytest.fixture
def kee(server: Server, acme: Tenant) -> Agent:
    return Agent(server.url, make_caller(acme), make_token(acme))


def poll(agent: Agent, query: str, action: Callable[[], Awaitable[Any]]) -> Awaitable[httpx2.Response]:
    return while_waiting(agent.gets(f"/api/v1/inbox?{query}"), inbox_topic(agent.caller.principal_id), action)


def test_wait_ends_on_a_post_and_its_token_acks_what_it_showed(kee: Agent) -> None:
    async def story() -> tuple[Any, Any, list[str], Any]:
        page = (await poll(kee, "wait=50", kee.receives)).json()
        await kee.receives()
        acked = (await kee.posts("/api/v1/inbox/ack-through", through=page["entries"][-1]["token"])).json()
        unread, further = [
            (await kee.gets(f"/api/v1/inbox?{query}")).json() for query in ("limit=500", "wait=50&after=1")
        ]
        return page, acked, shown(unread), further

    page, acked, unread, further = run(story, within=30)
    assert shown(page) == kee.posted[:1]
    assert (page["as_of"], page["entries"][0]["token"]) == (1, f"{page['entries'][0]['ref']}@1")
    assert acked == {"acked_entries": 1, "acked_receipts": 1}
    assert unread == shown(further) == kee.posted[1:]


def test_wait_ends_on_a_flush_and_not_on_buffered_receipts(kee: Agent) -> None:
    async def flush_later() -> None:
        for _ in range(3):
            await kee.does(partial(makers.post_grouped, kee.caller))
        while not await in_thread(digests.flush_due):
            await anyio.sleep(0.1)

    with kee.caller.acting():
        makers.set_policy(kee.caller, window=timedelta(seconds=1))
    page = run(lambda: poll(kee, "wait=50", flush_later)).json()
    assert [(entry["kind"], entry["count"]) for entry in page["entries"]] == [("digest_snapshot", 3)]


@pytest.mark.parametrize("is_shown", [False, True])
def test_narrowed_digest_is_news_with_an_unseen_rest_only(tenant: Tenant, is_shown: bool) -> None:
    caller = make_caller(tenant)
    with caller.acting():
        makers.post_grouped(caller, flush_class="immediate")
        first = read_inbox(caller, ReadInbox())
        news = makers.post_grouped(caller, flush_class="immediate")
        given = ReadInbox(after=(read_inbox(caller, ReadInbox()) if is_shown else first).as_of, wait=1)
        makers.ack_through(caller, first.entries[0].token)
        page = read_inbox(caller, given)
    assert [(entry.flush_reason, entry.receipt_ids) for entry in page.entries] == [("narrow", [news.receipt_id])]
    waits = find("read_inbox").waits
    assert waits is not None
    assert waits.worth_waking(given, page) is not is_shown


def test_stream_shows_what_waits_and_what_comes(kee: Agent) -> None:
    async def story() -> tuple[httpx2.Headers, list[Event]]:
        await kee.receives()
        await kee.receives()
        async with stream(kee) as events:
            first = await anext(events)
            await kee.receives()
            return events.response.headers, [first, await anext(events)]

    headers, (first, second) = run(story, within=30)
    assert [first.name, first.id, shown(first.data)] == ["inbox", 2, kee.posted[:2]]
    assert [second.name, second.id, shown(second.data)] == ["inbox", 3, kee.posted[2:]]
    assert headers["Content-Type"] == "text/event-stream"
    assert (headers["Cache-Control"], headers["X-Accel-Buffering"]) == ("no-store", "no")


def test_stalled_client_of_a_stream_is_dropped(acme: Tenant, kee: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("config.handlers._STALLED_AFTER", 0.2)
    taken: list[str] = []

    async def takes_one(message: Any) -> None:
        taken.append(message["type"])
        if len(taken) > 1:
            await anyio.sleep_forever()

    async def story() -> None:
        await kee.receives()
        await ask("/api/v1/inbox/stream", takes_one, authorization=f"Bearer {kee.token}")

    run(story, within=30)
    assert taken == ["http.response.start", "http.response.body"]
    assert not notifications._places


def test_posts_racing_with_reconnects_leave_no_gap_and_no_repetition(kee: Agent) -> None:
    chance = random.Random(7)  # noqa: S311  # no secret

    async def post_all() -> None:
        for _ in range(40):
            await kee.receives()
            await anyio.sleep(chance.uniform(0, 0.03))

    async def story() -> list[str]:
        heard: list[str] = []
        last = "0"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post_all)
            while len(heard) < 40:
                # The address gives the start, as an EventSource does; the header stands over it.
                query = f"?after=0&limit={chance.choice([1, 2, 50])}"
                async with stream(kee, query, **{"Last-Event-ID": last}) as events:
                    for _ in range(chance.randrange(1, 5)):
                        if len(heard) < 40:
                            event = await anext(events)
                            heard += shown(event.data)
                            last = str(event.id)
        return heard

    assert run(story) == kee.posted


def test_revoked_token_ends_its_waits_and_streams(kee: Agent) -> None:
    def revoke() -> None:
        with acting_as_system("test"):
            token = Token.objects.get(principal_id=kee.caller.principal_id)
            principals.revoke_token(token_id=token.pk, now=T0)

    async def revoke_and_post() -> None:
        await in_thread(revoke)
        await kee.receives()

    async def story() -> tuple[list[Event], int, int]:
        async with stream(kee) as events, anyio.create_task_group() as tasks:
            answers: list[httpx2.Response] = []

            async def wait() -> None:
                answers.append(await kee.gets("/api/v1/inbox?wait=50"))

            tasks.start_soon(wait)
            tasks.start_soon(later, kee.caller, revoke_and_post)
            heard = [event async for event in events]
        async with stream(kee) as again:
            return heard, answers[0].status_code, again.response.status_code

    assert run(story, within=40) == ([], 401, 401)


def connections_of_the_web() -> int:
    with acting_as_system("test"):
        return int(
            fetch(
                "select count(*) from pg_stat_activity"
                " where application_name = 'gatehouse-web' and datname = current_database()"
            )[0][0]
        )


def test_two_hundred_wait_in_one_process_that_goes_on_serving(acme: Tenant) -> None:
    waiters = 200
    process, url = start_server()
    agents = [Agent(url, make_caller(acme, f"agent-{n}"), make_token(acme, f"agent-{n}")) for n in range(8)]
    limits = httpx2.Limits(max_connections=None)
    answers: list[list[str]] = []

    async def wait(client: httpx2.AsyncClient, number: int) -> None:
        headers = {"Authorization": f"Bearer {agents[number % 8].token}"}
        if number % 2:
            async with client.stream("GET", "/api/v1/inbox/stream", headers=headers) as found:
                answers.append(shown((await anext(Stream(found))).data))
        else:
            answers.append(shown((await client.get("/api/v1/inbox?wait=60", headers=headers)).json()))

    async def story() -> tuple[int, int, int]:
        async with (
            httpx2.AsyncClient(base_url=url, timeout=120, limits=limits) as client,
            anyio.create_task_group() as tasks,
        ):
            for number in range(waiters):
                tasks.start_soon(wait, client, number)
            while len(psutil.Process(process.pid).net_connections("tcp")) < waiters:
                await anyio.sleep(0.2)
            alive = (await client.get("/livez")).status_code
            held = await in_thread(connections_of_the_web)
            threads = psutil.Process(process.pid).num_threads()
            for agent in agents:
                await agent.receives()
        return alive, held, threads

    try:
        alive, held, threads = run(story, within=150)
    finally:
        end_server(process)

    assert len(answers) == waiters
    assert {receipt for answer in answers for receipt in answer} == {one for agent in agents for one in agent.posted}
    assert all(len(answer) == 1 for answer in answers)
    assert alive == 200
    # Four look at a time; a poster meanwhile shares the rest of the pool.
    assert held <= 16
    assert threads < 100


# Work


@pytest.fixture
def worker(kee: Agent, acme: Tenant) -> Agent:
    make_type(kee.caller)
    return Agent(kee.url, make_caller(acme, "W", Kind.WORKER), make_token(acme, "W", Kind.WORKER))


def lease(worker: Agent, **asked: Any) -> Awaitable[httpx2.Response]:
    return worker.posts("/api/v1/tasks/lease", **asked)


@pytest.mark.parametrize("named", ["queues", "task_types"])
@pytest.mark.parametrize("event", ["queued", "released", "queue resumed", "type resumed"])
def test_lease_waits_until_there_is_work(kee: Agent, worker: Agent, named: str, event: str) -> None:
    name = "default" if named == "queues" else "index"

    def pausable() -> Any:
        named, kind = (queueing.type_for, "index") if event == "type resumed" else (queueing.queue_named, "default")
        return named(tenant_id=kee.caller.tenant_id, name=kind)

    def act() -> None:
        if event == "queued":
            queue(kee.caller)
        elif event == "released":
            release(kee.caller, held)
        else:
            with kee.caller.acting():
                queueing.resume(pausable())

    if event != "queued":
        queue(kee.caller)
    if event == "released":
        held = lease_one(kee.caller)
    elif event != "queued":
        with kee.caller.acting():
            queueing.pause(pausable())
    topic = (queue_topic if named == "queues" else type_topic)(kee.caller.tenant_id, name)
    request = lease(worker, **{named: [name]}, wait_seconds=30)
    answer = run(lambda: while_waiting(request, topic, partial(in_thread, act)), within=20)
    assert [task["run_id"] for task in answer.json()["tasks"]] == [2 if event == "released" else 1]


def test_many_leases_wait_and_each_task_goes_to_one(kee: Agent, worker: Agent) -> None:
    waiters, given = 30, list[str]()

    async def wait() -> None:
        answer = await lease(worker, queues=["default"], wait_seconds=20)
        given.extend(task["task_id"] for task in answer.json()["tasks"])

    async def story() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(waiters):
                tasks.start_soon(wait)
            await until_heard(queue_topic(kee.caller.tenant_id, "default"))
            for _ in range(waiters):
                await in_thread(partial(queue, kee.caller))

    run(story)
    assert (len(given), len(set(given))) == (waiters, waiters)


# Executions


@dataclass
class Owner(Agent):
    """An agent with a plan of two tasks and a report, which does the tasks by hand."""

    hands: Caller | None = None

    def begins(self, strategy: Strategy, steps: list[dict[str, Any]] | None = None) -> Execution:
        chain = [queue_step("a"), queue_step("b", depends_on=["a"]), REPORT]
        execution = begin(self.caller, steps or chain, strategy=strategy)
        advance(execution)
        return execution

    def does_a_task(self, execution: Execution) -> None:
        assert self.hands is not None
        do_task(self.hands, {"text": "hello", "summary": "Said hello"})
        advance(execution)


@pytest.fixture
def owner(kee: Agent, acme: Tenant) -> Owner:
    make_worker(kee.caller, WorkerServer(endpoint="http://127.0.0.1:9/mcp"))
    return Owner(kee.url, kee.caller, kee.token, hands=make_caller(acme, "hands", Kind.WORKER))


@pytest.mark.parametrize("strategy", [Strategy.SEQUENTIAL, Strategy.PROGRESSIVE])
def test_wait_for_an_execution_ends_with_it(owner: Owner, strategy: Strategy) -> None:
    async def act() -> None:
        for _ in range(2):
            await in_thread(partial(owner.does_a_task, execution))

    execution = owner.begins(strategy)
    request = owner.gets(f"/api/v1/plans/{execution.plan_id}/execution?wait=60")
    topic = execution_topic(owner.caller.tenant_id, execution.plan_id)
    report = run(lambda: while_waiting(request, topic, act)).json()
    assert (report["status"], report["steps_complete"]) == ("complete", 3)


def test_wait_ends_where_the_execution_needs_its_owner(owner: Owner) -> None:
    combine = {
        "step_id": "b",
        "step_type": "aggregate",
        "aggregate_step_ids": ["a"],
        "depends_on": ["a"],
        "synthesis_instructions": "Combine.",
        "executor": "principal",
    }
    execution = owner.begins(Strategy.SEQUENTIAL, [queue_step("a"), combine, REPORT])
    request = owner.gets(f"/api/v1/plans/{execution.plan_id}/execution?wait=60")
    topic = execution_topic(owner.caller.tenant_id, execution.plan_id)
    act = partial(in_thread, partial(owner.does_a_task, execution))
    report = run(lambda: while_waiting(request, topic, act)).json()
    assert report["status"] == "executing"
    assert "submit_step_result" in report["next_actions"][0]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_waiting_tool_reports_the_progress_of_an_execution(owner: Owner, server: Server, mode: str) -> None:
    heard: list[Any] = []
    first_is_heard = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))
        first_is_heard.set()

    async def act() -> None:
        await until_heard(execution_topic(owner.caller.tenant_id, execution.plan_id))
        await in_thread(partial(owner.does_a_task, execution))
        await first_is_heard.wait()
        await in_thread(partial(owner.does_a_task, execution))

    async def story() -> Any:
        async with server.client(owner.token, mode) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(act)
            given = {"plan_id": execution.plan_id, "wait": 60}
            answer = await client.call_tool("get_plan_status", given, progress_callback=hear)
        return answer.structured_content

    execution = owner.begins(Strategy.PROGRESSIVE)
    report = run(story)
    assert heard == [(1, 3, "a: complete. Done by hand"), (3, 3, "report: complete")]
    assert report["status"] == "complete"
