"""How runs and tasks end. The end of a task, its record and its receipt are one transaction."""

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import F

from apps.core import strict_json
from apps.core.errors import Conflict, DomainError, NotFound, only
from apps.core.ids import format_ref
from apps.core.sql import execute
from apps.principals.tenancy import Caller
from apps.tasks import lease_tokens, sql
from apps.tasks.lease_tokens import BadLeaseToken, Lease, task_of
from apps.tasks.models import FinishedTask, LiveTask, Task, run_key
from apps.tasks.services import leasing, recording
from apps.tasks.services.recording import Answer, Back, End, Ended, Hold
from apps.tasks.shapes import (
    Completed,
    Completion,
    Delivery,
    FailTask,
    Finished,
    LeasedTask,
    LeaseNext,
    ReleaseTask,
    UnsuccessfulRun,
)
from apps.tasks.states import (
    CANCEL_REQUESTED,
    Outcome,
    Reason,
    Status,
    after_failure,
)


# Here and in the next ones no savepoint: a refusal is an answer, and changes nothing.
@transaction.atomic(savepoint=False)
def complete_many(
    completions: Sequence[tuple[Caller, Completion]], *, lease_next: LeaseNext | None = None
) -> Completed:
    """End tasks of one tenant well, each with its own answer, and lease others: records, receipts and inbox entries
    in one transaction.

    Only one task worker alone may lease others. The same call again gets the same answer, with those of the leases
    that still stand. Calls that end nothing lease nothing new. A token of another task or task worker is refused as
    `BadLeaseToken`, a run that is over otherwise as `lease_lost`. One that has ended with another outcome or content
    is `already_decided`. So it is in the next ones.
    """
    calls = [
        _call(worker, one.task_id, one, {"verb": "complete", "summary": one.summary, **_members(one.delivery)})
        for worker, one in completions
    ]
    ends = [
        End(
            task_id=lease.task_id,
            fencing_token=lease.fencing_token,
            holder_id=completions[nth][0].principal_id,
            status=Status.SUCCEEDED,
            outcome=Outcome.SUCCEEDED,
            summary=completions[nth][1].summary,
            delivery=completions[nth][1].delivery,
            digest=digest,
        )
        for lease, (nth, digest) in _firsts(calls).items()
    ]
    ended, _ = recording.settle(completions[0][0].tenant_id, ends) if ends else ([], [])
    answers = _answers(calls, {Lease(one.task_id, one.fencing_token): one.answer for one in ended})
    following: list[LeasedTask] = []
    if lease_next is not None and completions:
        before = [answer for answer in answers if isinstance(answer, dict)]
        following = _following(completions[0][0], lease_next, ended, before)
    return Completed(
        answers=[one if isinstance(one, DomainError) else Finished.model_validate(one) for one in answers],
        following=following,
    )


@transaction.atomic(savepoint=False)
def fail(*, worker: Caller, failure: FailTask) -> UnsuccessfulRun | DomainError:
    """End a run badly: the task gets another attempt after a delay, or becomes a dead letter."""
    content = {"verb": "fail", **failure.model_dump(exclude={"task_id", "lease_token"})}
    call = _call(worker, task_of(failure.task_id), failure, content)
    return _settled(worker, [call], lambda digest, hold: _after_failure(failure, digest, hold))[0]


@transaction.atomic(savepoint=False)
def release_many(
    *, worker: Caller, releases: Sequence[ReleaseTask], retry_after: float = 0.0
) -> list[UnsuccessfulRun | DomainError]:
    """Return tasks to their places in their queues, each with its own answer; no attempt is counted.

    A task that was to be canceled is canceled, and a task with a spent budget ends.

    :param retry_after: after so many seconds, instead of at once.
    """
    calls = [_call(worker, task_of(one.task_id), one, {"verb": "release"}) for one in releases]
    return _settled(worker, calls, lambda digest, hold: _after_release(retry_after, digest, hold))


def cancel(*, caller: Caller, task_id: int) -> Status:
    """Cancel a task: at once if nobody holds it, else by an order to its holder.

    `canceled` is final. `canceling` is a request: a completion may still win until the lease ends.

    :raises NotFound: `unknown_task` if the caller neither asked for it nor is to be told of it.
    :raises Conflict: `already_finished` if it has succeeded or failed.
    """
    return only([status_or_refusal(task_id, cancel_many(caller=caller, task_ids=[task_id])[task_id])])


@transaction.atomic
def cancel_many(*, caller: Caller, task_ids: Collection[int]) -> dict[int, Status]:
    """Cancel several tasks as :func:`cancel` does; the answer is the status of each.

    A task that has succeeded or failed keeps that end.

    :raises NotFound: `unknown_task` if the caller neither asked for one of them nor is to be told of it; nothing is changed.
    """
    refuse_strangers(caller=caller, task_ids=task_ids)
    return cancel_any(tenant_id=caller.tenant_id, task_ids=task_ids)


