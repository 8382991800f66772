"""How well plans are made: tools registered, history learned, requests planned, on the user's data or a small set."""

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
from apps.workers.services import registry as workers
from benchmarks import load, planning_data
from benchmarks.bench import Bench
from benchmarks.planning_data import BadData, Data, Example, Score
from benchmarks.report import Comparison, Row, Slice
from benchmarks.suites.workers import manifest

_A_WORKER: Final = 200
_ANYTHING: Final = {"type": "object"}
_TIME: Final = "2026-01-03T20:15:00Z"
_CALIBRATED: Final = 0.05


def run(bench: Bench) -> Iterator[Row]:
    """Every figure."""
    tiny = bench.scale.rounds == 1
    try:
        own = planning_data.own(**({"history": 40, "tests": 20} if tiny else {}))
        data = own if bench.file is None else planning_data.read(bench.file)
    except BadData as fault:
        raise SystemExit(str(fault)) from fault
    score, latencies, learning = load.apart(partial(_judged, bench.agents[0], data))
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
    found = Slice(units=len(latencies), seconds=sum(latencies), latencies=latencies)
    yield Row.of_latencies(Comparison(ours=[found]), case="a plan")


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
        _plan(agent, "Warm up.", 0)
        for number, example in enumerate(data.test, start=1):
            began = time.perf_counter()
            document = _plan(agent, example.request, number)
            latencies.append(time.perf_counter() - began)
            score.add(document, example)
    return score, latencies, learning


def _plan(agent: Caller, request: str, number: int) -> Mapping[str, Any]:
    asked = planner.Request(
        plan_id=f"plan-{number}", delegate_id="delegate", principal_ai=agent.name, intent=request, created_at=_TIME
    )
    with shelf.held(tenant_id=agent.tenant_id) as held:
        return planner.plan(asked, held.ranker).document()


def _past(example: Example, uids: Mapping[str, str]) -> Past:
    return Past(
        request=example.request,
        tools=tuple(uids[name] for name in example.nodes if name in uids),
        links=frozenset((uids[one], uids[other]) for one, other in example.links if one in uids and other in uids),
    )


def _register(agent: Caller, tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Register the tools on as many workers as they need; returns their uids by name."""
    offered = list({tool["name"]: _offered(tool) for tool in tools}.values())
    uids: dict[str, str] = {}
    for start in range(0, len(offered), _A_WORKER):
        worker_id = f"data-{start // _A_WORKER}"
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
