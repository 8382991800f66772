"""Registries beyond the shelf: random ones with requests for them, and the tools of the bundled workers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st

from apps.plans.catalogue import GENTLE_EFFECTS, Catalogue, Tool
from apps.workers.shapes import OfferView as Offer
from apps.workers.trust import Tier, effects_of, forbidden_effects
from config.stack import programs
from tests.plans.shelf import STRING, offer, shape, tool

VERBS = [
    "analyze",
    "suggest",
    "list",
    "delete",
    "send",
    "translate",
    "search",
    "run",
    "index",
    "summarize",
    "fetch",
    "write",
]


NOUNS = [
    "codebase",
    "files",
    "text",
    "email",
    "tests",
    "documents",
    "web",
    "weather",
    "optimizations",
    "sentiment",
    "image",
]


THINGS = [
    "",
    " in /srv/app",
    " at https://example.org/x",
    " 'some text'",
    " to bob@example.org",
    " {{step-1.x}}",
    " 5",
    " if it rains",
]


WISH = st.builds(
    lambda verb, noun, thing: f"{verb} the {noun}{thing}", *(st.sampled_from(s) for s in (VERBS, NOUNS, THINGS))
)


INTENTS = st.one_of(
    st.lists(WISH, min_size=1, max_size=4).map(" and ".join),
    st.lists(WISH, min_size=1, max_size=3).map(", then ".join),
    st.text(min_size=1, max_size=200),
)


EFFECTS = st.frozensets(st.sampled_from(["read", "write", "network", "exec", "bidirectional"]), max_size=2)


@st.composite
def registries(draw: st.DrawFn) -> Catalogue:
    """Random tools, of which those with effects beyond the tier are barred."""
    tools, offers = [], []
    for number in range(draw(st.integers(1, 8))):
        name = f"{draw(st.sampled_from(VERBS))}_{draw(st.sampled_from(NOUNS))}"
        params = draw(
            st.sets(st.sampled_from(["path", "text", "files", "query", "url", "analysis_pointer"]), max_size=3)
        )
        outputs = draw(st.sets(st.sampled_from(["path", "text", "files", "summary", "analysis_pointer"]), max_size=3))
        kinds = {"files": {"type": "array", "items": {"type": "string"}}}
        takes = {one: kinds.get(one, {"type": "string"}) for one in sorted(params)}
        gives = {one: kinds.get(one, {"type": "string"}) for one in sorted(outputs)}
        made = tool(
            name,
            f"Number {number}.",
            {"type": "object", "properties": takes, "required": sorted(params)},
            {"type": "object", "properties": gives},
        )
        effects = draw(EFFECTS)
        barred = None if effects <= GENTLE_EFFECTS else "the tier does not allow this"
        tools.append(made)
        runtime = draw(st.sampled_from(["fast", "long"]))
        offers.append(offer(f"worker-{number}", made, effects=effects, barred=barred, expected_runtime=runtime))
    return Catalogue(9, tuple(tools), tuple(offers))


DEEDS = ["analyze", "translate", "index", "convert", "check", "compress", "render", "measure", "classify", "encrypt"]


CHANGES = ["delete", "publish", "rename", "archive", "restart"]


MATTERS = [
    "invoice",
    "codebase",
    "photo",
    "recording",
    "contract",
    "dataset",
    "newsletter",
    "map",
    "recipe",
    "blueprint",
]


HARMLESS = {"filesystem": "read", "network": "none", "execution": "none"}


HARMFUL = {"filesystem": "write", "network": "outbound", "execution": "subprocess"}


ODD = st.one_of(
    st.text(min_size=1, max_size=200),
    st.builds(
        "{} the {}{}".format,
        st.sampled_from([*DEEDS, *CHANGES]),
        st.sampled_from(MATTERS),
        st.sampled_from(["", " {{step-1.x}}", " 5", " if it rains", " to bob@example.org"]),
    ),
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A registry, and a request: in the words of its tools, or in any."""

    catalogue: Catalogue
    intent: str


