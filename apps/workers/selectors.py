"""Questions about the registry. Answers are values: they stay true of the epoch that they were read at."""

import math
import statistics
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.db.models import F, OuterRef, Prefetch, Subquery, Sum

from apps.workers import sql
from apps.workers.errors import UnknownTool, UnknownWorker
from apps.workers.models import Allowance, Offer, OfferQuerySet, Registry, ToolVersion, Worker, WorkerSource
from apps.workers.searching import Entry, Found, SearchIndex
from apps.workers.states import ROUTABLE, State
from apps.workers.trust import RATE_MULTIPLIER, Tier, calls_per_hour, forbidden_effects, share_of_an_hour

_SPARE: Final = 20
_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolView:
    """One version of a tool."""

    tool_uid: str
    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any]
    effects: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferView:
    """One worker's offer of a tool, with what its calls have shown. `barred` says why it may not be used now."""

    worker_id: str
    tool_uid: str
    tool_name: str
    capabilities: tuple[str, ...]
    effects: frozenset[str]
    tier: Tier
    hints: Mapping[str, Any]
    cost: float
    calls_per_hour: float
    max_payload_bytes: int | None
    runs: int
    successes: int
    p50_seconds: float | None
    p95_seconds: float | None
    barred: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryView:
    """Every tool and offer of a tenant at one epoch, in a fixed order."""

    epoch: int
    history_epoch: int
    tools: tuple[ToolView, ...]
    offers: tuple[OfferView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker as those see it who would call it."""

    worker_id: str
    endpoint: str
    state: State
    is_available: bool
    current_load: float
    effective_tier: Tier
    rate_multiplier: float
    capabilities: tuple[str, ...]
    constraints: Mapping[str, Any]
    hints: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Whom a call of a tool goes to, which version of the tool that is, and what the worker says and has shown of it."""

    worker: WorkerView
    tool: ToolView
    offer: OfferView


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedWorker:
    """A worker in a list, with the names of its tools."""

    key: int
    worker: WorkerView
    tools: tuple[str, ...]


def sources(*, tenant_id: int) -> list[dict[str, Any]]:
    """A tenant's sources of workers by name, with the places that they name, as plain values."""
    found = WorkerSource.objects.filter(tenant_id=tenant_id).order_by("name").prefetch_related("places__worker")
    return [
        {
            "name": source.name,
            "kind": source.kind,
            "address": source.address,
            "enabled": source.enabled,
            "fault": source.fault,
            "places": [
                {
                    "key": place.key,
                    "worker_id": place.worker.worker_id if place.worker else None,
                    "fault": place.fault,
                }
                for place in sorted(source.places.all(), key=lambda place: place.key)
                if place.gone_at is None
            ],
        }
        for source in found
    ]


def epochs() -> tuple[int, int]:
    """The registry's epoch and its history's, both 0 where nobody has registered yet."""
    found = Registry.objects.values_list("epoch", "history_epoch").first()
    return found or (0, 0)


def busiest_tenants(*, limit: int) -> list[int]:
    """The tenants whose registries have moved most, those first. Runs as the system."""
    return list(Registry.objects.order_by("-epoch", "tenant_id").values_list("tenant_id", flat=True)[:limit])


def conditions() -> dict[str, tuple[object, ...]]:
    """For each registered worker what tells whether its offers must be read again: other values, other offers."""
    found = Worker.objects.registered().values_list("worker_id", "described_at_epoch", "state", "effective_tier")
    return {worker_id: tuple(rest) for worker_id, *rest in found}


def managers(workers: Collection[Worker]) -> dict[str, str]:
    """The names of the DeleGates that manage these workers of one tenant; those that only the root has are left out."""
    if not workers:
        return {}
    (tenant_id,) = {worker.tenant_id for worker in workers}
    found = sql.managers(tenant_id=tenant_id, workers=[worker.pk for worker in workers])
    return {worker_id: name for worker_id, (_, name) in found.items()}


def pools(*, tenant_id: int, delegates: Collection[int]) -> dict[str, int]:
    """By worker whose pool it is in, as :func:`managers`, where these principals are the DeleGates."""
    found = sql.managers(tenant_id=tenant_id, among=delegates)
    return {worker_id: principal_id for worker_id, (principal_id, _) in found.items()}


def pools_of(worker_ids: Collection[str], *, tenant_id: int, delegates: Collection[int]) -> dict[str, int | None]:
    """As :func:`pools`, of those among these workers that are registered; None: the root's."""
    known = dict(Worker.objects.registered().filter(worker_id__in=worker_ids).values_list("pk", "worker_id"))
    found = sql.managers(tenant_id=tenant_id, workers=known, among=delegates) if known else {}
    return {worker_id: found[worker_id][0] if worker_id in found else None for worker_id in known.values()}


def tool_names(uids: Collection[str]) -> dict[str, str]:
    """The names of versions of tools by uid, offered now or once."""
    return dict(ToolVersion.objects.filter(uid__in=uids).values_list("uid", "name"))


def tool_versions(uids: Collection[str]) -> dict[str, ToolView]:
    """Versions of tools by uid, offered now or once."""
    return {tool.uid: _version_view(tool) for tool in ToolVersion.objects.filter(uid__in=uids)}


def tried() -> dict[str, int]:
    """How many calls of each worker have been counted, for those that have any."""
    found = Offer.objects.standing().filter(runs__gt=0).order_by().values_list("worker__worker_id")
    return {worker_id: int(runs) for worker_id, runs in found.annotate(runs=Sum("runs"))}


def catalogue(worker_ids: Collection[str] | None = None) -> RegistryView:
    """Everything that is offered now, eligible or not, with the reason where not. Whoever keeps it sees by the epoch that it
    holds no more, and trust ends without moving that: so what counts here is the tier that is noted.

    :param worker_ids: by whom; None: by all.
    """
    epoch, history_epoch = epochs()
    offers = _standing_offers(worker_ids)
    tools = {offer.tool.uid: _tool_view(offer) for offer in offers}
    return RegistryView(
        epoch=epoch,
        history_epoch=history_epoch,
        tools=tuple(tools[uid] for uid in sorted(tools)),
        offers=tuple(_offer_view(offer, Tier(offer.worker.effective_tier)) for offer in offers),
    )


def tenants_to_remember() -> list[int]:
    """The tenants of which memory does not know all workers as they are. Runs as the system."""
    return sorted(set(Worker.objects.unremembered().values_list("tenant_id", flat=True)))


def waits_for_room(calls: Mapping[str, int]) -> dict[str, timedelta]:
    """How long it takes until each worker's hour has room for so many more calls; no time, where it has.

    Workers that take no calls just now, by their own word or as they are seen, are left out.
    """
    taken = Allowance.objects.filter(worker=OuterRef("pk")).values("taken_until")
    # Any: workers with the database's clock and what is taken of their hours, which spares a question for each.
    found: Any = Worker.objects.light().registered().filter(worker_id__in=calls, state__in=ROUTABLE, available=True)
    asked = found.annotate(asked_at=sql.GATEHOUSE_NOW, taken_until=Subquery(taken))
    return {
        worker.worker_id: _wait_for_room(worker, calls[worker.worker_id])
        for worker in asked
        if worker.constraints.get("rate_limit_per_hour") != 0
    }


def _wait_for_room(worker: Any, calls: int) -> timedelta:
    now: datetime = worker.asked_at
    share = share_of_an_hour(calls_per_hour(worker.constraints.get("rate_limit_per_hour"), worker.tier_at(now)))
    taken: datetime = max(worker.taken_until or now, now)
    return max(taken + calls * share - now - max(share, _HOUR), timedelta(0))


def worker_named(worker_id: str) -> WorkerView:
    """:raises UnknownWorker: if no worker of this id is registered."""
    return _worker_view(_worker(worker_id))


def manifest_of(worker_id: str) -> Mapping[str, Any]:
    """A worker's manifest as it was registered.

    :raises UnknownWorker: if no worker of this id is registered.
    """
    manifest: dict[str, Any] = _worker(worker_id).manifest
    return manifest


def terms_of(worker_id: str, tool_name: str) -> Terms:
    """What a call of a worker's tool keeps to now: all of one moment, and trusted as far as its signature lasts.

    :raises UnknownWorker: if no worker of this id is registered.
    :raises UnknownTool: if it offers no such tool.
    """
    offers = _offers_named(worker_id, tool_name).standing()
    # Any: an offer with the database's clock, which spares the question for it.
    offer: Any = offers.annotate(asked_at=sql.GATEHOUSE_NOW).first()
    if offer is None:
        raise _no_offer(_worker(worker_id).worker_id, tool_name)
    return Terms(
        worker=_worker_view(offer.worker),
        tool=_tool_view(offer),
        offer=_offer_view(offer, offer.worker.tier_at(offer.asked_at)),
    )


def offer_named(worker_id: str, tool_name: str) -> Offer:
    """The latest offer of this name, withdrawn or not.

    :raises UnknownTool: if there never was one.
    """
    latest = _offers_named(worker_id, tool_name).first()
    if latest is None:
        raise _no_offer(worker_id, tool_name)
    return latest


def workers(
    *,
    capability: str | None = None,
    trust_tier: Tier | None = None,
    available_only: bool = True,
    after: int = 0,
    limit: int = 500,
) -> list[ListedWorker]:
    """Registered workers, those first that came first.

    :param after: the `key` of the last one of the page before.
    """
    standing = Prefetch("offers", Offer.objects.filter(withdrawn_at=None).only("worker_id", "name").order_by("name"))
    found = Worker.objects.registered().light().filter(pk__gt=after).order_by("pk").prefetch_related(standing)
    if capability is not None:
        found = found.filter(capabilities__contains=[capability])
    if trust_tier is not None:
        found = found.filter(effective_tier=trust_tier)
    if available_only:
        found = found.filter(state__in=ROUTABLE, available=True)
    return [
        ListedWorker(
            key=worker.pk,
            worker=_worker_view(worker),
            tools=tuple(offer.name for offer in worker.offers.all()),
        )
        for worker in found[:limit]
    ]


def search(query: str, *, tenant_id: int, limit: int = 20) -> list[Found]:
    """Tools of workers that are well, by what their words say, best first, each with the words that it was found by."""
    standing = sql.standing(tenant_id)
    kept = _kept_index(tenant_id)
    with kept.lock:
        # Another search may have come here first with what was true a moment later.
        _bring_up_to(*(sql.standing(tenant_id) if standing[0] < kept.epoch else standing), kept)
        ranking = kept.index.search(query)
        leading = ranking.leading(2 * limit + _SPARE)
    named = {document.entry.worker_id for document in leading}
    well = sql.in_state(tenant_id=tenant_id, worker_ids=named, states=ROUTABLE)
    able = [document for document in leading if document.entry.worker_id in well]
    if len(able) < limit and len(leading) == 2 * limit + _SPARE:
        all_well = _all_well()
        with kept.lock:
            able = ranking.leading(limit, among=all_well)
    return [ranking.explained(document) for document in able[:limit]]


@dataclass(slots=True)
class _KeptIndex:
    """A tenant's search index in this process, and the registry's epoch that it stands at."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    index: SearchIndex = field(default_factory=SearchIndex)
    epoch: int = -1


@lru_cache(maxsize=64)
def _kept_index(_tenant_id: int) -> _KeptIndex:
    return _KeptIndex()


def _bring_up_to(epoch: int, described: int, kept: _KeptIndex) -> None:
    """Take in what has been registered or withdrawn since; who is well just now is not the index's business.

    :param described: the epoch at which the tools of a worker changed last.
    """
    if 0 <= described <= kept.epoch <= epoch:
        kept.epoch = epoch
        return
    if epoch < kept.epoch or kept.epoch < 0:
        kept.index, changed = SearchIndex(), Worker.objects.registered().light()
    else:
        changed = Worker.objects.light().filter(described_at_epoch__gt=kept.epoch)
    workers = {worker.pk: worker for worker in changed}
    entries: defaultdict[int, list[Entry]] = defaultdict(list)
    for offer in Offer.objects.standing().filter(worker__in=workers).select_related("tool").order_by("id"):
        entries[offer.worker_id].append(_entry(workers[offer.worker_id], offer))
    for pk, worker in workers.items():
        kept.index.put(worker.worker_id, entries[pk])
    kept.epoch = epoch


def _entry(worker: Worker, offer: Offer) -> Entry:
    return Entry(
        worker_id=worker.worker_id,
        tool_name=offer.name,
        description=offer.tool.description,
        capabilities=tuple(worker.capabilities),
        input_schema=offer.tool.input_schema,
    )


def _all_well() -> frozenset[str]:
    """The workers that are planned for now."""
    return frozenset(Worker.objects.registered().filter(state__in=ROUTABLE).values_list("worker_id", flat=True))


def _standing_offers(worker_ids: Collection[str] | None) -> list[Offer]:
    found = Offer.objects.standing().with_contract()
    if worker_ids is not None:
        found = found.filter(worker__in=Worker.objects.registered().filter(worker_id__in=worker_ids))
    return list(found.order_by("tool__uid", "worker__worker_id"))


def _offers_named(worker_id: str, tool_name: str) -> OfferQuerySet:
    """The latest one first."""
    found = Offer.objects.filter(worker__worker_id=worker_id, name=tool_name).with_contract()
    return found.order_by(F("withdrawn_at").desc(nulls_first=True))


def _no_offer(worker_id: str, tool_name: str) -> UnknownTool:
    return UnknownTool(f"{worker_id[:100]} offers no tool {tool_name[:200]!r}.")


def _worker(worker_id: str) -> Worker:
    worker = Worker.objects.registered().light().named(worker_id).first()
    if worker is None:
        raise UnknownWorker(f"There is no worker {worker_id[:100]!r}.")
    return worker


def _worker_view(worker: Worker) -> WorkerView:
    return WorkerView(
        worker_id=worker.worker_id,
        endpoint=worker.endpoint,
        state=State(worker.state),
        is_available=worker.available,
        current_load=worker.current_load,
        effective_tier=Tier(worker.effective_tier),
        rate_multiplier=RATE_MULTIPLIER[Tier(worker.effective_tier)],
        capabilities=tuple(worker.capabilities),
        constraints=worker.constraints,
        hints=worker.hints,
    )


def _tool_view(offer: Offer) -> ToolView:
    return _version_view(offer.tool)


def _version_view(tool: ToolVersion) -> ToolView:
    return ToolView(
        tool_uid=tool.uid,
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        effects=frozenset(tool.effects),
    )


def _offer_view(offer: Offer, tier: Tier) -> OfferView:
    worker, recent = offer.worker, sorted(offer.recent_seconds)
    return OfferView(
        worker_id=worker.worker_id,
        tool_uid=offer.tool.uid,
        tool_name=offer.name,
        capabilities=tuple(worker.capabilities),
        effects=frozenset(offer.tool.effects),
        tier=tier,
        hints=worker.hints,
        cost=_cost(offer),
        calls_per_hour=calls_per_hour(worker.constraints.get("rate_limit_per_hour"), tier),
        max_payload_bytes=worker.constraints.get("max_payload_bytes"),
        runs=offer.runs,
        successes=offer.successes,
        p50_seconds=round(statistics.median(recent), 3) if recent else None,
        p95_seconds=round(recent[math.ceil(0.95 * len(recent)) - 1], 3) if recent else None,
        barred=bar(offer, tier),
    )


def _cost(offer: Offer) -> float:
    """What a call costs: the worker's estimate, else the observed mean, else its band."""
    hints = offer.worker.hints
    if (estimate := hints.get("cost_estimate")) is not None:
        return float(estimate)
    if offer.runs and offer.total_cost:
        return round(float(offer.total_cost) / offer.runs, 6)
    return float(settings.COST_BANDS.get(hints.get("cost_band") or "free", 0.0))


def bar(offer: Offer, tier: Tier) -> str | None:
    """Why an offer may not be used now by a worker of this tier; None if it may."""
    forbidden = forbidden_effects(frozenset(offer.tool.effects), tier)
    if forbidden:
        return f"the tier {tier} does not allow {', '.join(sorted(forbidden))}"
    if offer.worker.constraints.get("rate_limit_per_hour") == 0:
        return "its limit is no calls at all"
    return _barred_by_state(offer.worker)


def _barred_by_state(worker: Worker) -> str | None:
    return None if State(worker.state) in ROUTABLE else f"the worker is {worker.state}"
