"""Writing the ends of runs and tasks, each task's end with its receipt, in a few statements for any number."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from apps.core.errors import Conflict, DomainError
from apps.core.ids import format_ref, random_id
from apps.core.notifications import send_on_commit
from apps.core.sql import hot_cursor
from apps.digests import services as digests
from apps.principals.services import ASYNCGATE
from apps.receipts.services import Group, Poster, ReceiptDraft
from apps.tasks import sql
from apps.tasks.lease_tokens import Lease
from apps.tasks.services.leasing import Key, admit, look_at_all, reason_lost
from apps.tasks.shapes import Delivery
from apps.tasks.signals import dependency_finished, task_queued, tasks_finished
from apps.tasks.states import MOST_RUNS, Outcome, Reason, Status

_EVENTS: Final = {Status.SUCCEEDED: "complete", Status.FAILED: "failed", Status.CANCELED: "canceled"}

Answer = dict[str, Any]
"""What a call that ended a run was answered, as it is kept with the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The locked row of an open task."""

    task_id: int
    fencing_token: int
    holder_id: int | None
    flags: int
    failures: int
    max_attempts: int
    expiries: int
    max_expiries: int
    expired: bool | None
    backoff: float
    backoff_cap: float

    @property
    def is_used_up(self) -> bool:
        """Whether losing this lease ends the task: it has no expiries or no runs left."""
        return self.expiries + 1 >= self.max_expiries or self.fencing_token >= MOST_RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a task is to end, and the digest of the call that ends it. With a fencing token, that run must be the
    current one.
    """

    task_id: int
    fencing_token: int | None = None
    status: Status
    outcome: Outcome
    reason: Reason | None = None
    error: Mapping[str, Any] | None = None
    summary: str | None = None
    delivery: Delivery = field(default_factory=Delivery)
    digest: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """How a run is to end whose task, which is locked, returns to its queue."""

    task_id: int
    fencing_token: int
    outcome: Outcome
    error: Mapping[str, Any] | None = None
    digest: bytes | None = None
    failures: int = 0
    expiries: int = 0
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A recorded end; its receipt has to be posted in the same transaction."""

    task_id: int
    fencing_token: int
    answer: Answer
    queue: str
    task_type: str
    requires: Sequence[str]
    key: Key | None
    """The concurrency key that is free now."""
    poster: Poster
    draft: ReceiptDraft
    at: datetime
    makes_room: bool
    """Whether its queue or type is limited to so many at once: another may be leased in its place."""
    is_waited_for: bool
    """Whether other tasks depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """A task that has returned to its queue."""

    task_id: int
    answer: Answer
    key: Key | None


def lock(task_ids: Collection[int], statement: str = sql.LOCK) -> dict[int, Hold]:
    """The open ones of these tasks, locked by id."""
    with hot_cursor() as cursor:
        cursor.execute(statement, {"tasks": list(task_ids)})
        return _holds(cursor.fetchall())


def lock_leases(holder_id: int, leases: Collection[Lease]) -> dict[int, Hold]:
    """The tasks of those of these leases that are current."""
    if not leases:
        return {}
    given = {"tasks": [lease.task_id for lease in leases], "fencing_tokens": [lease.fencing_token for lease in leases]}
    with hot_cursor() as cursor:
        cursor.execute(sql.LOCK_LEASES, {**given, "holder": holder_id})
        return _holds(cursor.fetchall())


def _holds(rows: list[tuple[Any, ...]]) -> dict[int, Hold]:
    holds = [Hold(**dict(zip(Hold.__dataclass_fields__, row, strict=True))) for row in rows]
    return {hold.task_id: hold for hold in holds}


