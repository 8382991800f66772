"""The registry and what was learned, as a process keeps them in memory to plan with: brought up to date, never built anew.

Rows are the truth. What is kept says by the registry's epochs and the model's number which rows it has read; whoever plans asks
for those first, in the same transaction, so that what was registered a moment ago is planned for at once, in every process.
"""

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from apps.plans.catalogue import Catalogue, Offer, Pool, Tool
from apps.plans.choosing import Memo
from apps.plans.history import Arrays, History
from apps.plans.lexindex import merged
from apps.plans.models import Delegate, LearnedModel
from apps.plans.ranking import Ranker
from apps.principals.services import DELEGATE
from apps.principals.tenancy import acting_as_system, acting_in
from apps.workers import selectors as workers

_TENANTS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A ranker that nobody else changes just now, and what it knows."""

    ranker: Ranker
    history_epoch: int
    model: int
    """The number of the learned model; 0: none."""
    pool: Pool | None
    """Whose workers the DeleGate plans with; None: all there are."""
    memo: Memo
    """What was chosen for it in just this state of things."""


@dataclass(slots=True)
class _Kept:
    """One tenant's registry in this process."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    ranker: Ranker = field(default_factory=lambda: Ranker(Catalogue(-1)))
    history_epoch: int = -1
    model: int = 0
    conditions: dict[str, tuple[object, ...]] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)
    merging: bool = False
    departments: frozenset[int] = frozenset()
    """The principals of the DeleGates below the root."""
    managers: Mapping[str, int] = field(default_factory=dict)
    """By worker the one of them in whose pool it is; the root's are left out."""
    pools: dict[int | None, Pool | None] = field(default_factory=dict)
    memos: dict[int | None, Memo] = field(default_factory=dict)


@contextmanager
def held(*, tenant_id: int, delegate: Delegate | None = None) -> Iterator[Held]:
    """The ranker over what is offered now, for as long as the block lasts.

    :param delegate: who plans; None: the root.
    """
    kept = _kept(tenant_id)
    with kept.lock:
        _bring_up_to_date(kept, tenant_id)
        _load_model(kept)
        _merge_beside(kept)
        pool = _pool(kept, delegate)
        whose = None if delegate is None else delegate.pk
        stand = (id(kept.ranker), kept.ranker.catalogue.epoch, kept.history_epoch, kept.model, pool)
        memo = kept.memos.setdefault(whose, Memo()).at(stand)
        yield Held(ranker=kept.ranker, history_epoch=kept.history_epoch, model=kept.model, pool=pool, memo=memo)


def warm() -> None:
    """Read the registries of those tenants that have registered most, so that no plan has to wait for that. Not within a transaction."""
    with acting_as_system("registries to plan with"):
        tenants = workers.busiest_tenants(limit=_TENANTS)
    for tenant_id in reversed(tenants):
        with acting_in(tenant_id, "a registry to plan with"), held(tenant_id=tenant_id):
            pass


def apart(ranker: Ranker) -> Ranker:
    """The same tools in a ranker of its own, for who takes seconds: what is registered meanwhile does not touch it."""
    kept = ranker.catalogue
    return Ranker(Catalogue(kept.epoch, kept.tools, kept.offers))


@lru_cache(maxsize=_TENANTS)
def _kept(_tenant_id: int) -> _Kept:
    return _Kept()


def _bring_up_to_date(kept: _Kept, tenant_id: int) -> None:
    """Read again what has changed: whole where the counters went backwards, else by worker."""
    epoch, history_epoch = workers.epochs()
    catalogue = kept.ranker.catalogue
    if (epoch, history_epoch) == (catalogue.epoch, kept.history_epoch):
        return
    if epoch < catalogue.epoch or history_epoch < kept.history_epoch:
        kept.ranker, kept.conditions, kept.tried = Ranker(Catalogue(-1), kept.ranker.history), {}, {}
        catalogue = kept.ranker.catalogue
    changed: set[str] = set()
    if epoch != catalogue.epoch:
        _arrange(kept, tenant_id)
        conditions = workers.conditions()
        changed |= _differing(kept.conditions, conditions)
        kept.conditions = conditions
    if history_epoch != kept.history_epoch:
        tried = workers.tried()
        changed |= _differing(kept.tried, tried)
        kept.tried = tried
    _take_in(kept.ranker, changed)
    catalogue.epoch, kept.history_epoch = epoch, history_epoch


