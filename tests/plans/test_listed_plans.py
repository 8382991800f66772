"""A principal finds its plans again, page by page, and nobody else's."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.plans import selectors, services
from apps.plans.models import Plan
from apps.plans.services import PlanRequest
from apps.principals.models import Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as
from tests import ground
from tests.factories import T0, make_caller, make_token
from tests.plans.test_pools import register

MANY = 20_000


def create(caller: Caller, intent: str) -> str:
    with acting_as(caller):
        return services.create_plan(caller=caller, request=PlanRequest(intent=intent), now=T0).plan_id


def listed(token: str, query: str = "") -> dict[str, Any]:
    answer = Client().get(f"/api/v1/plans{query}", headers={"Authorization": f"Bearer {token}"})
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def token(tenant: Tenant, kee: Caller) -> str:
    with acting_as(kee):
        register(kee, "smith", "iron")
    return make_token(tenant, "Kee")


def test_the_list_has_ones_own_plans_page_by_page_newest_first(tenant: Tenant, kee: Caller, token: str) -> None:
    own = [create(kee, "Polish the iron") for _ in range(5)]
    create(make_caller(tenant, "Lee"), "Polish the iron")

    pages, cursor = [], ""
    while cursor is not None:
        page = listed(token, f"?limit=2{cursor and f'&cursor={cursor}'}")
        pages.append([one["plan_id"] for one in page["plans"]])
        cursor = page["next"]

    assert pages == [own[:2:-1], own[2:0:-1], own[:1]]
    assert listed(token, "?cursor=nonsense")["code"] == "bad_cursor"
    assert listed(make_token(tenant, "Kee", scopes=[Scope.INBOX]))["code"] == "missing_scope"


def test_it_says_what_each_is_and_what_can_still_be_begun(kee: Caller, token: str) -> None:
    begun, refused, long = (
        create(kee, intent) for intent in ("Polish the iron", "Sell the moon", "Polish the iron " * 100)
    )
    with acting_as(kee):
        document = {name: value for name, value in selectors.plan(begun).document.items() if name != "plan_hash"}
        waiting = services.submit(caller=kee, document=document, caused_by=None, now=T0).plan_id
        services.take_up(plan_id=begun)

    found = {one["plan_id"]: one for one in listed(token)["plans"]}

    assert {name: (one["status"], one["can_be_begun"], one["is_submitted"]) for name, one in found.items()} == {
        begun: ("ready", False, False),
        waiting: ("ready", True, True),
        refused: ("needs_escalation", False, False),
        long: (found[long]["status"], found[long]["can_be_begun"], False),
    }
    assert found[refused]["intent"] == "Sell the moon"
    assert len(found[long]["intent"]) == 200


def test_a_page_is_read_by_the_index_however_many_plans_others_have(tenant: Tenant, kee: Caller, token: str) -> None:
    create(kee, "Polish the iron")
    lee = make_caller(tenant, "Lee")
    copied = [
        field.column for field in Plan._meta.concrete_fields if field.column not in {"id", "plan_id", "principal_id"}
    ]
    with acting_as(kee):
        with ground.as_owner() as cursor:
            columns = ", ".join(f'"{name}"' for name in copied)
            cursor.execute(
                f"insert into plans_plan (plan_id, principal_id, {columns}) "
                f"select plan_id || n, case when n %% 100 = 0 then principal_id else %s end, {columns} "
                "from plans_plan, generate_series(1, %s) n",
                [lee.principal_id, MANY],
            )
        ground.analyzed("plans_plan")
        with CaptureQueriesContext(connection) as seen:
            found = selectors.plans_of(kee.principal_id, before=2**62, limit=51)
        assert (len(found), len(seen)) == (51, 1)
        with connection.cursor() as cursor:
            cursor.execute(f"explain {seen[0]['sql']}")
            plan = [line for (line,) in cursor.fetchall()]

    assert any("plans_plan_of_principal" in line for line in plan), plan
    assert not any("Sort" in line for line in plan), plan
