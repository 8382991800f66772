"""Targets and what became of them, by the product's own services."""

from datetime import timedelta
from typing import Any

from apps.activation import selectors, services
from apps.activation.models import Dispatch, Target
from apps.activation.services import TargetWithSecret
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from tests.factories import T0


def make_target(owner: Caller, url: str, **changes: Any) -> TargetWithSecret:
    given: dict[str, Any] = {"notify_lease": timedelta(minutes=10), "min_unacked": 1, "with_titles": False}
    with acting_as(owner):
        return services.add(caller=owner, url=url, now=T0, **(given | changes))


def wake(target: Target) -> bool:
    return services.wake(tenant_id=target.tenant_id, target_id=target.pk)


def is_due(target: Target) -> bool:
    with acting_as_system("test"):
        return (target.tenant_id, target.pk) in selectors.due()


def dispatch_of(target: Target) -> Dispatch:
    with acting_as_system("test"):
        return Dispatch.objects.select_related("target").get(pk=target.pk)
