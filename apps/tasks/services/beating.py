"""Heartbeats, and the orders in their answers."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from django.db import transaction
from django.db.models import F

from apps.core.errors import Conflict
from apps.core.ids import format_ref
from apps.core.notifications import notify
from apps.core.sql import execute, fetch
from apps.principals.tenancy import Caller
from apps.tasks import sql
from apps.tasks.lease_tokens import BadLeaseToken, Lease, task_of
from apps.tasks.models import LiveTask, run_key
from apps.tasks.services import budgets, recording
from apps.tasks.services.budgets import Balance
from apps.tasks.services.ending import prove, refuse_strangers
from apps.tasks.services.leasing import reason_lost
from apps.tasks.services.recording import Back, End, Hold
from apps.tasks.shapes import HeartbeatAnswer, HeldLease
from apps.tasks.signals import task_topic
from apps.tasks.states import (
    BUDGET_SPENT,
    CHECKPOINT_WANTED,
    DRAINING,
    REVOKES_STUCK,
    Order,
    Outcome,
    order_of,
)

_FLAGS: Final = {Order.CHECKPOINT: CHECKPOINT_WANTED, Order.DRAIN: DRAINING}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A lease that was renewed."""

    flags: int
    lease_ms: int
    stuck: bool
    has_budget: bool


@transaction.atomic
def heartbeat(*, worker: Caller, heartbeats: Sequence[HeldLease]) -> list[HeartbeatAnswer]:
    """Renew leases, each named once, and answer what to do, for each in order.

    A lost lease is an answer, not an error: the others of the batch are renewed. No lease outlives its task's deadline.
    A run without new progress for `stuck_after` heartbeats is stuck. If its type says so, it is revoked, which counts as
    an expiry.

    What a run has used is taken from its task's budget. When the budget is spent, the answer orders to stop, and the lease
    is not renewed again. The task may still be completed; otherwise it ends with the run. A run that reports more after
    that is revoked.
    """
    proved = [_proved(worker, heartbeat) for heartbeat in heartbeats]
    renewed = _renew(worker, heartbeats, proved)
    kept = {
        lease: heartbeat
        for heartbeat, lease in zip(heartbeats, proved, strict=True)
        if lease is not None and lease in renewed
    }
    news = _note_progress({lease: heartbeat for lease, heartbeat in kept.items() if heartbeat.has_news})
    notify(*(task_topic(worker.tenant_id, format_ref("task", lease.task_id)) for lease in news))
    overspent = budgets.spend(
        spending={lease: used for lease, heartbeat in kept.items() if (used := heartbeat.used) is not None},
        knowing={lease for lease in kept if renewed[lease].flags & BUDGET_SPENT},
    )
    balances = budgets.balances([lease.task_id for lease, one in renewed.items() if one.has_budget])
    stuck = {lease for lease, one in renewed.items() if one.stuck and lease not in news}
    revoked = {lease for lease in stuck if renewed[lease].flags & REVOKES_STUCK}
    _revoke(worker, revoked | overspent)
    reasons = _reasons([lease for lease in proved if lease is not None and lease not in renewed])
    lost = {**reasons, **dict.fromkeys(revoked, "stuck"), **dict.fromkeys(overspent, "budget_exhausted")}
    held = {
        lease: replace(one, flags=one.flags & ~CHECKPOINT_WANTED) if news.get(lease) else one
        for lease, one in renewed.items()
        if lease not in lost
    }
    return [
        _answer(
            heartbeat, lease, held, lost, None if lease is None else balances.get(lease.task_id), stuck=lease in stuck
        )
        for heartbeat, lease in zip(heartbeats, proved, strict=True)
    ]


@transaction.atomic
def control(*, caller: Caller, task_id: int, order: Order) -> None:
    """Order the holder of a task to save a checkpoint, or to save it and release the task.

    :raises NotFound: `unknown_task` if the caller neither asked for it nor is to be told of it.
    :raises Conflict: `not_leased` if nobody holds it.
    """
    refuse_strangers(caller=caller, task_ids=[task_id])
    hold = recording.lock([task_id]).get(task_id)
    if hold is None or hold.holder_id is None:
        raise Conflict(f"Nobody holds {format_ref('task', task_id)}.", code="not_leased")
    LiveTask.objects.filter(task_id=task_id).update(flags=F("flags").bitor(_FLAGS[order]))


