"""Any declared operation, asked over REST and as a tool, with the answers in one shape."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from django.apps import apps
from django.db import connection, transaction
from django.test import Client
from psycopg import sql

from apps.core import operations
from apps.core.operations import Operation, Route
from apps.mcp import calls
from apps.principals.models import TenantModel
from apps.principals.tenancy import acting_as_system
from tests.mcp.raw import Answer as Raw
from tests.mcp.raw import modern

Routed = list[tuple[Operation, Route]]

ROUTED: Final = [(declared, route) for declared in operations.all_operations() for route in declared.routes]
TOOLS: Final = [declared for declared in operations.all_operations() if declared.tool]


def each_route(routed: Routed = ROUTED) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("declared", "route"), routed, ids=[f"{declared.name}-{route.method}" for declared, route in routed]
    )


def each(declared: list[Operation]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("declared", declared, ids=lambda one: one.name)


@dataclass(frozen=True)
class Answer:
    """An answer: the refusal's code and places, or the members of the result."""

    status: int
    code: str | None = None
    pointers: tuple[str, ...] = ()
    members: frozenset[str] = field(default=frozenset())


def rest(route: Route, given: Mapping[str, Any], token: str | None) -> Raw:
    """What a route answers to this input."""
    path = re.sub(r"{(\w+)}", lambda match: str(given[match[1]]), route.path)
    others = {name: value for name, value in given.items() if name not in route.parameters}
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    if route.method in {"GET", "DELETE"}:
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in others.items()}
        answer = Client().generic(route.method, f"{path}?{urlencode(texts)}", headers=headers)
    else:
        body = json.dumps(others)
        answer = Client().generic(route.method, path, body, content_type="application/json", headers=headers)
    content = b"" if answer.streaming else answer.content
    return Raw(answer.status_code, dict(answer.items()), content)


def tool(declared: Operation, given: Mapping[str, Any], token: str | None) -> Raw:
    """What a tool answers to this input."""
    return modern("tools/call", {"name": declared.name, "arguments": dict(given)}, token)


def ask_rest(route: Route, given: Mapping[str, Any], token: str | None) -> Answer:
    answer = rest(route, given, token)
    return _read(answer.status_code, json.loads(answer.content) if answer.content else {})


def ask_tool(declared: Operation, given: Mapping[str, Any], token: str | None) -> Answer:
    answer = tool(declared, given, token)
    if answer.status_code != 200:
        return _read(answer.status_code, answer.json())
    result = answer.json()["result"]
    if result.get("isError"):
        return _read(422, result["_meta"][calls.REFUSAL])
    return _read(200, result["structuredContent"])


def _read(status: int, document: dict[str, Any]) -> Answer:
    if status < 400:
        return Answer(status, members=frozenset(document))
    code = document.get("code", document.get("error"))
    pointers = sorted(error["pointer"] for error in document.get("errors", []))
    return Answer(status, code=str(code), pointers=tuple(pointers))


def least(route: Route) -> dict[str, Any]:
    """What a path needs, and nothing else."""
    return dict.fromkeys(route.parameters, "x")


@contextmanager
def undone() -> Iterator[None]:
    """Undo what is done inside."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@contextmanager
def nothing_changes() -> Iterator[None]:
    before = _rows()
    yield
    assert _rows() == before


def _rows() -> dict[str, int]:
    """How many rows each table has, read in one statement."""
    models = [model for model in apps.get_models() if issubclass(model, TenantModel)]
    counts = [
        sql.SQL("select {}, count(*) from {}").format(model._meta.db_table, sql.Identifier(model._meta.db_table))
        for model in models
    ]
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute(sql.SQL(" union all ").join(counts))
        return dict(cursor.fetchall())
