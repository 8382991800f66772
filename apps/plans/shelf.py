"""The registry and what was learned, as a process keeps them in memory to plan with: brought up to date, never built anew.

Rows are the truth. The registry's epochs and the model's number tell which rows have been read. Whoever plans asks for them
first, in the same transaction. So a worker that was registered a moment ago is used at once, in every process.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from apps.plans.catalogue import Catalogue, Pool, Tool
from apps.plans.choosing import Memo
from apps.plans.history import Arrays, History
from apps.plans.lexindex import merged
from apps.plans.models import Delegate, LearnedModel
from apps.plans.ranking import Ranker
from apps.principals.services import DELEGATE
from apps.principals.tenancy import acting_as_system, acting_in
from apps.workers import selectors as workers
from apps.workers.models import ToolVersion
from apps.workers.shapes import OfferView as Offer

_MOST_HELD: Final = 200_000
"""How many offers a process holds of all tenants together; the largest registry that is measured has 100,000."""
_BARE: Final = 10
"""What a tenant weighs that offers nothing, in offers."""
_MOST_WARMED: Final = 1_000


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
    building: threading.Lock = field(default_factory=threading.Lock)
    """Whoever builds it first has this, so that nobody builds it beside."""
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
    weight: int = _BARE

    @property
    def is_built(self) -> bool:
        return self.ranker.catalogue.epoch >= 0


class _Registries:
    """The registries of a process by tenant: as many as it may hold offers, those that were used last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self.weight = 0
        """How much all of them weigh."""

    def of(self, tenant_id: int) -> _Kept:
        with self._lock:
            if tenant_id not in self._kept:
                self._kept[tenant_id] = _Kept()
                self.weight += _BARE
                self._let_go()
            self._kept.move_to_end(tenant_id)
            return self._kept[tenant_id]

    def weigh(self, tenant_id: int, kept: _Kept) -> None:
        """Note how much one of them has become, and let those go that were not used for longest, but never the last one used."""
        weight = _BARE + kept.ranker.catalogue.size
        with self._lock:
            if self._kept.get(tenant_id) is kept:
                self.weight += weight - kept.weight
                kept.weight = weight
                self._let_go()

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.weight = 0

    def _let_go(self) -> None:
        while self.weight > _MOST_HELD and len(self._kept) > 1:
            self.weight -= self._kept.popitem(last=False)[1].weight


_registries: Final = _Registries()


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    """Rows that differ from what is kept."""

    epoch: int
    history_epoch: int
    conditions: dict[str, tuple[object, ...]]
    tried: dict[str, int]
    changed: Collection[str]
    """The workers of whom anything is otherwise, or who are gone."""
    view: workers.RegistryView | None
    """What they offer."""


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
    """Read the registries of those tenants that have registered most, as many as may be held, so that no plan has to wait for
    that. Not within a transaction.
    """
    with acting_as_system("registries to plan with"):
        tenants = workers.busiest_tenants(limit=_MOST_WARMED)
    warmed: list[int] = []
    for tenant_id in tenants:
        if _registries.weight >= _MOST_HELD:
            break
        prepare(tenant_id=tenant_id, acting=partial(acting_in, tenant_id, "a registry to plan with"))
        warmed.append(tenant_id)
    for tenant_id in reversed(warmed):
        _kept(tenant_id)


def prepare(*, tenant_id: int, acting: Callable[[], AbstractContextManager[object]]) -> None:
    """Build a tenant's registry, if this process does not hold it. Not within a transaction.

    What takes long is done in no transaction and under no lock that who plans needs; whoever wants the same waits for it.

    :param acting: opens a transaction of the tenant, to read the rows in.
    """
    kept = _kept(tenant_id)
    if kept.is_built:
        return
    with kept.building:
        if kept.is_built:
            return
        fresh = _Kept()
        with acting():
            news = _news(fresh, tenant_id)
        _take_in(fresh, news)
        with kept.lock:
            if not kept.is_built:
                kept.ranker, kept.conditions, kept.tried = fresh.ranker, fresh.conditions, fresh.tried
                kept.departments, kept.managers = fresh.departments, fresh.managers
                kept.history_epoch = fresh.history_epoch
    _registries.weigh(tenant_id, kept)


def apart(ranker: Ranker) -> Ranker:
    """The same tools in a ranker of its own, for who takes seconds: what is registered meanwhile does not touch it."""
    kept = ranker.catalogue
    return Ranker(Catalogue(kept.epoch, kept.tools, kept.offers))


def _kept(tenant_id: int) -> _Kept:
    return _registries.of(tenant_id)


def _bring_up_to_date(kept: _Kept, tenant_id: int) -> None:
    """Read again what has changed: whole where the counters went backwards, else by worker."""
    epochs = workers.epochs()
    if epochs != (kept.ranker.catalogue.epoch, kept.history_epoch):
        _take_in(kept, _news(kept, tenant_id, epochs))
        _registries.weigh(tenant_id, kept)


def _news(kept: _Kept, tenant_id: int, epochs: tuple[int, int] | None = None) -> _News:
    """What has changed since it was read.

    :param epochs: the counters, if they have been read just now.
    """
    epoch, history_epoch = epochs or workers.epochs()
    if epoch < kept.ranker.catalogue.epoch or history_epoch < kept.history_epoch:
        kept.ranker, kept.conditions, kept.tried = Ranker(Catalogue(-1), kept.ranker.history), {}, {}
    conditions, tried = kept.conditions, kept.tried
    if epoch != kept.ranker.catalogue.epoch:
        _arrange(kept, tenant_id)
        conditions = workers.conditions()
    if history_epoch != kept.history_epoch:
        tried = workers.tried()
    changed = _differing(kept.conditions, conditions) | _differing(kept.tried, tried)
    return _News(
        epoch=epoch,
        history_epoch=history_epoch,
        conditions=conditions,
        tried=tried,
        changed=changed,
        view=workers.catalogue(changed) if changed else None,
    )


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


def _take_in(kept: _Kept, news: _News) -> None:
    """Let what is kept be as the rows were. This alone takes long where much has changed, and it reads no rows."""
    ranker = kept.ranker
    if news.view is not None:
        tools = {tool.uid: _tool(tool, ranker) for tool in news.view.tools}
        offered: dict[str, list[tuple[Tool, Offer]]] = {worker_id: [] for worker_id in news.changed}
        for one in news.view.offers:
            offered[one.worker_id].append((tools[one.tool_uid], one))
        touched: set[str] = set()
        for worker_id in sorted(offered):
            touched |= ranker.catalogue.put(worker_id, offered[worker_id])
        ranker.refresh(touched)
    kept.conditions, kept.tried = news.conditions, news.tried
    ranker.catalogue.epoch, kept.history_epoch = news.epoch, news.history_epoch


def _tool(view: ToolVersion, ranker: Ranker) -> Tool:
    return ranker.catalogue.by_uid.get(view.uid) or Tool(
        uid=view.uid,
        name=view.name,
        description=view.description,
        input_schema=view.input_schema,
        output_schema=view.output_schema,
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
