"""Plans: how good they are on everyday requests and on the user's data, and how fast they are among many tools."""

import hashlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from apps.plans.catalogue import GENTLE_EFFECTS, Catalogue, Tool, references_in
from apps.plans.documents import Step
from apps.plans.local.history import History, Past, learn
from apps.plans.local.index import Library
from apps.plans.local.proposing import propose
from apps.plans.proposals import Asked, Proposal
from apps.plans.selectors import search_tools
from apps.principals.tenancy import Caller
from apps.workers import services as registry
from apps.workers.shapes import OfferView
from benchmarks.bench import Bench
from benchmarks.data import Data, Example, read_planning
from benchmarks.measure import Row, Slice, apart
from tests.plans.making import scripted
from tests.workers.factories import make_manifest

_VERBS: Final = ["analyze", "index", "convert", "extract", "summarize", "translate", "scan", "resize", "merge", "split"]
_NOUNS: Final = [
    "invoices",
    "contracts",
    "photos",
    "recordings",
    "tables",
    "sensors",
    "ledgers",
    "maps",
    "tickets",
    "poems",
]
_TAKES: Final = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
_SETS: Final = Path(settings.BASE_DIR) / "tests/plans/sets"
_NOW: Final = datetime(2026, 11, 24, 12, tzinfo=UTC)
_TIME: Final = re.compile(r"(?=\d)(\d{4}-\d\d-\d\d)?(?:(?:[T ]|^)(\d\d:\d\d)[\d:.]*(?:Z|[+-]\d\d:?\d\d)?)?")
_Model = Callable[[Asked, Library], Proposal | None]
_PLANS: Final = ("ready", "confirm")
_PARTIAL: Final = "partial plans count"
# What is counted, of which requests, which answers, right ones or wrong ones, and the goal in per cent.
_FIGURES: Final = (
    ("right", ("possible",), _PLANS, True, (65, 100)),
    ("right and ready", ("possible",), ("ready",), True, (33, 100)),
    ("right and to be confirmed", ("possible",), ("confirm",), True, ()),
    ("wrong and to be confirmed", ("possible",), ("confirm",), False, (0, 10)),
    ("wrong and ready", ("possible",), ("ready",), False, (0, 2)),
    ("a plan for the impossible", ("impossible", "ambiguous"), _PLANS, False, (0, 5)),
    ("an effect on a condition, ready", ("condition",), ("ready",), False, (0, 0)),
    ("asked for what lacks", ("incomplete",), ("asked",), True, (80, 100)),
)


class Shelf:
    """Tools that may all be used, as planning needs them, and a model for what the local planner is not ready with."""

    def __init__(self, tools: Iterable[Mapping[str, Any]], model: _Model = lambda *_: None) -> None:
        self.library, self.model, found, offers = Library(), model, dict[str, Tool](), dict[str, OfferView]()
        for one in tools:
            service = one.get("service", "bench")
            uid = hashlib.blake2b(f"{service}/{one['name']}".encode(), digest_size=16).hexdigest()
            takes, gives = (one.get(f"{way}Schema") or one.get(f"{way}_schema") or {} for way in ("input", "output"))
            about = {"name": one["name"], "description": one.get("description") or ""}
            found[uid] = Tool(uid=uid, input_schema=takes, output_schema=gives, **about)
            effects = frozenset({"read" if (one.get("annotations") or {}).get("readOnlyHint") else "write"})
            offers[uid] = OfferView(worker_id=service, tool_uid=uid, effects=effects, tier="trusted")
            self.library.put(found[uid], [service])
        self.catalogue = Catalogue(1, found.values(), offers.values())
        self.history: History | None = None

    def learn(self, plans: Iterable[Example]) -> None:
        known, past = {tool.name: tool.uid for tool in self.catalogue.tools}, list[Past]()
        for one in plans:
            links = frozenset((known[a], known[b]) for a, b in one.links if {a, b} <= known.keys())
            tools = tuple(known[name] for name in one.nodes if name in known)
            past.append(Past(request=one.request, tools=tools, links=links))
        self.history = learn(past, self.library.relevance) if past else None

    def propose(self, intent: str) -> Proposal:
        asked = Asked(intent=intent, now=_NOW)
        local = propose(asked, self.library, self.catalogue, self.history)
        return local if answer(local) == "ready" else self.model(asked, self.library) or local


def answer(plan: Proposal) -> str:
    """Which of the four answers a proposal is."""
    if plan.missing or not plan.steps:
        return "refused"
    if plan.questions or any(step.missing_params for step in plan.steps):
        return "asked"
    return "ready" if plan.is_ready else "confirm"


def faults(request: Mapping[str, Any], steps: Sequence[Step], catalogue: Catalogue) -> list[str]:
    """What is wrong with these steps, beside the accepted plan that they come nearest to."""
    names = {step.step_id: str(step.tool_name) for step in steps}
    found = [["other tools: " + ", ".join(names.values())]]
    for wanted in (request["steps"], *request.get("accept", ())):
        for order in permutations(steps) if len(wanted) == len(steps) else ():
            pairs = list(zip(wanted, order, strict=True))
            if all(step.tool_name == want["tool"] for want, step in pairs):
                wrong = (_wrong_values(want["args"], step, names, catalogue) for want, step in pairs)
                found.append([fault for one in wrong for fault in one])
    return min(found[1:] or found, key=len)


