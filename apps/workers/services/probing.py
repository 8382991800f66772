"""Probes: whether a worker's endpoint answers, and whether it still offers what its manifest says."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F

from apps.core.outbound import CallFailed
from apps.core.sql import database_now
from apps.principals.tenancy import acting_as_system, acting_in
from apps.workers import deriving, endpoints
from apps.workers.endpoints import Seen
from apps.workers.hysteresis import Reach
from apps.workers.models import Place, Worker, WorkerEvent
from apps.workers.services.health import HEARTBEAT_EVERY, LATE_AFTER, known_state
from apps.workers.services.rounds import CALL_DEADLINE, CLAIMED_FOR, do_all, in_turn
from apps.workers.services.rows import advance, move, record
from apps.workers.states import State

PROBE_EVERY: Final = HEARTBEAT_EVERY
# A probe costs as much as many heartbeats. Who beats, answers and offers what it says is not asked for life every time.
PROBE_BEATING_EVERY: Final = 10 * HEARTBEAT_EVERY
# Who gives no sign of life costs a whole deadline each time.
PROBE_LOST_EVERY: Final = 10 * HEARTBEAT_EVERY
_PROBE_AGAIN: Final = timedelta(seconds=5)
_WHY: Final = "probing workers"
_TEXT: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    tenant_id: int
    worker_pk: int
    fence: int
    endpoint: str


def probe() -> int:
    """Probe the workers whose time has come, and judge what they answer; returns how many there were.

    Runs in transactions of its own, with the calls between them. Twice, or twice at once, is harmless.
    """
    return do_all(_claims(), _call, _note)


def _claims() -> list[_Claim]:
    with acting_as_system(_WHY):
        now = database_now()
        due = Worker.objects.registered().light().exclude(state=State.QUARANTINED)
        due = due.filter(probe_at__lte=now, principal__disabled_at=None)
        chosen = in_turn(due, by="probe_at")
        held = list(due.filter(pk__in=chosen).select_for_update(skip_locked=True, of=("self",)))
        Worker.objects.filter(pk__in=[worker.pk for worker in held]).update(
            probe_fence=F("probe_fence") + 1, probe_at=now + CLAIMED_FOR
        )
    return [
        _Claim(
            tenant_id=worker.tenant_id,
            worker_pk=worker.pk,
            fence=worker.probe_fence + 1,
            endpoint=worker.endpoint,
        )
        for worker in sorted(held, key=lambda worker: chosen.index(worker.pk))
    ]


def _call(claim: _Claim) -> Seen:
    return endpoints.look(claim.endpoint, deadline=CALL_DEADLINE, with_manifest=False)


def _note(claim: _Claim, seen: Seen | CallFailed) -> None:
    with acting_in(claim.tenant_id, _WHY):
        # What an old endpoint answers says nothing of the new one.
        found = Worker.objects.registered().filter(pk=claim.worker_pk, probe_fence=claim.fence, endpoint=claim.endpoint)
        worker = found.select_for_update().first()
        if worker is None:
            return
        has_drifted = _judge(worker, seen, database_now())
    if has_drifted:
        # In a transaction of its own: who asks at a place holds that before the worker.
        with acting_in(claim.tenant_id, _WHY):
            Place.objects.standing().filter(worker_id=claim.worker_pk).update(next_at=database_now())


def _judge(worker: Worker, seen: Seen | CallFailed, now: datetime) -> bool:
    """Note what a probe saw; says whether the worker offers something else since then."""
    drifted = False
    standing = worker.standing.after(answered=isinstance(seen, Seen))
    worker.reach, worker.probes_against = standing.reach, standing.against
    since_last = timedelta(0) if worker.probed_at is None else now - worker.probed_at
    worker.probed_at = now
    if isinstance(seen, Seen):
        worker.probe_fault = None
        drifted = _compare(worker, seen, now)
        if not worker.beats:
            worker.last_heartbeat_at = now
    else:
        worker.probe_fault = f"{seen.code}: {seen}"[:_TEXT]
    worker.probe_at = now + _pause(worker, now, since_last)
    moved = move(worker, known_state(worker, now), _why(worker), now)
    worker.save(update_fields=_NOTED)
    if moved:
        advance([worker.tenant_id])
    return drifted


def _pause(worker: Worker, now: datetime, since_last: timedelta) -> timedelta:
    """How long to leave a worker alone after a probe.

    :param since_last: how long it had been left alone before.
    """
    if worker.standing.doubted:
        return _PROBE_AGAIN
    if worker.reach == Reach.DOWN and (not worker.beats or now - worker.last_heartbeat_at > LATE_AFTER):
        return min(max(PROBE_EVERY, 2 * since_last), PROBE_LOST_EVERY)
    is_calm = worker.beats and worker.reach == Reach.UP and worker.drift is None
    return PROBE_BEATING_EVERY if is_calm else PROBE_EVERY


_NOTED: Final = (
    "reach", "probes_against", "probed_at", "probe_fault", "probe_at", "drift", "last_heartbeat_at", "state",
)  # fmt: skip


def _compare(worker: Worker, seen: Seen, now: datetime) -> bool:
    manifest: dict[str, Any] = worker.manifest
    drift = deriving.drift(manifest["tools"], seen.tools)
    before, worker.drift = worker.drift, drift and drift[:_TEXT]
    if worker.drift is None or worker.drift == before:
        return False
    record(worker, WorkerEvent.Kind.DRIFTED, worker.drift, now)
    return True


def _why(worker: Worker) -> str:
    if worker.reach == Reach.DOWN:
        return f"it does not answer: {worker.probe_fault}"
    return worker.drift or "it answers"
