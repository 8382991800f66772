"""What calls have shown of a worker's offers."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from django.db import transaction
from django.db.models import F

from apps.workers import selectors
from apps.workers.models import Call, Offer, Registry

RECENT_CALLS: Final = 64


@transaction.atomic
def record_call(*, worker_id: str, tool_name: str, ok: bool, seconds: float, cost: Decimal) -> None:
    """Note how a call went, for those who choose between offers. Counted by the next tick.

    :raises UnknownTool: if the worker never offered such a tool.
    """
    offer = selectors.offer_named(worker_id, tool_name)
    Call.objects.create(tenant_id=offer.tenant_id, offer=offer, ok=ok, seconds=seconds, cost=cost)


@transaction.atomic
def fold_calls() -> int:
    """Count the calls noted since the last time into their offers. Runs as the system."""
    calls = list(Call.objects.select_for_update(skip_locked=True).order_by("id")[:10_000])
    by_offer: dict[int, list[Call]] = {}
    for call in calls:
        by_offer.setdefault(call.offer_id, []).append(call)
    offers = Offer.objects.filter(pk__in=by_offer).order_by("id").select_for_update()
    for offer in offers:
        _count(offer, by_offer[offer.pk])
    Call.objects.filter(pk__in=[call.pk for call in calls]).delete()
    tenants = sorted({call.tenant_id for call in calls})
    Registry.objects.filter(tenant_id__in=tenants).update(history_epoch=F("history_epoch") + 1)
    return len(calls)


def _count(offer: Offer, calls: Iterable[Call]) -> None:
    for call in calls:
        offer.runs += 1
        offer.successes += call.ok
        offer.total_seconds += call.seconds
        offer.total_cost += call.cost
        offer.recent_seconds = [*offer.recent_seconds, call.seconds][-RECENT_CALLS:]
    offer.save(update_fields=["runs", "successes", "total_seconds", "total_cost", "recent_seconds"])
