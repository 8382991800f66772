"""What a planner may choose from: tools, the offers of workers that serve them, and why an offer may not be used.

A tool is known by the hash of its contract, so that a thousand workers with the same tool are one candidate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

READ: Final = "read"
NETWORK: Final = "network"
GENTLE_EFFECTS: Final = frozenset({READ, NETWORK})
"""Effects that change nothing: what goes beyond them must be asked for by name."""


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

    @property
    def required(self) -> tuple[str, ...]:
        names = self.input_schema.get("required", ())
        return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One worker's offer to run a tool. `barred` says why it may not be used now; None means it may."""

    worker_id: str
    tool_uid: str
    capabilities: tuple[str, ...] = ()
    effects: frozenset[str] = frozenset()
    tier: str = "untrusted"
    expected_runtime: str | None = None
    latency_band: str | None = None
    cost_band: str | None = None
    cost: float = 0.0
    load: float = 0.0
    runs: int = 0
    successes: int = 0
    p50_seconds: float | None = None
    p95_seconds: float | None = None
    timeout_seconds: float | None = None
    available: bool = True
    barred: str | None = None


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The tools and offers of one moment, named by the registry's epoch."""

    epoch: int
    tools: tuple[Tool, ...]
    offers: tuple[Offer, ...]
    excluded: frozenset[str] = field(default=frozenset())

    @cached_property
    def by_uid(self) -> Mapping[str, Tool]:
        return {tool.uid: tool for tool in self.tools}

    @cached_property
    def offers_by_uid(self) -> Mapping[str, tuple[Offer, ...]]:
        found: dict[str, list[Offer]] = {}
        for offer in sorted(self.offers, key=lambda offer: (offer.tool_uid, offer.worker_id)):
            found.setdefault(offer.tool_uid, []).append(offer)
        return {uid: tuple(offers) for uid, offers in found.items()}

    @cached_property
    def worker_ids(self) -> frozenset[str]:
        return frozenset(offer.worker_id for offer in self.offers)

    @cached_property
    def _by_worker(self) -> Mapping[tuple[str, str], tuple[Tool, Offer]]:
        return {
            (offer.worker_id, self.by_uid[offer.tool_uid].name): (self.by_uid[offer.tool_uid], offer)
            for offer in self.offers
            if offer.tool_uid in self.by_uid
        }

    def find(self, worker_id: str, tool_name: str) -> tuple[Tool, Offer] | None:
        """Return the tool that a worker offers under a name, barred or not."""
        return self._by_worker.get((worker_id, tool_name))

    def open_offers(self, uid: str) -> tuple[Offer, ...]:
        """Return the offers of a tool that may be used now."""
        return tuple(offer for offer in self.offers_by_uid.get(uid, ()) if not self.bar(offer))

    def bar(self, offer: Offer) -> str | None:
        """Return why an offer may not be used, or None."""
        if offer.barred:
            return offer.barred
        return "excluded by the request" if offer.worker_id in self.excluded else None

    def without(self, worker_ids: Iterable[str]) -> Catalogue:
        """Return the same catalogue in which these workers may not be used."""
        return Catalogue(self.epoch, self.tools, self.offers, self.excluded | frozenset(worker_ids))


def types_of(schema: object) -> frozenset[str]:
    """Return the JSON types that a schema admits by its own word; empty means that it does not say."""
    if not isinstance(schema, Mapping):
        return frozenset()
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(name for name in declared if isinstance(name, str))
    variants = schema.get("anyOf") or schema.get("oneOf")
    return _types_of_variants(variants) if isinstance(variants, list) else frozenset()


def _types_of_variants(variants: Sequence[object]) -> frozenset[str]:
    found = [types_of(variant) for variant in variants]
    return frozenset().union(*found) if all(found) else frozenset()


def types_meet(source: object, target: object) -> bool:
    """Can a value of the one schema stand where the other is asked for? Unsaid types meet everything."""
    have, want = types_of(source), types_of(target)
    if not have or not want or have & want:
        return True
    return "integer" in have and "number" in want


def contract_key(schema: Mapping[str, Any]) -> str:
    """Return a stable text of a schema, to key compiled validators by."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}