def _proved(worker: Caller, heartbeat: HeldLease) -> Lease | None:
    try:
        return prove(worker=worker, task_id=task_of(heartbeat.task_id), lease_token=heartbeat.lease_token)
    except BadLeaseToken:
        return None


def _renew(worker: Caller, heartbeats: Sequence[HeldLease], proved: Sequence[Lease | None]) -> dict[Lease, _Kept]:
    """The leases that were renewed."""
    leases = list(dict.fromkeys(lease for lease in proved if lease is not None))
    if not leases:
        return {}
    given = {
        "tasks": [lease.task_id for lease in leases],
        "fencing_tokens": [lease.fencing_token for lease in leases],
        "holder": worker.principal_id,
        "relaxed": not any(heartbeat.must_last for heartbeat in heartbeats),
    }
    return {
        Lease(task_id, fencing_token): _Kept(flags=flags, lease_ms=lease_ms, stuck=bool(stuck), has_budget=has_budget)
        for task_id, fencing_token, flags, lease_ms, stuck, has_budget in fetch(sql.HEARTBEAT, given, hot=True)
    }


def _note_progress(told: Mapping[Lease, HeldLease]) -> dict[Lease, bool]:
    """Note progress; the leases with new progress, and whether a checkpoint was saved."""
    if not told:
        return {}
    leases = {run_key(lease.task_id, lease.fencing_token): lease for lease in told}
    beats = told.values()
    given = {
        "runs": list(leases),
        "percents": [beat.progress and beat.progress.percent for beat in beats],
        "messages": [beat.progress and beat.progress.message for beat in beats],
        "checkpoints": [None if beat.checkpoint is None else json.dumps(beat.checkpoint) for beat in beats],
        "sequences": [beat.sequence for beat in beats],
    }
    return {leases[run]: bool(saved) for run, saved in fetch(sql.PROGRESS, given, hot=True)}


def _reasons(leases: Sequence[Lease]) -> dict[Lease, str | None]:
    """Why each of these leases was not renewed; None if its task is locked by another transaction."""
    if not leases:
        return {}
    given = {"tasks": [lease.task_id for lease in leases], "fencing_tokens": [lease.fencing_token for lease in leases]}
    return {
        Lease(task_id, asked): reason_lost(
            asked, fencing_token=fencing_token, holder=holder, barred=bool(barred), ended=ended
        )
        for task_id, asked, fencing_token, holder, barred, ended, *_ in fetch(sql.WHEREABOUTS, given, hot=True)
    }


def _revoke(worker: Caller, leases: Collection[Lease]) -> None:
    """Revoke the runs of these leases, which were just renewed.

    A task that was to be canceled, has a spent budget, or has no expiries left, ends.
    """
    if not leases:
        return
    execute(sql.LASTING, hot=True)
    holds = recording.lock_leases(worker.principal_id, leases)
    decided = [_revocation(hold) for hold in holds.values()]
    recording.settle(
        worker.tenant_id,
        [one for one in decided if isinstance(one, End)],
        [one for one in decided if isinstance(one, Back)],
    )


def _revocation(hold: Hold) -> End | Back:
    message = f"It made no progress, and its leases were lost {hold.expiries + 1} times."
    error = {"code": "stuck", "message": message}
    return recording.must_end(hold, outcome=Outcome.REVOKED, expiry=error) or Back(
        task_id=hold.task_id, fencing_token=hold.fencing_token, outcome=Outcome.REVOKED, error=error, expiries=1
    )


def _answer(
    heartbeat: HeldLease,
    lease: Lease | None,
    held: Mapping[Lease, _Kept],
    lost: Mapping[Lease, str | None],
    balance: Balance | None,
    *,
    stuck: bool,
) -> HeartbeatAnswer:
    task_id = heartbeat.task_id
    reason = "bad_lease_token" if lease is None else lost.get(lease)
    if lease is not None and lease in held:
        kept = held[lease]
        spent = balance is not None and balance.is_spent
        return HeartbeatAnswer(
            task_id=task_id,
            status="ok",
            order=Order.CANCEL if spent or not kept.lease_ms else order_of(kept.flags),
            lease_ms=kept.lease_ms,
            reason="budget_exhausted" if spent else None,
            stuck=stuck,
            budget_left=None if balance is None else balance.left,
        )
    if reason is None:
        return HeartbeatAnswer(task_id=task_id, status="retry", order=Order.CONTINUE, lease_ms=0)
    return HeartbeatAnswer(task_id=task_id, status="lost", order=Order.CANCEL, lease_ms=0, reason=reason)
