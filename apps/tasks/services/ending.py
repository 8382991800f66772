"""How runs and tasks end. The end of a task, its record and its receipt are one transaction."""

import json
import random
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import F

from apps.core import strict_json
from apps.core.errors import DomainError
from apps.core.hints import hint_on_commit
from apps.core.ids import format_ref, random_id
from apps.core.sql import hot_cursor
from apps.digests import services as digests
from apps.principals.services import ASYNCGATE
from apps.principals.tenancy import Caller
from apps.receipts.services import Group, Poster, ReceiptDraft
from apps.tasks import fences, sql
from apps.tasks.errors import AlreadyDecided, AlreadyFinished, LeaseLost, UnknownTask
from apps.tasks.fences import Lease
from apps.tasks.models import FENCE_BITS, HotTask, Task, TerminalRecord
from apps.tasks.services.leasing import reason_lost
from apps.tasks.shapes import Delivery, Failure, Finished, Verdict
from apps.tasks.signals import task_finished, task_queued
from apps.tasks.states import CANCEL_REQUESTED, Outcome, Reason, Status, after_failure

# A task that was given back this often is given out no more.
_MOST_RUNS: Final = 2**FENCE_BITS - 2
_PARTIES: Final = ("pk", "requester_id", "recipient_id")
_EVENTS: Final = {Status.SUCCEEDED: "complete", Status.FAILED: "failed", Status.CANCELED: "canceled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hold:
    """An open task's row, locked."""

    fence: int
    holder_id: int | None
    flags: int
    failures: int
    max_attempts: int
    expiries: int
    max_expiries: int
    expired: bool | None
    backoff: float
    backoff_cap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How a task is to end, and which call (by its digest) ends it."""

    status: Status
    outcome: Outcome
    reason: Reason | None = None
    error: dict[str, Any] | None = None
    summary: str | None = None
    delivery: Delivery = field(default_factory=Delivery)
    digest: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """An end that is recorded, and the receipt that has yet to be posted in the same transaction."""

    task_id: int
    finished: Finished
    poster: Poster
    draft: ReceiptDraft
    at: datetime


@transaction.atomic
def complete(
    *, worker: Caller, task_id: int, lease_token: str, delivery: Delivery, summary: str | None = None
) -> Finished:
    """End a task well: record, receipt and inbox entry with it, or nothing of it.

    The same call again answers the same.

    :raises BadLeaseToken: if the token is not this worker's for this task.
    :raises LeaseLost: if the run is over otherwise.
    :raises AlreadyDecided: if the run ended with another outcome or content.
    """
    lease = prove(worker=worker, task_id=task_id, lease_token=lease_token)
    digest = strict_json.digest({"verb": "complete", "summary": summary, **asdict(delivery)})
    end = _End(status=Status.SUCCEEDED, outcome=Outcome.SUCCEEDED, summary=summary, delivery=delivery, digest=digest)
    finished = _end(task_id, end, lease=lease, holder_id=worker.principal_id)
    if finished is None:
        return _finished(_replayed(lease, digest))
    return finished


@transaction.atomic
def fail(*, worker: Caller, task_id: int, lease_token: str, failure: Failure) -> Verdict:
    """End a run badly: the task gets another attempt after a pause, or ends as a dead letter.

    The same call again answers the same.

    :raises BadLeaseToken: if the token is not this worker's for this task.
    :raises LeaseLost: if the run is over otherwise.
    :raises AlreadyDecided: if the run ended with another outcome or content.
    """
    lease = prove(worker=worker, task_id=task_id, lease_token=lease_token)
    digest = strict_json.digest({"verb": "fail", **asdict(failure)})
    hold = _lock_lease(worker, lease)
    if hold is None:
        return _verdict(_replayed(lease, digest))
    reason = after_failure(
        flags=hold.flags,
        retryable=failure.retryable,
        failures=hold.failures + 1,
        max_attempts=hold.max_attempts,
    )
    if reason is None:
        delay = failure.retry_after if failure.retry_after is not None else _backoff(hold)
        return _put_back(
            lease, outcome=Outcome.FAILED, error=failure.error, digest=digest, failures=1, delay=max(delay, 0.001)
        )
    canceled = reason == Reason.CANCELED
    return _end_run(
        lease,
        _End(
            status=Status.CANCELED if canceled else Status.FAILED,
            outcome=Outcome.CANCELED if canceled else Outcome.FAILED,
            reason=reason,
            error=failure.error,
            summary=failure.message,
            digest=digest,
        ),
    )


@transaction.atomic
def release(*, worker: Caller, task_id: int, lease_token: str) -> Verdict:
    """Give a task back untouched: it stands where it stood, and no attempt is counted.

    A task that was to be canceled is canceled now. The same call again answers the same.

    :raises BadLeaseToken: if the token is not this worker's for this task.
    :raises LeaseLost: if the run is over otherwise.
    :raises AlreadyDecided: if the run ended with another outcome.
    """
    lease = prove(worker=worker, task_id=task_id, lease_token=lease_token)
    digest = strict_json.digest({"verb": "release"})
    hold = _lock_lease(worker, lease)
    if hold is None:
        return _verdict(_replayed(lease, digest))
    if hold.flags & CANCEL_REQUESTED:
        return _end_run(
            lease,
            _End(status=Status.CANCELED, outcome=Outcome.CANCELED, reason=Reason.CANCELED, digest=digest),
        )
    if hold.fence >= _MOST_RUNS:
        return _end_run(
            lease,
            _End(status=Status.FAILED, outcome=Outcome.RELEASED, reason=Reason.ATTEMPTS_EXHAUSTED, digest=digest),
        )
    return _put_back(lease, outcome=Outcome.RELEASED, error=None, digest=digest, failures=0, delay=0.0)


@transaction.atomic
def cancel(*, caller: Caller, task_id: int) -> Status:
    """Cancel a task: at once if nobody holds it, else by an order to its holder, forced at the lease's end.

    `canceled` is a verdict; `canceling` a request, after which a completion may still win.

    :raises UnknownTask: if the caller neither asked for it nor is to be told of it.
    :raises AlreadyFinished: if it has succeeded or failed.
    """
    refuse_stranger(caller=caller, task_id=task_id)
    hold = _lock(task_id)
    if hold is None:
        record = TerminalRecord.objects.get(task_id=task_id)
        if record.status != Status.CANCELED:
            raise AlreadyFinished(f"{record} already.", task_status=record.status)
        return Status.CANCELED
    if hold.holder_id is None:
        _end(task_id, _End(status=Status.CANCELED, outcome=Outcome.CANCELED, reason=Reason.CANCELED))
        return Status.CANCELED
    HotTask.objects.filter(task_id=task_id).update(flags=hold.flags | CANCEL_REQUESTED)
    return Status.CANCELING


@transaction.atomic
def cancel_many(*, caller: Caller, task_ids: Collection[int]) -> dict[int, Status]:
    """Cancel several tasks as :func:`cancel` does one; the answer is what each is now.

    A task that has succeeded or failed keeps that end and hinders none of the others. All the tasks are locked
    before any inbox, by id, so that callers with the same tasks or recipients can't wait for each other in a circle.

    :raises UnknownTask: if the caller neither asked for one of them nor is to be told of it; nothing is changed.
    """
    wanted = sorted(set(task_ids))
    _refuse_strangers(caller, wanted)
    holds = _lock_several(wanted)
    statuses = {
        record.task_id: Status(record.status)
        for record in TerminalRecord.objects.filter(task_id__in=[pk for pk in wanted if pk not in holds])
    }
    held = [task_id for task_id, hold in holds.items() if hold.holder_id is not None]
    HotTask.objects.filter(task_id__in=held).update(flags=F("flags").bitor(CANCEL_REQUESTED))
    canceled = _End(status=Status.CANCELED, outcome=Outcome.CANCELED, reason=Reason.CANCELED)
    ends = [_record_end(task_id, canceled) for task_id in holds if task_id not in held]
    _announce([ended for ended in ends if ended is not None])
    return {
        task_id: statuses.get(task_id) or (Status.CANCELING if task_id in held else Status.CANCELED)
        for task_id in wanted
    }


@transaction.atomic
def bury(*, task_id: int) -> bool:
    """End a task whose lease has expired once too often, or after it was to be canceled; says whether it did.

    It does not if somebody else has the task at hand just now.
    """
    hold = _lock(task_id, sql.LOCK_UNLESS_BUSY)
    if hold is None or hold.holder_id is None or not hold.expired:
        return False
    if hold.flags & CANCEL_REQUESTED:
        end = _End(status=Status.CANCELED, outcome=Outcome.CANCELED, reason=Reason.CANCELED)
    elif hold.expiries + 1 >= hold.max_expiries:
        message = f"The lease expired {hold.expiries + 1} times."
        end = _End(
            status=Status.FAILED,
            outcome=Outcome.EXPIRED,
            reason=Reason.EXPIRIES_EXHAUSTED,
            error={"code": "lease_expired", "message": message},
            summary=message,
        )
    else:
        return False
    return _end(task_id, end) is not None


def refuse_stranger(*, caller: Caller, task_id: int) -> None:
    """:raises UnknownTask: if the caller is neither the task's requester nor its recipient."""
    _refuse_strangers(caller, [task_id])


def _refuse_strangers(caller: Caller, task_ids: Collection[int]) -> None:
    parties = {pk: parties for pk, *parties in Task.objects.filter(pk__in=task_ids).values_list(*_PARTIES)}
    for task_id in task_ids:
        if caller.principal_id not in parties.get(task_id, ()):
            raise UnknownTask(f"There is no task {format_ref('task', task_id)}.")


def prove(*, worker: Caller, task_id: int, lease_token: str) -> Lease:
    """What a lease token proves; asks nothing of the database.

    :raises BadLeaseToken: if it is not this worker's for this task.
    """
    return fences.prove(lease_token, tenant_id=worker.tenant_id, holder_id=worker.principal_id, task_id=task_id)


def _lock(task_id: int, statement: str = sql.LOCK) -> _Hold | None:
    with hot_cursor() as cursor:
        cursor.execute(statement, {"task": task_id})
        return _hold(cursor.fetchone())


def _lock_several(task_ids: Collection[int]) -> dict[int, _Hold]:
    """The open ones of these tasks, locked in the order of their ids."""
    with hot_cursor() as cursor:
        cursor.execute(sql.LOCK_SEVERAL, {"tasks": list(task_ids)})
        return {
            task_id: _Hold(**dict(zip(_Hold.__dataclass_fields__, row, strict=True)))
            for *row, task_id in cursor.fetchall()
        }


def _lock_lease(worker: Caller, lease: Lease) -> _Hold | None:
    with hot_cursor() as cursor:
        cursor.execute(sql.LOCK_LEASE, {"task": lease.task_id, "fence": lease.fence, "holder": worker.principal_id})
        return _hold(cursor.fetchone())


def _hold(row: tuple[Any, ...] | None) -> _Hold | None:
    return None if row is None else _Hold(**dict(zip(_Hold.__dataclass_fields__, row, strict=True)))


def _backoff(hold: _Hold) -> float:
    """Exponential with full jitter, in seconds."""
    ceiling = min(hold.backoff_cap, hold.backoff * 2.0 ** min(hold.failures, 60))
    return random.uniform(0, ceiling)  # noqa: S311  # spreads load, hides nothing


def _end_run(lease: Lease, end: _End) -> Verdict:
    """End the task of a locked run that did not succeed."""
    finished = _end(lease.task_id, end)
    if finished is None:
        raise LeaseLost("This lease is lost: superseded.", reason="superseded")
    return Verdict(
        task_id=finished.task_id,
        status=finished.status,
        will_retry=False,
        retry_at=None,
        receipt_id=finished.receipt_id,
    )


def _end(task_id: int, end: _End, *, lease: Lease | None = None, holder_id: int | None = None) -> Finished | None:
    """Write the end and post its receipt; None, and nothing written, if the lease is not the current one."""
    ended = _record_end(task_id, end, lease=lease, holder_id=holder_id)
    if ended is None:
        return None
    digests.post(poster=ended.poster, draft=ended.draft, now=ended.at)
    _hint(ended)
    return ended.finished


def _announce(ends: Collection[_Ended]) -> None:
    """Post the receipts of several ends of one tenant; inboxes are locked in the order of their ids."""
    if not ends:
        return
    for answer in digests.post_many(
        poster=next(iter(ends)).poster, drafts=[ended.draft for ended in ends], now=max(ended.at for ended in ends)
    ):
        if isinstance(answer, DomainError):
            raise answer  # an end without its receipt did not happen
    for ended in ends:
        _hint(ended)


def _hint(ended: _Ended) -> None:
    hint_on_commit(task_finished, tenant_id=ended.poster.tenant_id, task_id=ended.task_id)


def _record_end(task_id: int, end: _End, *, lease: Lease | None = None, holder_id: int | None = None) -> _Ended | None:
    """Write the end; None, and nothing written, if the lease is not the current one."""
    receipt_id = random_id("rcpt")
    finished = Finished(task_id=format_ref("task", task_id), status=end.status, receipt_id=receipt_id)
    answer = {"task_id": finished.task_id, "status": str(end.status), "receipt_id": receipt_id, "will_retry": False}
    delivery = end.delivery
    with hot_cursor() as cursor:
        cursor.execute(
            sql.END,
            {
                "task": task_id,
                "fence": None if lease is None else lease.fence,
                "holder": holder_id,
                "status": str(end.status),
                "outcome": str(end.outcome),
                "reason": None if end.reason is None else str(end.reason),
                "error": None if end.error is None else json.dumps(end.error),
                "summary": end.summary,
                "channel": delivery.channel,
                "pointer": delivery.pointer,
                "content": json.dumps(delivery.content) if delivery.inline else None,
                "checksum": delivery.checksum,
                "size": delivery.size,
                "media_type": delivery.media_type,
                "digest": end.digest,
                "answer": json.dumps(answer),
                "receipt": receipt_id,
                "gate": ASYNCGATE,
            },
        )
        row = cursor.fetchone()
    if row is None:
        return None
    tenant_id, fence, _, type_name, title, recipient_id, queued_receipt, group, gate_id, finished_at, summary = row
    event = _EVENTS[end.status]
    return _Ended(
        task_id=task_id,
        finished=finished,
        poster=Poster(tenant_id=tenant_id, principal_id=gate_id, name=ASYNCGATE),
        draft=ReceiptDraft(
            recipient_id=recipient_id,
            source_system=ASYNCGATE,
            event_type=f"task_{event}",
            dedupe_key=f"asyncgate:task_{event}:{finished.task_id}:run_{fence}",
            receipt_id=receipt_id,
            receipt_id_is_fresh=True,
            title=f"{title or type_name} {event}"[:200],
            summary=summary,
            metadata=_metadata(finished, end, type_name, fence, finished_at),
            artifact_pointer=delivery.pointer,
            caused_by=queued_receipt,
            pairs_with=queued_receipt,
            group=None if group is None else Group(**json.loads(group)),
        ),
        at=finished_at,
    )


def _metadata(finished: Finished, end: _End, type_name: str, fence: int, finished_at: datetime) -> dict[str, Any]:
    delivery = end.delivery
    return {
        "task_id": finished.task_id,
        "task_type": type_name,
        "status": _EVENTS[end.status],
        "result_channel": delivery.channel,
        "result_pointer": delivery.pointer,
        "created_at": finished_at.isoformat(),
        "run_id": fence,
        "checksum": delivery.checksum,
        "size": delivery.size,
        **({} if end.reason is None else {"reason": str(end.reason)}),
        **({} if end.error is None else {"error": end.error}),
    }


def _put_back(
    lease: Lease,
    *,
    outcome: Outcome,
    error: dict[str, Any] | None,
    digest: bytes,
    failures: int,
    delay: float,
) -> Verdict:
    """Return a locked run's task to its line."""
    status = Status.SCHEDULED if delay > 0 else Status.QUEUED
    answer = {
        "task_id": format_ref("task", lease.task_id),
        "status": str(status),
        "receipt_id": None,
        "will_retry": True,
    }
    with hot_cursor() as cursor:
        cursor.execute(
            sql.PUT_BACK,
            {
                "task": lease.task_id,
                "failures": failures,
                "delay": delay,
                "outcome": str(outcome),
                "error": None if error is None else json.dumps(error),
                "digest": digest,
                "answer": json.dumps(answer),
            },
        )
        kept, tenant_id, queue, type_name = cursor.fetchone()
    if status == Status.QUEUED:
        hint_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=type_name)
    return _verdict(json.loads(kept))


