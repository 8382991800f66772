"""What a planner may choose from: tools, the offers of workers that serve them, and why an offer may not be used.

A tool is known by the hash of its contract, so that a thousand workers with the same tool are one candidate. Which worker
runs a chosen tool: gates first, then a utility with a lower bound. References between steps, `{{step-1.files}}`, are typed by
what they point at.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from apps.core.errors import pointer_to
from apps.plans.shapes import OPENING, REFERENCE, RESULT_POINTER, RESULT_TEXT, StepType, place_in_list
from apps.workers.shapes import OfferView as Offer

GENTLE_EFFECTS: Final = frozenset({"read", "network"})
"""Effects that change nothing: what goes beyond them must be asked for by name."""
_DEEP: Final = 6

_TYPES: Final = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    tuple: "array",
    dict: "object",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One contract: a name, what it says of itself, and the shapes that go in and come out."""

    uid: str
    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any]

    @property
    def inputs(self) -> Mapping[str, Any]:
        return _properties(self.input_schema)

    @property
    def outputs(self) -> Mapping[str, Any]:
        return _properties(self.output_schema)

    def within(self, output: str) -> dict[tuple[str, ...], Any]:
        """What is in an output that is an object or a list of them: the path to each member, and its schema."""
        schema = self.outputs[output]
        path: tuple[str, ...] = (output,)
        outer = resolved(schema, self.output_schema) if isinstance(schema, Mapping) else {}
        if outer.get("type") == "array" and isinstance(outer.get("items"), Mapping):
            outer, path = resolved(outer["items"], self.output_schema), (output, "0")
        return {(*path, name): one for name, one in _properties(outer).items()}

    @property
    def required(self) -> tuple[str, ...]:
        names = self.input_schema.get("required", ())
        return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


Bar = Callable[[str, str], str | None]
"""Why a worker's tool, by its name, may not be used; None: it may."""


