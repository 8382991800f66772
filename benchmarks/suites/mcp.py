"""MCP: a call of a tool beside the same operation over REST, and many open streams over two web processes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import httpx2
import psutil
import psycopg
from django.conf import settings

from benchmarks.bench import AGENTS, PATIENCE, Bench, Client
from benchmarks.measure import FORK, Operation, Row, Slice, apart, side_by_side
from benchmarks.suites.inbox import posting, receipt
from tests.mcp.raw import modern_message

_STREAMS: Final = 500
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_UPDATED: Final = "notifications/resources/updated"
_PAUSE: Final = 0.02


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    for tool, method, path, given in (
        ("whoami", "GET", "/api/v1/whoami", dict[str, Any]),
        ("list_tasks", "GET", "/api/v1/tasks", dict[str, Any]),
        ("post_receipt", "POST", "/api/v1/receipts", partial(receipt, "agent-1")),
    ):
        rest = bench.asking(method, path, given if method == "POST" else None)
        called = partial(_asking, bench, "tools/call", lambda t=tool, g=given: {"name": t, "arguments": g()})
        yield bench.row(f"call of {tool}", called, rest, "the same over REST", unit="ms").at_most(1.2)
    listed = [bench.driving(partial(_asking, bench, "tools/list", dict))() for _ in range(bench.scale.rounds)]
    row = Row.of("list of tools", listed)
    yield row.judged("p50 under 10 ms", met=(row.p50 or 0) < 10)  # noqa: PLR2004
    yield from _streams(bench)


def _asking(bench: Bench, method: str, params: Any, _number: int) -> Operation:
    client = Client(bench.web(), bench.tokens[0])

    def ask() -> None:
        message, headers = modern_message(method, params(), bench.tokens[0])
        answer = client.ask("POST", "/mcp", message, headers)["result"]
        if answer.get("isError"):
            raise ValueError(answer)

    return ask


def _streams(bench: Bench) -> Iterator[Row]:
    """Streams of all agents, to whom somebody posts. In the last turn a web process is killed midway."""
    url, (killed, _) = bench.webs(2)
    for dies in (False, True):
        opened, before = FORK.Event(), apart(_connections)
        post = partial(_post, bench, opened, killed if dies else None)
        heard, (committed, connections) = side_by_side(post, watch=partial(_hear, url, bench.tokens, opened))
        late = [
            min((at for at in stream if at >= began), default=float("inf")) - began
            for number, stream in enumerate(heard)
            for began in committed[number % AGENTS]
        ]
        if dies:
            # The first turn has filled the pools of connections, which stay so.
            more = max(0, connections - before)
            yield Row(case=f"connections of {_STREAMS} open streams", unit="more", ours=more).judged("0", met=not more)
            lost = late.count(float("inf"))
            row = Row(case="posts missed where one process is killed", unit="posts", ours=lost)
            yield row.judged("0", met=not lost)
            continue
        row = Row.of("post to notification", [Slice.of(late)], clients=_STREAMS)
        yield row.judged("p99 under 100 ms", met=(row.p99 or 0) < 100)  # noqa: PLR2004


def _connections() -> int:
    with psycopg.connect(settings.DATABASE_URL) as connection:
        found = connection.execute("select count(*) from pg_stat_activity where backend_type = 'client backend'")
        return int(found.fetchall()[0][0]) - 1


def _post(bench: Bench, opened: Any, dies: psutil.Process | None) -> tuple[Any, int]:
    """When each post to each agent began, and the database connections while all streams were open."""
    committed: list[list[float]] = [[] for _ in range(AGENTS)]
    if not opened.wait(PATIENCE):
        raise TimeoutError("The streams did not open.")
    connections = _connections()
    posts = [posting(bench.poster, [agent])(0) for agent in bench.agents]
    turns = round(bench.scale.seconds * bench.scale.rounds / _PAUSE)
    for turn in range(turns):
        if dies and turn == turns // 2:
            dies.kill()
        began = time.monotonic()
        posts[turn % AGENTS]()
        committed[turn % AGENTS].append(began)
        time.sleep(_PAUSE)
    return committed, connections


def _hear(url: str, tokens: list[str], opened: Any, over: Any) -> list[list[float]]:
    """When each of many streams was notified, until nobody posts any more; who loses its stream opens another."""
    heard: list[list[float]] = [[] for _ in range(_STREAMS)]
    listening = set[int]()

    async def listen(number: int, client: httpx2.AsyncClient) -> None:
        wanted = {"notifications": {"resourceSubscriptions": ["inbox://me"]}}
        message, headers = modern_message("subscriptions/listen", wanted, tokens[number % AGENTS])
        while True:
            with suppress(httpx2.TransportError):
                async with client.stream("POST", f"{url}/mcp", content=message, headers=headers) as answer:
                    async for line in answer.aiter_lines():
                        if _ACKNOWLEDGED in line:
                            listening.add(number)
                        elif _UPDATED in line:
                            heard[number].append(time.monotonic())
            listening.discard(number)

    async def until(met: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not met():
                await asyncio.sleep(_PAUSE)

    async def all_of_them() -> None:
        async with httpx2.AsyncClient(limits=httpx2.Limits(), timeout=PATIENCE) as client, asyncio.TaskGroup() as group:
            streams = [group.create_task(listen(number, client)) for number in range(_STREAMS)]
            await until(lambda: len(listening) == _STREAMS)
            opened.set()
            await until(lambda: over.is_set() and len(listening) == _STREAMS)
            await asyncio.sleep(1)
            for stream in streams:
                stream.cancel()

    asyncio.run(all_of_them())
    return heard
