"""Writes docs/mcp.md: the tools as agents read them, from their declarations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand

from apps.core.operations import Operation, Role
from apps.mcp import calls
from apps.mcp.calls import Forms

PAGE: Final = Path(settings.BASE_DIR) / "docs" / "mcp.md"
_HEAD: Final = """# MCP tools

`manage.py mcp_docs` writes this page from the declarations of the operations; do not edit it.

The endpoint is `/mcp`. A token sees a tool only if it has one of the tool's scopes.
A client lists few tools at first, by the kind of the token's principal: those of an agent, or those of a worker.
Every other tool is callable by its name all the same. There are three ways to it:

- `find_tools` finds tools by what they are for, and `call_tool` calls one by its name.
- `/mcp?tools=memory,plans` lists the tools of these groups besides. The groups are {groups}.
- `/mcp?tools=all` lists all.

What serves one intention is one tool: its arguments choose the form.

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
    tools = sorted(calls.offered(), key=lambda forms: forms[0].name)
    groups = sorted({group for tool in calls.tools() for group in tool.groups})
    parts = [_HEAD.format(groups=", ".join(f"`{group}`" for group in groups))]
    for heading, role in _LISTS.items():
        names = sorted([calls.CALL_TOOL.name, *(forms[0].name for forms in tools if role in forms[0].listed_for)])
        parts.append(f"## {heading}\n\n" + ", ".join(f"[`{name}`](#{name})" for name in names) + "\n")
    parts.append("## Every caller\n")
    parts.append(f"### {calls.CALL_TOOL.name}\n\n{_lines(str(calls.CALL_TOOL.description))}")
    parts += map(_section, [forms for forms in tools if not forms[0].groups])
    for group in groups:
        parts.append(f"## Group `{group}`\n")
        parts += map(_section, _first_in(group, tools))
    return "\n".join(parts)


def _first_in(group: str, tools: Sequence[Forms]) -> list[Forms]:
    """The tools that belong to a group and to none before it."""
    return [forms for forms in tools if forms[0].groups and min(forms[0].groups) == group]


def _section(forms: Forms) -> str:
    return f"### {forms[0].name}\n\n" + "\n".join(map(_form, forms))


def _form(form: Operation) -> str:
    alias = f"Or, also callable as `{form.name}`: " if form.form_of else ""
    scopes = " or ".join(f"`{scope}`" for scope in sorted(form.scopes))
    needs = f" Needs {scopes}." if scopes else ""
    return f"{alias}{form.title}.{needs}\n\n{_lines(calls.description(form))}"


def _lines(description: str) -> str:
    said, _, rest = description.partition("\nExample: ")
    example, _, refused = rest.partition("\n")
    return f"{said}\n\n```json\n{example}\n```\n" + (f"\n{refused}\n" if refused else "")
