"""The health of MCP workers: heartbeats, their absence, and probes of the manifests."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from django.db import transaction
from django.db.models import Q, QuerySet

from apps.core.outbound import CallFailed
from apps.core.sql import GATEHOUSE_NOW, database_now, in_batches, in_turn
from apps.principals.models import TenantModel
from apps.principals.tenancy import Caller, acting_as_system, acting_in
from apps.workers import manifests
from apps.workers.manifests import Seen
from apps.workers.models import REPORTED, Reach, SourceEntry, State, Worker, WorkerEvent
from apps.workers.services.registry import advance, changed, lock_own, move, record
from apps.workers.shapes import HeartbeatTaken

logger = logging.getLogger(__name__)

HEARTBEAT_EVERY: Final = timedelta(seconds=30)
LATE_AFTER: Final = HEARTBEAT_EVERY * 1.5
OFFLINE_AFTER: Final = HEARTBEAT_EVERY * 3
PROBE_EVERY: Final = HEARTBEAT_EVERY
# Healthy workers with heartbeats need few probes; lost ones cost a whole deadline each.
PROBE_SELDOM: Final = 10 * HEARTBEAT_EVERY
_PROBE_AGAIN: Final = timedelta(seconds=5)

LATE_BATCH: Final = 200
MOST_AT_ONCE: Final = 64
CALL_DEADLINE: Final = timedelta(seconds=5)
_AT_ONCE: Final = 32
_WHY: Final = "probing workers"
TEXT: Final = 300

C = TypeVar("C")
R = TypeVar("R")
M = TypeVar("M", bound=TenantModel)


class Unexpected(CallFailed):
    """The call, or storing its result, broke in an unforeseen way; the log has the traceback."""

    code = "unexpected"


# No savepoint: a refusal changes nothing.
@transaction.atomic(savepoint=False)
def heartbeat(*, caller: Caller, worker_id: str, status: str, current_load: float, available: bool) -> HeartbeatTaken:
    """Store a worker's report.

    :raises UnknownWorker: if the caller has registered no worker of this id.
    """
    worker, now = lock_own(caller, worker_id), database_now()
    worker.last_heartbeat_at, worker.current_load, worker.available = now, current_load, available
    worker.beats, worker.reported = True, REPORTED[status]
    # A report does not make an endpoint reachable, nor does it undo a drift.
    moved = move(worker, worker.condition, f"the worker says {status}", now)
    worker.save(update_fields=["last_heartbeat_at", "current_load", "available", "beats", "reported", "state"])
    if moved:
        advance([worker.tenant_id])
    return HeartbeatTaken(
        status=worker.state,
        register_again=worker.is_to_register_again,
        next_heartbeat_seconds=int(HEARTBEAT_EVERY.total_seconds()),
    )


def mark_late(*, batch: int = LATE_BATCH) -> int:
    """Mark workers degraded whose heartbeat is late, and offline where it is lost or their principal is disabled.

    Workers that send no heartbeats are left to the probes. Opens a transaction per batch, so that the heartbeat of a
    worker that returns need not wait for all others.
    """
    return in_batches(_mark_some, batch)


@acting_as_system("late heartbeats")
def _mark_some(most: int) -> int:
    now = database_now()
    late = Q(last_heartbeat_at__lt=now - LATE_AFTER) & ~Q(state=State.DEGRADED)
    lost = Q(last_heartbeat_at__lt=now - OFFLINE_AFTER)
    online = Worker.objects.registered().exclude(state__in=[State.OFFLINE, State.QUARANTINED])
    found = online.filter(Q(beats=True) & (late | lost) | Q(principal__disabled_at__isnull=False))
    found = found.select_related("principal").light().order_by("id")
    workers = list(found.select_for_update(skip_locked=True, of=("self",))[:most])
    events = []
    for worker in workers:
        if worker.principal.disabled_at is None:
            events.append(changed(worker, _state_of(worker, now), "no heartbeat", now))
        else:
            events.append(changed(worker, State.OFFLINE, f"{worker.principal.name} is disabled", now))
    Worker.objects.bulk_update(workers, ["state"])
    WorkerEvent.objects.bulk_create(stored := [event for event in events if event is not None])
    advance(event.tenant_id for event in stored)
    return len(stored)


def _state_of(worker: Worker, now: datetime) -> State:
    """A worker's state by its condition and the age of its heartbeat."""
    silence, condition = now - worker.last_heartbeat_at, worker.condition
    if worker.beats and silence > OFFLINE_AFTER:
        return State.OFFLINE
    if worker.beats and silence > LATE_AFTER and condition != State.OFFLINE:
        return State.DEGRADED
    return condition