@st.composite
def offers_of(draw: st.DrawFn, made: Tool, side_effects: Mapping[str, str], number: int) -> Sequence[Offer]:
    """One tool at one to three workers of drawn tiers, barred where the rules of trust forbid its effects to the tier."""
    effects = effects_of(side_effects)
    found = []
    for place, tier in enumerate(draw(st.lists(st.sampled_from(list(Tier)), min_size=1, max_size=3))):
        forbidden = sorted(forbidden_effects(effects, tier))
        barred = f"the tier {tier} does not allow {', '.join(forbidden)}" if forbidden else None
        runtime = draw(st.sampled_from(["fast", "long"]))
        found.append(
            offer(f"worker-{number}-{place}", made, effects=effects, tier=tier, barred=barred, expected_runtime=runtime)
        )
    return found


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Chains of tools, each of which takes what is named exactly or what the one before bears; the intent asks for some of them."""
    things = draw(st.lists(st.sampled_from(MATTERS), min_size=1, max_size=3, unique=True))
    tools: list[Tool] = []
    offers: list[Offer] = []
    parts: list[str] = []
    for number, thing in enumerate(things):
        deeds = draw(st.lists(st.sampled_from(DEEDS), min_size=2, max_size=3, unique=True))
        takes, said = f"{thing}_path", f" /srv/{number}/x.dat"
        if number and draw(st.booleans()) and draw(st.booleans()):
            deeds, takes, said = [draw(st.sampled_from(CHANGES))], f"{thing}_path", f" /srv/{number}/x.dat"
        for deed in deeds:
            gives = f"{thing}_{deed}_pointer"
            made = tool(
                f"{deed}_{thing}",
                f"{deed.capitalize()} a {thing}.",
                shape(takes, **{takes: STRING}),
                shape(**{gives: STRING}),
            )
            tools.append(made)
            offers += draw(offers_of(made, HARMFUL if deed in CHANGES else HARMLESS, len(tools)))
            parts.append(f"{deed} the {thing}{said}")
            takes, said = gives, ""
    asked = parts if draw(st.booleans()) else parts[: draw(st.integers(1, len(parts)))]
    joint = draw(st.sampled_from([", then ", " and ", ". "]))
    intent = joint.join(asked)
    return Scene(Catalogue(9, tools, offers), draw(ODD) if draw(st.integers(0, 9)) == 0 else intent)


_PRINT = """
import asyncio, importlib, json, sys
made = [getattr(importlib.import_module(module), name) for module, _, name in (one.partition(":") for one in sys.argv[1:])]
workers = [one if hasattr(one, "manifest") else one() for one in made]
print(json.dumps([asyncio.run(worker.manifest()) for worker in workers]))
"""


@cache
def bundled() -> Catalogue:
    """What the bundled workers offer."""
    return _catalogue(*(f"{script.stem}:worker" for script in programs.bundled_worker_scripts()))


def _catalogue(*workers: str) -> Catalogue:
    found = [one for manifest in _manifests(*workers) for one in _offered(manifest)]
    return Catalogue(len(found), [tool for tool, _ in found], [offer for _, offer in found])


def _manifests(*workers: str) -> list[dict[str, Any]]:
    path = str(programs.BUNDLED_WORKERS)
    told = subprocess.run(
        [sys.executable, "-c", _PRINT, *workers],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    manifests: list[dict[str, Any]] = json.loads(told.stdout)
    return manifests


def _offered(manifest: dict[str, Any]) -> Iterator[tuple[Tool, Offer]]:
    hints = {name: manifest["hints"][name] for name in ("expected_runtime", "latency_band")}
    for one in manifest["tools"]:
        effects = effects_of(one.get("side_effects") or manifest["side_effects"])
        made = tool(one["name"], one["description"], one["input_schema"], one["output_schema"])
        yield made, offer(manifest["worker_id"], made, *manifest["capabilities"], effects=effects, **hints)
