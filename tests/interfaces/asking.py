"""Any declared operation, asked over REST and as a tool, with the answers in one shape."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.test import Client

from apps.core import operations
from apps.core.operations import Operation, Route
from tests.mcp.raw import modern

ROUTED = [(declared, route) for declared in operations.all_operations() for route in declared.routes]
TOOLS = [declared for declared in operations.all_operations() if declared.tool]


@dataclass(frozen=True)
class Answer:
    """What an interface said: the refusal's code and places, or the members of the result."""

    status: int
    code: str | None = None
    pointers: tuple[str, ...] = ()
    members: frozenset[str] = field(default=frozenset())


def ask_rest(route: Route, given: Mapping[str, Any], token: str | None) -> Answer:
    path = re.sub(r"{(\w+)}", lambda match: str(given[match[1]]), route.path)
    rest = {name: value for name, value in given.items() if name not in route.parameters}
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    if route.method in {"GET", "DELETE"}:
        answer = Client().generic(route.method, f"{path}?{urlencode(rest)}", headers=headers)
    else:
        answer = Client().generic(
            route.method, path, json.dumps(rest), content_type="application/json", headers=headers
        )
    return _read(answer.status_code, json.loads(answer.content) if answer.content else {})


def ask_tool(declared: Operation, given: Mapping[str, Any], token: str | None) -> Answer:
    answer = modern("tools/call", {"name": declared.name, "arguments": dict(given)}, token)
    if answer.status_code != 200:
        return _read(answer.status_code, answer.json())
    result = answer.json()["result"]
    return _read(422 if result.get("isError") else 200, result["structuredContent"])


def _read(status: int, document: dict[str, Any]) -> Answer:
    if status < 400:
        return Answer(status, members=frozenset(document))
    code = document.get("code", document.get("error"))
    return Answer(
        status,
        code=str(code),
        pointers=tuple(sorted(error["pointer"] for error in document.get("errors", []))),
    )


def least(route: Route) -> dict[str, Any]:
    """What a path needs, and nothing else."""
    return dict.fromkeys(route.parameters, "x")
