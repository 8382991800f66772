"""Every operation, over every interface, with every fault that a credential can have.

The registry is the list: an operation that is declared tomorrow is tested tomorrow.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.apps import apps

from apps.core.operations import Operation, Route
from apps.principals import services
from apps.principals.models import Principal, Tenant, TenantModel, Token
from apps.principals.scopes import Scope
from apps.principals.tenancy import acting_as_system
from tests.factories import T0, make_token
from tests.interfaces.asking import ROUTED, TOOLS, Answer, ask_rest, ask_tool, least


def _routes(routed: list[tuple[Operation, Route]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("declared", "route"), routed, ids=lambda one: one.name if isinstance(one, Operation) else one.method
    )


ROUTES = _routes(ROUTED)
SCOPED_ROUTES = _routes([(declared, route) for declared, route in ROUTED if declared.scopes])
EVERY_TOOL = pytest.mark.parametrize("declared", TOOLS, ids=lambda declared: declared.name)
SCOPED_TOOLS = pytest.mark.parametrize(
    "declared", [declared for declared in TOOLS if declared.scopes], ids=lambda declared: declared.name
)


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


@ROUTES
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


@SCOPED_ROUTES
def test_route_refuses_a_token_without_its_scope(tenant: Tenant, declared: Operation, route: Route) -> None:
    token = make_token(tenant, "Lee", scopes=set(Scope) - declared.scopes)
    with nothing_changes():
        answer = ask_rest(route, least(route), token)
    assert answer == Answer(403, "missing_scope")


@EVERY_TOOL
def test_tool_refuses_every_invalid_credential(faulty: dict[str, str | None], declared: Operation) -> None:
    with nothing_changes():
        answers = {fault: ask_tool(declared, {}, token) for fault, token in faulty.items()}
    assert answers == {
        fault: Answer(401, "not_authenticated" if fault == "none" else "authentication_failed") for fault in faulty
    }


@SCOPED_TOOLS
def test_tool_refuses_a_token_without_its_scope(tenant: Tenant, declared: Operation) -> None:
    token = make_token(tenant, "Lee", scopes=set(Scope) - declared.scopes)
    with nothing_changes():
        answer = ask_tool(declared, {}, token)
    assert answer == Answer(422, "missing_scope")


@contextmanager
def nothing_changes() -> Iterator[None]:
    before = _rows()
    yield
    assert _rows() == before


def _rows() -> dict[str, int]:
    with acting_as_system("test"):
        return {
            model.__name__: model._default_manager.count()
            for model in apps.get_models()
            if issubclass(model, TenantModel)
        }
