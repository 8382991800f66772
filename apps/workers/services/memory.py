"""The registry in memory: each MCP worker is a concept with relationships, and a lost registry is rebuilt from them.

A rebuild registers the remembered manifests anew, so trust comes from their signatures alone: whoever may write memory
gains nothing here. Quarantines are relationships of the gate's own principal, which no other author can retract.
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import transaction
from pydantic import ValidationError

from apps.core.errors import Conflict, DomainError, Invalid
from apps.core.sql import database_now
from apps.memory import selectors as memories
from apps.memory import services as memory
from apps.memory.models import Memory
from apps.principals.models import Principal
from apps.principals.selectors import principal_named
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller, acting_in, on_behalf_of
from apps.workers import selectors
from apps.workers.models import State, Worker
from apps.workers.services.registry import quarantine, register, take_out
from apps.workers.shapes import RegisterWorker
from apps.workers.trust import BadSignature

logger = logging.getLogger(__name__)

CONCEPT: Final = "worker"
PROVIDES: Final = "provides"
MANAGES: Final = "manages"
QUARANTINES: Final = "quarantines"
_WHY: Final = "rebuild the registry"


class Restored(NamedTuple):
    """The result for one remembered worker: its tier, or None and the reason why it was left out."""

    worker_id: str
    tier: str | None
    reason: str


@transaction.atomic
def remember(*, limit: int = 100) -> int:
    """Write to memory what has changed of workers; returns their number. Runs within a tenant.

    A worker that memory refuses is logged and left out until it changes again.
    """
    due = Worker.objects.unremembered().select_related("principal__tenant").order_by("id")
    workers = list(due.select_for_update(of=("self",), skip_locked=True)[:limit])
    managers = dict[str, str]()
    if workers:
        named = [worker.worker_id for worker in workers]
        found = selectors.managers(tenant_id=workers[0].tenant_id, worker_ids=named)
        managers = {worker_id: name for worker_id, (_, name) in found.items()}
    for worker in workers:
        try:
            with transaction.atomic():
                _store(worker, managers.get(worker.worker_id, DELEGATE), database_now())
        except DomainError as refusal:
            logger.warning("memory does not take the MCP worker %s: %s", worker.worker_id, refusal.detail)
        worker.remembered_at_epoch = worker.described_at_epoch
        worker.save(update_fields=["remembered_at_epoch"])
    return len(workers)


def _store(worker: Worker, manager: str, now: datetime) -> None:
    name, author = worker.worker_id, on_behalf_of(worker.principal)
    known = memories.concept_named(name)
    if known is not None and (
        known.key != name.casefold() or known.domain not in {"", CONCEPT} or _worker_id(known) not in {None, name}
    ):
        raise Conflict(f"{name!r} is another concept or another worker's.")
    left = worker.unregistered_at
    memory.store_concept(
        author=author,
        name=name,
        now=now,
        concept_type=CONCEPT,
        description=f"MCP worker {name}: {', '.join(tool['name'] for tool in worker.manifest['tools'])[:2000]}",
        metadata={
            "endpoint": worker.endpoint,
            "tools": [tool["name"] for tool in worker.manifest["tools"]],
            "capabilities": list(worker.capabilities),
            "trust_tier": worker.effective_tier,
            "registered_at": worker.registered_at.isoformat(),
            "unregistered_at": None if left is None else left.isoformat(),
            "managed_by_delegate": manager,
            "registered_by": worker.principal_id,
            "announces_itself": worker.beats,
            "manifest": worker.manifest,
        },
    )
    provided = []
    for capability in worker.capabilities:
        try:
            provided.append(_relate(author, name, PROVIDES, capability, now))
        except Invalid as refusal:
            logger.info("memory has no concept for a capability of %s: %s", name, refusal.detail)
    memory.retract_relationships(author=author, from_concept=name, rel_type=PROVIDES, but=provided)
    gate = on_behalf_of(principal_named(DELEGATE))
    for source, rel_type, holds in (
        (manager, MANAGES, left is None),
        (DELEGATE, QUARANTINES, worker.state == State.QUARANTINED),
    ):
        current = [_relate(gate, source, rel_type, name, now)] if holds else []
        memory.retract_relationships(author=gate, to_concept=name, rel_type=rel_type, but=current)


def _relate(author: Caller, source: str, rel_type: str, target: str, now: datetime) -> Any:
    return memory.add_relationship(
        author=author,
        from_concept=source,
        to_concept=target,
        rel_type=rel_type,
        description=f"{source} {rel_type} {target}",
        now=now,
    )


def _worker_id(concept: Memory) -> str | None:
    """The worker that a concept describes, if its manifest has the concept's name."""
    manifest = concept.metadata.get("manifest")
    worker_id = manifest.get("worker_id") if isinstance(manifest, Mapping) else None
    return worker_id if isinstance(worker_id, str) and worker_id.casefold() == concept.key else None


