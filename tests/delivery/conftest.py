"""Targets, routes and deliveries, made by the product's own services."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from apps.delivery import services
from apps.delivery.models import Delivery, Endpoint, Target
from apps.delivery.services import TargetWithSecret
from apps.digests import services as digests
from apps.principals.models import Principal, Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests import remote as remotes
from tests.factories import T0, make_caller
from tests.remote import Remote, says

TOKEN = "ght_12345678_of-the-other-side"
STORED = {"status": "stored", "uuid": "0190a0a0-0000-7000-8000-000000000001", "receipt_id": "rcpt_there"}


def make_webhook(owner: Caller, url: str, **changes: Any) -> TargetWithSecret:
    given: dict[str, Any] = {"notify_lease": timedelta(minutes=10), "min_unacked": 1}
    with acting_as(owner):
        return services.add(caller=owner, url=url, now=T0, **(given | changes))


def make_remote(
    caller: Caller, url: str, name: str = "north", *, endpoint: Endpoint = Endpoint.GATEHOUSE, **given: Any
) -> Target:
    with acting_as(caller):
        return services.put_remote(
            tenant_id=caller.tenant_id,
            name=name,
            url=url,
            endpoint=endpoint,
            now=T0,
            **({"token": TOKEN} | given),
        )


def move_away(caller: Caller, principal: Principal | Caller, target: str = "north", remote_name: str = "Lee") -> None:
    """From now on the principal's receipts go to the target."""
    principal_id = principal.principal_id if isinstance(principal, Caller) else principal.pk
    with acting_as(caller):
        services.set_route(
            tenant_id=caller.tenant_id, principal_id=principal_id, target=target, remote_name=remote_name
        )


def deliver() -> None:
    """Send what is due, to all targets, as worker processes do."""
    while services.deliver_next():
        pass


def wake(target: Target) -> bool:
    """Queue and send the wakes of a target; says whether it was called."""
    digests.queue_wakes()
    return bool(services.deliver_to(tenant_id=target.tenant_id, target_id=target.pk))


def reloaded(target: Target) -> Target:
    with acting_as_system("test"):
        return Target.objects.get(pk=target.pk)


def delivery(**filters: Any) -> Delivery:
    return Delivery.objects.select_related("target").get(**filters)


@pytest.fixture
def remote() -> Iterator[Remote]:
    """An inbox service elsewhere."""
    with remotes.serving(says(200, STORED)) as running:
        yield running


@pytest.fixture
def agent() -> Iterator[Remote]:
    """An address at which an agent is woken."""
    with remotes.serving() as running:
        yield running


@pytest.fixture
def lee(tenant: Tenant) -> Caller:
    """A principal that has moved to the target north, where it is called Lee."""
    return make_caller(tenant, "Lee North")


@pytest.fixture
def north(kee: Caller, lee: Caller, remote: Remote) -> Target:
    target = make_remote(kee, remote.url)
    move_away(kee, lee)
    return target
