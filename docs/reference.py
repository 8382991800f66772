# ruff: noqa: E402 - what follows needs the apps to be ready
"""Writes the pages of reference beside it from the code: .venv/bin/python -m docs.reference"""

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import dropwhile, groupby, takewhile
from pathlib import Path
from typing import Final

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

from django.core.management import get_commands, load_command_class

from apps.console import metrics
from apps.core.operations import Operation, Role, all_operations
from apps.mcp import calls

HERE: Final = Path(__file__).parent
_HEAD: Final = """# MCP tools

`python -m docs.reference` writes this page from the declarations of the operations; do not edit it.

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


_COMMANDS: Final = """# Commands and settings

`python -m docs.reference` writes this page from the code; do not edit it.

## Commands

| command | does |
|---|---|
| `bin/up` | starts the stack in the foreground; Ctrl-C ends it |
| `bin/up --port N --data DIR --no-workers` | another port than 8080, another data folder than `var/`, no demo MCP workers |
| `bin/up --web N` | N web processes that share the port; by default one a core, at most two |
| `bin/up restore DIR --data NEW` | makes a new data folder from a [backup](backup.md) |
| `bin/up status` · `down` · `reset` | shows what runs · ends it · erases its data |
| `bin/demo PATH` | delegates one analysis of a folder of Python code, and shows each step |
| `bin/handoff inherit` · `leave` · `outbox` · `status` | reads and leaves items of a [handoff](handoff.md), without a server |
| `bin/secrets` | writes `.env` for a [deployment](deploy.md), with random secrets |
| `bin/size` | prints the lines of each part beside its budget |

Installed from the wheel, the command is `gatehouse`: `gatehouse up`, `demo`, `status`, `down`, `reset`,
`restore DIR`, `token`, `doctor`, `backup DIR`, and `gatehouse manage COMMAND` for what follows. Each takes
`--data DIR`; without it and `GATEHOUSE_DATA`, the data lies in `~/.local/share/gatehouse`, or below
`XDG_DATA_HOME`. `bin/up` calls this command after it has set `.venv` up; its data lies in `var/`. The wheel pins its libraries, so give it an environment of its own. The demo MCP
workers need the extra `demo`. `bench` and `chaos` stay in the working copy.

In a working copy, the following commands run as `.venv/bin/python manage.py COMMAND`. For a stack with another data
folder than `var/`, set `GATEHOUSE_DATA=DIR`.

`manage.py help COMMAND` tells the options. `bench` and `chaos` measure the product and break it on purpose, see
[Benchmarks](benchmarks.md) and [Fault tests](reliability.md).

| command | does |
|---|---|
"""
_SETTINGS: Final = """
## Settings

Every setting is an environment variable. `DATABASE_URL`, `DATABASE_URL_SYSTEM` and `DATABASE_URL_OWNER` are the
[three logins](deploy.md#what-every-deployment-needs) of the database. For log-in by an identity provider, register
the redirect `https://HOST/oidc/callback` there.

| variable, with its default | means |
|---|---|
"""
_REST: Final = """# REST

`python -m docs.reference` writes this page from the declarations of the operations; do not edit it. `/api/docs/` of a
running deployment has their bodies and answers, and lets you try them. `/api/schema/` is the OpenAPI document. A token
needs one of the scopes.
"""
_READS: Final = re.compile(r"env\.\w+|_logins\.get|_secret|_keys|_limits|_networks")


def commands() -> str:
    """The commands and settings."""
    own = {name: load_command_class(app, name) for name, app in get_commands().items() if app.startswith("apps.")}
    # Those of Django that are fitted to the product have Django's words.
    told = [
        f"| `{name}` | {_cell(one.help.partition(chr(10) * 2)[0])} |"
        for name, one in sorted(own.items())
        if "help" in vars(type(one))
    ]
    source = (HERE.parent / "config" / "settings.py").read_text(encoding="utf-8")
    known = [
        f"| {'<br>'.join(dict.fromkeys(name for _, _, name in found))} | {_cell(comment)} |"
        for comment, found in groupby(sorted(_settings(source)), key=lambda one: one[1])
    ]
    return _COMMANDS + "\n".join(told) + "\n" + _SETTINGS + "\n".join(known) + "\n"


def _settings(source: str) -> Iterator[tuple[int, str, str]]:
    """Each variable that the settings read: its line, the comment above, and its name with its default."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(args=[ast.Constant(value=str(name)), *_], keywords=given) if _READS.fullmatch(
                ast.unparse(node.func)
            ):
                defaults = [ast.unparse(one.value) for one in given if one.arg == "default"]
                default = f" = `{defaults[0]}`" if defaults and defaults[0] not in {"''", "[]", "{}"} else ""
                above = takewhile(lambda line: line, lines[node.lineno - 2 :: -1])
                comment = takewhile(
                    lambda line: line.lstrip().startswith("#"), dropwhile(lambda line: line.lstrip()[0] != "#", above)
                )
                yield node.lineno, " ".join(line.strip("# ") for line in [*comment][::-1]), f"`{name}`{default}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rest() -> str:
    """The routes by app."""
    parts, routed = [_REST], [(one.app, route, one) for one in all_operations() for route in one.routes]
    for app, rows in groupby(sorted(routed, key=lambda row: (row[0], row[1].path, row[1].method)), lambda row: row[0]):
        parts.append(f"## {app.capitalize()}\n\n| route | does | scope |\n|---|---|---|")
        for _, route, one in rows:
            scopes = ", ".join(f"`{scope}`" for scope in sorted(one.scopes))
            parts.append(f"| `{route.method} {route.path}` | {_cell(one.title)} | {scopes} |")
        parts.append("")
    return "\n".join(parts)


def tools() -> str:
    """The tools as agents read them."""
    listed = sorted(calls.offered(), key=lambda tool: tool.name)
    groups = sorted({group for tool in calls.tools() for group in tool.groups})
    parts = [_HEAD.format(groups=", ".join(f"`{group}`" for group in groups))]
    for heading, role in _LISTS.items():
        names = sorted([calls.CALL_TOOL.name, *(tool.name for tool in listed if role in tool.listed_for)])
        parts.append(f"## {heading}\n\n" + ", ".join(f"[`{name}`](#{name})" for name in names) + "\n")
    parts.append("## Every caller\n")
    parts.append(f"### {calls.CALL_TOOL.name}\n\n{_lines(str(calls.CALL_TOOL.description))}")
    parts += map(_section, [tool for tool in listed if not tool.groups])
    for group in groups:
        parts.append(f"## Group `{group}`\n")
        parts += map(_section, _first_in(group, listed))
    return "\n".join(parts)


def _first_in(group: str, tools: Sequence[Operation]) -> list[Operation]:
    """The tools that belong to a group and to none before it."""
    return [tool for tool in tools if tool.groups and min(tool.groups) == group]


def _section(tool: Operation) -> str:
    scopes = " or ".join(f"`{scope}`" for scope in sorted(tool.scopes))
    needs = f" Needs {scopes}." if scopes else ""
    return f"### {tool.name}\n\n{tool.title}.{needs}\n\n{_lines(calls.description(tool))}"


def _lines(description: str) -> str:
    said, _, rest = description.partition("\nExample: ")
    example, _, refused = rest.partition("\n")
    return f"{said}\n\n```json\n{example}\n```\n" + (f"\n{refused}\n" if refused else "")


PAGES: Final[Mapping[str, Callable[[], str]]] = {"commands.md": commands, "rest.md": rest, "mcp.md": tools}


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
    metrics.PAGE.write_text(metrics.page(), encoding="utf-8")
