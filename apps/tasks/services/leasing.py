"""Giving work out, and keeping it out."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import transaction

from apps.core.errors import FieldError, Invalid
from apps.core.sql import hot_cursor
from apps.principals.tenancy import Caller
from apps.tasks import fences, sql
from apps.tasks.errors import BadLeaseToken
from apps.tasks.fences import Lease
from apps.tasks.models import TaskType, run_key
from apps.tasks.shapes import Beat, BeatAnswer, Grant
from apps.tasks.states import CANCEL_REQUESTED


@transaction.atomic
def lease(
    *,
    worker: Caller,
    queues: Sequence[str] = (),
    task_types: Sequence[str] | None = None,
    capabilities: Sequence[str] = (),
    capacity: int = 1,
    lease_seconds: int | None = None,
) -> list[Grant]:
    """Give the worker up to `capacity` of the most urgent tasks that it can do. Queues are tried in their order.

    A task is given to one worker at a time; rows that a rival has at hand are passed over, never waited for.

    :raises Invalid: if neither queues nor types are named.
    """
    lines = list(dict.fromkeys(queues)) or _queues_of(worker.tenant_id, task_types or [])
    if not lines:
        if not queues and not task_types:
            raise Invalid("Name queues or task types.", errors=[FieldError("/queues", "is missing")])
        return []
    with hot_cursor() as cursor:
        cursor.execute(sql.RECLAIM, {"queues": lines})
        cursor.execute(
            sql.CLAIM,
            {
                "holder": worker.principal_id,
                "queues": lines,
                "types": None if task_types is None else list(task_types),
                "capabilities": list(capabilities),
                "capacity": capacity,
                "seconds": lease_seconds,
            },
        )
        rows = cursor.fetchall()
    return [_grant(worker, row) for row in rows]


@transaction.atomic
def heartbeat(*, worker: Caller, beats: Sequence[Beat]) -> list[BeatAnswer]:
    """Renew leases and hear what to do; one answer per lease, in order.

    A lost lease is an answer, not an error: the others of the batch are renewed all the same.
    """
    proved = [_proved(worker, beat) for beat in beats]
    leases = list(dict.fromkeys(lease for lease in proved if lease is not None))
    renewed = _renew(worker, leases, durable=any(beat.must_last for beat in beats))
    kept = [(beat, lease) for beat, lease in zip(beats, proved, strict=True) if lease is not None and lease in renewed]
    _note_progress([(beat, lease) for beat, lease in kept if beat.says_something])
    _note_spend(worker, [(beat, lease) for beat, lease in kept if beat.spends])
    lost = _reasons([lease for lease in leases if lease not in renewed])
    return [_answer(beat, lease, renewed, lost) for beat, lease in zip(beats, proved, strict=True)]


def _queues_of(tenant_id: int, task_types: Iterable[str]) -> list[str]:
    named = TaskType.objects.filter(tenant_id=tenant_id, name__in=task_types)
    return sorted(set(named.values_list("queue__name", flat=True)))


def _grant(worker: Caller, row: tuple[Any, ...]) -> Grant:
    task_id, fence, task_type, params, seconds, requester_id, queue, checkpoint = row
    return Grant(
        task_id=task_id,
        fence=fence,
        lease_token=fences.sign(
            tenant_id=worker.tenant_id, holder_id=worker.principal_id, task_id=task_id, fence=fence
        ),
        task_type=task_type,
        params=json.loads(params),
        checkpoint=None if checkpoint is None else json.loads(checkpoint),
        lease_ms=seconds * 1000,
        requester_id=requester_id,
        queue=queue,
    )


def _proved(worker: Caller, beat: Beat) -> Lease | None:
    try:
        return fences.prove(
            beat.lease_token, tenant_id=worker.tenant_id, holder_id=worker.principal_id, task_id=beat.task_id
        )
    except BadLeaseToken:
        return None


def _renew(worker: Caller, leases: Sequence[Lease], *, durable: bool) -> dict[Lease, tuple[int, int]]:
    """Flags and length of the leases that were renewed."""
    if not leases:
        return {}
    with hot_cursor() as cursor:
        cursor.execute(
            sql.HEARTBEAT,
            {
                "tasks": [lease.task_id for lease in leases],
                "fences": [lease.fence for lease in leases],
                "holder": worker.principal_id,
                "relaxed": not durable,
            },
        )
        return {Lease(task_id, fence): (flags, seconds) for task_id, fence, flags, seconds in cursor.fetchall()}


def _note_progress(telling: Sequence[tuple[Beat, Lease]]) -> None:
    if not telling:
        return
    with hot_cursor() as cursor:
        cursor.execute(
            sql.PROGRESS,
            {
                "runs": [run_key(lease.task_id, lease.fence) for _, lease in telling],
                "percents": [beat.percent for beat, _ in telling],
                "messages": [beat.message for beat, _ in telling],
                "checkpoints": [
                    None if beat.checkpoint is None else json.dumps(beat.checkpoint) for beat, _ in telling
                ],
            },
        )


def _note_spend(worker: Caller, spending: Sequence[tuple[Beat, Lease]]) -> None:
    if not spending:
        return
    with hot_cursor() as cursor:
        cursor.execute(
            sql.SPEND,
            {
                "tenant": worker.tenant_id,
                "tasks": [lease.task_id for _, lease in spending],
                "fences": [lease.fence for _, lease in spending],
                "tokens": [beat.tokens for beat, _ in spending],
                "costs": [beat.cost_usd for beat, _ in spending],
            },
        )


def _reasons(leases: Sequence[Lease]) -> dict[Lease, str | None]:
    """Why each of these was not renewed; None where it is still held and only out of reach just now."""
    if not leases:
        return {}
    with hot_cursor() as cursor:
        cursor.execute(
            sql.WHEREABOUTS,
            {"tasks": [lease.task_id for lease in leases], "fences": [lease.fence for lease in leases]},
        )
        return {
            Lease(task_id, asked): reason_lost(asked, fence=fence, holder=holder, barred=bool(barred), ended=ended)
            for task_id, asked, fence, holder, barred, ended, *_ in cursor.fetchall()
        }


def reason_lost(asked: int, *, fence: int | None, holder: int | None, barred: bool, ended: str | None) -> str | None:
    """How the run `asked` for was lost, from what there is now; None if it is not lost."""
    if ended is not None:
        return "canceled" if ended == "canceled" else "completed"
    if fence is None or fence > asked:
        return "superseded"
    if holder is None:
        return "requeued"
    return "expired" if barred else None


def _answer(
    beat: Beat, lease: Lease | None, renewed: dict[Lease, tuple[int, int]], lost: dict[Lease, str | None]
) -> BeatAnswer:
    if lease is None:
        return BeatAnswer(task_id=beat.task_id, status="lost", order="cancel", lease_ms=0, reason="bad_lease_token")
    if lease in renewed:
        flags, seconds = renewed[lease]
        return BeatAnswer(
            task_id=beat.task_id,
            status="ok",
            order="cancel" if flags & CANCEL_REQUESTED else "continue",
            lease_ms=seconds * 1000,
        )
    reason = lost.get(lease)
    if reason is None:
        return BeatAnswer(task_id=beat.task_id, status="retry", order="continue", lease_ms=0)
    return BeatAnswer(task_id=beat.task_id, status="lost", order="cancel", lease_ms=0, reason=reason)
