"""The registry: heartbeats of many workers, finding tools by words, and how soon a change is seen."""

import itertools
import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import psutil
from django.db import connection

from apps.bench import load
from apps.bench.bench import Bench
from apps.bench.load import Operation, Work
from apps.bench.rows import Comparison, Row, Slice
from apps.bench.web import Client, Web
from apps.principals.tenancy import Caller
from apps.workers import selectors, services

_WORKERS: Final = 1_000
_FEW: Final = 20
_TOOLS: Final = 10
_MANY_RECEIPTS: Final = 50_000
_BEATS_A_MINUTE: Final = 1
_BEATS_GOAL: Final = 5.0
_SEARCH_GOAL: Final = 5.0
_VISIBLE_GOAL: Final = 50.0
_VERBS: Final = [
    "analyze",
    "index",
    "convert",
    "extract",
    "summarize",
    "translate",
    "scan",
    "resize",
    "classify",
    "merge",
    "split",
    "validate",
]
_NOUNS: Final = [
    "invoices",
    "contracts",
    "photos",
    "recordings",
    "tables",
    "sensors",
    "genomes",
    "ledgers",
    "maps",
    "poems",
    "tickets",
    "patents",
]
_OBJECT: Final = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
_NOTHING: Final = {"filesystem": "none", "network": "none", "execution": "none"}


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    count = _WORKERS if bench.scale.receipts >= _MANY_RECEIPTS else _FEW
    load.apart(partial(_register_all, bench.world.agents[0], count))
    yield _heartbeats(bench, count)
    yield from _searches(bench, count)
    yield _visible(bench)


def _register_all(agent: Caller, count: int) -> None:
    for number in range(count):
        with agent.acting():
            services.register(caller=agent, original=_manifest(number))


def _manifest(number: int, **changes: Any) -> dict[str, Any]:
    """Ten tools that no other worker has, out of words that many have."""
    chance = random.Random(number)  # noqa: S311  # no secret
    tools = [
        {
            "name": f"{chance.choice(_VERBS)}_{chance.choice(_NOUNS)}_{number}_{tool}",
            "description": f"{chance.choice(_VERBS)} {chance.choice(_NOUNS)} and {chance.choice(_VERBS)} what"
            f" {chance.choice(_NOUNS)} say, kind{chance.randrange(500)}.",
            "input_schema": _OBJECT,
            "output_schema": {"type": "object"},
        }
        for tool in range(_TOOLS)
    ]
    return {
        "worker_id": f"worker-{number}",
        "endpoint": f"https://worker-{number}.example.com/mcp",
        "tools": tools,
        "capabilities": [chance.choice(_NOUNS), "bench"],
        "hints": {"expected_runtime": "fast"},
        "side_effects": _NOTHING,
        **changes,
    }


