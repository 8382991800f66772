"""Data for judging plans: tools, requests with the tools and links that they should come to, and the score.

A folder holds `tools.json` (a list of {name, description, input_schema, output_schema, input_types?, output_types?}),
`test.jsonl` and, if there is one, `history.jsonl`: a line each, {request, nodes: tool names in order, links: [[from, to]]}.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

Link = tuple[str, str]


class BadData(Exception):
    """A folder of planning data is not as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A request, the tools that serve it in their order, and which result goes on to which tool."""

    request: str
    nodes: tuple[str, ...]
    links: frozenset[Link]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What planning is judged on."""

    tools: tuple[Mapping[str, Any], ...]
    history: tuple[Example, ...]
    test: tuple[Example, ...]


@dataclass(slots=True)
class F1:
    """How much of what was said is right, and how much of what is right was said."""

    right: int = 0
    said: int = 0
    meant: int = 0

    def add(self, said: frozenset[Any], meant: frozenset[Any]) -> None:
        self.right += len(said & meant)
        self.said += len(said)
        self.meant += len(meant)

    @property
    def percent(self) -> float:
        return 100 * 2 * self.right / max(self.said + self.meant, 1)


@dataclass(slots=True)
class Score:
    """Micro averages over all answers, and the confidences beside what was right."""

    nodes: F1 = field(default_factory=F1)
    links: F1 = field(default_factory=F1)
    exact: int = 0
    ready: int = 0
    answers: int = 0
    by_plan: list[tuple[float, bool]] = field(default_factory=list)
    by_step: list[tuple[float, bool]] = field(default_factory=list)

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


def read(folder: Path) -> Data:
    """Read a folder.

    :raises BadData: if a file is missing or not of its form.
    """
    with _held_to_its_form(folder / "tools.json"):
        tools = json.loads((folder / "tools.json").read_text(encoding="utf-8"))
        if not isinstance(tools, list) or not tools:
            raise TypeError("it is no list of tools")
    found = []
    for place, tool in enumerate(tools, start=1):
        with _held_to_its_form(f"{folder / 'tools.json'}, tool {place}"):
            found.append(_described(tool))
    past = folder / "history.jsonl"
    history = tuple(_examples(past)) if past.exists() else ()
    return Data(tools=tuple(found), history=history, test=tuple(_examples(folder / "test.jsonl")))


def _examples(path: Path) -> Iterator[Example]:
    with _held_to_its_form(path):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            with _held_to_its_form(f"{path}, line {number}"):
                one = json.loads(line)
                if not isinstance(one["nodes"], list):
                    raise TypeError("nodes is no list of names")
                links = frozenset((str(source), str(target)) for source, target in one.get("links") or ())
                example = Example(request=str(one["request"]), nodes=tuple(map(str, one["nodes"])), links=links)
            yield example


@contextmanager
def _held_to_its_form(place: object) -> Iterator[None]:
    """:raises BadData: with the place, if what is read there can't be taken."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as fault:
        raise BadData(f"{place} is not of the form in docs/planner.md: {type(fault).__name__} {fault}") from fault


def _described(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with schemas; where there are only types, a param and a field for each."""
    if not (name := str(tool["name"])).strip():
        raise ValueError("it has no name")
    return {
        "name": name,
        "description": str(tool.get("description") or ""),
        "input_schema": tool.get("input_schema") or _of_types(tool.get("input_types") or (), required=True),
        "output_schema": tool.get("output_schema") or _of_types(tool.get("output_types") or (), required=False),
    }


def _of_types(types: Sequence[str], *, required: bool) -> dict[str, Any]:
    seen: Counter[str] = Counter()
    names = []
    for one in types:
        name = "_".join(str(one).lower().split()) or "value"
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    found: dict[str, Any] = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return {**found, "required": names} if required and names else found


# A small set of our own: tools named by a verb and a thing, asked for in words that only some of them say.
_THINGS: Final = {
    "invoice": "bill",
    "contract": "agreement",
    "photo": "snapshot",
    "recording": "tape",
    "sensor": "probe",
    "ledger": "accounts",
    "map": "chart",
    "patent": "filing",
    "recipe": "dish",
    "roster": "staffing",
    "voucher": "coupon",
    "warranty": "guarantee",
}
_VERBS: Final = {
    "create": ("create", "set up", "put together"),
    "update": ("update", "revise", "bring up to date"),
    "query": ("query", "look up", "find out about"),
    "archive": ("archive", "put away", "shelve"),
    "compare": ("compare", "hold side by side"),
}
_ABOUT: Final = ("of the Miller account", "for Tokyo", "number 42", "from last year")
_BEFORE: Final = ("", "", "Since the audit is near, ", "For the team offsite, ")


def own(*, history: int = 600, tests: int = 120) -> Data:
    """Tools, past plans and requests, always the same."""
    chance = random.Random(7)  # noqa: S311  # no secret
    names = [f"{verb}_{thing}" for thing in _THINGS for verb in _VERBS]
    follows = {name: chance.choices(names, k=3) for name in names}
    past = [_example(chance, names, follows) for _ in range(600)]
    return Data(
        tools=tuple(_tool(name) for name in names),
        history=tuple(past[:history]),
        test=tuple(_example(chance, names, follows) for _ in range(tests)),
    )


def _tool(name: str) -> dict[str, object]:
    verb, thing = name.split("_")
    return {
        "name": name,
        "description": f"{verb.capitalize()} one {thing}.",
        "input_schema": {"type": "object", "properties": {f"{thing}_name": {"type": "string"}}},
        "output_schema": {"type": "object", "properties": {"report": {"type": "string"}}},
    }


def _example(chance: random.Random, names: list[str], follows: dict[str, list[str]]) -> Example:
    nodes = [chance.choice(names)]
    for _ in range(chance.randrange(4)):
        following = chance.choice(follows[nodes[-1]])
        if following not in nodes:
            nodes.append(following)
    request = chance.choice(_BEFORE) + ", then ".join(_said(chance, name) for name in nodes) + "."
    return Example(request=request, nodes=tuple(nodes), links=frozenset(pairwise(nodes)))


def _said(chance: random.Random, name: str) -> str:
    verb, thing = name.split("_")
    return f"{chance.choice(_VERBS[verb])} the {chance.choice((thing, _THINGS[thing]))} {chance.choice(_ABOUT)}"
