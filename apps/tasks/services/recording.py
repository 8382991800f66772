"""Writing the ends of runs and tasks, each task's end with its receipt, in a few statements for any number."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from apps.core.errors import Conflict, DomainError
from apps.core.ids import format_ref, random_id
from apps.core.notifications import send_on_commit
from apps.core.sql import fetch
from apps.digests import services as digests
from apps.principals.selectors import principal_ids_named
from apps.principals.services import ASYNCGATE
from apps.tasks import sql
from apps.tasks.lease_tokens import Lease
from apps.tasks.services.leasing import Key, admit, hold_keys, look_at_all, reason_lost
from apps.tasks.shapes import Delivery
from apps.tasks.signals import dependency_finished, task_queued, tasks_finished
from apps.tasks.states import BUDGET_SPENT, CANCEL_REQUESTED, MOST_RUNS, Outcome, Reason, Status

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
    tenant_id: int
    concurrency_key: str | None
    late: bool
    """Whether its deadline has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a task is to end, and the digest of the call that ends it. With a fencing token, that run must be the
    current one; with a holder too, it must be its run.
    """

    task_id: int
    fencing_token: int | None = None
    holder_id: int | None = None
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
    """An end that is recorded with its receipt."""

    task_id: int
    tenant_id: int
    fencing_token: int
    answer: Answer
    queue: str
    task_type: str
    requires: Sequence[str]
    key: Key | None
    """The concurrency key that is free now."""
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
    return _holds(fetch(statement, {"tasks": list(task_ids)}, hot=True))


def lock_leases(holder_id: int, leases: Collection[Lease]) -> dict[int, Hold]:
    """The tasks of those of these leases that are current; they are locked by id, then their concurrency keys."""
    if not leases:
        return {}
    given = {"tasks": [lease.task_id for lease in leases], "fencing_tokens": [lease.fencing_token for lease in leases]}
    holds = _holds(fetch(sql.LOCK_LEASES, {**given, "holder": holder_id}, hot=True))
    hold_keys([(hold.tenant_id, hold.concurrency_key) for hold in holds.values() if hold.concurrency_key is not None])
    return holds


def _holds(rows: list[tuple[Any, ...]]) -> dict[int, Hold]:
    holds = [Hold(**dict(zip(Hold.__dataclass_fields__, row, strict=True))) for row in rows]
    return {hold.task_id: hold for hold in holds}


_ENDS: Final = digests.Making(
    parts=sql.END,
    source=ASYNCGATE,
    answer="""stored.nth, stored.tenant_id, stored.fencing_token, stored.status, stored.receipt_id, stored.queue,
        stored.task_type, stored.requires, stored.key, stored.makes_room, stored.is_waited_for""",
    is_shown=True,
)


@lru_cache(maxsize=5_000)
def gate_of(tenant_id: int) -> int:
    """The principal of this tenant, which it keeps, that posts what becomes of tasks."""
    return principal_ids_named({ASYNCGATE}, tenant_id=tenant_id)[ASYNCGATE]


def record(tenant_id: int, ends: Sequence[End]) -> list[Ended]:
    """Write ends of this tenant with their receipts, and announce them on commit; waiting tasks get the freed keys.

    Locks tasks, then keys, then inboxes, as everybody does. An end whose run is not the current one is left out.
    """
    if not ends:
        return []
    given = [_end_row(end) for end in sorted(ends, key=lambda end: end.task_id)]
    rows = digests.post_made(_ENDS, given, tenant_id=tenant_id, poster_id=gate_of(tenant_id))
    ended = sorted((_ended(row) for row in rows), key=lambda one: one.task_id)
    if not ended:
        return []
    admit([one.key for one in ended if one.key is not None])
    send_on_commit(tasks_finished, tenant_id=tenant_id, task_ids=[one.task_id for one in ended])
    for queue, task_type in sorted({(one.queue, one.task_type) for one in ended if one.makes_room}):
        send_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)
    if any(one.is_waited_for for one in ended):
        send_on_commit(dependency_finished, tenant_id=tenant_id)
    return ended


def _end_row(end: End) -> dict[str, Any]:
    delivery = end.delivery
    row = {
        "task_id": end.task_id,
        "fencing_token": end.fencing_token,
        "holder": end.holder_id,
        "status": end.status,
        "outcome": end.outcome,
        "reason": end.reason,
        "error": end.error,
        "summary": end.summary,
        "channel": delivery.channel,
        "pointer": delivery.pointer,
        "content": json.dumps(delivery.content) if delivery.inline else None,
        "checksum": delivery.checksum,
        "size": delivery.size,
        "media_type": delivery.media_type,
        "digest": None if end.digest is None else end.digest.hex(),
        "receipt": random_id("rcpt"),
    }
    return {name: value for name, value in row.items() if value is not None}


def _ended(row: tuple[Any, ...]) -> Ended:
    task_id, tenant_id, fencing_token, status, receipt_id, queue, task_type, requires, key, *rest = row
    makes_room, is_waited_for = rest
    return Ended(
        task_id=task_id,
        tenant_id=tenant_id,
        fencing_token=fencing_token,
        answer={
            "task_id": format_ref("task", task_id),
            "status": status,
            "receipt_id": receipt_id,
            "will_retry": False,
        },
        queue=queue,
        task_type=task_type,
        requires=requires,
        key=None if key is None else (tenant_id, key),
        makes_room=makes_room,
        is_waited_for=is_waited_for,
    )


def must_end(
    hold: Hold, *, outcome: Outcome, expiry: Mapping[str, Any] | None = None, digest: bytes | None = None
) -> End | None:
    """How a locked task ends that must not run again after this run; None if it may.

    :param expiry: given if the run counts as an expiry: the error if none is left.
    """
    error = expiry
    if hold.flags & CANCEL_REQUESTED:
        if outcome != Outcome.REVOKED:
            outcome = Outcome.CANCELED
        return End(task_id=hold.task_id, status=Status.CANCELED, outcome=outcome, reason=Reason.CANCELED, digest=digest)
    if hold.flags & BUDGET_SPENT:
        reason = Reason.BUDGET_EXHAUSTED
        error = {"code": "budget_exhausted", "message": "The budget of this task is spent."}
    elif (expiry is not None and hold.expiries + 1 >= hold.max_expiries) or hold.fencing_token >= MOST_RUNS:
        reason = Reason.ATTEMPTS_EXHAUSTED if expiry is None else Reason.EXPIRIES_EXHAUSTED
    else:
        return None
    return End(
        task_id=hold.task_id,
        status=Status.FAILED,
        outcome=outcome,
        reason=reason,
        error=error,
        summary=None if error is None else error["message"],
        digest=digest,
    )


def settle(tenant_id: int, ends: Sequence[End], backs: Sequence[Back] = ()) -> tuple[list[Ended], list[PutBack]]:
    """Write the ends and returns of this tenant's runs, as :func:`record` does."""
    back = put_back(backs)
    admit([one.key for one in back if one.key is not None])
    return record(tenant_id, ends), back


def put_back(backs: Sequence[Back]) -> list[PutBack]:
    """Return locked tasks to their queues."""
    if not backs:
        return []
    rows = fetch(sql.PUT_BACK, {"backs": json.dumps([_back_row(back) for back in backs])}, hot=True)
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
    given = {"tasks": [lease.task_id for lease in leases], "fencing_tokens": [lease.fencing_token for lease in leases]}
    rows = fetch(sql.WHEREABOUTS, given, hot=True)
    found = {Lease(task_id, fencing_token): rest for task_id, fencing_token, *rest in rows}
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
