"""How workers are: by their own word, and by the lack of it."""

from datetime import timedelta
from typing import Final

from django.db import transaction

from apps.core.sql import database_now
from apps.principals.tenancy import Caller
from apps.workers.models import Worker
from apps.workers.services.rows import advance, lock_own, move
from apps.workers.states import REPORTED, State

HEARTBEAT_EVERY: Final = timedelta(seconds=30)
LATE_AFTER: Final = HEARTBEAT_EVERY * 1.5
OFFLINE_AFTER: Final = HEARTBEAT_EVERY * 3


@transaction.atomic
def heartbeat(*, caller: Caller, worker_id: str, status: str, current_load: float, available: bool) -> Worker:
    """Take a worker's word for how it is.

    :raises UnknownWorker: if the caller has registered no worker of this id.
    """
    worker = lock_own(caller, worker_id)
    now = database_now()
    worker.last_heartbeat_at, worker.current_load, worker.available = now, current_load, available
    moved = move(worker, REPORTED[status], f"the worker says {status}", now)
    worker.save(update_fields=["last_heartbeat_at", "current_load", "available", "state"])
    if moved:
        advance([worker.tenant_id])
    return worker


@transaction.atomic
def mark_late() -> int:
    """Call workers degraded whose heartbeat is late, and offline those that have fallen silent. Runs as the system."""
    now = database_now()
    late = Worker.objects.registered().filter(last_heartbeat_at__lt=now - LATE_AFTER)
    late = late.exclude(state__in=[State.OFFLINE, State.QUARANTINED])
    moved = []
    for worker in late.select_for_update(skip_locked=True).order_by("id"):
        silent = worker.last_heartbeat_at < now - OFFLINE_AFTER
        if move(worker, State.OFFLINE if silent else State.DEGRADED, "no heartbeat", now):
            worker.save(update_fields=["state"])
            moved.append(worker.tenant_id)
    advance(moved)
    return len(moved)
