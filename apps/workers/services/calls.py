"""What calls have shown of a worker's offers."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

from django.db import transaction
from django.db.models import F

from apps.workers import selectors, sql
from apps.workers.errors import WorkerRateLimited
from apps.workers.models import Call, Offer, Registry, Worker
from apps.workers.trust import calls_per_hour, share_of_an_hour

RECENT_CALLS: Final = 64
_HOUR: Final = 3_600


@transaction.atomic
def take_call(*, worker_id: str) -> None:
    """Count a call that is about to be made. The row stays locked until the transaction ends: who takes several calls
    in one takes them in the order of the workers' ids.

    :raises WorkerRateLimited: if it has been sent all that it and its tier allow for now.
    """
    # Any: a worker with the database's clock, which spares the question for it.
    worker: Any = Worker.objects.light().named(worker_id).annotate(asked_at=sql.GATEHOUSE_NOW).get()
    per_hour = calls_per_hour(worker.constraints.get("rate_limit_per_hour"), worker.tier_at(worker.asked_at))
    seconds: int | None = _HOUR
    if per_hour:
        seconds = sql.take_call(tenant_id=worker.tenant_id, worker_id=worker.pk, share=share_of_an_hour(per_hour))
    if seconds is not None:
        raise WorkerRateLimited(f"{worker_id} may be sent {per_hour:g} calls an hour.", retry_after=seconds)


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
