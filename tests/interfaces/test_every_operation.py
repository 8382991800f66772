"""Every operation over every interface: its declaration, credentials, scopes, hostile input, and equal answers.

The registry is the list: an operation that is declared tomorrow is tested tomorrow.
"""

import json
import re
from datetime import timedelta
from typing import Any, Final

import pytest
from django.test import Client

from apps.core.operations import Operation, Route, all_operations
from apps.mcp.calls import CALL_TOOL
from apps.mcp.methods import HABITS, Habit
from apps.principals import services
from apps.principals.models import Principal, Tenant, Token
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import acting_as_system
from tests.factories import T0, make_token
from tests.interfaces.asking import (
    ROUTED,
    TOOLS,
    Answer,
    ask_rest,
    ask_tool,
    each,
    each_route,
    least,
    nothing_changes,
    undone,
)


@each(all_operations())
def test_operation_has_known_scopes_and_a_description(declared: Operation) -> None:
    assert declared.scopes <= set(Scope.values)
    assert len(declared.description) > 20
    assert declared.routes or declared.tool


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
def test_prompt_names_only_existing_tools(habit: Habit) -> None:
    named = set(re.findall(r"(?<!{)\b[a-z]+(?:_[a-z]+)+\b", f"{habit.text} {' '.join(habit.reads)}"))
    assert named <= {CALL_TOOL.name, *(declared.name for declared in all_operations())}


@pytest.fixture
def faulty(tenant: Tenant) -> dict[str, str | None]:
    """A credential for each fault."""
    tokens = {
        "none": None,
        "unknown": f"ght_00000000_{'x' * 43}",
        "expired": make_token(tenant, "expired", expires_at=T0 + timedelta(seconds=1)),
        "revoked": make_token(tenant, "revoked"),
        "disabled": make_token(tenant, "disabled"),
    }
    with acting_as_system("test"):
        services.revoke_token(token_id=Token.objects.get(principal__name="revoked").pk, now=T0)
        services.disable_principal(principal_id=Principal.objects.get(name="disabled").pk, now=T0)
    return tokens


@pytest.mark.ci
@each_route()
def test_route_refuses_every_invalid_credential(
    faulty: dict[str, str | None], declared: Operation, route: Route
) -> None:
    refusal = Answer(403, "invalid_service_token") if route.manner == "service" else None
    with nothing_changes():
        answers = {fault: ask_rest(route, least(route), token) for fault, token in faulty.items()}
    assert answers == {
        fault: refusal or Answer(401, "not_authenticated" if fault == "none" else "authentication_failed")
        for fault in faulty
    }


@pytest.mark.ci
@each_route([(declared, route) for declared, route in ROUTED if declared.scopes])
def test_route_refuses_a_token_without_its_scope(tenant: Tenant, declared: Operation, route: Route) -> None:
    token = make_token(tenant, "Lee", scopes=set(Scope) - declared.scopes)
    with nothing_changes():
        answer = ask_rest(route, least(route), token)
    assert answer == Answer(403, "missing_scope")


@pytest.mark.ci
@each(TOOLS)
def test_tool_refuses_every_invalid_credential(faulty: dict[str, str | None], declared: Operation) -> None:
    with nothing_changes():
        answers = {fault: ask_tool(declared, {}, token) for fault, token in faulty.items()}
    assert answers == {
        fault: Answer(401, "not_authenticated" if fault == "none" else "authentication_failed") for fault in faulty
    }


@pytest.mark.ci
@each([declared for declared in TOOLS if declared.scopes])
def test_tool_refuses_a_token_without_its_scope(tenant: Tenant, declared: Operation) -> None:
    token = make_token(tenant, "Lee", scopes=set(Scope) - declared.scopes)
    with nothing_changes():
        answer = ask_tool(declared, {}, token)
    assert answer == Answer(422, "missing_scope")


@each_route(
    [
        (declared, route)
        for declared, route in ROUTED
        if declared.tool and route.manner == "problem" and not declared.opens_transactions
    ]
)
@pytest.mark.parametrize("further", [{}, {"nonesuch": "1"}], ids=["least", "unknown_member"])
def test_route_and_tool_answer_alike(
    tenant: Tenant, declared: Operation, route: Route, further: dict[str, Any]
) -> None:
    token = make_token(tenant)
    given = {**least(route), **further}
    with undone():
        over_rest = ask_rest(route, given, token)
    with undone():
        as_tool = ask_tool(declared, given, token)
    assert over_rest.status < 500
    assert (as_tool.status < 400) is (over_rest.status < 400)
    assert (as_tool.code, as_tool.pointers, as_tool.members) == (over_rest.code, over_rest.pointers, over_rest.members)


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


REQUIRED: Final = {
    "/internal/inbox/receipt": "dedupe_key recipient_ai source_system summary",
    "/internal/receipt": "dedupe_key event_type recipient_ai source_system summary",
    "/workers/register": "endpoint tools worker_id",
    "/workers/{worker_id}/heartbeat": "status",
    "/delegate/plan": "intent",
}


@pytest.mark.parametrize("path", REQUIRED)
def test_every_required_member_of_a_service_door_is_missed_by_name(token: str, path: str) -> None:
    route = next(route for _, route in ROUTED if route.path == path)
    with nothing_changes():
        answer = ask_rest(route, least(route), token)
    assert (answer.status, answer.pointers) == (422, tuple(f"/{name}" for name in REQUIRED[path].split()))


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


@pytest.mark.ci
@each_route()
def test_hostile_input_is_refused_by_name(token: str, declared: Operation, route: Route) -> None:
    members = [name for name in declared.input.model_fields if name not in route.parameters]
    with nothing_changes():
        answers = {inside: ask(token, route, inside=inside) for inside in PATHS if route.parameters}
        if route.method in {"GET", "DELETE"}:
            answers |= {name: ask(token, route, query=f"{name}=a%00b") for name in [*members, "anything"]}
        else:
            answers |= _in_the_body(token, route, members)
    assert {what: (status, code) for what, (status, code) in answers.items() if status not in REFUSALS} == {}
    assert not {"None", "defect"} & {code for _, code in answers.values()}


def _in_the_body(token: str, route: Route, members: list[str]) -> dict[str, tuple[int, str]]:
    first = members[0] if members else "anything"
    nul = HOSTILE["NUL"]
    return (
        {kind: ask(token, route, body=f'{{"{first}": {text}}}'.encode()) for kind, text in HOSTILE.items()}
        | {name: ask(token, route, body=f'{{"{name}": {nul}}}'.encode()) for name in members}
        | {kind: ask(token, route, body=body) for kind, body in BODIES.items()}
        | {kind: ask(token, route, body=b'{"a": 1}', content_type=kind) for kind in CONTENT_TYPES}
    )