@transaction.atomic
def cancel_any(*, tenant_id: int, task_ids: Collection[int]) -> dict[int, Status]:
    """As :func:`cancel_many`, whoever asked for them; without those that there are not.

    All tasks are locked by id before any inbox, so that callers with the same tasks can't deadlock.
    """
    holds = recording.lock(task_ids)
    finished = [task_id for task_id in task_ids if task_id not in holds]
    held = [task_id for task_id, hold in holds.items() if hold.holder_id is not None]
    statuses = dict.fromkeys(held, Status.CANCELING)
    if finished:
        records = FinishedTask.objects.filter(task_id__in=finished)
        statuses |= {record.task_id: Status(record.status) for record in records}
    if held:
        LiveTask.objects.filter(task_id__in=held).update(flags=F("flags").bitor(CANCEL_REQUESTED))
    ends = [
        End(task_id=task_id, status=Status.CANCELED, outcome=Outcome.CANCELED, reason=Reason.CANCELED)
        for task_id in holds
        if task_id not in statuses
    ]
    recording.settle(tenant_id, ends)
    return statuses | {end.task_id: Status.CANCELED for end in ends}


@transaction.atomic
def bury(*, tenant_id: int, task_ids: Collection[int]) -> int:
    """End those of this tenant's tasks that have passed their deadline, whoever holds them, and those whose lease has
    expired with no expiries left, or an order to stop.

    Says how many. Locked tasks are skipped.
    """
    holds = recording.lock(task_ids, sql.LOCK_UNLESS_BUSY)
    ends = [end for hold in holds.values() if (end := _burial(hold)) is not None]
    recording.settle(tenant_id, ends)
    return len(ends)


def _burial(hold: Hold) -> End | None:
    if hold.late:
        message = "Its deadline has passed."
        return End(
            task_id=hold.task_id,
            status=Status.FAILED,
            outcome=Outcome.REVOKED,
            reason=Reason.DEADLINE_PASSED,
            error={"code": "deadline_passed", "message": message},
            summary=message,
        )
    if hold.holder_id is None or not hold.expired:
        return None
    error = {"code": "lease_expired", "message": f"The lease expired {hold.expiries + 1} times."}
    return recording.must_end(hold, outcome=Outcome.EXPIRED, expiry=error)


def status_or_refusal(task_id: int, status: Status | None) -> Status | DomainError:
    """What became of a task that was to be canceled."""
    if status is None:
        return unknown(task_id)
    if status in {Status.CANCELED, Status.CANCELING}:
        return status
    return Conflict(f"{format_ref('task', task_id)} has {status} already.", task_status=status, code="already_finished")


def refuse_strangers(*, caller: Caller, task_ids: Collection[int]) -> None:
    """:raises NotFound: `unknown_task` if the caller is neither the requester nor the recipient of one of the tasks."""
    parties = Task.objects.filter(pk__in=task_ids).values_list("pk", "requester_id", "recipient_id")
    own = {pk for pk, *named in parties if caller.principal_id in named}
    for task_id in task_ids:
        if task_id not in own:
            raise unknown(task_id)


def unknown(task_id: int) -> NotFound:
    return NotFound(f"There is no task {format_ref('task', task_id)}.", code="unknown_task")


