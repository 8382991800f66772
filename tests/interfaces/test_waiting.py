"""Waiting for the inbox over HTTP: long polls and streams, against a running web process."""

import json
import random
import time
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
from apps.digests import services as digests
from apps.digests.services import PolicyChange
from apps.digests.shapes import EntryOutput
from apps.principals import services as principals
from apps.principals.models import Tenant, Token
from apps.principals.tenancy import Caller, acting_as_system
from tests.asgi import ask
from tests.digests import makers
from tests.factories import T0, make_caller, make_token
from tests.mcp.conftest import Server, end_server, start_server
from tests.waiters import later


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

    async def does(self, work: Callable[[], Any]) -> Any:
        """Something in this agent's name, in a transaction that others see when it is over."""

        def acting() -> Any:
            with self.caller.acting():
                return work()

        return await in_thread(acting)

    async def is_told(self, **changes: Any) -> str:
        posted = await self.does(partial(makers.post, self.caller, **changes))
        self.posted.append(posted.receipt_id)
        return str(posted.receipt_id)

    async def is_told_in_a_group(self, **changes: Any) -> str:
        posted = await self.does(partial(makers.post_grouped, self.caller, **changes))
        return str(posted.receipt_id)

    async def acks_through(self, token: str) -> Any:
        async with self.client as client:
            answer = await client.post("/api/v1/inbox/ack-through", json={"through": token})
        return answer.json()

    async def unread(self) -> list[str]:
        async with self.client as client:
            page = (await client.get("/api/v1/inbox?limit=500")).json()
        return shown(page)


