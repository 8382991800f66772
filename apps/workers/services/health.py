"""How workers are: by their own word, and by the lack of it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q

from apps.core.sql import database_now
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.workers import sql
from apps.workers.models import Worker
from apps.workers.services.rows import advance, lock_own, move
from apps.workers.states import REPORTED, State

HEARTBEAT_EVERY: Final = timedelta(seconds=30)
LATE_AFTER: Final = HEARTBEAT_EVERY * 1.5
OFFLINE_AFTER: Final = HEARTBEAT_EVERY * 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Beaten:
    """What a worker is told at its heartbeat: the state that it is now seen in, and whether to register again."""

    state: State
    register_again: bool


# No savepoint: a refusal is an answer, and changes nothing.
@transaction.atomic(savepoint=False)
def heartbeat(*, caller: Caller, worker_id: str, status: str, current_load: float, available: bool) -> Beaten:
    """Take a worker's word for how it is. Where that is no news, it is one statement, and its commit waits for no disk.

    :raises UnknownWorker: if the caller has registered no worker of this id.
    """
    state = REPORTED[status]
    beaten = sql.beaten(
        tenant_id=caller.tenant_id,
        worker_id=worker_id,
        principal_id=None if Scope.ADMIN in caller.scopes else caller.principal_id,
        state=state,
        load=current_load,
        available=available,
    )
    if beaten is not None:
        return Beaten(state=State(beaten[0]), register_again=beaten[1])
    worker = lock_own(caller, worker_id)
    now = database_now()
    worker.last_heartbeat_at, worker.current_load, worker.available = now, current_load, available
    worker.beats, worker.reported = True, state
    # Its word does not make it reachable, nor what it offers what its manifest says.
    moved = move(worker, worker.condition, f"the worker says {status}", now)
    worker.save(update_fields=["last_heartbeat_at", "current_load", "available", "beats", "reported", "state"])
    if moved:
        advance([worker.tenant_id])
    return Beaten(state=State(worker.state), register_again=worker.is_to_register_again)


@transaction.atomic
def mark_late() -> int:
    """Call workers degraded whose heartbeat is late, and offline those that have fallen silent, or whose principal has been
    disabled, so that nobody answers for them. Runs as the system.

    Those that never send a heartbeat are known by probes alone.
    """
    now = database_now()
    late = Q(beats=True, last_heartbeat_at__lt=now - LATE_AFTER) | Q(principal__disabled_at__isnull=False)
    standing = Worker.objects.registered().exclude(state__in=[State.OFFLINE, State.QUARANTINED])
    found = standing.filter(late).select_related("principal").light().order_by("id")
    moved = []
    for worker in found.select_for_update(skip_locked=True, of=("self",)):
        if worker.principal.disabled_at is None:
            has_moved = move(worker, known_state(worker, now), "no heartbeat", now)
        else:
            has_moved = move(worker, State.OFFLINE, f"{worker.principal.name} is disabled", now)
        if has_moved:
            worker.save(update_fields=["state"])
            moved.append(worker.tenant_id)
    advance(moved)
    return len(moved)


def known_state(worker: Worker, now: datetime) -> State:
    """How a worker is by all that is known of it, the age of its heartbeat included."""
    silence = now - worker.last_heartbeat_at
    if worker.beats and silence > OFFLINE_AFTER:
        return State.OFFLINE
    condition = worker.condition
    if worker.beats and silence > LATE_AFTER and condition != State.OFFLINE:
        return State.DEGRADED
    return condition
