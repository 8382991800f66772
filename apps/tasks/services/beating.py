"""Heartbeats, and the orders in their answers."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from django.db import transaction

from apps.core.errors import Conflict
from apps.core.ids import format_ref
from apps.core.sql import hot_cursor
from apps.principals.tenancy import Caller
from apps.tasks import lease_tokens, sql
from apps.tasks.lease_tokens import BadLeaseToken, Lease
from apps.tasks.models import run_key
from apps.tasks.services import budgets, recording
from apps.tasks.services.budgets import Balance, spent_end
from apps.tasks.services.ending import refuse_stranger
from apps.tasks.services.leasing import reason_lost
from apps.tasks.services.recording import Back, End, Hold
from apps.tasks.shapes import Beat, BeatAnswer
from apps.tasks.states import (
    BUDGET_SPENT,
    CANCEL_REQUESTED,
    CHECKPOINT_WANTED,
    DRAINING,
    REVOKES_STUCK,
    Order,
    Outcome,
    Reason,
    Status,
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
def heartbeat(*, worker: Caller, beats: Sequence[Beat]) -> list[BeatAnswer]:
    """Renew leases and answer what to do, for each lease in order.

    A lost lease is an answer, not an error: the others of the batch are renewed. No lease outlives its task's deadline.
    A run without new progress for `stuck_after` heartbeats is stuck. If its type says so, it is revoked, which counts as
    an expiry.

    What a run has used is taken from its task's budget. When the budget is spent, the answer orders to stop, and the lease
    is not renewed again. The task may still be completed; otherwise it ends with the run. A run that reports more after
    that is revoked.
    """
    proved = [_proved(worker, beat) for beat in beats]
    renewed = _renew(worker, beats, proved)
    kept = [(beat, lease) for beat, lease in zip(beats, proved, strict=True) if lease is not None and lease in renewed]
    news = _note_progress([(beat, lease) for beat, lease in kept if beat.says_something])
    overspent = _note_spend(worker, kept, renewed)
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
        _answer(beat, lease, held, lost, None if lease is None else balances.get(lease.task_id), stuck=lease in stuck)
        for beat, lease in zip(beats, proved, strict=True)
    ]


@transaction.atomic
def order(*, caller: Caller, task_id: int, what: Order) -> None:
    """Order the holder of a task to save a checkpoint, or to save it and release the task.

    :raises NotFound: `unknown_task` if the caller neither asked for it nor is to be told of it.
    :raises Conflict: `not_leased` if nobody holds it.
    """
    refuse_stranger(caller=caller, task_id=task_id)
    hold = recording.lock([task_id]).get(task_id)
    if hold is None or hold.holder_id is None:
        raise Conflict(f"Nobody holds {format_ref('task', task_id)}.", code="not_leased")
    with hot_cursor() as cursor:
        cursor.execute(sql.ORDER, {"task": task_id, "flag": _FLAGS[what]})


def _proved(worker: Caller, beat: Beat) -> Lease | None:
    try:
        return lease_tokens.prove(
            beat.lease_token, tenant_id=worker.tenant_id, holder_id=worker.principal_id, task_id=beat.task_id
        )
    except BadLeaseToken:
        return None


def _renew(worker: Caller, beats: Sequence[Beat], proved: Sequence[Lease | None]) -> dict[Lease, _Kept]:
    """The leases that were renewed."""
    leases = list(dict.fromkeys(lease for lease in proved if lease is not None))
    if not leases:
        return {}
    with hot_cursor() as cursor:
        cursor.execute(
            sql.HEARTBEAT,
            {
                "tasks": [lease.task_id for lease in leases],
                "fencing_tokens": [lease.fencing_token for lease in leases],
                "holder": worker.principal_id,
                "relaxed": not any(beat.must_last for beat in beats),
            },
        )
        return {
            Lease(task_id, fencing_token): _Kept(
                flags=flags, lease_ms=lease_ms, stuck=bool(stuck), has_budget=has_budget
            )
            for task_id, fencing_token, flags, lease_ms, stuck, has_budget in cursor.fetchall()
        }


def _note_progress(telling: Sequence[tuple[Beat, Lease]]) -> dict[Lease, bool]:
    """Note progress; the leases with new progress, and whether a checkpoint was saved."""
    news: dict[Lease, bool] = {}
    for told in _in_turn(telling):
        leases = {run_key(lease.task_id, lease.fencing_token): lease for lease in told}
        with hot_cursor() as cursor:
            cursor.execute(
                sql.PROGRESS,
                {
                    "runs": list(leases),
                    "percents": [beat.percent for beat in told.values()],
                    "messages": [beat.message for beat in told.values()],
                    "checkpoints": [
                        None if beat.checkpoint is None else json.dumps(beat.checkpoint) for beat in told.values()
                    ],
                    "sequences": [beat.sequence for beat in told.values()],
                },
            )
            noted = [(leases[run], bool(saved)) for run, saved in cursor.fetchall()]
        news |= {lease: saved or news.get(lease, False) for lease, saved in noted}
    return news


def _in_turn(telling: Sequence[tuple[Beat, Lease]]) -> list[dict[Lease, Beat]]:
    """Batches to note one after another: the beats of one lease by sequence, those without one first and
    merged.
    """
    told: dict[Lease, dict[int, Beat]] = {}
    for beat, lease in telling:
        of_lease = told.setdefault(lease, {})
        place = -1 if beat.sequence is None else beat.sequence
        before = of_lease.get(place, beat)
        of_lease[place] = replace(
            beat,
            percent=before.percent if beat.percent is None else beat.percent,
            message=before.message if beat.message is None else beat.message,
            checkpoint=before.checkpoint if beat.checkpoint is None else beat.checkpoint,
        )
    rounds: list[dict[Lease, Beat]] = []
    for lease, of_lease in told.items():
        for nth, place in enumerate(sorted(of_lease)):
            if nth == len(rounds):
                rounds.append({})
            rounds[nth][lease] = of_lease[place]
    return rounds


def _note_spend(worker: Caller, kept: Sequence[tuple[Beat, Lease]], renewed: Mapping[Lease, _Kept]) -> set[Lease]:
    """Note spend; the leases whose runs spend more although they know that the budget is spent."""
    spending: dict[Lease, Beat] = {}
    for beat, lease in kept:
        if beat.spends:
            before = spending.get(lease, beat)
            spending[lease] = replace(
                beat, tokens=max(beat.tokens, before.tokens), cost_usd=max(beat.cost_usd, before.cost_usd)
            )
    knowing = {lease for lease in spending if renewed[lease].flags & BUDGET_SPENT}
    return budgets.spend(worker=worker, spending=spending, knowing=knowing)


def _reasons(leases: Sequence[Lease]) -> dict[Lease, str | None]:
    """Why each of these leases was not renewed; None if its task is locked by another transaction."""
    if not leases:
        return {}
    with hot_cursor() as cursor:
        cursor.execute(
            sql.WHEREABOUTS,
            {"tasks": [lease.task_id for lease in leases], "fencing_tokens": [lease.fencing_token for lease in leases]},
        )
        return {
            Lease(task_id, asked): reason_lost(
                asked, fencing_token=fencing_token, holder=holder, barred=bool(barred), ended=ended
            )
            for task_id, asked, fencing_token, holder, barred, ended, *_ in cursor.fetchall()
        }


def _revoke(worker: Caller, leases: Collection[Lease]) -> None:
    """Revoke the runs of these leases, which were just renewed.

    A task that was to be canceled, has a spent budget, or has no expiries left, ends.
    """
    if not leases:
        return
    with hot_cursor() as cursor:
        cursor.execute(sql.LASTING)
    holds = recording.lock_leases(worker.principal_id, leases)
    decided = [_revocation(hold) for hold in holds.values()]
    recording.settle(
        [one for one in decided if isinstance(one, End)],
        [one for one in decided if isinstance(one, Back)],
        holder_id=worker.principal_id,
    )


def _revocation(hold: Hold) -> End | Back:
    message = f"It made no progress, and its leases were lost {hold.expiries + 1} times."
    error = {"code": "stuck", "message": message}
    if hold.flags & CANCEL_REQUESTED:
        return End(
            task_id=hold.task_id,
            fencing_token=hold.fencing_token,
            status=Status.CANCELED,
            outcome=Outcome.REVOKED,
            reason=Reason.CANCELED,
        )
    if hold.flags & BUDGET_SPENT:
        return spent_end(
            task_id=hold.task_id, flags=hold.flags, outcome=Outcome.REVOKED, fencing_token=hold.fencing_token
        )
    if hold.is_used_up:
        return End(
            task_id=hold.task_id,
            fencing_token=hold.fencing_token,
            status=Status.FAILED,
            outcome=Outcome.REVOKED,
            reason=Reason.EXPIRIES_EXHAUSTED,
            error=error,
            summary=message,
        )
    return Back(
        task_id=hold.task_id, fencing_token=hold.fencing_token, outcome=Outcome.REVOKED, error=error, expiries=1
    )


def _answer(
    beat: Beat,
    lease: Lease | None,
    held: Mapping[Lease, _Kept],
    lost: Mapping[Lease, str | None],
    balance: Balance | None,
    *,
    stuck: bool,
) -> BeatAnswer:
    reason = "bad_lease_token" if lease is None else lost.get(lease)
    if lease is not None and lease in held:
        kept = held[lease]
        spent = balance is not None and balance.when_spent is not None
        return BeatAnswer(
            task_id=beat.task_id,
            status="ok",
            order=Order.CANCEL if spent or not kept.lease_ms else order_of(kept.flags),
            lease_ms=kept.lease_ms,
            reason="budget_exhausted" if spent else None,
            stuck=stuck,
            budget_left=None if balance is None else balance.left,
        )
    if reason is None:
        return BeatAnswer(task_id=beat.task_id, status="retry", order=Order.CONTINUE, lease_ms=0)
    return BeatAnswer(task_id=beat.task_id, status="lost", order=Order.CANCEL, lease_ms=0, reason=reason)