def due(rows: QuerySet[M], *, at: str = "next_at") -> list[M]:
    """The rows that are due, not too many, in a transaction of its own. Those of tenants take turns.

    The tick that asks runs nowhere else meanwhile. An answer is stored only where the row is still due at that moment.

    :param at: the field with the time at which a row is due.
    """
    with acting_as_system("looking for what is due"):
        return list(in_turn(rows.filter(**{f"{at}__lte": GATEHOUSE_NOW}), by=at)[:MOST_AT_ONCE])


def do_all(claims: Sequence[C], call: Callable[[C], R], note: Callable[[C, R | CallFailed], None]) -> int:
    """Make the calls side by side, and note each result as it comes back; returns the number of calls.

    The calls run on threads and must not use the database. An unforeseen exception is noted as :class:`Unexpected`.
    """

    def made(claim: C) -> R | CallFailed:
        try:
            return call(claim)
        except CallFailed as fault:
            return fault

    if not claims:
        return 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="workers") as pool:
        under_way = {pool.submit(made, claim): claim for claim in claims}
        for done in as_completed(under_way):
            try:
                note(under_way[done], done.result())
            except Exception as exc:
                logger.exception("one of a sweep broke")
                note(under_way[done], Unexpected(f"{type(exc).__name__}, as the log says."))
    return len(claims)


def probe() -> int:
    """Probe the workers that are due, and judge their answers; returns their number.

    Opens its own transactions, with the calls between them.
    """
    probed = Worker.objects.registered().light().exclude(state=State.QUARANTINED).filter(principal__disabled_at=None)
    return do_all(due(probed, at="probe_at"), look, note_probe)


def look(worker: Worker) -> Seen:
    return manifests.look(worker.endpoint, deadline=CALL_DEADLINE, with_manifest=False)


def note_probe(asked: Worker, seen: Seen | CallFailed) -> None:
    with acting_in(asked.tenant_id, _WHY):
        # The answer of an old endpoint says nothing of the new one.
        found = Worker.objects.registered().filter(pk=asked.pk, probe_at=asked.probe_at, endpoint=asked.endpoint)
        worker = found.select_for_update().first()
        has_drifted = worker is not None and _judge(worker, seen, database_now())
    if has_drifted:
        # In a transaction of its own: discovery locks the entry before the worker.
        with acting_in(asked.tenant_id, _WHY):
            SourceEntry.objects.filter(worker_id=asked.pk).update(next_at=database_now())


def _judge(worker: Worker, seen: Seen | CallFailed, now: datetime) -> bool:
    """Store the result of a probe; tells whether the worker has drifted since the last one."""
    drift_before = worker.drift
    worker.note_answer(answered=isinstance(seen, Seen))
    since_last = timedelta(0) if worker.probed_at is None else now - worker.probed_at
    worker.probed_at = now
    if isinstance(seen, Seen):
        manifest: dict[str, Any] = worker.manifest
        drift = manifests.drift(manifest["tools"], seen.tools)
        worker.probe_fault, worker.drift = None, drift and drift[:TEXT]
        if not worker.beats:
            worker.last_heartbeat_at = now
    else:
        worker.probe_fault = f"{seen.code}: {seen}"[:TEXT]
    has_drifted = worker.drift not in {None, drift_before}
    if has_drifted:
        record(worker, WorkerEvent.Kind.DRIFTED, worker.drift or "", now)
    worker.probe_at = now + _pause(worker, now, since_last)
    is_down = worker.reach == Reach.DOWN
    why = f"it does not answer: {worker.probe_fault}" if is_down else worker.drift or "it answers"
    moved = move(worker, _state_of(worker, now), why, now)
    worker.save(
        update_fields=[
            *("reach", "probes_against", "probed_at", "probe_fault", "probe_at", "drift", "last_heartbeat_at", "state")
        ]
    )
    if moved:
        advance([worker.tenant_id])
    return has_drifted


def _pause(worker: Worker, now: datetime, since_last: timedelta) -> timedelta:
    """How long to leave a worker alone after a probe.

    :param since_last: how long it had been left alone before.
    """
    if worker.probes_against:
        return _PROBE_AGAIN
    if worker.reach == Reach.DOWN and (not worker.beats or now - worker.last_heartbeat_at > LATE_AFTER):
        return min(max(PROBE_EVERY, 2 * since_last), PROBE_SELDOM)
    is_calm = worker.beats and worker.reach == Reach.UP and worker.drift is None
    return PROBE_SELDOM if is_calm else PROBE_EVERY
