"""What the planner does by itself."""

from datetime import timedelta

from django.utils import timezone

from apps.core.ticks import tick
from apps.plans import selectors, services
from apps.principals.tenancy import acting_as_system, acting_in

_AT_ONCE = 500


@tick(every=timedelta(minutes=1))
def abandon() -> None:
    """Give up what nobody has begun in time."""
    with acting_as_system("plans that wait too long"):
        expired = selectors.expired(limit=_AT_ONCE)
    for tenant_id, plan_id in expired:
        with acting_in(tenant_id, "a plan that waits too long"):
            services.abandon_expired(plan_id=plan_id, now=timezone.now())
