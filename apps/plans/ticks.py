"""What the planner does by itself."""

from datetime import timedelta

from django.utils import timezone

from apps.core.ticks import tick
from apps.plans import selectors, services
from apps.principals.tenancy import acting_as_system, acting_in


@tick(every=timedelta(minutes=1))
def abandon() -> None:
    """Give up what nobody has begun in time."""
    with acting_as_system("plans that wait too long"):
        expired = selectors.expired(limit=500)
    for tenant_id, plan_id in expired:
        with acting_in(tenant_id, "a plan that waits too long"):
            services.abandon_expired(plan_id=plan_id, now=timezone.now())


# In a thread of its own: to learn takes seconds.
@tick(every=timedelta(minutes=10), calls_out=True)
def learn() -> None:
    """Learn from what was carried out, where enough of it is new."""
    with acting_as_system("tenants whose planner can learn something"):
        tenants = selectors.tenants_with_lessons()
    failures: list[Exception] = []
    for tenant_id in tenants:
        try:
            services.learn(tenant_id=tenant_id)
        except Exception as failure:  # noqa: BLE001  # raised below; the others' lessons are not its
            failures.append(failure)
    if failures:
        raise ExceptionGroup("Some tenants' planners learned nothing", failures)