def record(ends: Sequence[End], *, holder_id: int | None = None) -> list[Ended]:
    """Write ends. An end whose run is not the current one is left out."""
    if not ends:
        return []
    by_task = {(end.task_id, end.fencing_token): (end, random_id("rcpt")) for end in ends}
    with hot_cursor() as cursor:
        cursor.execute(
            sql.END,
            {
                "ends": json.dumps([_end_row(end, receipt_id) for end, receipt_id in by_task.values()]),
                "tasks": [end.task_id for end in ends],
                "holder": holder_id,
                "gate": ASYNCGATE,
            },
        )
        rows = cursor.fetchall()
    return [_ended(by_task.get((row[0], row[2])) or by_task[row[0], None], row) for row in rows]


def _end_row(end: End, receipt_id: str) -> dict[str, Any]:
    delivery = end.delivery
    return {
        "task_id": end.task_id,
        "fencing_token": end.fencing_token,
        "status": end.status,
        "outcome": end.outcome,
        "reason": end.reason,
        "error": None if end.error is None else json.dumps(end.error),
        "summary": end.summary,
        "channel": delivery.channel,
        "pointer": delivery.pointer,
        "content": json.dumps(delivery.content) if delivery.inline else None,
        "checksum": delivery.checksum,
        "size": delivery.size,
        "media_type": delivery.media_type,
        "digest": None if end.digest is None else end.digest.hex(),
        "answer": json.dumps(_answer(end, receipt_id)),
        "receipt": receipt_id,
    }


def _answer(end: End, receipt_id: str) -> Answer:
    return {
        "task_id": format_ref("task", end.task_id),
        "status": str(end.status),
        "receipt_id": receipt_id,
        "will_retry": False,
    }


def _ended(known: tuple[End, str], row: tuple[Any, ...]) -> Ended:
    end, receipt_id = known
    (
        task_id,
        tenant_id,
        fencing_token,
        queue,
        task_type,
        title,
        requires,
        recipient_id,
        queued,
        group,
        gate_id,
        *rest,
    ) = row
    at, summary, key, makes_room, is_waited_for = rest
    answer, event = _answer(end, receipt_id), _EVENTS[end.status]
    return Ended(
        task_id=task_id,
        fencing_token=fencing_token,
        answer=answer,
        queue=queue,
        task_type=task_type,
        requires=requires,
        key=None if key is None else (tenant_id, key),
        poster=Poster(tenant_id=tenant_id, principal_id=gate_id, name=ASYNCGATE),
        draft=ReceiptDraft(
            recipient_id=recipient_id,
            source_system=ASYNCGATE,
            event_type=f"task_{event}",
            dedupe_key=f"asyncgate:task_{event}:{answer['task_id']}:run_{fencing_token}",
            receipt_id=receipt_id,
            is_fresh=True,
            title=f"{title or task_type} {event}"[:200],
            summary=summary,
            metadata=_metadata(end, answer["task_id"], task_type, fencing_token, at),
            artifact_pointer=end.delivery.pointer,
            caused_by=queued,
            pairs_with=queued,
            group=None if group is None else Group(**json.loads(group)),
        ),
        at=at,
        makes_room=makes_room,
        is_waited_for=is_waited_for,
    )


def _metadata(end: End, task_id: str, task_type: str, fencing_token: int, at: datetime) -> dict[str, Any]:
    delivery = end.delivery
    return {
        "task_id": task_id,
        "task_type": task_type,
        "status": _EVENTS[end.status],
        "result_channel": delivery.channel,
        "result_pointer": delivery.pointer,
        "created_at": at.isoformat(),
        "run_id": fencing_token,
        "checksum": delivery.checksum,
        "size": delivery.size,
        **({} if end.reason is None else {"reason": str(end.reason)}),
        **({} if end.error is None else {"error": end.error}),
    }


