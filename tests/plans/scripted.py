"""A scripted model: it answers a request with the plan that is expected of some request, in the form of a model's answer."""

import json
from collections.abc import Mapping
from typing import Any

from apps.plans.language_model import MOST_TOOLS, Unusable, proposal
from apps.plans.local.index import Library
from apps.plans.proposals import Asked, Proposal


def scripted(told: Mapping[str, Mapping[str, Any]], asked: Asked, library: Library) -> Proposal | None:
    """What such a model proposes; None: nothing that can be used.

    :param told: by the text of a request, the request whose plan is answered, as in `sets`.
    """
    tools = library.shown(asked.intent, asked.now, MOST_TOOLS)[:MOST_TOOLS]
    ids = {tool.name: f"t{place}" for place, tool in enumerate(tools, 1)}
    wanted = told[asked.intent].get("steps", ())
    places = {one["tool"]: place for place, one in enumerate(wanted, 1)}
    steps = [
        {"tool": ids.get(one["tool"]), "params": {name: written(value, places) for name, value in one["args"].items()}}
        for one in wanted
    ]
    try:
        return proposal(json.dumps({"steps": steps, "missing": [], "refusal": None}), asked, tools)
    except Unusable:
        return None


def written(value: Any, places: Mapping[str, int]) -> Any:
    """An expected value as a model writes it: the first of several, and a result as a reference to its step."""
    match value:
        case {"any": [*choices]}:
            return written(next(one for one in choices if one is not None), places)
        case {"ref": tool_name}:
            return f"{{{{step-{places[tool_name]}.text}}}}"
        case _:
            return value
