"""The operation by which an agent finds the tools that are not listed to it."""

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from apps.core.operations import Operation, operation
from apps.core.schemas import Input, Output, Text, json_schema
from apps.mcp import calls
from apps.principals.tenancy import Caller

_ENDING = re.compile(r"(?:ing|ed|es|e|s)$")

_SHORT = 3


class FindTools(Input):
    query: Annotated[Text, Field(min_length=1, max_length=200)]
    """What you want to do, in a few words, or a tool's name."""
    limit: Annotated[int, Field(ge=1, le=20)] = 5


class FoundTool(Output):
    name: str
    description: str
    input_schema: dict[str, Any]


class FoundTools(Output):
    tools: list[FoundTool]


@operation(
    title="Find tools",
    listed_for=["agent", "worker"],
    example={"query": "cancel a task"},
    read_only=True,
)
def find_tools(caller: Caller, given: FindTools) -> FoundTools:
    """Find tools of this server that are not in your list, best first: schedules, subjects, plans, webhooks, policies
    and more. Then call one with call_tool. That nothing is found is no refusal: ask with other words.
    """
    visible = [tool for tool in calls.tools() if tool.visible_to(caller)]
    return FoundTools(
        tools=[
            FoundTool(
                name=tool.name,
                description=calls.description(tool),
                input_schema=calls.asked(json_schema(tool.input, "validation")),
            )
            for tool in ranked(given.query, visible)[: given.limit]
        ]
    )


def ranked(query: str, tools: Sequence[Operation]) -> list[Operation]:
    """The tools that have a word of the query, best first: a rare word counts more, and one of the name most."""
    held = [
        (tool, (_words(tool.name), _words(tool.title), _words(f"{tool.description} {' '.join(tool.groups)}")))
        for tool in tools
    ]
    weights = {
        word: math.log(1 + len(held) / (1 + sum(any(word in part for part in parts) for _, parts in held)))
        for word in _words(query)
    }
    scores = {
        tool.name: sum(
            weight * sum(share for share, part in zip((4, 2, 1), parts, strict=True) if word in part)
            for word, weight in weights.items()
        )
        / math.sqrt(3 + len(parts[0]))
        for tool, parts in held
    }
    found = [tool for tool in tools if scores[tool.name]]
    return sorted(found, key=lambda tool: (-scores[tool.name], tool.name))


def _words(text: str) -> frozenset[str]:
    """The words of a text without their endings."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return frozenset(word if len(word) <= _SHORT else _ENDING.sub("", word) for word in words)
