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
import redis
from django.conf import settings
from django.db import connection

from apps.core import notifications
from apps.core.notifications import in_thread
from apps.core.operations import find
from apps.digests import services as digests
from apps.digests.services import inbox_topic
from apps.digests.tools.reading import ReadInbox, read_inbox
from apps.executions.models import Execution
from apps.executions.states import Strategy
from apps.executions.wakeups import execution_topic
from apps.principals import services as principals
from apps.principals.models import Tenant, Token
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as_system
from apps.tasks.services import types as tasks
from apps.tasks.signals import queue_topic, type_topic
from tests.asgi import ask
from tests.digests import makers
from tests.executions.making import REPORT, advance, begin, do_task, make_plan, make_worker, queue_step
from tests.executions.workers import WorkerServer
from tests.factories import T0, make_caller, make_token
from tests.mcp.conftest import Server, end_server, start_server
from tests.tasks.making import lease_one, make_type, queue, release
from tests.waiters import later, until_heard


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

    async def receives_in_a_group(self, **changes: Any) -> str:
        posted = await self.does(partial(makers.post_grouped, self.caller, **changes))
        return str(posted.receipt_id)

    async def acks_through(self, token: str) -> Any:
        return (await self.posts("/api/v1/inbox/ack-through", through=token)).json()

    async def unread(self) -> list[str]:
        return shown((await self.gets("/api/v1/inbox?limit=500")).json())


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

    async def opened(self) -> None:
        await anext(self._lines)

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


def run(story: Callable[[], Awaitable[Any]], *, within: float = 60) -> Any:
    async def bounded() -> Any:
        with anyio.fail_after(within):
            return await story()

    return anyio.run(bounded)


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


def test_wait_is_answered_at_once_where_something_is_there(kee: Agent) -> None:
    async def story() -> Any:
        await kee.receives()
        return (await kee.gets("/api/v1/inbox?wait=50")).json()

    assert shown(run(story, within=30)) == kee.posted


def test_wait_ends_on_a_post_and_its_token_acks_what_it_showed(kee: Agent) -> None:
    async def story() -> tuple[Any, Any, list[str], Any]:
        page = (await poll(kee, "wait=50", kee.receives)).json()
        await kee.receives()
        acked, unread = await kee.acks_through(page["entries"][-1]["token"]), await kee.unread()
        return page, acked, unread, (await kee.gets("/api/v1/inbox?wait=50&after=1")).json()

    page, acked, unread, further = run(story, within=30)
    assert shown(page) == kee.posted[:1]
    assert (page["as_of"], page["entries"][0]["token"]) == (1, f"{page['entries'][0]['ref']}@1")
    assert acked == {"acked_entries": 1, "acked_receipts": 1}
    assert unread == shown(further) == kee.posted[1:]


def test_wait_does_not_end_on_a_buffered_receipt(kee: Agent) -> None:
    async def burst() -> None:
        for _ in range(3):
            await kee.receives_in_a_group()
        await kee.receives()

    page = run(lambda: poll(kee, "wait=50", burst)).json()
    assert (shown(page), page["pending"]) == (kee.posted[-1:], 3)


def test_wait_ends_on_a_flush(kee: Agent) -> None:
    async def flush() -> None:
        while not await in_thread(digests.flush_due):
            await anyio.sleep(0.1)

    def quicken() -> None:
        change = digests.PolicyChange(window=timedelta(seconds=1))
        digests.set_policy(tenant_id=kee.caller.tenant_id, principal_id=kee.caller.principal_id, change=change, now=T0)

    async def story() -> Any:
        await kee.does(quicken)
        for _ in range(3):
            await kee.receives_in_a_group()
        return (await poll(kee, "wait=50", flush)).json()

    assert [(entry["kind"], entry["count"]) for entry in run(story)["entries"]] == [("digest_snapshot", 3)]


def test_wait_for_nothing_ends_with_an_empty_page(kee: Agent) -> None:
    page = run(lambda: kee.gets("/api/v1/inbox?wait=0.5")).json()
    assert page == {"as_of": 0, "entries": [], "visible": 0, "pending": 0, "more_waiting": 0}


def grow_unseen_and_ack_what_was_seen(kee: Agent, token: str) -> str:
    """In one commit, as two are to a reader who missed a notification. Answers the receipt that nobody was shown."""
    news = makers.post_grouped(kee.caller, flush_class="immediate")
    makers.ack_through(kee.caller, token)
    return news.receipt_id


