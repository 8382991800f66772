"""REST and MCP are two skins of one operation: the same input has the same result and the same refusal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction

from apps.core.operations import Operation, Route
from apps.principals.models import Tenant
from tests.factories import make_token
from tests.interfaces.asking import ROUTED, Answer, ask_rest, ask_tool, least

BOTH = [
    (declared, route)
    for declared, route in ROUTED
    if declared.tool and route.manner == "problem" and not declared.own_transactions
]


@pytest.mark.parametrize(
    ("declared", "route"), BOTH, ids=lambda one: one.name if isinstance(one, Operation) else one.method
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
    assert _without_status(as_tool) == _without_status(over_rest)


@contextmanager
def undone() -> Iterator[None]:
    """What is done inside leaves nothing behind, so that both begin alike."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def _without_status(answer: Answer) -> tuple[bool, str | None, tuple[str, ...], frozenset[str]]:
    return answer.status < 400, answer.code, answer.pointers, answer.members
