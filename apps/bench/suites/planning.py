"""How well plans are made, on data that the user brings: tools registered, history fed as plans carried out, requests planned."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
from django.utils import timezone

from apps.bench import load, made_plans, planning
from apps.bench.bench import Bench
from apps.bench.planning import BadData, Data, Example, Score
from apps.bench.rows import Comparison, Row, Slice
from apps.plans import planner, selectors, shelf
from apps.plans import services as plans
from apps.plans.calibration import calibration_error, error_by_chance
from apps.plans.history import Past
from apps.principals.tenancy import Caller
from apps.workers import services as workers

_A_WORKER: Final = 200
_MANY_RECEIPTS: Final = 50_000
_FEW: Final = 40
_NOTHING: Final = {"filesystem": "none", "network": "none", "execution": "none"}
_ANYTHING: Final = {"type": "object"}
_TIME: Final = "2026-01-03T20:15:00Z"
_CALIBRATED: Final = 0.05


def run(bench: Bench) -> Iterator[Row]:
    """Every figure, over the folder that is named, or over a small set of our own."""
    try:
        data = planning.read(bench.data_file, history=bench.history) if bench.data_file != Path() else _own(bench)
    except BadData as fault:
        raise SystemExit(str(fault)) from fault
    agent = bench.world.agents[0]
    score, latencies, learning = load.apart(partial(_judged, agent, data))
    about = f"{len(data.tools):,} tools, {len(data.history):,} past plans, {score.answers:,} requests."
    figures = {
        "node F1": score.nodes.f1,
        "edge F1": score.links.f1,
        "exact sets": 100 * score.exact / max(score.answers, 1),
        "plans that can be carried out": 100 * score.ready / max(score.answers, 1),
    }
    for case, value in figures.items():
        yield Row(case=case, unit="%", ours=round(value, 1), note=about)
    for case, told in (("calibration error, plans", score.by_plan), ("calibration error, steps", score.by_step)):
        error = calibration_error(told)
        chance = round(error_by_chance(told), 3)
        note = f"Mean gap in ten bins; about {chance} would come by chance. {about}"
        row = Row(case=case, unit="ECE", ours=round(error, 3), note=note)
        yield row.judged(f"at most {_CALIBRATED}", met=error <= _CALIBRATED)
    yield Row(case="learning", unit="s", ours=round(learning, 1), note=about)
    yield Row.of_latencies(
        Comparison(ours=[Slice(units=len(latencies), seconds=sum(latencies), latencies=latencies)]),
        case="a plan",
        note=f"Registry and model looked up, planned and validated, not stored. {about}",
    )


def _own(bench: Bench) -> Data:
    history = bench.history
    if history is None and bench.scale.receipts < _MANY_RECEIPTS:
        history = _FEW
    return made_plans.make(history=history)


def _judged(agent: Caller, data: Data) -> tuple[Score, list[float], float]:
    uids = _register(agent, data.tools)
    with agent.acting():
        past = [_past(one, uids) for one in data.history]
        plans.take_over_history(tenant_id=agent.tenant_id, plans=[one for one in past if one.tools], now=timezone.now())
    began = time.perf_counter()
    plans.learn(tenant_id=agent.tenant_id, now=timezone.now())
    learning = time.perf_counter() - began
    score, latencies = Score(), []
    with agent.acting():
        _plan(agent, "Warm up.")
        for number, example in enumerate(data.test):
            began = time.perf_counter()
            document = _plan(agent, example.request, number)
            latencies.append(time.perf_counter() - began)
            score.add(planning.answer(document), example)
    return score, latencies, learning


def _plan(agent: Caller, request: str, number: int = 0) -> Mapping[str, Any]:
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
    """Register the tools on as many workers as they need; answers their uids by name."""
    offered = list({tool["name"]: _offered(tool) for tool in tools}.values())
    uids: dict[str, str] = {}
    for start in range(0, len(offered), _A_WORKER):
        worker_id = f"data-{start // _A_WORKER}"
        with agent.acting():
            workers.register(
                caller=agent,
                original={
                    "worker_id": worker_id,
                    "endpoint": f"https://{worker_id}.example.com/mcp",
                    "tools": offered[start : start + _A_WORKER],
                    "hints": {"expected_runtime": "fast"},
                    "side_effects": _NOTHING,
                },
            )
            uids.update(selectors.offered_tools(worker_id, tenant_id=agent.tenant_id))
    return uids


def _offered(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as a manifest takes it: a schema that is none says nothing."""
    found = dict(tool)
    for name in ("input_schema", "output_schema"):
        try:
            jsonschema_rs.validator_for(found[name], offline=True)
        except (ValueError, TypeError):
            found[name] = _ANYTHING
        if not isinstance(found[name], Mapping) or found[name].get("type") != "object":
            found[name] = _ANYTHING
    return found