@pytest.fixture
def kee(server: Server, acme: Tenant) -> Agent:
    return Agent(server.url, make_caller(acme), make_token(acme))


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
async def stream(agent: Agent, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    async with agent.client as client, client.stream("GET", f"/api/v1/inbox/stream{query}", headers=headers) as found:
        yield Stream(found)


def shown(page: Any) -> list[str]:
    return [receipt for entry in page["entries"] for receipt in entry["receipt_ids"]]


def run(story: Callable[[], Awaitable[Any]], *, within: float = 60) -> Any:
    async def bounded() -> Any:
        with anyio.fail_after(within):
            return await story()

    return anyio.run(bounded)


async def while_waiting(agent: Agent, query: str, action: Callable[[], Awaitable[Any]]) -> httpx2.Response:
    async with agent.client as client, anyio.create_task_group() as tasks:
        tasks.start_soon(later, agent.caller, action)
        answer = await client.get(f"/api/v1/inbox?{query}")
    return answer  # noqa: RET504  # a return inside would look as if a task group could end without one


async def timed(request: Awaitable[httpx2.Response]) -> tuple[Any, float]:
    """The page, and the seconds that it took. Only too few of them say something: the machine may be slow."""
    begun = time.monotonic()
    answer = await request
    return answer.json(), time.monotonic() - begun


def test_what_is_there_is_answered_at_once(kee: Agent) -> None:
    async def story() -> Any:
        await kee.is_told()
        async with kee.client as client:
            return (await client.get("/api/v1/inbox?wait=50")).json()

    assert shown(run(story, within=30)) == kee.posted


def test_a_wait_ends_on_a_post_and_its_token_acks_what_it_showed(kee: Agent) -> None:
    async def story() -> tuple[Any, Any, list[str]]:
        page = (await while_waiting(kee, "wait=50", kee.is_told)).json()
        await kee.is_told()
        return page, await kee.acks_through(page["entries"][-1]["token"]), await kee.unread()

    page, acked, unread = run(story, within=30)

    assert shown(page) == kee.posted[:1]
    assert (page["as_of"], page["entries"][0]["token"]) == (1, f"{page['entries'][0]['ref']}@1")
    assert acked == {"acked_entries": 1, "acked_receipts": 1}
    assert unread == kee.posted[1:]


def test_a_wait_ends_beyond_what_its_reader_has_seen(kee: Agent) -> None:
    async def story() -> Any:
        await kee.is_told()
        return (await while_waiting(kee, "wait=50&after=1", kee.is_told)).json()

    assert shown(run(story, within=30)) == kee.posted[1:]


async def burst(agent: Agent) -> None:
    for _ in range(3):
        await agent.is_told_in_a_group()


def test_a_wait_does_not_end_on_what_is_gathered(kee: Agent) -> None:
    async def burst_and_tell() -> None:
        await burst(kee)
        await kee.is_told()

    async def story() -> Any:
        return (await while_waiting(kee, "wait=50", burst_and_tell)).json()

    page = run(story)

    assert (shown(page), page["pending"]) == (kee.posted[-1:], 3)


def test_a_wait_ends_on_the_flush_of_a_burst(kee: Agent) -> None:
    async def flush() -> None:
        while not await in_thread(digests.flush_due):
            await anyio.sleep(0.1)

    def quicken() -> None:
        change = PolicyChange(window=timedelta(seconds=1))
        digests.set_policy(tenant_id=kee.caller.tenant_id, principal_id=kee.caller.principal_id, change=change, now=T0)

    async def story() -> Any:
        await kee.does(quicken)
        await burst(kee)
        return (await while_waiting(kee, "wait=50", flush)).json()

    page = run(story)

    assert [(entry["kind"], entry["count"]) for entry in page["entries"]] == [("digest_snapshot", 3)]


def test_a_wait_for_nothing_ends_with_an_empty_page(kee: Agent) -> None:
    async def story() -> tuple[Any, float]:
        async with kee.client as client:
            return await timed(client.get("/api/v1/inbox?wait=0.5"))

    page, waited = run(story)
    assert waited >= 0.5
    assert page == {"as_of": 0, "entries": [], "visible": 0, "pending": 0, "more_waiting": 0}


def test_the_remainder_of_a_narrowed_digest_wakes_nobody(kee: Agent) -> None:
    async def grow_and_narrow() -> None:
        await kee.is_told_in_a_group(flush_class="immediate")
        async with kee.client as client:
            first = (await client.get("/api/v1/inbox")).json()["entries"][0]
        await kee.is_told_in_a_group(flush_class="immediate")
        seen.append((await kee.does(partial(makers.read, kee.caller))).as_of)
        narrowing.append(first["token"])

    async def narrow() -> None:
        await kee.acks_through(narrowing[0])

    async def story() -> Any:
        await grow_and_narrow()
        return await timed(while_waiting(kee, f"wait=15&after={seen[0]}", narrow))

    narrowing: list[str] = []
    seen: list[int] = []
    page, waited = run(story)
    # It came with the page at the end of the wait, not as its cause.
    assert waited >= 15
    assert [entry["flush_reason"] for entry in page["entries"]] == ["narrow"]


def grow_unseen_and_ack_what_was_seen(kee: Agent, token: str) -> str:
    """In one commit, as two are to whoever has lost the cue of the first. Answers the receipt that nobody was shown."""
    news = makers.post_grouped(kee.caller, flush_class="immediate")
    makers.ack_through(kee.caller, token)
    return news.receipt_id


def test_a_remainder_that_the_reader_was_never_shown_ends_its_wait(kee: Agent) -> None:
    async def story() -> tuple[Any, float]:
        await kee.is_told_in_a_group(flush_class="immediate")
        async with kee.client as client:
            (first,) = (await client.get("/api/v1/inbox")).json()["entries"]

        async def grow() -> None:
            news.append(await kee.does(partial(grow_unseen_and_ack_what_was_seen, kee, first["token"])))

        return await timed(while_waiting(kee, f"wait=50&after={first['sequence']}", grow))

    news: list[str] = []
    page, waited = run(story)
    assert waited < 50
    assert [entry["flush_reason"] for entry in page["entries"]] == ["narrow"]
    assert shown(page) == news


def test_a_stream_shows_a_remainder_that_it_has_not_shown_before(kee: Agent) -> None:
    async def story() -> tuple[list[str], list[str]]:
        await kee.is_told_in_a_group(flush_class="immediate")
        async with stream(kee) as events:
            first = await anext(events)
            token = first.data["entries"][0]["token"]
            news = await kee.does(partial(grow_unseen_and_ack_what_was_seen, kee, token))
            return [news], shown((await anext(events)).data)

    news, told = run(story)
    assert told == news


def cut_off_listeners(broker: redis.Redis) -> None:
    """Close the connections that listen, of those in this database: other tests run beside this one on the same server."""
    own = str(broker.client_info()["db"])
    for client in broker.client_list(_type="pubsub"):
        if client["db"] == own:
            broker.client_kill_filter(_id=client["id"])


def test_a_lost_cue_costs_latency_only(kee: Agent) -> None:
    async def unheard() -> None:
        with redis.Redis.from_url(settings.REDIS_URL) as broker:
            await anyio.to_thread.run_sync(partial(cut_off_listeners, broker))
            await anyio.to_thread.run_sync(broker.flushdb)
        await kee.is_told()

    async def story() -> Any:
        return (await while_waiting(kee, "wait=50", unheard)).json()

    assert shown(run(story, within=40)) == kee.posted


@pytest.mark.parametrize("query", ["wait=61", "wait=-1", "wait=nan", "wait=soon", "wait=", "wait=1&nonesuch=1"])
def test_a_wait_that_is_none_is_refused(kee: Agent, query: str) -> None:
    answer = httpx2.get(f"{kee.url}/api/v1/inbox?{query}", headers={"Authorization": f"Bearer {kee.token}"}, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?after=-1", {}), ("?limit=0", {}), ("?nonesuch=1", {}), ("", {"Last-Event-ID": "ent_4"}), ("?wait=3", {})],
)
def test_a_stream_that_is_none_is_refused(kee: Agent, query: str, headers: dict[str, str]) -> None:
    given = {"Authorization": f"Bearer {kee.token}", "Accept": "text/event-stream"} | headers
    answer = httpx2.get(f"{kee.url}/api/v1/inbox/stream{query}", headers=given, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("path", "headers", "pointer"),
    [
        ("?after=2", {}, "/after"),
        ("?after=2&wait=50", {}, "/after"),
        ("/stream?after=2", {}, "/after"),
        ("/stream", {"Last-Event-ID": "2"}, "/Last-Event-ID"),
        ("/stream?after=1", {"Last-Event-ID": "2"}, "/Last-Event-ID"),
    ],
)
def test_a_start_ahead_of_the_inbox_is_refused(kee: Agent, path: str, headers: dict[str, str], pointer: str) -> None:
    run(kee.is_told)
    answer = httpx2.get(
        f"{kee.url}/api/v1/inbox{path}", headers={"Authorization": f"Bearer {kee.token}"} | headers, timeout=60
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "ahead_of_inbox")
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert run(kee.unread) == kee.posted


def test_a_header_that_is_no_sequence_is_named(kee: Agent) -> None:
    headers = {"Authorization": f"Bearer {kee.token}", "Last-Event-ID": "x"}
    answer = httpx2.get(f"{kee.url}/api/v1/inbox/stream", headers=headers, timeout=60).json()
    assert [error["pointer"] for error in answer["errors"]] == ["/Last-Event-ID"]
    assert answer["detail"].startswith("/Last-Event-ID: ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_waiting_routes_answer_no_other_method(kee: Agent, method: str) -> None:
    headers = {"Authorization": f"Bearer {kee.token}"}
    for path in ("/api/v1/inbox", "/api/v1/inbox/stream"):
        answer = httpx2.request(method, f"{kee.url}{path}", headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


def test_the_waiting_routes_know_their_host_and_carry_the_headers_of_all(kee: Agent) -> None:
    headers = {"Authorization": f"Bearer {kee.token}"}
    plain = httpx2.get(f"{kee.url}/api/v1/whoami", headers=headers, timeout=60)
    read = httpx2.get(f"{kee.url}/api/v1/inbox", headers=headers, timeout=60)
    foreign = httpx2.get(f"{kee.url}/api/v1/inbox", headers=headers | {"Host": "elsewhere.test"}, timeout=60)

    secure = {name for name in plain.headers if name not in {"date", "server", "content-length", "allow", "vary"}}
    assert {name: read.headers.get(name) for name in secure} == {name: plain.headers[name] for name in secure}
    assert (foreign.status_code, foreign.json()["code"]) == (400, "unknown_host")


def test_a_stream_says_how_it_is_to_be_treated(kee: Agent) -> None:
    async def story() -> tuple[httpx2.Headers, httpx2.Response]:
        async with stream(kee) as events, kee.client as client:
            return events.response.headers, await client.head("/api/v1/inbox/stream")

    headers, head = run(story)
    assert headers["Content-Type"] == head.headers["Content-Type"] == "text/event-stream"
    assert (headers["Cache-Control"], headers["X-Accel-Buffering"]) == ("no-store", "no")


def test_a_stream_begins_with_what_waits_and_goes_on_with_what_comes(kee: Agent) -> None:
    async def story() -> list[Event]:
        await kee.is_told()
        await kee.is_told()
        async with stream(kee) as events:
            heard = [await anext(events)]
            await kee.is_told()
            return [*heard, await anext(events)]

    first, second = run(story, within=30)

    assert [first.name, first.id, shown(first.data)] == ["inbox", 2, kee.posted[:2]]
    assert [second.name, second.id, shown(second.data)] == ["inbox", 3, kee.posted[2:]]
    assert set(first.data) == {"as_of", "entries", "visible", "pending", "more_waiting"}


def test_a_token_of_a_stream_acks_what_it_has_shown_and_nothing_else(kee: Agent) -> None:
    """The classic trap, on a stream: A is shown, then B; A grows; acking through B leaves what came later."""

    async def story() -> tuple[Any, list[str], list[str], Any, list[str]]:
        before = await kee.is_told()
        async with stream(kee, "?after=1") as events:
            await kee.is_told_in_a_group(flush_class="immediate")
            await anext(events)
            b = await kee.is_told()
            through_b = (await anext(events)).data["entries"][-1]["token"]
            grown = await kee.is_told_in_a_group(flush_class="immediate")
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


def test_a_stream_goes_on_where_its_client_was(kee: Agent) -> None:
    async def story() -> list[list[str]]:
        for _ in range(3):
            await kee.is_told()
        pages = []
        async with stream(kee, "?limit=1") as events:
            pages.append(await anext(events))
        # The address says the start, as an EventSource does it; the header stands over it.
        async with stream(kee, "?limit=1&after=0", **{"Last-Event-ID": str(pages[0].id)}) as events:
            pages += [await anext(events), await anext(events)]
        return [shown(page.data) for page in pages]

    assert run(story, within=30) == [[receipt] for receipt in kee.posted]


def test_a_client_of_a_stream_that_takes_nothing_is_dropped(
    acme: Tenant, kee: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("config.handlers._STALLED_AFTER", 0.2)
    taken: list[str] = []

    async def takes_one(message: Any) -> None:
        taken.append(message["type"])
        if len(taken) > 1:
            await anyio.sleep_forever()

    async def story() -> None:
        await kee.is_told()
        await ask("/api/v1/inbox/stream", takes_one, authorization=f"Bearer {kee.token}")

    run(story, within=30)
    assert taken == ["http.response.start", "http.response.body"]
    assert not notifications._places, "it holds its place no more"


def test_posts_racing_with_reconnects_leave_no_gap_and_no_repetition(kee: Agent) -> None:
    chance = random.Random(7)  # noqa: S311  # no secret

    async def post_all() -> None:
        for _ in range(60):
            await kee.is_told()
            await anyio.sleep(chance.uniform(0, 0.03))

    async def story() -> list[str]:
        heard: list[str] = []
        last = "0"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post_all)
            while len(heard) < 60:
                async with stream(kee, f"?limit={chance.choice([1, 2, 50])}", **{"Last-Event-ID": last}) as events:
                    for _ in range(chance.randrange(1, 5)):
                        if len(heard) < 60:
                            event = await anext(events)
                            heard += shown(event.data)
                            last = str(event.id)
        return heard

    assert run(story) == kee.posted


def revoke(agent: Agent) -> None:
    with acting_as_system("test"):
        token = Token.objects.get(principal_id=agent.caller.principal_id)
        principals.revoke_token(token_id=token.pk, now=T0)


def test_a_revoked_token_hears_no_more(kee: Agent) -> None:
    async def revoked_and_told() -> None:
        await in_thread(partial(revoke, kee))
        await kee.is_told()

    async def story() -> tuple[list[Event], int, int]:
        async with stream(kee) as events, anyio.create_task_group() as tasks:
            waiting: list[httpx2.Response] = []

            async def poll() -> None:
                async with kee.client as client:
                    waiting.append(await client.get("/api/v1/inbox?wait=50"))

            tasks.start_soon(poll)
            tasks.start_soon(later, kee.caller, revoked_and_told)
            heard = [event async for event in events]
        async with stream(kee) as again:
            return heard, waiting[0].status_code, again.response.status_code

    assert run(story, within=40) == ([], 401, 401)


def connections_of_the_web() -> int:
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from pg_stat_activity"
            " where application_name = 'gatehouse-web' and datname = current_database()"
        )
        return int(cursor.fetchone()[0])


async def first_shown(client: httpx2.AsyncClient, agent: Agent, *, streamed: bool) -> list[str]:
    headers = {"Authorization": f"Bearer {agent.token}"}
    if not streamed:
        return shown((await client.get("/api/v1/inbox?wait=60", headers=headers)).json())
    async with client.stream("GET", "/api/v1/inbox/stream", headers=headers) as found:
        return shown((await anext(Stream(found))).data)


@pytest.mark.ci
def test_two_hundred_wait_in_one_process_that_goes_on_serving(acme: Tenant) -> None:
    waiters = 200
    process, url = start_server()
    agents = [Agent(url, make_caller(acme, f"agent-{n}"), make_token(acme, f"agent-{n}")) for n in range(8)]
    limits = httpx2.Limits(max_connections=None)

    async def story() -> tuple[list[list[str]], int, int, int]:
        answers: list[list[str]] = []

        async def keep(work: Awaitable[list[str]]) -> None:
            answers.append(await work)

        async with (
            httpx2.AsyncClient(base_url=url, timeout=120, limits=limits) as client,
            anyio.create_task_group() as tasks,
        ):
            for n in range(waiters):
                tasks.start_soon(keep, first_shown(client, agents[n % 8], streamed=n % 2 == 1))
            while len(psutil.Process(process.pid).net_connections("tcp")) < waiters:
                await anyio.sleep(0.2)
            alive = (await client.get("/livez")).status_code
            held = await in_thread(connections_of_the_web)
            threads = psutil.Process(process.pid).num_threads()
            for agent in agents:
                await agent.is_told()
        return answers, alive, held, threads

    try:
        answers, alive, held, threads = run(story, within=150)
    finally:
        end_server(process)

    told = {receipt for agent in agents for receipt in agent.posted}
    assert len(answers) == waiters
    assert {receipt for answer in answers for receipt in answer} == told
    assert all(len(answer) == 1 for answer in answers)
    assert alive == 200
    # Four look at a time; who posts meanwhile shares the rest of the pool, which has no more.
    assert held <= 16
    assert threads < 40


def test_who_waits_too_often_is_refused(acme: Tenant) -> None:
    process, url = start_server(GATEHOUSE_WAITING_PER_TOKEN="1", GATEHOUSE_WAITING="2")
    kee, lee, mia = (Agent(url, make_caller(acme, name), make_token(acme, name)) for name in ("Kee", "Lee", "Mia"))

    async def refused(agent: Agent) -> tuple[int, str]:
        async with agent.client as client:
            answer = await client.get("/api/v1/inbox?wait=0.1")
        return answer.status_code, answer.json()["code"]

    async def story() -> tuple[tuple[int, str], tuple[int, str], int]:
        async with stream(kee) as one:
            await one.opened()
            mine = await refused(kee)
            async with stream(lee) as other:
                await other.opened()
                everybodys = await refused(mia)
        while True:  # a place is free again as soon as the process has seen that its client is gone
            async with mia.client as client:
                if (answer := await client.get("/api/v1/inbox?wait=0.1")).status_code == 200:
                    return mine, everybodys, answer.status_code

    try:
        mine, everybodys, then = run(story)
    finally:
        end_server(process)

    assert mine == (429, "too_many_waiting")
    assert everybodys == (503, "no_place_to_wait")
    assert then == 200


def test_a_page_of_a_reader_who_reads_on_acks_from_where_it_began(kee: Agent) -> None:
    async def story() -> list[EntryOutput]:
        for _ in range(3):
            await kee.is_told()
        page = await kee.does(partial(makers.read, kee.caller, after=2, shown_after=1))
        entries: list[EntryOutput] = page.entries
        await kee.acks_through(entries[-1].token or "")
        return entries

    assert [entry.sequence for entry in run(story)] == [3]