class Catalogue:
    """The tools and offers of a registry, named by its epoch. It is kept up to date worker by worker."""

    def __init__(self, epoch: int, tools: Iterable[Tool] = (), offers: Iterable[Offer] = ()) -> None:
        self.epoch = epoch
        self.bars: tuple[Bar, ...] = ()
        self.by_uid: dict[str, Tool] = {}
        self._offers: dict[str, dict[str, Offer]] = {}
        self._of_worker: dict[str, dict[str, Offer]] = {}
        known = {tool.uid: tool for tool in tools}
        by_worker: dict[str, list[tuple[Tool, Offer]]] = {}
        for offer in offers:
            by_worker.setdefault(offer.worker_id, []).append((known[offer.tool_uid], offer))
        for worker_id, offered in by_worker.items():
            self.put(worker_id, offered)

    def put(self, worker_id: str, offered: Iterable[tuple[Tool, Offer]]) -> frozenset[str]:
        """Let a worker offer exactly this; nothing takes it out. Returns the uids of the tools whose offers changed."""
        before = self._of_worker.pop(worker_id, {})
        now = list(offered)
        touched = {offer.tool_uid for offer in before.values()} | {tool.uid for tool, _ in now}
        for offer in before.values():
            del self._offers[offer.tool_uid][worker_id]
        for tool, offer in now:
            self.by_uid.setdefault(tool.uid, tool)
            self._offers.setdefault(tool.uid, {})[worker_id] = offer
            self._of_worker.setdefault(worker_id, {})[tool.name] = offer
        for uid in touched:
            if not self._offers[uid]:
                del self._offers[uid], self.by_uid[uid]
        return frozenset(touched)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All tools by uid."""
        return tuple(self.by_uid[uid] for uid in sorted(self.by_uid))

    def offers_of(self, uid: str) -> tuple[Offer, ...]:
        """The offers of a tool, barred or not, by worker."""
        found = self._offers.get(uid, {})
        return tuple(found[worker_id] for worker_id in sorted(found))

    def tools_of(self, worker_id: str) -> frozenset[str]:
        """The uids of what a worker offers."""
        return frozenset(offer.tool_uid for offer in self._of_worker.get(worker_id, {}).values())

    def find(self, worker_id: str, tool_name: str) -> tuple[Tool, Offer] | None:
        """Return the tool that a worker offers under a name, barred or not."""
        offer = self._of_worker.get(worker_id, {}).get(tool_name)
        return None if offer is None else (self.by_uid[offer.tool_uid], offer)

    def open_offers(self, uid: str) -> tuple[Offer, ...]:
        """Return the offers of a tool that may be used now."""
        return tuple(offer for offer in self.offers_of(uid) if not self.bar(offer))

    def bar(self, offer: Offer) -> str | None:
        """Return why an offer may not be used, or None."""
        name = self.by_uid[offer.tool_uid].name
        return next((why for bar in self.bars if (why := bar(offer.worker_id, name))), offer.barred)

    def barring(self, bar: Bar) -> Catalogue:
        """Return the same catalogue in which some of the offers may not be used."""
        view = copy.copy(self)
        view.bars = (*self.bars, bar)
        return view

    def without(self, worker_ids: Iterable[str]) -> Catalogue:
        """Return the same catalogue in which these workers may not be used."""
        excluded = frozenset(worker_ids)
        return self.barring(lambda worker_id, _: "excluded by the request" if worker_id in excluded else None)

    def of_workers(self, worker_ids: Iterable[str]) -> Catalogue:
        """Return what these workers offer, apart: it stays as it is, whatever is registered meanwhile."""
        view = Catalogue(self.epoch)
        view.bars = self.bars
        for worker_id in worker_ids:
            if worker_id in self._of_worker:
                offers = self._of_worker[worker_id].values()
                view.put(worker_id, [(self.by_uid[offer.tool_uid], offer) for offer in offers])
        return view


def types_of(schema: object) -> frozenset[str]:
    """Return the JSON types that a schema admits by its own word; empty means that it does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    declared = schema.get("type")
    if isinstance(declared, (str, list)):
        return frozenset(one for one in ([declared] if isinstance(declared, str) else declared) if isinstance(one, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(_TYPES.get(type(value), "null") for value in values)
    variants = schema.get("anyOf") or schema.get("oneOf")
    found = [types_of(variant) for variant in variants] if isinstance(variants, list) else []
    return frozenset().union(*found) if all(found) else frozenset()


def types_meet(source: object, target: object) -> bool:
    """Can a value of the one schema stand where the other is asked for? Unsaid types meet everything."""
    have, want = types_of(source), types_of(target)
    if not have or not want or have & want:
        return True
    return "integer" in have and "number" in want


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """A schema with its references and alternatives merged into it.

    Alternatives that are constants or enums make one enum. Else the first one that is not null counts.
    """
    flat = dict(schema)
    target = meant(flat.pop("$ref", None), root)
    if depth >= _DEEP:
        return flat
    if isinstance(target, Mapping):
        flat = {**resolved(target, root, depth + 1), **flat}
    for key in ("allOf", "anyOf", "oneOf"):
        options = flat.pop(key, None)
        solved = [
            resolved(one, root, depth + 1)
            for one in listed(options)
            if isinstance(one, Mapping) and one.get("type") != "null"
        ]
        values = [value for one in solved for value in allowed(one)]
        for one in solved if key == "allOf" else solved[:1]:
            flat = {**one, **flat}
        if values and len(solved) > 1:
            flat = {name: one for name, one in flat.items() if name not in ("enum", "const")}
            flat["enum" if all(allowed(one) for one in solved) else "examples"] = values
    if isinstance(flat.get("type"), list):
        flat["type"] = next((one for one in flat["type"] if one != "null"), "")
    return flat


def meant(reference: object, root: Any) -> Any:
    """What a local `$ref` leads to; None: nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    for part in reference[2:].split("/"):
        root = root.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(root, Mapping) else None
    return root


def listed(value: object) -> Sequence[Any]:
    """The items of a list; of anything else none."""
    return value if isinstance(value, list) else ()


def allowed(schema: Mapping[str, Any]) -> Sequence[Any]:
    """The values that an enum or a constant allows, but null; empty: it is none."""
    values = [one for one in listed(schema.get("enum")) if one is not None]
    return values or ([schema["const"]] if "const" in schema else [])


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


DIRECT_SECONDS: Final = 10.0
"""A call that takes longer is queued."""

_TRUSTED_RUNS: Final = 20
_MEDIAN_RUNS: Final = 5
_RUNTIME_SECONDS: Final = {"fast": 2.0, "medium": 30.0, "long": 300.0}
_LATENCY_SECONDS: Final = {"fast": 2.0, "medium": 30.0, "slow": 120.0}
_UNKNOWN_SECONDS: Final = 30.0
_TIERS: Final = {"trusted": 3, "verified": 2, "sandbox": 1, "untrusted": 0}
_Z10: Final = 1.2816


def lacks_room(offer: Offer, *, payload_bytes: int, calls: int) -> str | None:
    """Why an offer can't take a call, or None.

    :param calls: how many calls of its worker a plan makes, this one among them. One is always let through, if it must wait.
    """
    if offer.max_payload_bytes is not None and payload_bytes > offer.max_payload_bytes:
        return f"{offer.worker_id} takes {offer.max_payload_bytes} bytes a call, not {payload_bytes}"
    if offer.calls_per_hour is not None and calls > max(offer.calls_per_hour, 1):
        return f"{offer.worker_id} takes {offer.calls_per_hour:g} calls an hour, not {calls}"
    return None


def payload_bytes(params: Mapping[str, Any]) -> int:
    """How long params are as compact JSON, which is what a worker's limit counts."""
    return len(json.dumps(params, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


_WEIGHTS: Final = {
    "balanced": (0.5, 0.2, 0.1),
    "cheap": (2.0, 0.1, 0.05),
    "fast": (0.2, 0.8, 0.05),
    "safe": (0.2, 0.1, 0.5),
}
"""What cost, latency and tier weigh, by what the asker cares for most."""


def choose(offers: Sequence[Offer], *, salt: str, prefer: str = "balanced") -> Offer:
    """Return the best of some open offers; equal ones are spread by the salt, always the same way for the same salt."""

    def spread(offer: Offer) -> bytes:
        return hashlib.blake2b(f"{salt}\0{offer.worker_id}".encode(), digest_size=16).digest()

    return min(offers, key=lambda offer: (-round(_utility(offer, prefer), 9), spread(offer)))


def mode(offer: Offer) -> StepType:
    """Call what is fast, queue the rest. What was observed overrides what was promised; what neither tells is called."""
    promises = offer.latency_band is not None or offer.expected_runtime is not None
    if offer.p95_seconds is not None and offer.runs >= (_TRUSTED_RUNS if promises else 1):
        return StepType.CALL_WORKER if offer.p95_seconds < DIRECT_SECONDS else StepType.QUEUE_EXECUTION
    if not promises:
        return StepType.CALL_WORKER
    slow = offer.latency_band == "slow" or _promised_seconds(offer) > DIRECT_SECONDS
    return StepType.QUEUE_EXECUTION if slow else StepType.CALL_WORKER


def expected_seconds(offer: Offer) -> float:
    """Return the observed median, else what the worker's hints promise."""
    if offer.runs >= _MEDIAN_RUNS and offer.p50_seconds is not None:
        return round(offer.p50_seconds, 3)
    return _promised_seconds(offer)


def _promised_seconds(offer: Offer) -> float:
    if offer.expected_runtime in _RUNTIME_SECONDS:
        return _RUNTIME_SECONDS[offer.expected_runtime]
    return _LATENCY_SECONDS.get(offer.latency_band or "", _UNKNOWN_SECONDS)


def _utility(offer: Offer, prefer: str) -> float:
    cost, latency, tier = _WEIGHTS[prefer]
    # About the tenth percentile of Beta(1 + successes, 1 + failures): new workers start modest.
    tries = offer.runs + 2
    mean = (offer.successes + 1) / tries
    floor = max(mean - _Z10 * math.sqrt(mean * (1 - mean) / (tries + 1)), 0.01)
    return (
        math.log(floor)
        - cost * math.log1p(offer.cost * 100)
        - latency * math.log1p(expected_seconds(offer))
        + tier * _TIERS.get(offer.tier, 0)
    )


_BRANCHES: Final = ("anyOf", "oneOf", "allOf")
_HOPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One reference: where it stands, which step and path it names, and whether it is the whole value.

    Without a path it is malformed: an opening of a reference that is none, or a reference in the name of a member_at.
    """

    pointer: str
    step_id: str = ""
    path: tuple[str, ...] = ()
    whole: bool = False


def reference_to(step_id: str, *path: str) -> str:
    """Return the text of a reference."""
    return f"{OPENING}{step_id}.{'.'.join(path)}}}}}"


def references_in(value: Any, pointer: str = "") -> Iterator[Reference]:
    """Find every reference in a JSON value."""
    if isinstance(value, str) and OPENING in value:
        found = list(REFERENCE.finditer(value))
        for match in found:
            path = tuple(match[2].split("."))
            yield Reference(pointer=pointer, step_id=match[1], path=path, whole=match[0] == value)
        if value.count(OPENING) != len(found):
            yield Reference(pointer=pointer)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if OPENING in name and REFERENCE.search(name):
                yield Reference(pointer=pointer + pointer_to(name))
            yield from references_in(item, pointer + pointer_to(name))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from references_in(item, f"{pointer}/{position}")


def output_at(output_schema: Mapping[str, Any], path: tuple[str, ...]) -> Any | None:
    """Return the schema of what a path names in a tool's output, or None if the tool does not declare it."""
    if path in ((RESULT_POINTER,), (RESULT_TEXT,)):
        return (output_schema.get("properties") or {}).get(path[0], {"type": "string"})
    return member_at(output_schema, path)


def member_at(root: Mapping[str, Any], path: Sequence[str]) -> Any | None:
    """Return the schema of a member_at of what a schema describes, named by its path, or None if the schema does not tell of it."""
    here: Any = root
    for part in path:
        here = _child(here, part, root)
        if here is None:
            return None
    return _followed(here, root)


def _child(schema: Any, part: str, root: Mapping[str, Any]) -> Any | None:
    schema = _followed(schema, root)
    if not isinstance(schema, Mapping):
        return None
    own = _own_child(schema, part)
    if own is not None:
        return own
    branches = (branch for name in _BRANCHES for branch in listed(schema.get(name)))
    found = [child for branch in branches if (child := _child(branch, part, root)) is not None]
    return found[0] if len(found) == 1 else {"anyOf": [_followed(one, root) for one in found]} if found else None


def _own_child(schema: Mapping[str, Any], part: str) -> Any | None:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and part in properties:
        return properties[part]
    if (place := place_in_list(part)) is not None and "array" in types_of(schema):
        first = listed(schema.get("prefixItems"))
        return first[place] if place < len(first) else schema.get("items", {})
    others = schema.get("additionalProperties")
    return others if isinstance(others, Mapping) else None


def _followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a local `$ref` leads to; what leads nowhere, or in a circle, tells nothing."""
    for _ in range(_HOPS):
        target = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(target, str):
            return schema
        schema = meant(target, root) if target.startswith("#/") else {}
    return {}
