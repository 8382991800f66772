"""What operators set for a source, and the hourly limits of sources at the endpoints that receive receipts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from prometheus_client import REGISTRY

from apps.core.notifications import broker
from apps.digests import selectors
from apps.digests.models import Source
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as, acting_in
from apps.receipts.models import Receipt
from tests.commands import run
from tests.digests.makers import set_source
from tests.factories import T0, make_caller, make_tenant, make_token, operator


def rule(owner: Caller, name: str) -> tuple[int | None, bool]:
    found = selectors.source_rule(owner.tenant_id, name)
    return found.rate_per_hour, found.groups_by_dedupe_key


def test_a_source_has_the_defaults_until_somebody_sets_it(as_kee: Caller) -> None:
    assert rule(as_kee, "github") == (None, False)
    set_source(as_kee, rate=7, by_key=True)
    set_source(as_kee, rate=8)
    assert (rule(as_kee, "github"), rule(as_kee, "gitlab")) == ((8, False), (None, False))
    assert Source.objects.count() == 1


def rules(tenant: Tenant) -> list[tuple[str, int | None, bool]]:
    with acting_as(make_caller(tenant)):
        return list(Source.objects.values_list("name", "rate_per_hour", "groups_by_dedupe_key"))


SENT = {"_form_submitted": "on"}
MAY = ["view_source", "add_source", "change_source"]
ADD = reverse("admin:digests_source_add_source")
CHANGE = "admin:digests_source_change_source"


def test_an_operator_sets_a_source_and_says_why(tenant: Tenant) -> None:
    console = operator(*MAY, tenant=tenant)
    assert console.get(ADD).status_code == 200
    given: dict[str, Any] = SENT | {
        "tenant": tenant.pk,
        "name": "github",
        "rate_per_hour": 60,
        "reason": "They flood us.",
    }
    for _ in range(2):  # the second time it is refused, and changes nothing
        assert "HX-Redirect" in console.post(ADD, given).headers
        given["rate_per_hour"] = 61
    assert rules(tenant) == [("github", 60, False)]
    elsewhere = make_tenant("globex")
    assert "HX-Redirect" not in console.post(ADD, given | {"tenant": elsewhere.pk}).headers
    assert rules(elsewhere) == []

    with acting_as(make_caller(tenant)):
        address = reverse(CHANGE, args=[Source.objects.get().pk])
    assert b'value="60"' in console.get(address).content
    assert "HX-Redirect" not in console.post(address, SENT | {"rate_per_hour": 70, "reason": ""}).headers
    assert rules(tenant) == [("github", 60, False)]
    changed = SENT | {"rate_per_hour": "", "groups_by_dedupe_key": "on", "reason": "Group instead."}
    assert "HX-Redirect" in console.post(address, changed).headers
    assert rules(tenant) == [("github", None, True)]
    said = [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]
    assert ["They flood us." in said[0], "Group instead." in said[1]] == [True, True]


def test_viewer_or_stranger_sets_no_source(tenant: Tenant) -> None:
    console, elsewhere = operator(*MAY, tenant=tenant, role="viewer"), make_tenant("globex")
    for forbidden in (tenant, elsewhere):
        with acting_as(make_caller(forbidden)):
            set_source(make_caller(forbidden))
            address = reverse(CHANGE, args=[Source.objects.get().pk])
        given = SENT | {"tenant": forbidden.pk, "name": "github", "rate_per_hour": 60, "reason": "I want to."}
        for page in (ADD, address):
            assert console.post(page, given).status_code == 404
        assert rules(forbidden) == [("github", None, False)]
    assert not LogEntry.objects.exists()


ENDPOINTS = ["/internal/inbox/receipt", "/internal/receipt", "/api/v1/receipts"]


@pytest.fixture
def token(tenant: Tenant, kee: Caller, settings: Any) -> Iterator[str]:
    """Of a service that posts as three sources, at a moment from which the hour lasts for as long as a test may."""
    settings.SOURCE_RATE_LIMITS = {"default": 2, "generous": 50}
    with time_machine.travel(T0):
        yield make_token(
            tenant, "ci", Kind.SERVICE, scopes=[Scope.RECEIPTS_WRITE], source_systems=["ci", "generous", "other"]
        )


def receipt(key: str, *, source: str = "ci", **changes: Any) -> dict[str, Any]:
    return {
        "recipient_ai": "Kee",
        "source_system": source,
        "event_type": "build",
        "dedupe_key": key,
        "summary": "Built.",
        **changes,
    }


def send(token: str, body: dict[str, Any], endpoint: str = "/api/v1/receipts") -> Any:
    if endpoint == "/internal/inbox/receipt":
        body = {name: value for name, value in body.items() if name != "event_type"}
    return Client().post(endpoint, body, content_type="application/json", headers={"X-Service-Token": token})


def stored(tenant: Tenant) -> list[str]:
    with acting_in(tenant.pk, "test"):
        return list(Receipt.objects.order_by("pk").values_list("dedupe_key", flat=True))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_over_the_limit_is_429_and_a_repetition_409(tenant: Tenant, token: str, endpoint: str) -> None:
    send(token, receipt("1"), endpoint)
    assert [send(token, receipt("1"), endpoint).status_code for _ in range(5)] == [409] * 5
    assert send(token, receipt("2"), endpoint).status_code < 300
    refused = send(token, receipt("3"), endpoint)
    body = refused.json()
    assert (refused.status_code, body.get("code", body.get("error"))) == (429, "rate_limited")
    assert 0 < int(refused.headers["Retry-After"]) <= 3600
    assert send(token, receipt("2"), endpoint).status_code == 409
    assert stored(tenant) == ["1", "2"]


def refused(source: str, reason: str) -> float:
    labels = {"source": source, "reason": reason}
    return REGISTRY.get_sample_value("gatehouse_receipts_refused_total", labels) or 0.0


@pytest.mark.parametrize("endpoint", ["/internal/receipt", "/api/v1/receipts", "/api/v1/receipts/batch"])
@pytest.mark.parametrize(
    ("changes", "label", "reason"),
    [
        ({"recipient_ai": "Nobody"}, "generous", "unknown_recipient"),
        ({"metadata": {"text": "x" * 70_000}}, "generous", "too_large"),
        ({"source": "invented"}, "other", "not_this_caller"),
    ],
)
def test_refusal_is_counted_for_a_source_of_the_token(
    token: str,
    endpoint: str,
    *,
    changes: dict[str, Any],
    label: str,
    reason: str,
    django_capture_on_commit_callbacks: Callable[..., AbstractContextManager[list[Any]]],
) -> None:
    before = refused(label, reason)
    body = receipt("generous:build:1:v1", **({"source": "generous"} | changes))
    with django_capture_on_commit_callbacks(execute=True):
        send(token, {"receipts": [body]} if endpoint.endswith("batch") else body, endpoint)
    assert refused(label, reason) == before + 1
    assert not refused("invented", reason)


def test_what_was_refused_for_another_reason_does_not_count(tenant: Tenant, token: str) -> None:
    for key in ("1", "2", "3"):
        assert send(token, receipt(key, recipient_ai="Nobody")).status_code == 404
    itself = receipt("4", receipt_id="R.1", caused_by_receipt_id="R.1")
    assert [send(token, itself).status_code for _ in range(3)] == [422] * 3
    assert [send(token, receipt(key)).status_code for key in ("5", "6")] == [201, 201]


def test_each_source_and_tenant_has_a_limit_of_its_own(tenant: Tenant, token: str) -> None:
    for key in ("1", "2"):
        send(token, receipt(key))
    assert send(token, receipt("1", source="other")).status_code == 201
    assert [send(token, receipt(str(n), source="generous")).status_code for n in range(5)] == [201] * 5
    assert selectors.room_for(make_tenant("globex").pk, "ci", 2, T0) == 2


def test_an_operators_limit_stands_over_the_deployments(tenant: Tenant, kee: Caller, token: str) -> None:
    with acting_as(kee):
        set_source(kee, "ci", rate=3)
    selectors.forget_source_rules(tenant.pk)
    assert [send(token, receipt(str(n))).status_code for n in range(4)] == [201, 201, 201, 429]


def test_a_batch_is_let_in_as_far_as_there_is_room(tenant: Tenant, token: str) -> None:
    send(token, receipt("1"))
    batch = {"receipts": [receipt("1"), receipt("2"), receipt("3"), receipt("1", source="other")]}
    answer = send(token, batch, "/api/v1/receipts/batch").json()["results"]
    assert [one["code"] for one in answer] == ["duplicate_receipt", None, "rate_limited", None]
    assert stored(tenant) == ["1", "2", "1"]


def test_a_broker_that_forgets_gives_no_source_its_hour_anew(tenant: Tenant, token: str) -> None:
    assert [send(token, receipt(str(n))).status_code for n in range(3)] == [201, 201, 429]
    broker().flushdb()
    assert send(token, receipt("4")).status_code == 429
    with time_machine.travel(T0 + timedelta(hours=1)):
        assert send(token, receipt("5")).status_code == 201


@pytest.mark.parametrize("given", ["[]", '{"ci": true}'])
def test_limits_that_make_no_sense_are_refused_at_the_start(given: str) -> None:
    started = run(sys.executable, "-c", "import config.settings", env={"SOURCE_RATE_LIMITS": given, "PATH": ""})
    assert "SOURCE_RATE_LIMITS must be a JSON object" in started.stderr