def _arrange(kept: _Kept, tenant_id: int) -> None:
    """Read again which DeleGates there are, and who of them has whom."""
    kept.departments = frozenset(Delegate.objects.departments().values_list("principal_id", flat=True))
    kept.managers = workers.pools(tenant_id=tenant_id, delegates=kept.departments) if kept.departments else {}
    kept.pools.clear()


def _pool(kept: _Kept, delegate: Delegate | None) -> Pool | None:
    """What of the registry a DeleGate plans with. It is asked once for each as long as the registry stays as it is."""
    whose = None if delegate is None or delegate.parent_id is None else delegate.principal_id
    if whose not in kept.pools:
        outside = (
            frozenset(kept.managers)
            if whose is None
            else kept.ranker.catalogue.worker_ids - {one for one, manager in kept.managers.items() if manager == whose}
        )
        kept.pools[whose] = Pool(str(delegate or DELEGATE), outside) if outside else None
    return kept.pools[whose]


def _differing(before: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def _take_in(ranker: Ranker, worker_ids: Collection[str]) -> None:
    view = workers.catalogue(worker_ids) if worker_ids else None
    if view is None:
        return
    tools = {tool.tool_uid: _tool(tool, ranker) for tool in view.tools}
    offered: dict[str, list[tuple[Tool, Offer]]] = {worker_id: [] for worker_id in worker_ids}
    for one in view.offers:
        offered[one.worker_id].append((tools[one.tool_uid], _offer(one)))
    touched: set[str] = set()
    for worker_id in sorted(offered):
        touched |= ranker.catalogue.put(worker_id, offered[worker_id])
    ranker.refresh(touched)


def _tool(view: workers.ToolView, ranker: Ranker) -> Tool:
    return ranker.catalogue.by_uid.get(view.tool_uid) or Tool(
        uid=view.tool_uid,
        name=view.name,
        description=view.description,
        input_schema=view.input_schema,
        output_schema=view.output_schema,
    )


def _offer(view: workers.OfferView) -> Offer:
    return Offer(
        worker_id=view.worker_id,
        tool_uid=view.tool_uid,
        capabilities=view.capabilities,
        effects=view.effects,
        tier=view.tier,
        expected_runtime=view.hints.get("expected_runtime"),
        latency_band=view.hints.get("latency_band"),
        cost_band=view.hints.get("cost_band"),
        cost=view.cost,
        runs=view.runs,
        successes=view.successes,
        p50_seconds=view.p50_seconds,
        p95_seconds=view.p95_seconds,
        timeout_seconds=view.timeout_seconds,
        calls_per_hour=view.calls_per_hour,
        max_payload_bytes=view.max_payload_bytes,
        barred=view.barred,
    )


def _load_model(kept: _Kept) -> None:
    number = LearnedModel.objects.in_use().values_list("number", flat=True).first() or 0
    if number == kept.model:
        return
    body = LearnedModel.objects.filter(number=number).values_list("body", flat=True).first()
    kept.ranker.history = History(Arrays.loads(bytes(body))) if body else None
    kept.model = number


def _merge_beside(kept: _Kept) -> None:
    """Let another thread fold what has come into the index's base: no request waits for it."""
    if kept.merging or not kept.ranker.index.needs_merge():
        return
    kept.merging = True
    index, frozen = kept.ranker.index, kept.ranker.index.frozen()

    def merge() -> None:
        try:
            base = merged(frozen)
            with kept.lock:
                index.adopt(base)
        finally:
            # One that broke is made again with the next plan.
            kept.merging = False

    threading.Thread(target=merge, name="merge-index", daemon=True).start()
