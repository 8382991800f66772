"""The registry as memory knows it: a concept of each worker, what it provides, who manages it; and the way back.

Memory holds what a worker has said of itself, whole and signed. Whoever may write memory may write such a concept too, so
what is restored from there is a registration like any other: judged anew, and trusted only by its signature. A quarantine
is the gate's own word, which nobody else takes back; another's may keep a worker out, and brings none in.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from pydantic import ValidationError

from apps.core.errors import DomainError
from apps.core.sql import database_now
from apps.memory import selectors as memories
from apps.memory import services as memory
from apps.memory.errors import AliasTaken, UnusableName
from apps.memory.models import Concept
from apps.principals.models import Principal
from apps.principals.selectors import principal_named
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller, acting_in, on_behalf_of
from apps.workers import selectors
from apps.workers.errors import BadSignature, KeyRevoked
from apps.workers.models import Worker
from apps.workers.services.quarantining import quarantine
from apps.workers.services.registering import register
from apps.workers.services.rows import take_out
from apps.workers.shapes import RegisterWorker
from apps.workers.signing import CLOCK_SKEW, LONGEST_VALIDITY
from apps.workers.states import State

CONCEPT: Final = "worker"
PROVIDES: Final = "provides"
MANAGES: Final = "manages"
QUARANTINES: Final = "quarantines"
_WHY: Final = "rebuild the registry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a rebuild has made of one remembered worker: its tier, or why there is none."""

    worker_id: str
    tier: str | None
    reason: str


@transaction.atomic
def remember(*, limit: int = 100) -> int:
    """Write to memory what workers have become since they were last written; says how many. Runs within a tenant.

    Where a worker's id stands for something else in memory, or for a worker whose id differs in case, which memory does not
    tell apart, it gets a name of its own there.
    """
    due = Worker.objects.unremembered().select_related("principal__tenant").order_by("id")
    workers = list(due.select_for_update(of=("self",), skip_locked=True)[:limit])
    managers = selectors.managers(workers)
    for worker in workers:
        with suppress(AliasTaken):
            _remember(worker, managers.get(worker.worker_id, DELEGATE), database_now())
        worker.remembered_at_epoch = worker.described_at_epoch
        worker.save(update_fields=["remembered_at_epoch"])
    return len(workers)


def restore(*, tenant_id: int) -> list[Restored]:
    """Register what memory knows and the registry does not; what is refused hinders no other.

    Each in a transaction of its own: who registers meanwhile holds its worker before the registry's row.

    A restored worker is ready until its heartbeat is late, or, if it was found, until it does not answer. Where its signature
    no longer holds, it comes back untrusted; where it was in quarantine, in quarantine. One that had left, but not so long ago
    that no signature of it could count any more, comes back as one that has left, and so does that of a disabled principal.
    """
    with acting_in(tenant_id, _WHY):
        quarantined = memories.concepts_told_of(QUARANTINES)
        remembered = [
            concept
            for concept in memories.concepts_of_type(CONCEPT)
            if concept.pk in quarantined or not _left_before(concept, database_now() - LONGEST_VALIDITY)
        ]
    restored = []
    for concept in remembered:
        with acting_in(tenant_id, _WHY):
            worker_id = _worker_of(concept)
            if not Worker.objects.named(worker_id or concept.name).exists():
                restored.append(_restore(tenant_id, worker_id, concept, quarantined=concept.pk in quarantined))
    return restored


def _own_name(worker_id: str) -> str:
    """What no other worker is called, and hardly anything else: no id has such a sign in it."""
    return f"{worker_id}~{hashlib.blake2b(worker_id.encode(), digest_size=4).hexdigest()}"


def _name(worker: Worker) -> str | None:
    """What memory calls a worker, as it has begun to; None if even its own name stands for something else."""
    plain, own = worker.worker_id, _own_name(worker.worker_id)
    names = (plain, own) if memories.concept_named(own) is None else (own,)
    return next((name for name in names if _is_free(name, worker)), None)


def _is_free(name: str, worker: Worker) -> bool:
    concept = memories.concept_named(name)
    if concept is None:
        return True
    is_by_name = concept.key == name.casefold() and concept.type in {"", CONCEPT}
    return is_by_name and _stated_id(concept) in {None, worker.worker_id}


def _stated_id(concept: Concept) -> object:
    manifest = concept.metadata.get("manifest")
    return manifest.get("worker_id") if isinstance(manifest, Mapping) else None


def _worker_of(concept: Concept) -> str | None:
    """Which worker a concept stands for: the one that its manifest names, if the concept has its name."""
    stated = _stated_id(concept)
    if not isinstance(stated, str):
        return None
    return stated if concept.key in {stated.casefold(), _own_name(stated).casefold()} else None