@pytest.mark.parametrize("is_streamed", [False, True])
def test_unseen_rest_of_a_narrowed_digest_is_news(kee: Agent, is_streamed: bool) -> None:
    news: list[str] = []

    async def story() -> Any:
        await kee.receives_in_a_group(flush_class="immediate")

        async def grow() -> None:
            news.append(await kee.does(partial(grow_unseen_and_ack_what_was_seen, kee, first["token"])))

        if is_streamed:
            async with stream(kee) as events:
                (first,) = (await anext(events)).data["entries"]
                await grow()
                return (await anext(events)).data
        (first,) = (await kee.gets("/api/v1/inbox")).json()["entries"]
        return (await poll(kee, f"wait=50&after={first['sequence']}", grow)).json()

    page = run(story)
    assert [entry["flush_reason"] for entry in page["entries"]] == ["narrow"]
    assert shown(page) == news


def test_shown_rest_of_a_narrowed_digest_is_no_news(tenant: Tenant) -> None:
    caller = make_caller(tenant)
    with caller.acting():
        makers.post_grouped(caller, flush_class="immediate")
        first = read_inbox(caller, ReadInbox()).entries[0].token
        makers.post_grouped(caller, flush_class="immediate")
        given = ReadInbox(after=read_inbox(caller, ReadInbox()).as_of, wait=1)
        makers.ack_through(caller, first or "")
        page = read_inbox(caller, given)
    assert [entry.flush_reason for entry in page.entries] == ["narrow"]
    waits = find("read_inbox").waits
    assert waits is not None
    assert not waits.worth_waking(given, page)


def test_lost_notification_costs_latency_only(kee: Agent) -> None:
    async def unheard() -> None:
        with redis.Redis.from_url(settings.REDIS_URL) as broker:
            own = str(broker.client_info()["db"])
            for client in broker.client_list(_type="pubsub"):
                if client["db"] == own:  # other tests run beside this one on the same server
                    broker.client_kill_filter(_id=client["id"])
            broker.flushdb()
        await kee.receives()

    assert shown(run(lambda: poll(kee, "wait=50", unheard), within=40).json()) == kee.posted


@pytest.mark.parametrize(
    ("path", "headers", "code", "pointer"),
    [
        ("?wait=61", {}, "invalid", "/wait"),
        ("?wait=-1", {}, "invalid", "/wait"),
        ("?wait=nan", {}, "invalid", "/wait"),
        ("?wait=", {}, "invalid", "/wait"),
        ("?wait=1&nonesuch=1", {}, "invalid", "/nonesuch"),
        ("/stream?after=-1", {}, "invalid", "/after"),
        ("/stream?wait=3", {}, "invalid", "/wait"),
        ("/stream", {"Last-Event-ID": "ent_4"}, "invalid", "/Last-Event-ID"),
        ("?after=2&wait=50", {}, "ahead_of_inbox", "/after"),
        ("/stream?after=2", {}, "ahead_of_inbox", "/after"),
        ("/stream?after=1", {"Last-Event-ID": "2"}, "ahead_of_inbox", "/Last-Event-ID"),
    ],
)
def test_impossible_wait_is_refused_with_its_place(
    kee: Agent, path: str, headers: dict[str, str], code: str, pointer: str
) -> None:
    run(kee.receives)
    answer = run(lambda: kee.gets(f"/api/v1/inbox{path}", Accept="text/event-stream", **headers))
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert run(kee.unread) == kee.posted


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


def test_token_of_a_stream_acks_only_what_it_has_shown(kee: Agent) -> None:
    """A is shown, then B; A grows; acking through B leaves what came later."""

    async def story() -> tuple[Any, list[str], list[str], Any, list[str]]:
        before = await kee.receives()
        async with stream(kee, "?after=1") as events:
            await kee.receives_in_a_group(flush_class="immediate")
            await anext(events)
            b = await kee.receives()
            through_b = (await anext(events)).data["entries"][-1]["token"]
            grown = await kee.receives_in_a_group(flush_class="immediate")
            late = (await anext(events)).data["entries"][-1]["token"]
            acked = await kee.acks_through(through_b)
            left = await kee.unread()
            acked_later = await kee.acks_through(late)
        assert b not in left
        return acked, [before, grown], left, acked_later, await kee.unread()

    acked, expected, left, acked_later, unread = run(story)
    assert acked == {"acked_entries": 2, "acked_receipts": 2}
    assert sorted(left) == sorted(expected)
    assert acked_later["acked_receipts"] == 1
    # What stands before the stream's start was never shown on it.
    assert unread == expected[:1]


