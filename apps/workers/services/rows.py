"""What every verb does with a worker's row: lock it, move it, note it, and say that what was read no longer holds."""

from collections.abc import Iterable
from datetime import datetime

from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.workers import sql
from apps.workers.errors import UnknownWorker
from apps.workers.models import Worker, WorkerEvent
from apps.workers.states import State


def lock(worker_id: str) -> Worker | None:
    return Worker.objects.named(worker_id).select_for_update().first()


def lock_own(caller: Caller, worker_id: str) -> Worker:
    worker = Worker.objects.registered().named(worker_id).select_for_update().first()
    if worker is None or (worker.principal_id != caller.principal_id and Scope.ADMIN not in caller.scopes):
        raise UnknownWorker(f"There is no worker {worker_id[:100]!r}.")
    return worker


def lock_registered(tenant_id: int, worker_id: str) -> Worker:
    worker = Worker.objects.registered().named(worker_id).filter(tenant_id=tenant_id).select_for_update().first()
    if worker is None:
        raise UnknownWorker(f"There is no worker {worker_id[:100]!r}.")
    return worker


def move(worker: Worker, state: State, why: str, now: datetime) -> bool:
    """Change a worker's state if it is another one. A quarantine is not ended by what a worker says of itself."""
    if worker.state in {state, State.QUARANTINED}:
        return False
    before = worker.state
    worker.move_to(state)
    record(worker, WorkerEvent.Kind.STATE, f"{before} to {state}: {why}", now)
    return True


def take_out(worker: Worker, why: str, now: datetime, *, void_until: datetime | None) -> None:
    """Take a locked worker out of the registry.

    :param void_until: signatures made until then count no more, nor the one that was taken last, which may be dated ahead.
    """
    worker.unregistered_at = now
    if void_until is not None:
        worker.void_until = max(void_until, worker.signed_at or void_until)
    worker.save(update_fields=["unregistered_at", "void_until"])
    record(worker, WorkerEvent.Kind.UNREGISTERED, why, now)
    advance([worker.tenant_id])
    sql.stamp_description(worker.tenant_id, worker.pk)


def record(worker: Worker, kind: WorkerEvent.Kind, detail: str, now: datetime) -> None:
    WorkerEvent.objects.create(
        tenant_id=worker.tenant_id, worker=worker, kind=kind, state=worker.state, detail=detail[:300], at=now
    )


def advance(tenant_ids: Iterable[int]) -> None:
    """Say that what was read from these registries no longer holds."""
    for tenant_id in sorted(set(tenant_ids)):
        sql.advance_epoch(tenant_id)
