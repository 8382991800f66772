"""Queries of the registry. Answers are values: they are true of the epoch that they were read at."""

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import F, Prefetch, Sum

from apps.core.errors import NotFound
from apps.core.sql import GATEHOUSE_NOW
from apps.workers import sql
from apps.workers.models import (
    ROUTABLE,
    Offer,
    OfferQuerySet,
    Registry,
    State,
    ToolVersion,
    UnknownWorker,
    Worker,
)
from apps.workers.shapes import ListWorkers, OfferView, ToolShown, WorkerList, WorkerManifest, WorkerSummary
from apps.workers.trust import Tier, forbidden_effects


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryView:
    """Tools and offers of a tenant, in a fixed order."""

    tools: tuple[ToolVersion, ...]
    offers: tuple[OfferView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Everything that a call of a tool needs: the worker, the version of the tool, and the offer."""

    worker: Worker
    tool: ToolVersion
    offer: OfferView


def epochs() -> tuple[int, int]:
    """The registry's epoch and its history's epoch; both 0 before the first registration."""
    found = Registry.objects.values_list("epoch", "history_epoch").first()
    return found or (0, 0)


def conditions() -> dict[str, tuple[object, ...]]:
    """For each registered worker the values that its offers depend on: if they differ, read the offers again."""
    found = Worker.objects.registered().values_list("worker_id", "described_at_epoch", "state", "effective_tier")
    return {worker_id: tuple(rest) for worker_id, *rest in found}


def managers(*, tenant_id: int, worker_ids: Collection[str] | None = None) -> dict[str, tuple[int, str]]:
    """The pool of each worker: the key and the name of the DeleGate that registered it, else of the nearest one above.

    A DeleGate that registers itself is in the pool of the one above it. Workers of the root are left out.

    :param worker_ids: of which workers; None: of all.
    """
    return sql.managers(tenant_id=tenant_id, worker_ids=worker_ids)


def tool_versions(uids: Collection[str]) -> dict[str, ToolVersion]:
    """Tool versions by uid, offered or not."""
    return {tool.uid: tool for tool in ToolVersion.objects.filter(uid__in=uids)}


def tried() -> dict[str, int]:
    """The number of counted calls of each worker that has any."""
    found = Offer.objects.current().filter(runs__gt=0).order_by().values_list("worker__worker_id")
    return {worker_id: int(runs) for worker_id, runs in found.annotate(runs=Sum("runs"))}


def catalogue(worker_ids: Collection[str] | None = None) -> RegistryView:
    """Every current offer, usable or not. Trust may end without a change of the epoch, so the stored tier counts here.

    :param worker_ids: whose offers; None: all.
    """
    current = Offer.objects.current().with_contract()
    if worker_ids is not None:
        current = current.filter(worker__in=Worker.objects.registered().filter(worker_id__in=worker_ids))
    offers = list(current.order_by("tool__uid", "worker__worker_id"))
    tools = {offer.tool.uid: offer.tool for offer in offers}
    return RegistryView(
        tools=tuple(tools[uid] for uid in sorted(tools)),
        offers=tuple(_offer_view(offer, Tier(offer.worker.effective_tier)) for offer in offers),
    )


def tools_shown(*, tenant_id: int, worker_id: str) -> list[ToolShown]:
    """What a worker offers now, by name: what each tool claims to touch, and whether an operator has approved it.

    :raises UnknownWorker: if no worker of this id is registered.
    """
    worker_named(worker_id)
    offers = Offer.objects.current().filter(tenant_id=tenant_id, worker__worker_id=worker_id).select_related("tool")
    return [
        ToolShown(
            name=offer.name,
            description=offer.tool.description,
            effects=offer.tool.effects,
            tool_uid=offer.tool.uid,
            approved=offer.approved_at is not None,
        )
        for offer in offers.order_by("name")
    ]


def tenants_to_remember() -> list[int]:
    """The tenants with workers that memory does not hold as they are. Runs as the system."""
    return sorted(set(Worker.objects.unremembered().values_list("tenant_id", flat=True)))


def worker_named(worker_id: str) -> Worker:
    """:raises UnknownWorker: if no worker of this id is registered."""
    worker = Worker.objects.registered().light().filter(worker_id=worker_id).first()
    if worker is None:
        raise UnknownWorker(f"There is no MCP worker {worker_id[:100]!r}.")
    return worker


def manifest_of(worker_id: str) -> WorkerManifest:
    """A worker's manifest, as it may be registered again.

    :raises UnknownWorker: if no worker of this id is registered.
    """
    return WorkerManifest(**worker_named(worker_id).manifest)


def terms_of(worker_id: str, tool_name: str) -> Terms:
    """Everything that a call of a worker's tool needs now. Trust counts as long as its signature.

    :raises UnknownWorker: if no worker of this id is registered.
    :raises NotFound: `unknown_tool`, if it offers no such tool.
    """
    # Any: an offer with the database's clock.
    offer: Any = _offers_named(worker_id, tool_name).current().annotate(asked_at=GATEHOUSE_NOW).first()
    if offer is None:
        raise _no_offer(worker_named(worker_id).worker_id, tool_name)
    view = _offer_view(offer, offer.worker.tier_at(offer.asked_at))
    return Terms(worker=offer.worker, tool=offer.tool, offer=view)


def offer_named(worker_id: str, tool_name: str) -> Offer:
    """The latest offer of this name, withdrawn or not.

    :raises NotFound: `unknown_tool`, if there never was one.
    """
    latest = _offers_named(worker_id, tool_name).first()
    if latest is None:
        raise _no_offer(worker_id, tool_name)
    return latest


def _offers_named(worker_id: str, tool_name: str) -> OfferQuerySet:
    """The latest one first."""
    found = Offer.objects.filter(worker__worker_id=worker_id, name=tool_name).with_contract()
    return found.order_by(F("withdrawn_at").desc(nulls_first=True))


def _no_offer(worker_id: str, tool_name: str) -> NotFound:
    return NotFound(f"{worker_id[:100]} offers no tool {tool_name[:200]!r}.", code="unknown_tool")


def workers(given: ListWorkers) -> WorkerList:
    """A page of the registered workers, in the order of their first registration."""
    current = Prefetch("offers", Offer.objects.filter(withdrawn_at=None).only("worker_id", "name").order_by("name"))
    found = Worker.objects.registered().light().prefetch_related(current)
    if given.capability is not None:
        found = found.filter(capabilities__contains=[given.capability])
    if given.trust_tier is not None:
        found = found.filter(effective_tier=given.trust_tier)
    if given.available_only:
        found = found.filter(state__in=ROUTABLE, available=True)
    shown, following = given.of(found)
    return WorkerList(
        next=following,
        workers=[
            WorkerSummary(
                worker_id=worker.worker_id,
                capabilities=worker.capabilities,
                tools=[offer.name for offer in worker.offers.all()],
                hints=worker.hints,
                status=worker.state,
                effective_tier=Tier(worker.effective_tier).value,
                available=worker.available,
            )
            for worker in shown
        ],
    )


def ready(**fitting: Any) -> set[str]:
    """The ids of the registered workers that can be called.

    :param fitting: lookups that narrow them.
    """
    found = Worker.objects.registered().filter(state__in=ROUTABLE, **fitting)
    return set(found.values_list("worker_id", flat=True))


def _offer_view(offer: Offer, tier: Tier) -> OfferView:
    worker, recent = offer.worker, sorted(offer.recent_seconds)
    return OfferView(
        worker_id=worker.worker_id,
        tool_uid=offer.tool.uid,
        capabilities=tuple(worker.capabilities),
        effects=frozenset(offer.tool.effects),
        tier=tier,
        expected_runtime=worker.hints.get("expected_runtime"),
        latency_band=worker.hints.get("latency_band"),
        cost=_cost(offer),
        calls_per_hour=worker.calls_per_hour(tier),
        max_payload_bytes=worker.constraints.get("max_payload_bytes"),
        runs=offer.runs,
        successes=offer.successes,
        p50_seconds=round(statistics.median(recent), 3) if recent else None,
        p95_seconds=round(recent[math.ceil(0.95 * len(recent)) - 1], 3) if recent else None,
        barred=bar(offer, tier),
    )


def _cost(offer: Offer) -> float:
    """The cost of a call: the worker's estimate, else the observed mean, else the price of its band."""
    hints = offer.worker.hints
    if (estimate := hints.get("cost_estimate")) is not None:
        return float(estimate)
    if offer.runs and offer.total_cost:
        return round(float(offer.total_cost) / offer.runs, 6)
    return float(settings.COST_BANDS.get(hints.get("cost_band") or "free", 0.0))


def bar(offer: Offer, tier: Tier) -> str | None:
    """Why an offer may not be used now by a worker of this tier; None if it may."""
    forbidden = forbidden_effects(frozenset(offer.tool.effects), tier)
    if forbidden and offer.approved_at is None:
        return f"the tier {tier} does not allow {', '.join(sorted(forbidden))}"
    if offer.worker.constraints.get("rate_limit_per_hour") == 0:
        return "its limit is no calls at all"
    return None if State(offer.worker.state) in ROUTABLE else f"the worker is {offer.worker.state}"