def test_page_of_a_reader_who_reads_on_acks_from_its_start(kee: Agent) -> None:
    async def story() -> list[Any]:
        for _ in range(3):
            await kee.receives()
        entries: list[Any] = (await kee.does(partial(makers.read, kee.caller, after=2, shown_after=1))).entries
        await kee.acks_through(entries[-1].token or "")
        return entries

    assert [entry.sequence for entry in run(story)] == [3]


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
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from pg_stat_activity"
            " where application_name = 'gatehouse-web' and datname = current_database()"
        )
        return int(cursor.fetchone()[0])


@pytest.mark.ci
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


def test_too_many_waits_are_refused(acme: Tenant) -> None:
    process, url = start_server(GATEHOUSE_WAITING_PER_TOKEN="1", GATEHOUSE_WAITING="2")
    kee, lee, mia = (Agent(url, make_caller(acme, name), make_token(acme, name)) for name in ("Kee", "Lee", "Mia"))

    async def wait(agent: Agent) -> tuple[int, str | None]:
        answer = await agent.gets("/api/v1/inbox?wait=0.1")
        return answer.status_code, answer.json().get("code")

    async def story() -> tuple[Any, Any]:
        async with stream(kee) as one:
            await one.opened()
            of_one_token = await wait(kee)
            async with stream(lee) as other:
                await other.opened()
                of_all = await wait(mia)
        # A place is free again as soon as the process has seen that its client is gone.
        while await wait(mia) != (200, None):
            await anyio.sleep(0.05)
        return of_one_token, of_all

    try:
        assert run(story) == ((429, "too_many_waiting"), (503, "no_place_to_wait"))
    finally:
        end_server(process)


# Work


@pytest.fixture
def worker(kee: Agent, acme: Tenant) -> Agent:
    make_type(kee.caller)
    return Agent(kee.url, make_caller(acme, "W", Kind.WORKER), make_token(acme, "W", Kind.WORKER))


def lease(worker: Agent, **asked: Any) -> Awaitable[httpx2.Response]:
    return worker.posts("/api/v1/tasks/lease", **asked)


def test_lease_is_answered_at_once_where_there_is_work(kee: Agent, worker: Agent) -> None:
    task = queue(kee.caller)
    answer = run(lambda: lease(worker, queues=["default"], wait_seconds=30)).json()
    assert [given["task_id"] for given in answer["tasks"]] == [task.task_id]


@pytest.mark.parametrize("named", ["queues", "task_types"])
def test_lease_waits_until_there_is_work(kee: Agent, worker: Agent, named: str) -> None:
    tenant_id = kee.caller.tenant_id
    topic = queue_topic(tenant_id, "default") if named == "queues" else type_topic(tenant_id, "index")
    asked = {named: ["default" if named == "queues" else "index"], "wait_seconds": 30}
    act = partial(in_thread, partial(queue, kee.caller))
    answer = run(lambda: while_waiting(lease(worker, **asked), topic, act))
    assert (answer.status_code, len(answer.json()["tasks"])) == (200, 1)


def test_lease_waits_for_a_released_task(kee: Agent, worker: Agent) -> None:
    queue(kee.caller)
    held = lease_one(kee.caller)
    topic = queue_topic(kee.caller.tenant_id, "default")
    act = partial(in_thread, partial(release, kee.caller, held))
    answer = run(lambda: while_waiting(lease(worker, queues=["default"], wait_seconds=30), topic, act))
    assert answer.json()["tasks"][0]["run_id"] == 2


@pytest.mark.parametrize("named", ["queues", "task_types"])
@pytest.mark.parametrize("paused", ["queue", "type"])
def test_lease_waits_until_its_queue_or_type_is_resumed(kee: Agent, worker: Agent, named: str, paused: str) -> None:
    task, tenant_id = queue(kee.caller), kee.caller.tenant_id
    name = "default" if paused == "queue" else "index"
    with kee.caller.acting():
        getattr(tasks, f"pause_{paused}")(caller=kee.caller, name=name, now=T0)
    resume = partial(getattr(tasks, f"resume_{paused}"), caller=kee.caller, name=name)
    topic = queue_topic(tenant_id, "default") if named == "queues" else type_topic(tenant_id, "index")
    asked = {named: ["default" if named == "queues" else "index"], "wait_seconds": 30}
    answer = run(lambda: while_waiting(lease(worker, **asked), topic, partial(kee.does, resume)), within=15)
    assert [given["task_id"] for given in answer.json()["tasks"]] == [task.task_id]