def announce(ends: Collection[Ended]) -> None:
    """Post the receipts of the ends of one tenant. Inboxes are locked by id."""
    if not ends:
        return
    poster = next(iter(ends)).poster
    for answer in digests.post_many(
        poster=poster, drafts=[ended.draft for ended in ends], now=max(ended.at for ended in ends)
    ):
        if isinstance(answer, DomainError):
            raise answer  # an end without its receipt did not happen
    send_on_commit(tasks_finished, tenant_id=poster.tenant_id, task_ids=[ended.task_id for ended in ends])
    for queue, task_type in sorted({(ended.queue, ended.task_type) for ended in ends if ended.makes_room}):
        send_on_commit(task_queued, tenant_id=poster.tenant_id, queue=queue, task_type=task_type)
    if any(ended.is_waited_for for ended in ends):
        send_on_commit(dependency_finished, tenant_id=poster.tenant_id)


def settle(
    ends: Sequence[End], backs: Sequence[Back] = (), *, holder_id: int | None = None
) -> tuple[list[Ended], list[PutBack]]:
    """Write the ends and returns of one tenant's runs, admit waiting tasks to freed keys, and post the receipts.

    Locks tasks, then keys, then inboxes, as everybody does.
    """
    ended, back = record(ends, holder_id=holder_id), put_back(backs)
    done: list[Ended | PutBack] = [*ended, *back]
    admit([one.key for one in done if one.key is not None])
    announce(ended)
    return ended, back


def put_back(backs: Sequence[Back]) -> list[PutBack]:
    """Return locked tasks to their queues."""
    if not backs:
        return []
    with hot_cursor() as cursor:
        cursor.execute(sql.PUT_BACK, {"backs": json.dumps([_back_row(back) for back in backs])})
        rows = cursor.fetchall()
    look_at_all()
    put = [
        PutBack(task_id=task_id, answer=json.loads(answer), key=None if key is None else (tenant_id, key))
        for task_id, answer, tenant_id, _, _, key in rows
    ]
    ready = {
        (tenant_id, queue, task_type)
        for back, (_, _, tenant_id, queue, task_type, _) in zip(put, rows, strict=True)
        if back.answer["status"] == Status.QUEUED
    }
    for tenant_id, queue, task_type in sorted(ready):
        send_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)
    return put


def _back_row(back: Back) -> dict[str, Any]:
    answer = {
        "task_id": format_ref("task", back.task_id),
        "status": str(Status.SCHEDULED if back.delay > 0 else Status.QUEUED),
        "receipt_id": None,
        "will_retry": True,
    }
    return {
        "task_id": back.task_id,
        "fencing_token": back.fencing_token,
        "failures": back.failures,
        "expiries": back.expiries,
        "delay": back.delay,
        "outcome": back.outcome,
        "error": None if back.error is None else json.dumps(back.error),
        "digest": None if back.digest is None else back.digest.hex(),
        "answer": json.dumps(answer),
    }


def kept_answers(calls: Sequence[tuple[Lease, bytes]]) -> list[Answer | DomainError]:
    """The kept answers of these calls, by lease and digest.

    `already_decided` where another call ended the run, `lease_lost` where no call of its holder did.
    """
    if not calls:
        return []
    leases = list(dict.fromkeys(lease for lease, _ in calls))
    with hot_cursor() as cursor:
        cursor.execute(
            sql.WHEREABOUTS,
            {"tasks": [lease.task_id for lease in leases], "fencing_tokens": [lease.fencing_token for lease in leases]},
        )
        found = {Lease(task_id, fencing_token): rest for task_id, fencing_token, *rest in cursor.fetchall()}
    return [_kept_answer(lease, digest, found[lease]) for lease, digest in calls]


def _kept_answer(lease: Lease, digest: bytes, found: Sequence[Any]) -> Answer | DomainError:
    fencing_token, holder, barred, ended, outcome, first_digest, answer = found
    if first_digest is not None:
        if bytes(first_digest) != digest:
            return Conflict(f"This run has {outcome} by another call.", outcome=outcome, code="already_decided")
        first: Answer = json.loads(answer)
        return first
    reason = (
        reason_lost(lease.fencing_token, fencing_token=fencing_token, holder=holder, barred=bool(barred), ended=ended)
        or "superseded"
    )
    return Conflict(f"This lease is lost: {reason}.", reason=reason, code="lease_lost")