def _heartbeats(bench: Bench, count: int) -> Row:
    """CPU of one heartbeat, the web's and the database's together, and what all of them come to at one a minute."""
    web, scale, token = bench.processes.web(), bench.scale, bench.world.token
    slices, costs = [], []
    for _ in range(scale.rounds):
        before = _database_cpu()
        one = web.slices(_beats(web, token, count), clients=2, seconds=scale.seconds)()
        slices.append(one)
        costs.append((one.cpu + _database_cpu() - before) / max(one.units, 1))
    cost = sorted(costs)[len(costs) // 2]
    share = 100 * cost * count * _BEATS_A_MINUTE / 60
    database = cost - sum(one.cpu for one in slices) / max(sum(one.units for one in slices), 1)
    work = partial(_beating, bench.world.agents[0], count)
    row = Row.of_rates(
        Comparison(ours=slices),
        case="heartbeat over HTTP",
        unit="requests/s",
        clients=2,
        statements=load.statements(work),
        note=f"{count:,} workers, {_BEATS_A_MINUTE} a minute each: {share:.1f} % of a core, {cost * 1e6:,.0f} µs"
        f" a heartbeat, {database * 1e6:,.0f} of them the database's.",
    )
    return row.judged(f"under {_BEATS_GOAL:.0f} % of a core", met=share < _BEATS_GOAL if count == _WORKERS else None)


def _beats(web: Web, token: str, count: int) -> Work:
    def work(number: int) -> Operation:
        client, turn = Client(web.url, token), itertools.count(number * 7)

        def beat() -> int:
            body = {"status": "healthy", "current_load": 0.3, "available": True}
            client.ask("POST", f"/workers/worker-{next(turn) % count}/heartbeat", body)
            return 1

        return beat

    return work


def _beating(agent: Caller, count: int, _number: int) -> Operation:
    turn = itertools.count()

    def beat() -> int:
        _beat(agent, next(turn) % count)
        return 1

    return beat


def _beat(agent: Caller, number: int, status: str = "healthy") -> None:
    with agent.acting():
        services.heartbeat(caller=agent, worker_id=f"worker-{number}", status=status, current_load=0.3, available=True)


def _database_cpu() -> float:
    """Seconds that the database's processes have used, as far as they run on this machine and still live."""

    def asked() -> int:
        with connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            pid: int = cursor.fetchone()[0]
        return psutil.Process(pid).ppid() if psutil.pid_exists(pid) else 0

    parent = load.apart(asked)
    if not parent:
        return 0.0
    used = 0.0
    for process in psutil.Process(parent).children():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        used += times.user + times.system
    return used


def _searches(bench: Bench, count: int) -> Iterator[Row]:
    """In a process that has its index: with the registry at rest, and after a worker's state has changed each time."""
    agent, scale = bench.world.agents[0], bench.scale
    note = f"{count * _TOOLS:,} tools on {count:,} workers; two or three words, one in four with a typo."
    slices = [load.drive(partial(_searching, agent), seconds=scale.seconds) for _ in range(scale.rounds)]
    row = Row.of_latencies(
        Comparison(ours=slices),
        case="search by words",
        statements=load.statements(partial(_searching, agent)),
        note=note,
    )
    yield row.judged(f"p50 under {_SEARCH_GOAL:.0f} ms", met=row.p50 is not None and row.p50 < _SEARCH_GOAL)
    changing = load.apart(partial(_search_after_changes, agent, count, 40 * scale.rounds))
    row = Row.of_latencies(
        Comparison(ours=[Slice(units=len(changing), seconds=scale.seconds, latencies=changing)]),
        case="search by words, a worker's state has just changed",
        note="Of the search alone.",
    )
    yield row.judged(f"p50 under {_SEARCH_GOAL:.0f} ms", met=row.p50 is not None and row.p50 < _SEARCH_GOAL)


def _queries() -> Iterator[str]:
    chance = random.Random(1)  # noqa: S311  # no secret
    while True:
        verb, noun = chance.choice(_VERBS), chance.choice(_NOUNS)
        yield f"{verb} {noun}"
        yield f"{verb} the {noun} of kind{chance.randrange(500)}"
        yield f"kind{chance.randrange(500)} {noun}"
        yield f"{verb} {noun[:3]}{noun[4:]}"


def _searching(agent: Caller, _number: int = 0) -> Operation:
    queries = _queries()

    def search() -> int:
        _search(agent, next(queries))
        return 1

    search()
    return search


def _search(agent: Caller, query: str) -> list[str]:
    with agent.acting():
        found = selectors.search(query, tenant_id=agent.tenant_id)
    return [one.entry.tool_name for one in found]


def _search_after_changes(agent: Caller, count: int, times: int) -> list[float]:
    queries, latencies = _queries(), []
    _search(agent, next(queries))
    for number in range(times):
        _beat(agent, number % count, "degraded" if number // count % 2 == 0 else "healthy")
        began = time.perf_counter()
        _search(agent, next(queries))
        latencies.append(time.perf_counter() - began)
    for number in range(min(times, count)):
        _beat(agent, number)
    return latencies


def _visible(bench: Bench) -> Row:
    """From before a worker registers to the end of the first search that finds its tool."""
    agent, scale = bench.world.agents[0], bench.scale
    latencies = load.apart(partial(_registering, agent, 10 * scale.rounds))
    row = Row.of_latencies(
        Comparison(ours=[Slice(units=len(latencies), seconds=scale.seconds, latencies=latencies)]),
        case="commit of a registration to the search that finds it",
    )
    return row.judged(f"p99 under {_VISIBLE_GOAL:.0f} ms", met=row.p99 is not None and row.p99 < _VISIBLE_GOAL)


def _registering(agent: Caller, times: int) -> list[float]:
    _search(agent, "analyze")
    latencies = []
    for number in range(times):
        tool = {"name": f"novelty{number}x", "description": "New.", "input_schema": _OBJECT}
        with agent.acting():
            services.register(caller=agent, original=_manifest(number, worker_id=f"new-{number}", tools=[tool]))
        began = time.perf_counter()
        while tool["name"] not in _search(agent, f"novelty{number}x"):
            pass
        latencies.append(time.perf_counter() - began)
    return latencies
