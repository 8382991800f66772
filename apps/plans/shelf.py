"""The registry as a process keeps it in memory to plan with: brought up to date, never built anew.

Rows are the truth. The registry's epochs tell which rows have been read. Whoever plans asks for them first, in the same
transaction. So a worker that was registered a moment ago is used at once, in every process.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from apps.plans.catalogue import Catalogue, Tool
from apps.plans.local.history import History
from apps.plans.local.index import Library
from apps.plans.models import LearnedModel
from apps.principals.models import Principal
from apps.principals.services import DELEGATE
from apps.workers import selectors as workers
from apps.workers.shapes import OfferView as Offer

_MOST_TENANTS: Final = 64
"""Of how many tenants a process holds the registry: of those that were used last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A registry that nobody else changes just now."""

    catalogue: Catalogue
    """In which only the workers of the DeleGate's pool may be used."""
    library: Library
    history: History | None
    """What was learned; None: nothing yet."""


@dataclass(slots=True)
class _Kept:
    """One tenant's registry in this process."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    catalogue: Catalogue = field(default_factory=lambda: Catalogue(-1))
    library: Library = field(default_factory=Library)
    indexed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By tool the names of its workers and their capabilities, as the library has them."""
    history_epoch: int = -1
    history: History | None = None
    model: int = 0
    conditions: dict[str, tuple[object, ...]] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)
    managers: Mapping[str, int] = field(default_factory=dict)
    """By worker the key of the DeleGate in whose pool it is; the root's are left out."""


@lru_cache(maxsize=_MOST_TENANTS)
def _registry(_tenant_id: int) -> _Kept:
    return _Kept()


@contextmanager
def held(*, tenant_id: int, delegate: Principal | None = None) -> Iterator[Held]:
    """What is offered now, for as long as the block lasts. The first to ask in a process reads the whole registry.

    :param delegate: the DeleGate that plans; None: the root.
    """
    kept = _registry(tenant_id)
    with kept.lock:
        epochs = workers.epochs()
        if epochs != (kept.catalogue.epoch, kept.history_epoch):
            _bring_up_to_date(kept, tenant_id, *epochs)
        number = LearnedModel.objects.values_list("pk", flat=True).first() or 0
        if number != kept.model:
            body = LearnedModel.objects.filter(pk=number).values_list("body", flat=True).first()
            kept.history, kept.model = History.loads(bytes(body)) if body else None, number
        catalogue, why = kept.catalogue, f"it is not in the pool of {delegate or DELEGATE}"
        pool = None if delegate is None or delegate.name == DELEGATE else delegate.pk
        if kept.managers or pool is not None:
            catalogue = catalogue.barring(lambda worker_id, _: None if kept.managers.get(worker_id) == pool else why)
        yield Held(catalogue=catalogue, library=kept.library, history=kept.history)


def _bring_up_to_date(kept: _Kept, tenant_id: int, epoch: int, history_epoch: int) -> None:
    """Read what has changed: all where the counters went backwards, else by worker."""
    if epoch < kept.catalogue.epoch or history_epoch < kept.history_epoch:
        kept.catalogue, kept.library, kept.indexed = Catalogue(-1), Library(), {}
        kept.conditions, kept.tried = {}, {}
    conditions, tried = kept.conditions, kept.tried
    if epoch != kept.catalogue.epoch:
        kept.managers = {one: pk for one, (pk, _) in workers.managers(tenant_id=tenant_id).items()}
        conditions = workers.conditions()
    if history_epoch != kept.history_epoch:
        tried = workers.tried()
    changed = {one for one, _ in (kept.conditions.items() ^ conditions.items()) | (kept.tried.items() ^ tried.items())}
    if changed:
        _take_in(kept, changed)
    kept.conditions, kept.tried = conditions, tried
    kept.catalogue.epoch, kept.history_epoch = epoch, history_epoch


def _take_in(kept: _Kept, changed: Collection[str]) -> None:
    """Let these workers offer what their rows say."""
    view = workers.catalogue(changed)
    members = ("uid", "name", "description", "input_schema", "output_schema")
    tools = {
        one.uid: kept.catalogue.by_uid.get(one.uid) or Tool(**{name: getattr(one, name) for name in members})
        for one in view.tools
    }
    offered: dict[str, list[tuple[Tool, Offer]]] = {worker_id: [] for worker_id in changed}
    for offer in view.offers:
        offered[offer.worker_id].append((tools[offer.tool_uid], offer))
    touched: set[str] = set()
    for worker_id in sorted(offered):
        touched |= kept.catalogue.put(worker_id, offered[worker_id])
    _index(kept, touched)


def _index(kept: _Kept, uids: Iterable[str]) -> None:
    """Let the library have these tools as the catalogue has them. Figures of calls are nothing to it."""
    for uid in sorted(uids):
        tool = kept.catalogue.by_uid.get(uid)
        if tool is None:
            kept.library.remove(uid)
            kept.indexed.pop(uid, None)
            continue
        offers = kept.catalogue.offers_of(uid)
        names = tuple(sorted({name for one in offers for name in (one.worker_id, *one.capabilities)}))
        if kept.indexed.get(uid) != names:
            kept.library.put(tool, names)
            kept.indexed[uid] = names
