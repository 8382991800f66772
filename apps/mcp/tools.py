"""The operation by which an agent finds the tools that are not listed to it."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import Field

from apps.core.operations import Operation, operation
from apps.core.schemas import Input, Output, Text
from apps.mcp import calls
from apps.plans.selectors import stems
from apps.principals.tenancy import Caller

# What a word counts in a name, in a title or keyword, in a description, and in an argument.
_SHARES: Final = (4, 2, 1, 0.5)


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
    and more. Then call one with call_tool. Ask with other words if nothing is found.
    """
    offered = [tool for tool in calls.offered(caller) if tool.name != "find_tools"]
    found = map(calls.describe, ranked(given.query, offered)[: given.limit])
    return FoundTools(tools=[FoundTool.model_validate(tool) for tool in found])


def ranked(query: str, tools: Sequence[Operation]) -> list[Operation]:
    """The tools that have a word of the query, best first: a rare word counts more, and one of a name most."""
    held = [(tool, _parts(tool)) for tool in tools]
    weights = {
        word: math.log(1 + len(held) / (1 + sum(any(word in part for part in parts) for _, parts in held))) * share
        for word, share in stems(query).items()
    }
    scores = {
        tool.name: sum(
            weight * sum(share for share, part in zip(_SHARES, parts, strict=True) if word in part)
            for word, weight in weights.items()
        )
        / math.sqrt(3 + len(parts[0]))
        for tool, parts in held
    }
    return sorted((tool for tool in tools if scores[tool.name]), key=lambda tool: (-scores[tool.name], tool.name))


def _parts(tool: Operation) -> list[frozenset[str]]:
    """The words of its name, of its title and keywords, of its description, and of its arguments."""
    arguments = tool.input.model_fields.items()
    told = " ".join(f"{name} {field.description or ''}" for name, field in arguments)
    said = f"{tool.description} {' '.join(tool.groups)}"
    return list(map(_stems, (tool.name, f"{tool.title} {tool.keywords}", said, told)))


@lru_cache(maxsize=1000)
def _stems(text: str) -> frozenset[str]:
    return frozenset(stems(text))
