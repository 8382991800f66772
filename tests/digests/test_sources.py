"""What operators set for a source."""

import json
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from apps.digests import selectors, services
from apps.digests.models import Source
from apps.digests.selectors import SourceRule
from apps.principals.models import Membership, Operator, Tenant
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as
from tests.factories import make_caller, make_tenant, make_token


def set_source(owner: Caller, name: str = "github", *, rate: int | None = None, by_key: bool = False) -> None:
    services.set_source(tenant_id=owner.tenant_id, name=name, rate_per_hour=rate, groups_by_dedupe_key=by_key)


def test_a_source_has_the_defaults_until_somebody_sets_it(as_kee: Caller) -> None:
    assert selectors.source_rule(as_kee.tenant_id, "github") == SourceRule(
        rate_per_hour=None, groups_by_dedupe_key=False
    )
    set_source(as_kee, rate=7, by_key=True)
    set_source(as_kee, rate=8)
    assert selectors.source_rule(as_kee.tenant_id, "github") == SourceRule(rate_per_hour=8, groups_by_dedupe_key=False)
    assert selectors.source_rule(as_kee.tenant_id, "gitlab") == SourceRule()
    assert Source.objects.count() == 1


@pytest.fixture
def console(db: None) -> Client:
    """A browser in which Olga is logged in, who may change sources where she is an operator."""
    olga = Operator.objects.create_user(username="olga", password="x", is_staff=True)
    olga.user_permissions.set(Permission.objects.filter(codename__in=["view_source", "add_source", "change_source"]))
    client = Client()
    client.force_login(olga, backend="django.contrib.auth.backends.ModelBackend")
    return client


def join(tenant: Tenant, role: Membership.Role) -> None:
    Membership.objects.create(operator=Operator.objects.get(username="olga"), tenant=tenant, role=role)


def rules(tenant: Tenant) -> list[tuple[str, int | None, bool]]:
    with acting_as(make_caller(tenant)):
        return list(Source.objects.values_list("name", "rate_per_hour", "groups_by_dedupe_key"))


ADD = "admin:digests_source_add"
CHANGE = "admin:digests_source_change"


def test_an_operator_sets_a_source_and_says_why(tenant: Tenant, console: Client) -> None:
    join(tenant, Membership.Role.OPERATOR)
    assert console.get(reverse(ADD)).status_code == 200
    given = {"in_tenant": tenant.pk, "name": "github", "rate_per_hour": 60, "reason": "They flood us."}
    assert console.post(reverse(ADD), given).status_code == 302
    assert rules(tenant) == [("github", 60, False)]

    with acting_as(make_caller(tenant)):
        address = reverse(CHANGE, args=[Source.objects.get().pk])
    assert console.get(address).status_code == 200
    changed = {"rate_per_hour": "", "groups_by_dedupe_key": "on", "reason": "Gather instead."}
    assert console.post(address, changed).status_code == 302
    assert rules(tenant) == [("github", None, True)]
    said = [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]
    assert ["They flood us." in said[0], "Gather instead." in said[1]] == [True, True]


@pytest.mark.parametrize(
    "fault", [{"reason": ""}, {"rate_per_hour": "0"}, {"name": ""}, {"name": "x" * 51}, {"in_tenant": "0"}], ids=str
)
def test_a_faulty_form_changes_nothing(tenant: Tenant, console: Client, fault: dict[str, str]) -> None:
    join(tenant, Membership.Role.OPERATOR)
    given = {"in_tenant": tenant.pk, "name": "github", "rate_per_hour": 60, "reason": "Why not?"}
    assert console.post(reverse(ADD), given | fault).status_code == 200
    assert rules(tenant) == []


def test_viewer_or_stranger_sets_no_source(tenant: Tenant, console: Client) -> None:
    elsewhere = make_tenant("globex")
    join(tenant, Membership.Role.VIEWER)
    for forbidden in (tenant, elsewhere):
        with acting_as(make_caller(forbidden)):
            set_source(make_caller(forbidden))
            address = reverse(CHANGE, args=[Source.objects.get().pk])
        given = {"in_tenant": forbidden.pk, "name": "github", "rate_per_hour": 60, "reason": "I want to."}
        assert console.post(reverse(ADD), given).status_code == 200
        assert console.post(address, given).status_code in {302, 403}
        assert rules(forbidden) == [("github", None, False)]
    assert not LogEntry.objects.exists()


def ask(token: str, method: str, query: str = "", body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    more: dict[str, Any] = {"data": json.dumps(body), "content_type": "application/json"} if body is not None else {}
    headers = {"Authorization": f"Bearer {token}"}
    answer = Client().generic(method, f"/api/v1/sources{query}", headers=headers, **more)
    return answer.status_code, answer.json()


def test_an_admin_sets_and_lists_sources_page_by_page(tenant: Tenant) -> None:
    admin = make_token(tenant, "Admin", scopes=[Scope.ADMIN])
    for name in ("a", "b/c", "d"):
        expected = {"source_system": name, "rate_per_hour": 5, "groups_by_dedupe_key": True}
        assert ask(admin, "PUT", body=expected) == (200, expected)
    status, first = ask(admin, "GET", "?limit=2")
    assert (status, [one["source_system"] for one in first["sources"]]) == (200, ["a", "b/c"])
    _, second = ask(admin, "GET", f"?limit=2&cursor={first['next']}")
    assert ([one["source_system"] for one in second["sources"]], second["next"]) == (["d"], None)
    cleared = {"source_system": "a", "rate_per_hour": None, "groups_by_dedupe_key": False}
    assert ask(admin, "PUT", body={"source_system": "a"}) == (200, cleared)