def _remember(worker: Worker, manager: str, now: datetime) -> None:
    name = _name(worker)
    if name is None:
        return
    author = on_behalf_of(worker.principal)
    with transaction.atomic():
        memory.store_concept(
            author=author,
            name=name,
            now=now,
            concept_type=CONCEPT,
            description=f"Worker {worker.worker_id}: {', '.join(_tools(worker))[:2000]}",
            metadata=_described(worker, manager),
        )
        _vouch(
            name,
            source=manager,
            rel_type=MANAGES,
            stands=worker.unregistered_at is None,
            description=f"{manager} delegates to {worker.worker_id}",
            now=now,
        )
        # Whether or not it has left: it may come back.
        _vouch(
            name,
            source=DELEGATE,
            rel_type=QUARANTINES,
            stands=worker.state == State.QUARANTINED,
            description=f"{worker.worker_id} is in quarantine",
            now=now,
        )
        provided = []
        for capability in worker.capabilities:
            # A tag may be what no concept can be called.
            with suppress(UnusableName):
                provided.append(
                    memory.add_relationship(
                        author=author,
                        from_concept=name,
                        to_concept=capability,
                        rel_type=PROVIDES,
                        description=f"{worker.worker_id} provides {capability}",
                        now=now,
                    )
                )
        memory.retract_relationships(author=author, from_concept=name, rel_type=PROVIDES, but=provided)


def _vouch(name: str, *, source: str, rel_type: str, stands: bool, description: str, now: datetime) -> None:
    """What the gate says of a worker, or says no more: its own word, so that it can take it back whoever registers next."""
    gate = on_behalf_of(principal_named(DELEGATE))
    said = []
    if stands:
        said.append(
            memory.add_relationship(
                author=gate,
                from_concept=source,
                to_concept=name,
                rel_type=rel_type,
                description=description,
                now=now,
            )
        )
    memory.retract_relationships(author=gate, to_concept=name, rel_type=rel_type, but=said)


def _tools(worker: Worker) -> list[str]:
    return [tool["name"] for tool in worker.manifest["tools"]]


def _described(worker: Worker, manager: str) -> dict[str, Any]:
    left = worker.unregistered_at
    return {
        "endpoint": worker.endpoint,
        "tools": _tools(worker),
        "capabilities": list(worker.capabilities),
        "trust_tier": worker.effective_tier,
        "registered_at": worker.registered_at.isoformat(),
        "unregistered_at": None if left is None else left.isoformat(),
        "managed_by_delegate": manager,
        "registered_by": worker.principal.name,
        "registered_by_key": worker.principal_id,
        "announces_itself": worker.beats,
        "manifest": worker.manifest,
    }


def _restore(tenant_id: int, worker_id: str | None, concept: Concept, *, quarantined: bool) -> Restored:
    owner = concept.metadata.get("registered_by")
    if worker_id is None or not isinstance(owner, str):
        return Restored(worker_id=worker_id or concept.name, tier=None, reason="memory holds no manifest of it")
    principal = _principal(tenant_id, owner, concept.metadata.get("registered_by_key"))
    if principal is None:
        return Restored(worker_id=worker_id, tier=None, reason=f"there is no principal {owner[:100]!r}")
    try:
        worker = _registered(on_behalf_of(principal), concept.metadata)
    except (DomainError, ValidationError) as refusal:
        reason = refusal.detail if isinstance(refusal, DomainError) else "what memory holds is no manifest"
        return Restored(worker_id=worker_id, tier=None, reason=reason)
    if quarantined:
        worker = quarantine(tenant_id=tenant_id, worker_id=worker_id, why="it was before the rebuild")
    away = _why_away(concept, principal)
    if away is None:
        return Restored(worker_id=worker_id, tier=worker.effective_tier, reason=worker.tier_reason)
    now = database_now()
    take_out(worker, away, now, void_until=now + CLOCK_SKEW)
    return Restored(worker_id=worker_id, tier=None, reason=away)


def _principal(tenant_id: int, name: str, key: object) -> Principal | None:
    """Who registered a worker: by its key, for its name may have become somebody else's."""
    known = Principal.objects.filter(tenant_id=tenant_id).select_related("tenant")
    return known.filter(pk=key).first() if isinstance(key, int) else known.named(name).first()


def _left_before(concept: Concept, moment: datetime) -> bool:
    left = concept.metadata.get("unregistered_at")
    try:
        return left is not None and datetime.fromisoformat(left) < moment
    except (TypeError, ValueError):
        return False


def _why_away(concept: Concept, principal: Principal) -> str | None:
    if concept.metadata.get("unregistered_at") is not None:
        return "it had left"
    return None if principal.disabled_at is None else f"its principal {principal.name!r} is disabled"


def _registered(owner: Caller, remembered: Mapping[str, Any]) -> Worker:
    """The worker, registered again. Which signatures of it were void nobody knows any more: beside the one that memory holds,
    only those count that are made from now on.
    """
    original = RegisterWorker.model_validate(remembered["manifest"]).model_dump(mode="json", exclude_unset=True)
    was_found = remembered.get("announces_itself") is False
    may_return = False
    try:
        with transaction.atomic():
            worker = register(caller=owner, original=original, found=was_found).worker
    except BadSignature as refusal:
        may_return = not isinstance(refusal, KeyRevoked)
        trust = {name: value for name, value in original.get("trust", {}).items() if name == "tier"}
        worker = register(caller=owner, original={**original, "trust": trust}, found=was_found).worker
    if worker.signed_at is None:
        worker.void_until = database_now()
        # Its heartbeats are told to register anew, as where trust has ended.
        worker.trust_ends_at = worker.void_until if may_return else None
        worker.save(update_fields=["void_until", "trust_ends_at"])
    return worker
