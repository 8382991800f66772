"""Periodic jobs of the registry."""

from datetime import timedelta

from apps.core.ticks import is_stopping, tick
from apps.principals.tenancy import acting_as_system, acting_in
from apps.workers import selectors, services

tick(every=timedelta(seconds=5))(services.mark_late)
tick(every=timedelta(seconds=5))(services.lapse_trust)
tick(every=timedelta(seconds=1), calls_out=True)(services.discover)
tick(every=timedelta(seconds=1), calls_out=True)(services.probe)
tick(every=timedelta(hours=1))(services.forget_events)


@tick(every=timedelta(seconds=5))
def fold_calls() -> None:
    with acting_as_system("counting calls"):
        services.fold_calls()


@tick(every=timedelta(seconds=5), lasts=True)
def listen() -> None:
    from apps.workers import listening  # noqa: PLC0415  # takes most of a second, and few processes need it

    listening.listen(until=is_stopping)


@tick(every=timedelta(seconds=5))
def remember() -> None:
    with acting_as_system("workers that memory does not hold yet"):
        tenants = selectors.tenants_to_remember()
    for tenant_id in tenants:
        with acting_in(tenant_id, "the registry, written to memory"):
            services.remember()
