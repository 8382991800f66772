"""A small set of planning data of our own: tools named for a verb and a thing, asked for in words that only some of them say.

It shows that the measuring works and whether a change helps; what it says of anybody's own data is little.
"""

import random
from itertools import pairwise
from typing import Final

from apps.bench.planning import Data, Example

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
_HISTORY: Final = 600
_TESTS: Final = 120


def make(*, history: int | None) -> Data:
    """Tools, past plans and requests, always the same."""
    chance = random.Random(7)  # noqa: S311  # no secret
    names = [f"{verb}_{thing}" for thing in _THINGS for verb in _VERBS]
    follows = {name: chance.choices(names, k=3) for name in names}
    return Data(
        tools=tuple(_tool(name) for name in names),
        history=tuple(_example(chance, names, follows) for _ in range(_HISTORY))[:history],
        test=tuple(_example(chance, names, follows) for _ in range(_TESTS)),
    )


def _tool(name: str) -> dict[str, object]:
    verb, thing = name.split("_")
    takes = {"type": "object", "properties": {f"{thing}_name": {"type": "string"}}}
    return {
        "name": name,
        "description": f"{verb.capitalize()} one {thing}.",
        "input_schema": takes,
        "output_schema": {"type": "object", "properties": {"report": {"type": "string"}}},
    }


def _example(chance: random.Random, names: list[str], follows: dict[str, list[str]]) -> Example:
    nodes = [chance.choice(names)]
    for _ in range(chance.randrange(4)):
        following = chance.choice(follows[nodes[-1]])
        if following not in nodes:
            nodes.append(following)
    request = chance.choice(_BEFORE) + ", then ".join(_said(chance, name) for name in nodes) + "."
    links = frozenset(pairwise(nodes))
    return Example(request=request, nodes=tuple(nodes), links=links)


def _said(chance: random.Random, name: str) -> str:
    verb, thing = name.split("_")
    return f"{chance.choice(_VERBS[verb])} the {chance.choice((thing, _THINGS[thing]))} {chance.choice(_ABOUT)}"
