"""The planner's speed: a plan among few and many tools, beside a search of the registry for the same words."""

import itertools
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from apps.plans import planner, shelf
from apps.principals.tenancy import Caller
from apps.workers import selectors
from apps.workers.services import registry
from benchmarks import load
from benchmarks.bench import Bench
from benchmarks.load import Operation
from benchmarks.report import Row
from benchmarks.suites.workers import NOUNS, VERBS, manifest, tool

_GOALS: Final = {10_000: 3.0, 20_000: 6.0}
_A_WORKER: Final = 200
_TIME: Final = "2026-01-03T20:15:00Z"


def run(bench: Bench) -> Iterator[Row]:
    """Plans of two clauses."""
    agent, held = bench.agents[0], 0
    for count in [count for count in (100, 2_000, 10_000, 20_000) if count <= bench.scale.tools]:
        load.apart(partial(_register, agent, held, count))
        held = count
        sides = [
            partial(load.drive, partial(work, agent, count), seconds=bench.scale.seconds)
            for work in (_planning, _searching)
        ]
        (compared,) = load.beside(*sides, rounds=bench.scale.rounds)
        row = Row.of_latencies(compared, case=f"a plan among {count:,} tools", peer_is="a search of the registry")
        goal = _GOALS.get(count)
        yield row if goal is None else row.judged(f"p50 under {goal:g} ms", met=(row.p50 or 0) < goal)


def _register(agent: Caller, held: int, count: int) -> None:
    for start in range(held, count, _A_WORKER):
        tools = [_tool(number) for number in range(start, min(start + _A_WORKER, count))]
        with agent.acting():
            registry.register(caller=agent, original=manifest(f"many-{start}", tools))


def _tool(number: int) -> dict[str, Any]:
    verb, noun, kind = _words(number)
    return tool(f"{verb}_{noun}_{kind}", f"{verb.capitalize()} the {noun} of the {kind} sort at a path.")


def _words(number: int) -> tuple[str, str, str]:
    verb, noun = VERBS[number % len(VERBS)], NOUNS[number // len(VERBS) % len(NOUNS)]
    return verb, noun, f"kind{number // 100}q"


def _requests(count: int) -> Iterator[str]:
    chance = random.Random(1)  # noqa: S311  # no secret
    while True:
        said = ["{} the {} of sort {}".format(*_words(chance.randrange(count))) for _ in range(2)]
        yield f"{said[0]} at /srv/a, then {said[1]} at /srv/b"


def _planning(agent: Caller, count: int, _number: int) -> Operation:
    requests, numbers = _requests(count), itertools.count()

    def plan() -> int:
        asked = planner.Request(
            plan_id=f"plan-{next(numbers)}",
            delegate_id="delegate",
            principal_ai=agent.name,
            intent=next(requests),
            created_at=_TIME,
        )
        with agent.acting(), shelf.held(tenant_id=agent.tenant_id) as held:
            planner.plan(asked, held.ranker)
        return 1

    return plan


def _searching(agent: Caller, count: int, _number: int) -> Operation:
    requests = _requests(count)

    def search() -> int:
        with agent.acting():
            selectors.search(next(requests), tenant_id=agent.tenant_id)
        return 1

    return search
