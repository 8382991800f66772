"""Rule of the doors: a source posts so many receipts an hour; repetitions and the product's own posts don't count."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.test import Client
from prometheus_client import REGISTRY

from apps.core.notifications import broker
from apps.digests import selectors, services
from apps.digests.tools.posting import _Admission
from apps.principals import limits
from apps.principals.limits import Quota
from apps.principals.models import Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as, acting_in
from apps.receipts.models import Receipt
from tests.digests.makers import make_draft
from tests.factories import T0, make_token

DOORS = ["/internal/inbox/receipt", "/internal/receipt", "/api/v1/receipts"]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for Redis: a post is granted where Redis does not answer in time."""
    monkeypatch.setattr(limits, "_PATIENCE_SECONDS", 20.0)


@pytest.fixture
def token(tenant: Tenant, kee: Caller, settings: Any) -> Iterator[str]:
    """Of a service that posts as three sources, at a moment from which the hour lasts for as long as a test may."""
    settings.SOURCE_RATE_LIMITS = {"default": 2, "generous": 50}
    broker().flushdb()
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


def send(token: str, body: dict[str, Any], door: str = "/api/v1/receipts") -> Any:
    if door == "/internal/inbox/receipt":
        body = {name: value for name, value in body.items() if name != "event_type"}
    return Client().post(door, body, content_type="application/json", headers={"X-Service-Token": token})


def stored(tenant: Tenant) -> list[str]:
    with acting_in(tenant.pk, "test"):
        return list(Receipt.objects.order_by("pk").values_list("dedupe_key", flat=True))


@pytest.mark.parametrize("door", DOORS)
def test_over_the_limit_is_429_with_retry_after(tenant: Tenant, token: str, door: str) -> None:
    for key in ("1", "2"):
        assert send(token, receipt(key), door).status_code < 300
    refused = send(token, receipt("3"), door)
    body = refused.json()
    assert (refused.status_code, body.get("code", body.get("error"))) == (429, "rate_limited")
    assert 0 < int(refused.headers["Retry-After"]) <= 3600
    assert stored(tenant) == ["1", "2"]


@pytest.mark.parametrize("door", DOORS)
def test_a_repetition_is_409_before_the_limit_counts(tenant: Tenant, token: str, door: str) -> None:
    send(token, receipt("1"), door)
    assert [send(token, receipt("1"), door).status_code for _ in range(5)] == [409] * 5
    assert send(token, receipt("2"), door).status_code < 300
    assert send(token, receipt("3"), door).status_code == 429
    assert send(token, receipt("2"), door).status_code == 409


def refused(source: str, reason: str) -> float:
    labels = {"source": source, "reason": reason}
    return REGISTRY.get_sample_value("gatehouse_receipts_refused_total", labels) or 0.0


@pytest.mark.parametrize("door", ["/internal/receipt", "/api/v1/receipts", "/api/v1/receipts/batch"])
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
    door: str,
    *,
    changes: dict[str, Any],
    label: str,
    reason: str,
    django_capture_on_commit_callbacks: Callable[..., AbstractContextManager[list[Any]]],
) -> None:
    before = refused(label, reason)
    body = receipt("generous:build:1:v1", **({"source": "generous"} | changes))
    with django_capture_on_commit_callbacks(execute=True):
        send(token, {"receipts": [body]} if door.endswith("batch") else body, door)
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
    hour = datetime(2026, 1, 3, 20, 15, tzinfo=UTC)
    assert Quota(tenant_id=tenant.pk + 1, source_system="ci", per_hour=2, now=hour).take(1) == 1


def test_an_operators_limit_stands_over_the_deployments(tenant: Tenant, token: str) -> None:
    with acting_in(tenant.pk, "test"):
        services.set_source(tenant_id=tenant.pk, name="ci", rate_per_hour=3, groups_by_dedupe_key=False)
    selectors.forget_source_rules(tenant.pk)
    assert [send(token, receipt(str(n))).status_code for n in range(4)] == [201, 201, 201, 429]


def test_a_batch_is_let_in_as_far_as_there_is_room(tenant: Tenant, token: str) -> None:
    send(token, receipt("1"))
    batch = {"receipts": [receipt("1"), receipt("2"), receipt("3"), receipt("1", source="other")]}
    answer = send(token, batch, "/api/v1/receipts/batch").json()["results"]
    assert [one["code"] for one in answer] == ["duplicate_receipt", None, "rate_limited", None]
    assert stored(tenant) == ["1", "2", "1"]


def test_the_products_own_posts_are_not_limited(tenant: Tenant, token: str, kee: Caller) -> None:
    with acting_as(kee):
        for _ in range(4):
            services.post(poster=services.Poster.of(kee), draft=make_draft(kee, source="ci"), now=T0)
    assert send(token, receipt("1")).status_code == 201


def test_duplicates_take_no_room_from_new_receipts(tenant: Tenant, token: str, kee: Caller) -> None:
    for number in range(1, 4):
        broker().flushdb()
        with acting_as(kee):
            services.set_source(tenant_id=kee.tenant_id, name="ci", rate_per_hour=number, groups_by_dedupe_key=False)
            known = make_draft(kee, source="ci", dedupe_key=f"known-{number}")
            services.post(poster=services.Poster.of(kee), draft=known, now=T0)
            under_way = [admit(kee, f"known-{number}") for _ in range(number + 1)]
            assert not admit(kee, f"new-{number}").refused
        assert not any(one.refused for one in under_way)


def admit(kee: Caller, key: str) -> _Admission:
    drafts = [make_draft(kee, source="ci", dedupe_key=key)]
    return _Admission(tenant_id=kee.tenant_id, drafts=drafts, now=T0)


def test_a_redis_that_is_away_lets_posts_through(tenant: Tenant, token: str, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert [send(token, receipt(str(n))).status_code for n in range(4)] == [201] * 4


@pytest.mark.parametrize("given", ["[]", '{"ci": true}'])
def test_limits_that_make_no_sense_are_refused_at_the_start(given: str) -> None:
    root = Path(__file__).parents[2]
    started = subprocess.run(
        [sys.executable, "-c", "import config.settings"],
        cwd=root,
        env={"SOURCE_RATE_LIMITS": given, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "SOURCE_RATE_LIMITS must be a JSON object" in started.stderr
