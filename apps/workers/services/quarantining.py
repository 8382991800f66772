"""An operator's word against a worker, and its end."""

from django.db import transaction

from apps.core.sql import database_now
from apps.workers.errors import IllegalTransition
from apps.workers.models import NOT_REMEMBERED, Worker, WorkerEvent
from apps.workers.services.rows import advance, lock_registered, record
from apps.workers.states import State


@transaction.atomic
def quarantine(*, tenant_id: int, worker_id: str, why: str) -> Worker:
    """Keep a worker from being planned for or called until it is released, whatever it says, and if it registers again.

    :raises UnknownWorker: if none of this id is registered.
    :raises IllegalTransition: if it is in quarantine already.
    """
    return _order(tenant_id, worker_id, State.QUARANTINED, why)


@transaction.atomic
def release(*, tenant_id: int, worker_id: str, why: str) -> Worker:
    """End a quarantine. The worker counts as offline until it beats, registers or answers a probe.

    :raises UnknownWorker: if none of this id is registered.
    :raises IllegalTransition: if it is in no quarantine.
    """
    return _order(tenant_id, worker_id, State.OFFLINE, why, only_from=State.QUARANTINED)


def _order(tenant_id: int, worker_id: str, state: State, why: str, *, only_from: State | None = None) -> Worker:
    worker = lock_registered(tenant_id, worker_id)
    before = worker.state
    if only_from is not None and before != only_from:
        raise IllegalTransition(f"{worker_id} is {before}, not {only_from}.")
    now = database_now()
    worker.move_to(state)
    worker.probe_at = now
    # Unlike other states this one has to outlive the registry.
    worker.remembered_at_epoch = NOT_REMEMBERED
    worker.save(update_fields=["state", "probe_at", "remembered_at_epoch"])
    record(worker, WorkerEvent.Kind.STATE, f"{before} to {state}: by an operator: {why}", now)
    advance([worker.tenant_id])
    return worker
