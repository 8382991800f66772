"""Data for judging plans, as anybody may bring it: tools, requests with the tools and links that they should come to, and the score.

A folder holds `tools.json` (a list of {name, description, input_schema, output_schema, input_types?, output_types?}), `test.jsonl`
and, if there is one, `history.jsonl` (a line each: {request, nodes: tool names in order, links: [[from, to]]}).
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a planner made of a request. `steps` pairs each tool with its confidence."""

    steps: tuple[tuple[str, float], ...]
    links: frozenset[Link]
    confidence: float
    ready: bool = True


@dataclass(slots=True)
class _Counted:
    right: int = 0
    said: int = 0
    meant: int = 0

    def add(self, said: frozenset[Any], meant: frozenset[Any]) -> None:
        self.right += len(said & meant)
        self.said += len(said)
        self.meant += len(meant)

    @property
    def f1(self) -> float:
        return 100 * 2 * self.right / max(self.said + self.meant, 1)


@dataclass(slots=True)
class Score:
    """Micro averages over all answers, in percent; calibration errors between 0 and 1."""

    nodes: _Counted = field(default_factory=_Counted)
    links: _Counted = field(default_factory=_Counted)
    exact: int = 0
    ready: int = 0
    answers: int = 0
    by_plan: list[tuple[float, bool]] = field(default_factory=list)
    by_step: list[tuple[float, bool]] = field(default_factory=list)

    def add(self, answer: Answer, meant: Example) -> None:
        """Count one answer."""
        said, right = frozenset(name for name, _ in answer.steps), frozenset(meant.nodes)
        self.nodes.add(said, right)
        self.links.add(answer.links, meant.links)
        self.exact += said == right
        self.ready += answer.ready
        self.answers += 1
        self.by_plan.append((answer.confidence, said == right))
        self.by_step.extend((p, name in right) for name, p in answer.steps)


def read(folder: Path, *, history: int | None = None) -> Data:
    """Read a folder.

    :param history: how many past plans at most; None: all.
    :raises BadData: if a file is missing or not of its form.
    """
    past = folder / "history.jsonl"
    examples = list(_examples(past)) if past.exists() else []
    return Data(
        tools=tuple(_tools(folder / "tools.json")),
        history=tuple(examples if history is None else examples[:history]),
        test=tuple(_examples(folder / "test.jsonl")),
    )


def answer(document: Mapping[str, Any]) -> Answer:
    """Read a plan, or of a refusal its best partial plan, as tools and links between them."""
    ready = document["status"] == "ready"
    steps = document["steps"] if ready else (document.get("partial_plan") or {}).get("steps", [])
    tools = {step["step_id"]: step["tool_name"] for step in steps if step.get("tool_name")}
    above = {step["step_id"]: _named(step, steps, tools) for step in steps}
    return Answer(
        steps=tuple(
            (tools[step["step_id"]], step.get("confidence", 0.0)) for step in steps if step["step_id"] in tools
        ),
        links=frozenset(
            (tools[source], tools[target])
            for target, sources in above.items()
            for source in sources
            if target in tools and tools[source] != tools[target]
        ),
        confidence=document["confidence"] if ready else (document.get("partial_plan") or {}).get("confidence", 0.0),
        ready=ready,
    )


def _named(step: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], tools: Mapping[str, str]) -> set[str]:
    """The worker steps right above a step, waits looked through."""
    found: set[str] = set()
    by_id = {one["step_id"]: one for one in steps}
    for source in (*step.get("depends_on", ()), *step.get("order_hint", ())):
        if source in tools:
            found.add(source)
        else:
            found |= set(by_id[source].get("wait_for_step_ids", ()))
    return found


def _tools(path: Path) -> Iterable[Mapping[str, Any]]:
    with _held_to_its_form(str(path)):
        tools = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(tools, list) or not tools:
            raise TypeError("it is no list of tools")
    for place, tool in enumerate(tools, start=1):
        with _held_to_its_form(f"{path}, tool {place}"):
            yield _described(tool)


def _examples(path: Path) -> Iterable[Example]:
    with _held_to_its_form(str(path)):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            with _held_to_its_form(f"{path}, line {number}"):
                yield _example(json.loads(line))


@contextmanager
def _held_to_its_form(place: str) -> Iterator[None]:
    """:raises BadData: with the place, if what is read there can't be taken."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as fault:
        raise BadData(f"{place} is not of the form in docs/planner.md: {type(fault).__name__} {fault}") from fault


def _example(one: Mapping[str, Any]) -> Example:
    if not isinstance(one["nodes"], list):
        raise TypeError("nodes is no list of names")
    links = frozenset((str(source), str(target)) for source, target in one.get("links") or ())
    return Example(request=str(one["request"]), nodes=tuple(map(str, one["nodes"])), links=links)


def _described(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with schemas; where only types are told, a param and a field for each."""
    name = str(tool["name"])
    if not name.strip():
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