def _replayed(lease: Lease, digest: bytes) -> dict[str, Any]:
    """What this very call answered before.

    :raises AlreadyDecided: if another call ended the run.
    :raises LeaseLost: if no call of its holder did.
    """
    with hot_cursor() as cursor:
        cursor.execute(sql.WHEREABOUTS, {"tasks": [lease.task_id], "fences": [lease.fence]})
        _, asked, fence, holder, barred, ended, outcome, first_digest, answer = cursor.fetchone()
    if first_digest is not None:
        if bytes(first_digest) != digest:
            raise AlreadyDecided(f"This run has {outcome} by another call.", outcome=outcome)
        first: dict[str, Any] = json.loads(answer)
        return first
    reason = reason_lost(asked, fence=fence, holder=holder, barred=bool(barred), ended=ended) or "superseded"
    raise LeaseLost(f"This lease is lost: {reason}.", reason=reason)


def _finished(answer: dict[str, Any]) -> Finished:
    return Finished(task_id=answer["task_id"], status=Status(answer["status"]), receipt_id=answer["receipt_id"])


def _verdict(answer: dict[str, Any]) -> Verdict:
    retry_at = answer.get("retry_at")
    return Verdict(
        task_id=answer["task_id"],
        status=Status(answer["status"]),
        will_retry=answer["will_retry"],
        retry_at=None if retry_at is None else datetime.fromisoformat(retry_at),
        receipt_id=answer["receipt_id"],
    )