def test_lease_without_work_ends_empty(worker: Agent) -> None:
    answer = run(lambda: lease(worker, queues=["default"], wait_seconds=0.5))
    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize("asked", [{"queues": ["default"], "wait_seconds": 31}, {"wait_seconds": 5}])
def test_lease_with_an_impossible_wait_is_refused(worker: Agent, asked: dict[str, Any]) -> None:
    assert run(lambda: lease(worker, **asked)).status_code == 422


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

    def follows(self, plan_id: str, **headers: str) -> Any:
        return stream(self, path=f"/api/v1/plans/{plan_id}/execution/stream", **headers)


@pytest.fixture
def owner(kee: Agent, acme: Tenant) -> Owner:
    make_worker(kee.caller, WorkerServer(endpoint="http://127.0.0.1:9/mcp"))
    return Owner(kee.url, kee.caller, kee.token, hands=make_caller(acme, "hands", Kind.WORKER))


def steps(event: Event) -> tuple[int, list[tuple[str, str]], str]:
    return event.id, [(step["step_id"], step["status"]) for step in event.data["steps"]], event.data["status"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (
            Strategy.PROGRESSIVE,
            [(1, [("a", "complete")], "executing"), (3, [("b", "complete"), ("report", "complete")], "complete")],
        ),
        (Strategy.SEQUENTIAL, [(3, [("a", "complete"), ("b", "complete"), ("report", "complete")], "complete")]),
    ],
)
def test_execution_stream_shows_steps_as_its_strategy_says(
    owner: Owner, strategy: Strategy, expected: list[Any]
) -> None:
    async def story() -> list[Event]:
        heard = []
        async with owner.follows(execution.plan_id) as events:
            for _ in range(2):
                await in_thread(partial(owner.does_a_task, execution))
                if strategy == Strategy.PROGRESSIVE:
                    heard.append(await anext(events))
            return heard or [await anext(events)]

    execution = owner.begins(strategy)
    heard = run(story)
    assert [steps(event) for event in heard] == expected
    assert heard[0].data["steps"][0]["key_findings"]["summary"] == "Said hello"


def test_resumed_execution_stream_repeats_and_omits_no_step(owner: Owner) -> None:
    async def story() -> list[Event]:
        async with owner.follows(execution.plan_id) as events:
            await in_thread(partial(owner.does_a_task, execution))
            heard = [await anext(events)]
        await in_thread(partial(owner.does_a_task, execution))
        async with owner.follows(execution.plan_id, **{"Last-Event-ID": str(heard[0].id)}) as events:
            return [*heard, await anext(events)]

    execution = owner.begins(Strategy.PROGRESSIVE)
    assert [step["number"] for event in run(story) for step in event.data["steps"]] == [1, 2, 3]


def test_plan_is_followed_before_its_execution_begins(owner: Owner) -> None:
    async def story() -> Any:
        async with owner.follows(plan_id) as events:
            begun = partial(begin, owner.caller, [], strategy=Strategy.PROGRESSIVE, plan_id=plan_id)
            await in_thread(partial(advance, await in_thread(begun)))
            return await anext(events)

    with owner.caller.acting():
        plan_id = make_plan(owner.caller, [REPORT])
    assert steps(run(story)) == (1, [("report", "complete")], "complete")


def test_stream_of_a_strangers_or_unknown_execution_is_refused(owner: Owner, acme: Tenant) -> None:
    execution = owner.begins(Strategy.PROGRESSIVE)
    path = f"/api/v1/plans/{execution.plan_id}/execution/stream"
    rival = f"Bearer {make_token(acme, 'Rival')}"
    ahead = run(lambda: owner.gets(path, **{"Last-Event-ID": "1"}))
    stranger = run(lambda: owner.gets(path, Authorization=rival))
    unknown = run(lambda: owner.gets(path.replace(execution.plan_id, "plan-nobody")))
    assert [answer.status_code for answer in (ahead, stranger, unknown)] == [422, 404, 404]
    assert (ahead.json()["code"], ahead.json()["errors"][0]["pointer"]) == ("ahead_of_execution", "/Last-Event-ID")


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
