"""Every figure that an app counts moves when what it speaks of happens."""

from importlib import import_module
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from prometheus_client.metrics import MetricWrapperBase

from apps.plans import services as plans
from apps.plans.services import PlanRequest
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller, acting_as
from tests import remote as remotes
from tests.delivery.making import STORED, deliver, make_remote, move_away
from tests.digests.makers import post, post_grouped, read
from tests.factories import T0, make_caller, make_tenant, make_token
from tests.remote import says


def declared() -> dict[str, MetricWrapperBase]:
    """All that stands in the `metrics` module of any app."""
    modules = [
        import_module(f"apps.{path.parent.name}.metrics")
        for path in (Path(settings.BASE_DIR) / "apps").glob("*/metrics.py")
    ]
    return {
        f"{module.__name__}.{name}": found
        for module in modules
        for name, found in vars(module).items()
        if isinstance(found, MetricWrapperBase)
    }


def counted() -> dict[str, float]:
    """How often each has counted, under whatever labels."""
    return {
        name: sum(
            sample.value
            for family in metric.collect()
            for sample in family.samples
            if sample.name.endswith(("_total", "_count"))
        )
        for name, metric in declared().items()
    }


@pytest.mark.django_db(transaction=True)
def test_a_day_moves_every_figure() -> None:
    tenant = make_tenant("acme")
    kee = make_caller(tenant, "Kee")
    before = counted()

    gather_and_look(tenant, kee)
    repeat(tenant)
    with acting_as(kee):
        plans.create_plan(caller=kee, request=PlanRequest(intent="Analyze the codebase at /repo"), now=T0)
    send_elsewhere(tenant, kee)

    assert len(before) >= 10
    assert [name for name, times in counted().items() if times == before[name]] == []


def gather_and_look(tenant: Tenant, kee: Caller) -> None:
    with acting_as(kee):
        for _ in range(2):
            post_grouped(kee, flush_class="immediate")
        (entry,) = read(kee).entries
    headers = {"Authorization": f"Bearer {make_token(tenant)}"}
    assert Client().get(f"/api/v1/inbox/entries/{entry.ref}/expand", headers=headers).status_code == 200


def repeat(tenant: Tenant) -> None:
    token = make_token(tenant, "ci", Kind.SERVICE, source_systems=["ci"])
    receipt = {"recipient_ai": "Kee", "source_system": "ci", "dedupe_key": "ci:build:1:v1", "summary": "Built."}
    for status in (201, 409):
        answer = Client().post(
            "/api/v1/receipts", receipt, content_type="application/json", headers={"X-Service-Token": token}
        )
        assert answer.status_code == status


def send_elsewhere(tenant: Tenant, kee: Caller) -> None:
    lee, manager = make_caller(tenant, "Lee"), make_caller(tenant, "Manager", Kind.DELEGATE)
    with remotes.serving(says(200, STORED)) as remote:
        make_remote(kee, remote.url)
        move_away(kee, lee)
        with acting_as(manager):
            post(lee, poster=manager, surface="ledger", event_type="plan_created")
        deliver()
