"""The planner: how long a plan takes at 10 to 100,000 tools, and how soon a registered tool is planned for."""

import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import psutil

from apps.bench import load
from apps.bench.bench import Bench
from apps.bench.rows import Comparison, Row, Slice
from apps.core.lexical import Index, words
from apps.plans import planner, shelf
from apps.plans.catalogue import Catalogue, Offer, Tool
from apps.plans.clauses import read
from apps.plans.ranking import Ranker
from apps.principals.tenancy import Caller
from apps.workers import services

_MANY_RECEIPTS: Final = 50_000
_GOALS: Final = {10_000: 3.0, 100_000: 6.0}
_VISIBLE_GOAL: Final = 50.0
_REGISTERED: Final = 50
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
]
_THINGS: Final = 400
_REQUESTS: Final = 200
_TIME: Final = "2026-01-03T20:15:00Z"
_NOTHING: Final = {"filesystem": "none", "network": "none", "execution": "none"}
_MEGABYTE: Final = 1 << 20


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    counts = [10, 1_000, 10_000, 100_000] if bench.scale.receipts >= _MANY_RECEIPTS else [10, 1_000]
    for count in counts:
        yield _plans(bench, count)
    yield _visible(bench)


def _plans(bench: Bench, count: int) -> Row:
    """A whole plan of two clauses over made tools, in memory; beside it a plain scan of all tools' words for each clause."""
    before, began = _memory(), time.perf_counter()
    ranker = Ranker(_catalogue(count))
    built, size = time.perf_counter() - began, (_memory() - before) / _MEGABYTE
    merge = _timed(ranker.index.merge)
    requests = list(itertools.islice(_requests(count), _REQUESTS))
    ours = [_slice(partial(_plan, ranker), requests, bench.scale.seconds) for _ in range(bench.scale.rounds)]
    scan = _scan(ranker)
    baseline = [_slice(scan, requests, bench.scale.seconds) for _ in range(bench.scale.rounds)]
    row = Row.of_latencies(
        Comparison(ours=ours, baseline=baseline),
        case=f"plan at {count:,} tools",
        baseline_is="plain BM25 of the whole request",
        note=f"Built in {built:.1f} s, merged in {merge:.2f} s beside requests, {size:.0f} MB in a process.",
    )
    goal = _GOALS.get(count)
    if goal is None:
        return row
    return row.judged(f"p50 under {goal:.0f} ms", met=row.p50 is not None and row.p50 < goal)


def _catalogue(count: int) -> Catalogue:
    tools = tuple(_tool(number) for number in range(count))
    return Catalogue(1, tools, (_offer(tool, number) for number, tool in enumerate(tools)))


def _tool(number: int) -> Tool:
    chance = random.Random(number)  # noqa: S311  # no secret
    verb, thing = _VERBS[number % len(_VERBS)], f"thing{chance.randrange(_THINGS)}x"
    kind = f"kind{number // len(_VERBS)}q"
    return Tool(
        uid=f"{number:032x}",
        name=f"{verb}_{thing}_{kind}",
        description=f"{verb.capitalize()} a {thing} of the {kind} sort, with what {chance.choice(_VERBS)} and a report need.",
        input_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        output_schema={"type": "object", "properties": {"result": {"type": "string"}}},
    )


def _offer(tool: Tool, number: int) -> Offer:
    return Offer(worker_id=f"worker-{number // 10}", tool_uid=tool.uid, expected_runtime="fast")


def _requests(count: int) -> Iterator[str]:
    chance = random.Random(1)  # noqa: S311  # no secret
    while True:
        first, second = (_tool(chance.randrange(count)) for _ in range(2))
        yield f"{_said(first)} at /srv/a, then {_said(second)} at /srv/b"


def _said(tool: Tool) -> str:
    verb, thing, kind = tool.name.split("_")
    return f"{verb} the {thing} of sort {kind}"


def _plan(ranker: Ranker, request: str) -> None:
    planner.plan(
        planner.Request(
            plan_id="plan-1", delegate_id="delegate", principal_ai="bench", intent=request, created_at=_TIME
        ),
        ranker,
    )


def _scan(ranker: Ranker) -> Any:
    texts = {tool.uid: {"text": words(f"{tool.name} {tool.description}")} for tool in ranker.catalogue.tools}
    index = Index(texts, {"text": 1.0})
    return lambda request: [index.search(clause.words, limit=20) for clause in read(request).clauses]


def _slice(work: Any, requests: Sequence[str], seconds: float) -> Slice:
    latencies = []
    for request in requests[:5]:
        work(request)
    began = time.perf_counter()
    for request in itertools.cycle(requests):
        latencies.append(_timed(partial(work, request)))
        if time.perf_counter() - began > seconds:
            break
    return Slice(units=len(latencies), seconds=sum(latencies), latencies=latencies)


def _timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


def _visible(bench: Bench) -> Row:
    """From the commit of a registration to the end of the first look that holds its tool, in a process that has the others."""
    agent = bench.world.agents[0]
    latencies = load.apart(partial(_registering, agent, 10 * bench.scale.rounds))
    row = Row.of_latencies(
        Comparison(ours=[Slice(units=len(latencies), seconds=bench.scale.seconds, latencies=latencies)]),
        case="commit of a registration to the planner that holds it",
        note=f"{_REGISTERED} workers of ten tools before; p50 {statistics.median(latencies) * 1e3:.1f} ms.",
    )
    return row.judged(f"p99 under {_VISIBLE_GOAL:.0f} ms", met=row.p99 is not None and row.p99 < _VISIBLE_GOAL)


def _registering(agent: Caller, times: int) -> list[float]:
    for number in range(_REGISTERED):
        _register(agent, f"planned-{number}", [_manifest_tool(10 * number + one) for one in range(10)])
    _holds(agent, "nothing")
    latencies = []
    for number in range(times):
        tool = _manifest_tool(1_000_000 + number)
        _register(agent, f"fresh-{number}", [tool])
        began = time.perf_counter()
        while not _holds(agent, tool["name"]):
            pass
        latencies.append(time.perf_counter() - began)
    return latencies


def _register(agent: Caller, worker_id: str, tools: list[dict[str, Any]]) -> None:
    with agent.acting():
        services.register(
            caller=agent,
            original={
                "worker_id": worker_id,
                "endpoint": f"https://{worker_id}.example.com/mcp",
                "tools": tools,
                "side_effects": _NOTHING,
            },
        )


def _manifest_tool(number: int) -> dict[str, Any]:
    made = _tool(number)
    return {
        "name": made.name,
        "description": made.description,
        "input_schema": dict(made.input_schema),
        "output_schema": dict(made.output_schema),
    }


def _holds(agent: Caller, name: str) -> bool:
    with agent.acting(), shelf.held(tenant_id=agent.tenant_id) as held:
        (clause,) = read(_said(_named(name))).clauses if name.count("_") == 2 else (None,)  # noqa: PLR2004  # as _tool names them
        if clause is None:
            return False
        found = held.ranker.open(clause, held.ranker.catalogue)
        return any(one.tool.name == name for one in found)


def _named(name: str) -> Tool:
    return Tool(uid="", name=name, description="", input_schema={}, output_schema={})
