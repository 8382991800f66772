"""Writes docs/mcp.md: the tools as agents read them, from their declarations."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand

from apps.core.operations import Operation, Role
from apps.mcp import calls

PAGE: Final = Path(settings.BASE_DIR) / "docs" / "mcp.md"
_HEAD: Final = """# MCP tools

`manage.py mcp_docs` writes this page from the declarations of the operations; do not edit it.

The endpoint is `/mcp`. A token sees a tool only if it has one of the tool's scopes.
A client lists few tools at first, by the kind of the token's principal: those of an agent, or those of a worker.
Every other tool is callable by its name all the same. There are three ways to it:

- `find_tools` finds tools by what they are for, and `call_tool` calls one by its name.
- `/mcp?tools=memory,plans` lists the tools of these groups besides. The groups are {groups}.
- `/mcp?tools=all` lists all.

A refused call has `isError` and a text that says what was wrong and what to do. It has no `structuredContent`.
Its members (`code`, `detail`, `errors`) are in `_meta` under `gatehouse/refusal` for programs.
"""
_LISTS: Final[dict[str, Role]] = {"Listed to agents": "agent", "Listed to workers": "worker"}


class Command(BaseCommand):
    help = "Write docs/mcp.md from the declarations of the operations."

    def handle(self, *args: Any, **options: Any) -> None:
        PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page as it should be."""
    tools = calls.tools()
    groups = sorted({group for tool in tools for group in tool.groups})
    parts = [_HEAD.format(groups=", ".join(f"`{group}`" for group in groups))]
    for heading, role in _LISTS.items():
        names = sorted([calls.CALL_TOOL.name, *(tool.name for tool in tools if role in tool.listed_for)])
        parts.append(f"## {heading}\n\n" + ", ".join(f"[`{name}`](#{name})" for name in names) + "\n")
    parts.append("## Every caller\n")
    parts.append(f"### {calls.CALL_TOOL.name}\n\n{_lines(str(calls.CALL_TOOL.description))}")
    parts += map(_section, [tool for tool in tools if not tool.groups])
    for group in groups:
        parts.append(f"## Group `{group}`\n")
        parts += map(_section, _first_in(group, tools))
    return "\n".join(parts)


def _first_in(group: str, tools: Sequence[Operation]) -> list[Operation]:
    """The tools that belong to a group and to none before it."""
    return [tool for tool in tools if tool.groups and min(tool.groups) == group]


def _section(tool: Operation) -> str:
    scopes = " or ".join(f"`{scope}`" for scope in sorted(tool.scopes))
    needs = f"{tool.title}. Needs {scopes}.\n\n" if scopes else f"{tool.title}.\n\n"
    return f"### {tool.name}\n\n{needs}{_lines(calls.description(tool))}"


def _lines(description: str) -> str:
    said, example, refused = description.rsplit("\n", 2)
    call = json.dumps(json.loads(example.removeprefix("Example: ")), ensure_ascii=False)
    return f"{said}\n\n```json\n{call}\n```\n\n{refused}\n"