def _wrong_values(args: Mapping[str, Any], step: Step, names: Mapping[str, str], catalogue: Catalogue) -> Iterator[str]:
    inputs, params = catalogue.by_uid[step.tool_uid or ""].inputs, step.params or {}
    for name in sorted({*args, *params}):
        default = inputs.get(name, {}).get("default")
        given = params.get(name, default)
        if not _same(args.get(name, default), given, names):
            yield f"{step.tool_name}.{name} is {given!r}"


def _same(wanted: Any, given: Any, names: Mapping[str, str]) -> bool:
    """Is it a value that was expected? `any` lists several of them, `ref` names the tool whose result it is."""
    match wanted, given:
        case {"any": choices}, _:
            same = any(_same(one, given, names) for one in choices)
        case {"ref": tool_name}, str() | [str()]:
            same = [names.get(one.step_id) for one in references_in(given) if one.whole] == [tool_name]
        case Mapping(), Mapping():
            same = wanted.keys() == given.keys() and all(_same(wanted[name], given[name], names) for name in wanted)
        case list(), list():
            same = len(wanted) == len(given) and all(any(_same(one, it, names) for it in given) for one in wanted)
        case str(), str() if (moment := _TIME.fullmatch(wanted)) and (other := _TIME.fullmatch(given)):
            same = moment[1] == other[1] and moment[2] in {None, other[2]}
        case str(), str():
            same = len({" ".join(text.split()).strip("'\"").rstrip(".").casefold() for text in (wanted, given)}) == 1
        case _:
            same = wanted == given and isinstance(wanted, bool) is isinstance(given, bool)
    return same


def judge(request: Mapping[str, Any], plan: Proposal, catalogue: Catalogue) -> bool:
    """Is the plan right, or the question one for a param that lacks? Nothing is right for what is not possible."""
    if request["kind"] == "incomplete":
        lacking = {(step.tool_name, name) for step in plan.steps for name in step.missing_params or ()}
        return any((request["steps"][-1]["tool"], param) in lacking for param in request["asks"])
    return request["kind"] == "possible" and not faults(request, plan.steps, catalogue)


def everyday(name: str, shelf: Shelf, requests: Sequence[Mapping[str, Any]], seen: str = "learned") -> Iterator[Row]:
    """The figures of one set.

    :param seen: whether the planner has learned from it.
    """
    counted, plans = Counter[tuple[str, str, bool]](), []
    for request in requests:
        plan = shelf.propose(request["text"])
        plans.append((plan.confidence, judge(request, plan, shelf.catalogue)))
        counted[request["kind"], answer(plan), plans[-1][1]] += 1
        if request.get("why") == "condition":
            offers = [one for step in plan.steps for one in shelf.catalogue.offers_of(step.tool_uid or "")]
            acts = any(not one.effects <= GENTLE_EFFECTS for one in offers)
            counted["condition", answer(plan) if acts else "gentle", False] += 1
    for figure, kinds, answers, right, goal in _FIGURES:
        of = sum(count for (kind, _, _), count in counted.items() if kind in kinds)
        some, every = (
            round(100 * sum(counted[kind, one, right] for kind in kinds for one in those) / max(of, 1), 1)
            for those in (answers, ("ready", "confirm", "asked", "refused"))
        )
        partly = {"peer": every, "peer_is": _PARTIAL} if figure == "right" else {}
        row = Row(case=f"{name}: {figure}", unit="%", ours=some, note=f"{of} requests, {seen}", **partly)
        yield row.judged("{} to {}".format(*goal), met=goal[0] <= some <= goal[1]) if of and goal else row
    yield _calibration(name, plans)


def _calibration(name: str, plans: Sequence[tuple[float, bool]]) -> Row:
    """How far confidences are from how often they are right."""
    chance = random.Random(1)  # noqa: S311  # no secret
    perfect = sum(_error([(held, chance.random() < held) for held, _ in plans]) for _ in range(200)) / 200
    note = f"{len(plans)} requests; these confidences, were they all true, would come to {perfect:.3f} on average"
    error = _error(plans)
    row = Row(case=f"{name}: calibration error", unit="ECE", ours=round(error, 3), note=note)
    return row.judged("at most 0.05", met=error <= 0.05)  # noqa: PLR2004


def _error(plans: Sequence[tuple[float, bool]]) -> float:
    bins = [[held - right for held, right in plans if min(int(10 * held), 9) == number] for number in range(10)]
    return sum(abs(sum(one)) for one in bins) / max(len(plans), 1)