def restore(*, tenant_id: int) -> list[Restored]:
    """Register the workers that memory holds and the registry does not, each in a transaction of its own.

    A worker whose signature no longer holds comes back untrusted, and a quarantined one in quarantine. One that was
    unregistered, or whose principal is disabled, comes back unregistered, so that its signatures stay void.
    """
    with acting_in(tenant_id, _WHY):
        quarantined = memories.targets_of(QUARANTINES)
        remembered = memories.concepts_of_type(CONCEPT)
    restored = []
    for concept in remembered:
        with acting_in(tenant_id, _WHY):
            worker_id = _worker_id(concept)
            if not Worker.objects.filter(worker_id=worker_id or concept.name).exists():
                restored.append(_restore(tenant_id, worker_id, concept, is_quarantined=concept.pk in quarantined))
    return restored


def _restore(tenant_id: int, worker_id: str | None, concept: Memory, *, is_quarantined: bool) -> Restored:
    about, owner = concept.metadata, concept.metadata.get("registered_by")
    if worker_id is None:
        return Restored(concept.name, None, "memory holds no manifest of it")
    known = Principal.objects.filter(tenant_id=tenant_id).select_related("tenant")
    principal = known.filter(pk=owner).first() if isinstance(owner, int) else None
    if principal is None:
        return Restored(worker_id, None, "there is no principal that has registered it")
    try:
        worker = _registered(on_behalf_of(principal), about)
    except ValidationError:
        return Restored(worker_id, None, "memory holds no valid manifest of it")
    except DomainError as refusal:
        return Restored(worker_id, None, refusal.detail)
    if is_quarantined:
        worker = quarantine(tenant_id=tenant_id, worker_id=worker_id, why="it was before the rebuild")
    away = None
    if about.get("unregistered_at") is not None:
        away = "it had left"
    elif principal.disabled_at is not None:
        away = f"its principal {principal.name!r} is disabled"
    if away is not None:
        now = database_now()
        take_out(worker, away, now, void_until=now)
        return Restored(worker_id, None, away)
    return Restored(worker_id, worker.effective_tier, worker.tier_reason)


def _registered(owner: Caller, about: Mapping[str, Any]) -> Worker:
    """Register a remembered manifest. Where its signature does not hold, only signatures made from now on count."""
    original = RegisterWorker.model_validate(about["manifest"]).model_dump(mode="json", exclude_unset=True)
    was_found, may_return = about.get("announces_itself") is False, False
    try:
        with transaction.atomic():
            worker = register(caller=owner, original=original, found=was_found).worker
    except BadSignature as refusal:
        may_return = refusal.code != "key_revoked"
        claim = {name: value for name, value in original.get("trust", {}).items() if name == "tier"}
        worker = register(caller=owner, original={**original, "trust": claim}, found=was_found).worker
    if worker.signed_at is None:
        worker.void_until = database_now()
        # The next heartbeat asks for a new registration.
        worker.trust_ends_at = worker.void_until if may_return else None
        worker.save(update_fields=["void_until", "trust_ends_at"])
    return worker
