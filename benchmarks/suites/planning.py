"""Plans: how good they are on the user's data or a small set, and how fast they are among few and many tools."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import jsonschema_rs
from django.utils import timezone

from apps.plans import planner, selectors, shelf
from apps.plans import services as plans
from apps.plans.calibration import calibration_error, error_by_chance
from apps.plans.history import Past
from apps.principals.tenancy import Caller
from apps.workers import selectors as registry
from apps.workers.services import registry as workers
from benchmarks.bench import Bench
from benchmarks.data import BadData, Data, Example, own, read_planning
from benchmarks.measure import Operation, Row, Slice, apart
from benchmarks.suites.workers import NOUNS, VERBS, manifest, tool

_A_WORKER: Final = 200
_ANYTHING: Final = {"type": "object"}
_TIME: Final = "2026-01-03T20:15:00Z"
_CALIBRATED: Final = 0.05
_FASTEST: Final = {10_000: 3.0, 20_000: 6.0}


class F1:
    """How much of what was said is right, and how much of what is right was said."""

    right = total = 0

    def add(self, said: frozenset[Any], meant: frozenset[Any]) -> None:
        self.right += len(said & meant)
        self.total += len(said) + len(meant)

    @property
    def percent(self) -> float:
        return 100 * 2 * self.right / max(self.total, 1)


class Score:
    """Micro averages over all answers, and the confidences beside what was right."""

    exact = ready = answers = 0

    def __init__(self) -> None:
        self.nodes, self.links = F1(), F1()
        self.by_plan: list[tuple[float, bool]] = []
        self.by_step: list[tuple[float, bool]] = []

    def add(self, document: Mapping[str, Any], meant: Example) -> None:
        """Count one plan, or the best partial plan of a refusal."""
        ready = document["status"] == "ready"
        plan = document if ready else document.get("partial_plan") or {}
        steps = plan.get("steps", [])
        tools = {step["step_id"]: step["tool_name"] for step in steps if step.get("tool_name")}
        links = frozenset(
            (tools[source], tools[step["step_id"]])
            for step in steps
            for source in _sources(step, steps, tools)
            if step["step_id"] in tools and tools[source] != tools[step["step_id"]]
        )
        said, right = frozenset(tools.values()), frozenset(meant.nodes)
        self.nodes.add(said, right)
        self.links.add(links, meant.links)
        self.exact += said == right
        self.ready += ready
        self.answers += 1
        self.by_plan.append((plan.get("confidence", 0.0), said == right))
        self.by_step.extend(
            (step.get("confidence", 0.0), tools[step["step_id"]] in right) for step in steps if step["step_id"] in tools
        )


def _sources(step: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], tools: Mapping[str, str]) -> set[str]:
    """The worker steps right above a step, looking through waits."""
    by_id, found = {one["step_id"]: one for one in steps}, set[str]()
    for source in (*step.get("depends_on", ()), *step.get("order_hint", ())):
        found |= {source} if source in tools else set(by_id[source].get("wait_for_step_ids", ()))
    return found & tools.keys()


def run(bench: Bench) -> Iterator[Row]:
    """How good plans are."""
    tiny = bench.scale.rounds == 1
    try:
        small = own(**({"history": 40, "tests": 20} if tiny else {}))
        data = read_planning(bench.file) if bench.file and bench.file.is_dir() else small
    except BadData as fault:
        raise SystemExit(str(fault)) from fault
    score, latencies, learning = apart(partial(_judged, bench.agents[0], data))
    note = f"{len(data.tools):,} tools, {len(data.history):,} past plans, {score.answers:,} requests."
    for case, value in (
        ("node F1", score.nodes.percent),
        ("edge F1", score.links.percent),
        ("exact sets", 100 * score.exact / max(score.answers, 1)),
        ("plans that can be carried out", 100 * score.ready / max(score.answers, 1)),
    ):
        yield Row(case=case, unit="%", ours=round(value, 1), note=note)
    for case, told in (("calibration error, plans", score.by_plan), ("calibration error, steps", score.by_step)):
        error = calibration_error(told)
        row = Row(case=case, unit="ECE", ours=round(error, 3), note=f"By chance: {error_by_chance(told):.3f}.")
        yield row.judged(f"at most {_CALIBRATED}", met=error <= _CALIBRATED)
    yield Row(case="learning", unit="s", ours=round(learning, 1))
    yield Row.of("a plan", [Slice.of(latencies)])


def _judged(agent: Caller, data: Data) -> tuple[Score, list[float], float]:
    uids = _register(agent, data.tools)
    with agent.acting():
        past = [one for one in (_past(example, uids) for example in data.history) if one.tools]
        plans.take_over_history(tenant_id=agent.tenant_id, plans=past, now=timezone.now())
    began = time.perf_counter()
    plans.learn(tenant_id=agent.tenant_id, now=timezone.now())
    learning = time.perf_counter() - began
    score, latencies = Score(), []
    with agent.acting():
        _plan(agent, "Warm up.")
        for example in data.test:
            began = time.perf_counter()
            document = _plan(agent, example.request)
            latencies.append(time.perf_counter() - began)
            score.add(document, example)
    return score, latencies, learning


def run_speed(bench: Bench) -> Iterator[Row]:
    """How long plans of two clauses take, beside a search of the registry for the same words."""
    agent, held = bench.agents[0], 0
    for count in [count for count in (100, 2_000, 10_000, 20_000) if count <= bench.scale.tools]:
        apart(partial(_register, agent, [_tool(number) for number in range(held, count)], prefix=f"many-{held}"))
        held = count
        case, sides = f"a plan among {count:,} tools", [partial(side, agent, count) for side in (_planning, _searching)]
        row = bench.row(case, *sides, "a search of the registry")
        goal = _FASTEST.get(count)
        yield row if goal is None else row.judged(f"p50 under {goal:g} ms", met=(row.p50 or 0) < goal)


def _planning(agent: Caller, count: int, _number: int) -> Operation:
    requests = _requests(count)

    def plan() -> None:
        with agent.acting():
            _plan(agent, next(requests))

    return plan


def _searching(agent: Caller, count: int, _number: int) -> Operation:
    requests = _requests(count)

    def search() -> None:
        with agent.acting():
            registry.search(next(requests), tenant_id=agent.tenant_id)

    return search


def _plan(agent: Caller, request: str) -> Mapping[str, Any]:
    asked = planner.Request(
        plan_id="plan-1", delegate_id="delegate", principal_ai=agent.name, intent=request, created_at=_TIME
    )
    with shelf.held(tenant_id=agent.tenant_id) as held:
        return planner.plan(asked, held.ranker).document()


def _past(example: Example, uids: Mapping[str, str]) -> Past:
    return Past(
        request=example.request,
        tools=tuple(uids[name] for name in example.nodes if name in uids),
        links=frozenset((uids[one], uids[other]) for one, other in example.links if one in uids and other in uids),
    )


def _register(agent: Caller, tools: Sequence[Mapping[str, Any]], *, prefix: str = "data") -> dict[str, str]:
    """Register the tools on as many workers as they need; returns their uids by name."""
    offered = list({tool["name"]: _offered(tool) for tool in tools}.values())
    uids: dict[str, str] = {}
    for start in range(0, len(offered), _A_WORKER):
        worker_id = f"{prefix}-{start // _A_WORKER}"
        with agent.acting():
            workers.register(caller=agent, original=manifest(worker_id, offered[start : start + _A_WORKER]))
            uids.update(selectors.offered_tools(worker_id, tenant_id=agent.tenant_id))
    return uids


def _offered(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as a manifest takes it: a schema that is no schema allows anything."""
    found = dict(tool)
    for name in ("input_schema", "output_schema"):
        try:
            jsonschema_rs.validator_for(found[name], offline=True)
        except (ValueError, TypeError):
            found[name] = _ANYTHING
        if not isinstance(found[name], Mapping) or found[name].get("type") != "object":
            found[name] = _ANYTHING
    return found


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