def run(bench: Bench) -> Iterator[Row]:
    """Everyday requests, the user's data if there is some, and speed."""
    tiny = bench.scale.rounds == 1
    for path in sorted(_SETS.glob("*/*.jsonl")):
        name, (tools, requests) = path.stem, read_set(path)
        requests = requests[: 20 if tiny else None]
        yield from everyday(name, Shelf(tools), requests, path.parent.name)
        # It answers with the plan of the same request, or lies: then the local planner alone may be ready and wrong.
        for model, figure, told in (("model", "right", requests), ("liar", "wrong and ready", requests[::-1])):
            plans = {one["text"]: other for one, other in zip(requests, told, strict=True)}
            rows = everyday(f"{name}, {model}", Shelf(tools, partial(scripted, plans)), requests, "a scripted model")
            row = next(one for one in rows if one.case.endswith(f": {figure}"))
            yield row.judged("95 or more", met=row.ours >= 95) if told is requests else row  # noqa: PLR2004
    if bench.file and bench.file.is_dir():
        yield from tools_and_links(read_planning(bench.file))
    for count, goal in ((100, None), (2_000, None), (10_000, 15), (100_000, 30)):
        if count <= bench.scale.tools:
            row = Row.of(f"a plan among {count:,} tools", [apart(partial(_timed, count))])
            yield row if goal is None else row.judged(f"p50 under {goal} ms", met=(row.p50 or 0) < goal)
    seen = apart(partial(_registering, bench.agents[0], 1 + 10 * bench.scale.rounds))
    row = Row.of("registration to the search that finds it", [seen])
    yield row.judged("p99 under 50 ms", met=(row.p99 or 0) < 50)  # noqa: PLR2004


def read_set(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The tools of a set, and the requests that were written for them."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [one for one in lines if "name" in one], [one for one in lines if "text" in one]


def tools_and_links(data: Data) -> Iterator[Row]:
    """How many tools and links are found: F1, where a refusal counts as empty, and where its partial plan counts."""
    shelf, plans = Shelf(data.tools), list[tuple[float, bool]]()
    shelf.learn(data.history)
    found: dict[str, list[tuple[bool, Set[Any], Set[Any]]]] = {"node F1": [], "edge F1": []}
    for meant in data.test:
        plan = shelf.propose(meant.request)
        names = {step.step_id: str(step.tool_name) for step in plan.steps}
        is_plan, links = answer(plan) in _PLANS, set[tuple[str, str]]()
        for place, step in enumerate(plan.steps):
            # Without a hint, the order of the steps.
            sources = step.depends_on or ([plan.steps[place - 1].step_id] if place else [])
            links |= {(names[source], names[step.step_id]) for source in sources}
        found["node F1"].append((is_plan, {*names.values()}, {*meant.nodes}))
        found["edge F1"].append((is_plan, links, meant.links))
        plans.append((plan.confidence, {*names.values()} == {*meant.nodes}))
    note = f"{len(data.tools):,} tools, {len(data.history):,} past plans, {len(plans):,} requests"
    for case, cases in found.items():
        ours = _f1((said if is_plan else set(), meant) for is_plan, said, meant in cases)
        peer = _f1((said, meant) for _, said, meant in cases)
        yield Row(case=case, unit="%", ours=ours, peer=peer, peer_is=_PARTIAL, note=note)
    exact = sum(is_plan and said == meant for is_plan, said, meant in found["node F1"]) / max(len(plans), 1)
    yield Row(case="exact sets", unit="%", ours=round(100 * exact, 1), note=note)
    yield _calibration("tools", plans)


def _f1(cases: Iterable[tuple[Set[Any], Set[Any]]]) -> float:
    counts = [(len(said & meant), len(said) + len(meant)) for said, meant in cases]
    return round(200 * sum(right for right, _ in counts) / max(sum(of for _, of in counts), 1), 1)


def _timed(count: int) -> Slice:
    """Plans of two parts among so many tools, one after the other."""
    words = [(_VERBS[n % 10], _NOUNS[n // 10 % 10], f"kind{n // 100}q") for n in range(count)]
    shelf = Shelf(_tool("_".join(one), "{} the {} of the {} sort at a path.".format(*one)) for one in words)
    chance, latencies = random.Random(1), list[float]()  # noqa: S311  # no secret
    for _ in range(100):
        said = ["{} the {} of sort {}".format(*chance.choice(words)) for _ in range(2)]
        began = time.perf_counter()
        shelf.propose(f"{said[0]} at /srv/a, then {said[1]} at /srv/b")
        latencies.append(time.perf_counter() - began)
    return Slice.of(latencies[5:])


def _tool(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "description": description, "input_schema": _TAKES, "output_schema": {"type": "object"}}


def _registering(agent: Caller, times: int) -> Slice:
    """From the commit of a registration to the end of the first search that finds its tool."""
    latencies = list[float]()
    for number in range(times):
        name = f"novelty{number}x"
        manifest = make_manifest(f"new-{number}", tools=[_tool(name, "New.")])
        with agent.acting():
            registry.register(caller=agent, original=manifest)
        began = time.perf_counter()
        found: list[str] = []
        while name not in found:
            with agent.acting():
                found = [one.tool_name for one in search_tools(name, tenant_id=agent.tenant_id)]
        latencies.append(time.perf_counter() - began)
    # The first one waits until the process has its index.
    return Slice.of(latencies[1:])
