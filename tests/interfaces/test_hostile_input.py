"""What no client should send, to every route: each is refused by name, nothing fails, nothing changes."""

import json
from typing import Any, Final

import pytest
from django.test import Client

from apps.core.operations import Operation, Route
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from tests.factories import make_token
from tests.interfaces.asking import ROUTED
from tests.interfaces.test_credentials import nothing_changes

EVERY_ROUTE: Final = pytest.mark.parametrize(
    ("declared", "route"), ROUTED, ids=[f"{route.method} {route.path}" for _, route in ROUTED]
)
# As JSON, wherever it stands.
HOSTILE: Final = {
    "NUL": '"a\\u0000b"',
    "half a surrogate": '"\\ud800"',
    "a huge number": "9" * 400,
    "no number": "NaN",
    "endless": "1e999",
    "deep": "[" * 40 + "]" * 40,
    "bottomless": '{"a":' * 50_000 + "1" + "}" * 50_000,
}
BODIES: Final = {
    "nothing closed": b'{"a": ',
    "two keys": b'{"a": 1, "a": 2}',
    "no UTF-8": b'{"a": "\xff"}',
    "a list": b"[]",
    "a text": b'"x"',
    "null": b"null",
}
CONTENT_TYPES: Final = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
PATHS: Final = ("%00", "%FF%FE", "%ED%A0%80", "9" * 400, "a%2Fb", "..%2F..", "'; --")
REFUSALS: Final = {400, 404, 413, 415, 422}


@pytest.fixture
def token(tenant: Tenant) -> str:
    return make_token(tenant, "everything", Kind.SERVICE, scopes=set(Scope), source_systems=["github"])


def ask(
    token: str, route: Route, *, body: bytes | None = None, query: str = "", inside: str = "x", content_type: str = ""
) -> tuple[int, str]:
    path = route.path
    for name in route.parameters:
        path = path.replace(f"{{{name}}}", inside)
    answer = Client(raise_request_exception=False).generic(
        route.method,
        f"{path}?{query}" if query else path,
        body or b"",
        content_type=content_type or "application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    document: dict[str, Any] = json.loads(answer.content)
    return answer.status_code, str(document.get("code", document.get("error")))


def is_refusal(answer: tuple[int, str]) -> bool:
    return answer[0] in REFUSALS and answer[1] not in {"None", "defect"}


@pytest.mark.ci
@EVERY_ROUTE
def test_hostile_input_is_refused_by_name(token: str, declared: Operation, route: Route) -> None:
    members = [name for name in declared.input.model_fields if name not in route.parameters]
    in_address = route.method in {"GET", "DELETE"}
    with nothing_changes():
        answers = _in_the_path(token, route) if route.parameters else {}
        answers |= _in_the_query(token, route, members) if in_address else _in_the_body(token, route, members)
    assert {what: answer for what, answer in answers.items() if not is_refusal(answer)} == {}


def _in_the_query(token: str, route: Route, members: list[str]) -> dict[str, tuple[int, str]]:
    return {name: ask(token, route, query=f"{name}=a%00b") for name in [*members, "anything"]}


def _in_the_body(token: str, route: Route, members: list[str]) -> dict[str, tuple[int, str]]:
    first = members[0] if members else "anything"
    nul = HOSTILE["NUL"]
    return (
        {kind: ask(token, route, body=f'{{"{first}": {text}}}'.encode()) for kind, text in HOSTILE.items()}
        | {name: ask(token, route, body=f'{{"{name}": {nul}}}'.encode()) for name in members}
        | {kind: ask(token, route, body=body) for kind, body in BODIES.items()}
        | {kind: ask(token, route, body=b'{"a": 1}', content_type=kind) for kind in CONTENT_TYPES}
    )


def _in_the_path(token: str, route: Route) -> dict[str, tuple[int, str]]:
    return {inside: ask(token, route, inside=inside) for inside in PATHS}
