"""The registry: finding tools of many MCP workers by words, and how soon a change is seen."""

import random
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from apps.plans.selectors import search_tools
from apps.principals.tenancy import Caller
from apps.workers.services import registry
from benchmarks.bench import Bench
from benchmarks.measure import Operation, Row, Slice, apart

TOOLS: Final = 10
VERBS: Final = ["analyze", "index", "convert", "extract", "summarize", "translate", "scan", "resize", "merge", "split"]
_THINGS: Final = "invoices contracts photos recordings tables sensors ledgers maps tickets poems"
NOUNS: Final = _THINGS.split()
_OBJECT: Final = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
_NOTHING: Final = {"filesystem": "none", "network": "none", "execution": "none"}


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    agent, count = bench.agents[0], bench.scale.workers
    apart(partial(register_all, agent, count))
    yield _searches(bench, count)
    yield _visible(bench)


def register_all(agent: Caller, count: int) -> None:
    """Register so many workers, each with ten tools that no other worker has."""
    for number in range(count):
        with agent.acting():
            registry.register(caller=agent, original=manifest(f"worker-{number}", _tools(number)))


def manifest(worker_id: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The manifest of a worker that has no effects."""
    return {
        "worker_id": worker_id,
        "endpoint": f"https://{worker_id}.example.com/mcp",
        "tools": tools,
        "capabilities": ["bench"],
        "hints": {"expected_runtime": "fast"},
        "side_effects": _NOTHING,
    }


def _tools(number: int) -> list[dict[str, Any]]:
    chance = random.Random(number)  # noqa: S311  # no secret
    return [
        tool(
            f"{chance.choice(VERBS)}_{chance.choice(NOUNS)}_{number}_{nth}",
            f"{chance.choice(VERBS)} {chance.choice(NOUNS)} and {chance.choice(NOUNS)}, kind{chance.randrange(500)}.",
        )
        for nth in range(TOOLS)
    ]


def tool(name: str, description: str) -> dict[str, Any]:
    """A tool as a manifest names it."""
    return {"name": name, "description": description, "input_schema": _OBJECT, "output_schema": {"type": "object"}}


def _searches(bench: Bench, count: int) -> Row:
    """In a process that has its index."""
    found = [bench.driving(partial(_searching, bench.agents[0]))() for _ in range(bench.scale.rounds)]
    row = Row.of(f"search by words, {count * TOOLS:,} tools", found)
    return row.judged("p50 under 5 ms", met=(row.p50 or 0) < 5)  # noqa: PLR2004


def _queries() -> Iterator[str]:
    chance = random.Random(1)  # noqa: S311  # no secret
    while True:
        verb, noun = chance.choice(VERBS), chance.choice(NOUNS)
        yield f"{verb} {noun}"
        yield f"{verb} the {noun} of kind{chance.randrange(500)}"
        yield f"{verb} {noun[:3]}{noun[4:]}"  # a typo


def _searching(agent: Caller, _number: int = 0) -> Operation:
    queries = _queries()

    def search() -> None:
        _search(agent, next(queries))

    search()
    return search


def _search(agent: Caller, query: str) -> list[str]:
    with agent.acting():
        found = search_tools(query, tenant_id=agent.tenant_id)
    return [one.tool_name for one in found]


def _visible(bench: Bench) -> Row:
    """From the commit of a registration to the end of the first search that finds its tool."""
    latencies = apart(partial(_registering, bench.agents[0], 10 * bench.scale.rounds))
    row = Row.of("registration to the search that finds it", [Slice.of(latencies)])
    return row.judged("p99 under 50 ms", met=(row.p99 or 0) < 50)  # noqa: PLR2004


def _registering(agent: Caller, times: int) -> list[float]:
    _search(agent, "analyze")
    latencies = []
    for number in range(times):
        name = f"novelty{number}x"
        with agent.acting():
            registry.register(caller=agent, original=manifest(f"new-{number}", [tool(name, "New.")]))
        began = time.perf_counter()
        while name not in _search(agent, name):
            pass
        latencies.append(time.perf_counter() - began)
    return latencies