def prove(*, worker: Caller, task_id: int, lease_token: str) -> Lease:
    """What a lease token proves, without a query.

    :raises BadLeaseToken: if it was not issued to this task worker for this task.
    """
    return lease_tokens.prove(lease_token, tenant_id=worker.tenant_id, holder_id=worker.principal_id, task_id=task_id)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call with a proved lease, and the digest of its content."""

    lease: Lease
    digest: bytes


def _call(
    worker: Caller, task_id: int, one: Completion | FailTask | ReleaseTask, content: dict[str, Any]
) -> _Call | BadLeaseToken:
    try:
        lease = prove(worker=worker, task_id=task_id, lease_token=one.lease_token)
    except BadLeaseToken as refusal:
        return refusal
    return _Call(lease, strict_json.digest(content))


def _members(content: Delivery) -> dict[str, Any]:
    return {name: getattr(content, name) for name in content.__dataclass_fields__}


def _firsts(calls: Sequence[_Call | BadLeaseToken]) -> dict[Lease, tuple[int, bytes]]:
    """The first call of each lease, by its place; later ones in the batch are repetitions."""
    firsts: dict[Lease, tuple[int, bytes]] = {}
    for nth, call in enumerate(calls):
        if isinstance(call, _Call):
            firsts.setdefault(call.lease, (nth, call.digest))
    return firsts


def _answers(calls: Sequence[_Call | BadLeaseToken], fresh: Mapping[Lease, Answer]) -> list[Answer | DomainError]:
    """The answer to each call: what it has just done, or the kept answer of an equal call."""
    firsts = {nth: lease for lease, (nth, _) in _firsts(calls).items() if lease in fresh}
    repeated = [(nth, call) for nth, call in enumerate(calls) if isinstance(call, _Call) and nth not in firsts]
    told = dict(
        zip(
            [nth for nth, _ in repeated],
            recording.kept_answers([(call.lease, call.digest) for _, call in repeated]),
            strict=True,
        )
    )
    return [
        call if isinstance(call, DomainError) else fresh[firsts[nth]] if nth in firsts else told[nth]
        for nth, call in enumerate(calls)
    ]


def _settled(
    worker: Caller, calls: Sequence[_Call | BadLeaseToken], decide: Callable[[bytes, Hold], End | Back]
) -> list[UnsuccessfulRun | DomainError]:
    """End these runs as `decide` says for each while its task is locked."""
    firsts = _firsts(calls)
    holds = recording.lock_leases(worker.principal_id, list(firsts))
    leases = {Lease(hold.task_id, hold.fencing_token): hold for hold in holds.values()}
    decided = [decide(firsts[lease][1], hold) for lease, hold in leases.items()]
    ended, back = recording.settle(
        worker.tenant_id,
        [one for one in decided if isinstance(one, End)],
        [one for one in decided if isinstance(one, Back)],
    )
    answers = {one.task_id: one.answer for one in ended} | {one.task_id: one.answer for one in back}
    fresh = {lease: answers[lease.task_id] for lease in leases}
    return [
        one if isinstance(one, DomainError) else UnsuccessfulRun.model_validate({"retry_at": None, **one})
        for one in _answers(calls, fresh)
    ]


def _after_failure(failure: FailTask, digest: bytes, hold: Hold) -> End | Back:
    error = failure.error.model_dump(exclude={"details"} if failure.error.details is None else None)
    reason = after_failure(
        flags=hold.flags,
        retryable=failure.retryable,
        failures=hold.failures + 1,
        max_attempts=hold.max_attempts,
        runs=hold.fencing_token,
    )
    if reason is None:
        delay = failure.retry_after if failure.retry_after is not None else _backoff(hold)
        return Back(
            task_id=hold.task_id,
            fencing_token=hold.fencing_token,
            outcome=Outcome.FAILED,
            error=error,
            digest=digest,
            failures=1,
            delay=max(delay, 0.001),
        )
    canceled = reason == Reason.CANCELED
    return End(
        task_id=hold.task_id,
        fencing_token=hold.fencing_token,
        status=Status.CANCELED if canceled else Status.FAILED,
        outcome=Outcome.CANCELED if canceled else Outcome.FAILED,
        reason=reason,
        error=error,
        summary=failure.error.message,
        digest=digest,
    )


def _after_release(delay: float, digest: bytes, hold: Hold) -> End | Back:
    return recording.must_end(hold, outcome=Outcome.RELEASED, digest=digest) or Back(
        task_id=hold.task_id,
        fencing_token=hold.fencing_token,
        outcome=Outcome.RELEASED,
        digest=digest,
        delay=delay,
    )


def _backoff(hold: Hold) -> float:
    """Exponential backoff with full jitter, in seconds."""
    ceiling = min(hold.backoff_cap, hold.backoff * 2.0 ** min(hold.failures, 60))
    return random.uniform(0, ceiling)  # noqa: S311  # spreads load, hides nothing


def _following(
    worker: Caller, wanted: LeaseNext, ended: Sequence[Ended], answers: Sequence[Answer]
) -> list[LeasedTask]:
    """The next leases: those of repeated calls that still stand, and new ones for the others."""
    before = leasing.granted(worker=worker, kept=[grant for answer in answers for grant in answer.get("next", ())])
    room = wanted.capacity - len(before)
    if not ended or room <= 0:
        return before
    named = wanted.queues or wanted.task_types is not None
    grants = leasing.lease(
        worker=worker,
        queues=wanted.queues if named else [one.queue for one in ended],
        task_types=wanted.task_types if named else sorted({one.task_type for one in ended}),
        capabilities=wanted.capabilities if named else sorted({needed for one in ended for needed in one.requires}),
        capacity=room,
        lease_seconds=wanted.lease_seconds,
        host=wanted.host,
        waits=False,
    )
    if grants:
        kept = [[task_of(grant.task_id), grant.run_id] for grant in grants]
        run = run_key(ended[0].task_id, ended[0].fencing_token)
        execute(sql.KEEP_NEXT, {"run": run, "next": json.dumps(kept)}, hot=True)
    return before + grants
