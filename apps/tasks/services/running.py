"""From the lease of a task to its end: leases, heartbeats, budgets, results, and the writing of ends.

Of the tasks with one concurrency key, one at a time is ready or leased.
"""

import hashlib
import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from time import monotonic
from typing import Any, Final

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages
from django.db import transaction
from django.db.models import F

from apps.core import strict_json
from apps.core.errors import Conflict, DomainError, FieldError, Invalid, NotFound, TooLarge, Unavailable, only
from apps.core.ids import format_ref, random_id
from apps.core.notifications import notify, send_on_commit
from apps.core.sql import database_now, execute, fetch
from apps.digests import services as digests
from apps.principals.selectors import principal_ids_named
from apps.principals.services import ASYNCGATE
from apps.principals.tenancy import Caller, acting_in
from apps.tasks import lease_tokens, selectors, sql
from apps.tasks.lease_tokens import BadLeaseToken, Lease, task_of
from apps.tasks.models import Artifact, Budget, FinishedTask, LiveTask, Task, run_key
from apps.tasks.results import (
    ARTIFACT,
    INLINE,
    MAX_INLINE_BYTES,
    InvalidPointer,
    UnknownArtifact,
    artifact_digest,
    artifact_pointer,
    inline_bytes,
    scheme_of,
)
from apps.tasks.shapes import (
    BudgetInput,
    BudgetLeft,
    Completed,
    Completion,
    Delivery,
    FailTask,
    Finished,
    HeartbeatAnswer,
    HeldLease,
    LeasedTask,
    LeaseNext,
    ReleaseTask,
    SpendInput,
    TaskResult,
    UnsuccessfulRun,
)
from apps.tasks.signals import dependency_finished, task_queued, task_topic, tasks_finished
from apps.tasks.states import (
    BUDGET_SPENT,
    CANCEL_REQUESTED,
    CHECKPOINT_WANTED,
    DRAINING,
    MOST_RUNS,
    REVOKES_STUCK,
    Order,
    Outcome,
    Reason,
    Status,
    after_failure,
    order_of,
)

Key = tuple[int, str]
"""A tenant and its concurrency key."""


def hold_keys(keys: Collection[Key]) -> None:
    """Lock these keys until the transaction ends. Whoever changes which task of a key is ready holds the key."""
    if keys:
        execute(sql.HOLD_KEYS, _columns(keys), hot=True)


def busy_keys(keys: Collection[Key]) -> tuple[datetime, set[str]]:
    """After :func:`hold_keys`: the time, and those keys of the acting tenant that a ready or leased task has."""
    ((now, found),) = fetch(sql.BUSY_KEYS, {"keys": [key for _, key in keys]}, hot=True)
    return now, set(found)


def admit(keys: Collection[Key]) -> None:
    """Make the most urgent waiting task of each key ready, unless a task of the key is ready.

    Called by whatever frees a key or makes a task wait for its key alone, after tasks are locked and before
    inboxes are.
    """
    if not keys:
        return
    hold_keys(keys)
    for tenant_id, queue, task_type in fetch(sql.ADMIT, _columns(keys), hot=True):
        send_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)


def _columns(keys: Collection[Key]) -> dict[str, list[int] | list[str]]:
    return {"tenants": [tenant_id for tenant_id, _ in keys], "keys": [key for _, key in keys]}


def lease(
    *,
    worker: Caller,
    queues: Sequence[str] = (),
    task_types: Sequence[str] | None = None,
    capabilities: Sequence[str] = (),
    capacity: int = 1,
    lease_seconds: int | None = None,
    host: str = "",
    waits: bool = True,
) -> list[LeasedTask]:
    """Lease up to `capacity` of the most urgent tasks that this task worker can do, queue by queue in the order
    named.

    Two task workers never get the same task. Locked tasks are skipped. If no task is ready, expired
    leases and due tasks are reclaimed first. Limits of queues and types are never exceeded, and do not block
    other work. Claims at the same limit wait for each other.

    A lease lasts `lease_seconds`, or as long as its type says. The type's maximum, its `heartbeat_seconds` and
    the task's deadline shorten it. Each heartbeat renews it.

    :param host: where the task worker says it runs; operators see it beside the lease.
    :param waits: whether it may wait for rivals at limits and for those who hold concurrency keys. Who holds keys itself
        must not, and is given what is to be had without.
    :raises Invalid: if neither queues nor types are named.
    """
    if not queues and not task_types:
        raise Invalid("Name queues or task types.", errors=[FieldError("/queues", "is missing")])
    given = {
        "tenant": worker.tenant_id,
        "holder": worker.principal_id,
        "types": None if task_types is None else list(task_types),
        "capabilities": list(capabilities),
        "seconds": lease_seconds,
        "host": host,
    }
    # No savepoint: what is refused is refused above.
    with transaction.atomic(savepoint=False):
        rows = _claimed(list(dict.fromkeys(queues)), given, capacity, waits=waits)
    return [_grant(worker, row) for row in rows]


def _claimed(lines: list[str], given: Mapping[str, Any], capacity: int, *, waits: bool) -> list[tuple[Any, ...]]:
    kind = (given["tenant"], tuple(lines), tuple(given["types"] or ()), tuple(given["capabilities"]))
    floor = _floors.of(kind)
    rows, limited = _claim({**given, "queues": lines, "capacity": capacity, "floor": floor}, waits=waits)
    if not limited and not rows and floor != _BOTTOM:
        floor = _BOTTOM
        rows, _ = _claim({**given, "queues": lines, "capacity": capacity, "floor": floor}, waits=waits)
    if not limited:
        _floors.note(kind, rows, is_whole=floor == _BOTTOM)
    if not rows and waits and _reclaim(lines, given["types"]):
        rows, _ = _claim({**given, "queues": lines, "capacity": capacity, "floor": _BOTTOM}, waits=True)
    return rows


_moment: Final = monotonic
_BOTTOM: Final = "-infinity"
_KINDS: Final = 1_000


class _Floors:
    """Where this process's claims of each kind begin to look: at the oldest task that the last claim found.

    A task that returns to its queue may stand before that. So a claim that finds none looks at the whole
    queue. So do the first claim of each second, and the next one after this process has released something.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[datetime, float]] = {}

    def of(self, kind: tuple[Any, ...]) -> datetime | str:
        floor, until = self._known.get(kind, (_BOTTOM, 0.0))
        return floor if _moment() < until else _BOTTOM

    def note(self, kind: tuple[Any, ...], rows: Sequence[tuple[Any, ...]], *, is_whole: bool) -> None:
        if not rows:
            self._known.pop(kind, None)
            return
        if len(self._known) >= _KINDS:
            self._known.clear()
        until = _moment() + WHOLE_EVERY if is_whole else self._known.get(kind, (None, 0.0))[1]
        self._known[kind] = (min(row[-1] for row in rows), until)

    def forget(self) -> None:
        self._known.clear()


WHOLE_EVERY: Final = 1.0
"""Seconds after which a claim looks at a whole line again."""
_floors: Final = _Floors()


def granted(*, worker: Caller, kept: Sequence[Sequence[int]]) -> list[LeasedTask]:
    """Those of the leases granted to this task worker before that still stand, by task and fencing token.

    Each has the time that is left.
    """
    if not kept:
        return []
    tasks, numbers = (list(column) for column in zip(*kept, strict=True))
    rows = fetch(sql.GRANTED, {"tasks": tasks, "fencing_tokens": numbers}, hot=True)
    return [_grant(worker, (*row, None)) for row in rows]


def _claim(given: Mapping[str, Any], *, waits: bool) -> tuple[list[tuple[Any, ...]], bool]:
    """The granted leases, and whether limits were checked; with limits there is no floor."""
    rows = fetch(sql.CLAIM[bool(given["queues"])], given, hot=True)
    if not rows or rows[0][0] is not None:
        return rows, False
    held = fetch(sql.HOLD_LIMITS if waits else sql.TRY_LIMITS, given, hot=True)
    if not waits and held == [(False,)]:
        return [], True
    return fetch(sql.CLAIM_WITHIN_LIMITS, given, hot=True), True


def _reclaim(queues: list[str], task_types: list[str] | None) -> bool:
    """Reclaim expired leases and ready due tasks in these queues, or those of the types; says whether there were any."""
    ((freed, readied, tenants, keys, _),) = fetch(sql.RECLAIM, {"queues": queues, "types": task_types}, hot=True)
    admit(list(zip(tenants, keys, strict=True)))
    return bool(freed or readied)


def _grant(worker: Caller, row: tuple[Any, ...]) -> LeasedTask:
    task_id, fencing_token, task_type, params, lease_ms, checkpoint, _ = row
    return LeasedTask(
        task_id=format_ref("task", task_id),
        run_id=fencing_token,
        lease_token=lease_tokens.sign(
            tenant_id=worker.tenant_id, holder_id=worker.principal_id, task_id=task_id, fencing_token=fencing_token
        ),
        task_type=task_type,
        params=json.loads(params),
        checkpoint=None if checkpoint is None else json.loads(checkpoint),
        lease_ms=lease_ms,
    )


def reason_lost(
    asked: int, *, fencing_token: int | None, holder: int | None, barred: bool, ended: str | None
) -> str | None:
    """How the run `asked` for was lost, from the current rows; None if it is not lost."""
    if ended is not None:
        return "canceled" if ended == "canceled" else "completed"
    if fencing_token is None or fencing_token > asked:
        return "superseded"
    if holder is None:
        return "requeued"
    return "expired" if barred else None


# Writing the ends of runs and tasks, each task's end with its receipt, in a few statements for any number.

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
    # The next claims of this process look at whole queues, because a task has returned to one.
    _floors.forget()
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


# How runs and tasks end. The end of a task, its record and its receipt are one transaction.


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
    ended, _ = settle(completions[0][0].tenant_id, ends) if ends else ([], [])
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
    holds = lock(task_ids)
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
    settle(tenant_id, ends)
    return statuses | {end.task_id: Status.CANCELED for end in ends}


@transaction.atomic
def bury(*, tenant_id: int, task_ids: Collection[int]) -> int:
    """End those of this tenant's tasks that have passed their deadline, whoever holds them, and those whose lease has
    expired with no expiries left, or an order to stop.

    Says how many. Locked tasks are skipped.
    """
    holds = lock(task_ids, sql.LOCK_UNLESS_BUSY)
    ends = [end for hold in holds.values() if (end := _burial(hold)) is not None]
    settle(tenant_id, ends)
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
    return must_end(hold, outcome=Outcome.EXPIRED, expiry=error)


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
            kept_answers([(call.lease, call.digest) for _, call in repeated]),
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
    holds = lock_leases(worker.principal_id, list(firsts))
    leases = {Lease(hold.task_id, hold.fencing_token): hold for hold in holds.values()}
    decided = [decide(firsts[lease][1], hold) for lease, hold in leases.items()]
    ended, back = settle(
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
    return must_end(hold, outcome=Outcome.RELEASED, digest=digest) or Back(
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
    before = granted(worker=worker, kept=[grant for answer in answers for grant in answer.get("next", ())])
    room = wanted.capacity - len(before)
    if not ended or room <= 0:
        return before
    named = wanted.queues or wanted.task_types is not None
    grants = lease(
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


# What a task may use up, as its runs report it.
#
# A budget is exceeded by one heartbeat at most: what a run reports after the order to stop is not taken.


def check_budget(draft: BudgetInput | None) -> None:
    """:raises Invalid: if the budget limits nothing."""
    if draft is not None and draft.tokens is None and draft.cost_usd is None:
        raise Invalid("A budget limits tokens, or cost, or both.", errors=[FieldError("/budget", "limits nothing")])


def keep_budgets(tenant_id: int, made: Mapping[int, tuple[BudgetInput | None, datetime]]) -> None:
    """Note the budgets of tasks that are being queued, by their ids, each with its time."""
    rows = [
        Budget(
            tenant_id=tenant_id,
            task_id=task_id,
            max_tokens=draft.tokens,
            max_cost_usd=None if draft.cost_usd is None else round(Decimal(draft.cost_usd), 6),
            created_at=at,
        )
        for task_id, (draft, at) in made.items()
        if draft is not None
    ]
    if rows:
        Budget.objects.bulk_create(rows)


def spend(*, spending: Mapping[Lease, SpendInput], knowing: Collection[Lease]) -> set[Lease]:
    """Note what these runs have used in all, and take it from the budgets of their tasks, which are locked.

    Answers the runs that spend more although they know that the budget is spent. Nothing is noted of them.

    :param knowing: the leases whose holders know that their budget is spent.
    """
    if not spending:
        return set()
    leases = {run_key(lease.task_id, lease.fencing_token): lease for lease in spending}
    given = {
        "runs": list(leases),
        "knowing": [lease in knowing for lease in spending],
        "tokens": [used.tokens for used in spending.values()],
        "costs": [used.cost_usd for used in spending.values()],
    }
    return {leases[run] for (run,) in fetch(sql.SPEND, given, hot=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What is left for a task, and whether its budget is spent."""

    left: BudgetLeft
    is_spent: bool


def balances(task_ids: Collection[int]) -> dict[int, Balance]:
    """The balance of each of these tasks, whose rows are locked. A task whose budget is spent is marked.

    A marked task does not run again.
    """
    if not task_ids:
        return {}
    return {
        task_id: Balance(
            left=BudgetLeft(tokens=tokens, cost_usd=None if cost is None else float(cost)),
            is_spent=is_spent,
        )
        for task_id, tokens, cost, is_spent in fetch(sql.LEFT, {"tasks": list(task_ids)}, hot=True)
    }


# Heartbeats, and the orders in their answers.

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
    overspent = spend(
        spending={lease: used for lease, heartbeat in kept.items() if (used := heartbeat.used) is not None},
        knowing={lease for lease in kept if renewed[lease].flags & BUDGET_SPENT},
    )
    left = balances([lease.task_id for lease, one in renewed.items() if one.has_budget])
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
        _answer(heartbeat, lease, held, lost, None if lease is None else left.get(lease.task_id), stuck=lease in stuck)
        for heartbeat, lease in zip(heartbeats, proved, strict=True)
    ]


@transaction.atomic
def control(*, caller: Caller, task_id: int, order: Order) -> None:
    """Order the holder of a task to save a checkpoint, or to save it and release the task.

    :raises NotFound: `unknown_task` if the caller neither asked for it nor is to be told of it.
    :raises Conflict: `not_leased` if nobody holds it.
    """
    refuse_strangers(caller=caller, task_ids=[task_id])
    hold = lock([task_id]).get(task_id)
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
    holds = lock_leases(worker.principal_id, leases)
    decided = [_revocation(hold) for hold in holds.values()]
    settle(
        worker.tenant_id,
        [one for one in decided if isinstance(one, End)],
        [one for one in decided if isinstance(one, Back)],
    )


def _revocation(hold: Hold) -> End | Back:
    message = f"It made no progress, and its leases were lost {hold.expiries + 1} times."
    error = {"code": "stuck", "message": message}
    return must_end(hold, outcome=Outcome.REVOKED, expiry=error) or Back(
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


# Results on their way in and out: small ones are stored with the task, larger ones as artifacts.

_JSON: Final = "application/json"


class Nothing:
    """Stands for a result that was not given; null is a result."""


NOTHING: Final = Nothing()


def prepare(
    *,
    tenant_id: int,
    task_id: int,
    result: Any = NOTHING,
    pointer: str | None = None,
    channel: str | None = None,
    checksum: str | None = None,
) -> Delivery:
    """Make a result fit to be recorded. Call it before the transaction, because it may write a file.

    A result over 64 KiB as JSON becomes an artifact.

    :raises Invalid: if both a result and a pointer are given.
    :raises InvalidPointer: if the pointer has no scheme, is `inline:`, or names an artifact that is not there.
    :raises TooLarge: `artifact_too_large` if the result is over the deployment's limit.
    :raises Unavailable: `artifacts_unavailable` if the storage fails.
    """
    if pointer is not None:
        if result is not NOTHING:
            raise Invalid("Give a result or a result_pointer.", errors=[FieldError("/result", "excludes a pointer")])
        return _elsewhere(tenant_id, pointer, channel, checksum)
    if result is NOTHING:
        return Delivery(channel=channel, checksum=checksum)
    content = inline_bytes(result)
    if len(content) <= MAX_INLINE_BYTES:
        return Delivery(
            channel=channel or INLINE,
            pointer=f"{INLINE}:{format_ref('task', task_id)}",
            content=result,
            inline=True,
            checksum=f"sha256:{hashlib.sha256(content).hexdigest()}",
            size=len(content),
            media_type=_JSON,
        )
    stored = store_artifact(tenant_id=tenant_id, content=content, media_type=_JSON)
    return _elsewhere(tenant_id, stored, channel, None)


def store_artifact(*, tenant_id: int, content: bytes, media_type: str) -> str:
    """Store bytes under their SHA-256 and return the pointer; equal bytes are stored once for a tenant.

    The file is written before its row. Call it outside a transaction, because it waits for a disk.

    :raises TooLarge: `artifact_too_large` if they are over the deployment's limit.
    :raises Unavailable: `artifacts_unavailable` if the storage fails.
    """
    if len(content) > settings.ARTIFACT_MAX_BYTES:
        raise TooLarge(
            f"{len(content)} bytes; an artifact may have {settings.ARTIFACT_MAX_BYTES}.", code="artifact_too_large"
        )
    digest = hashlib.sha256(content).hexdigest()
    try:
        _write(storages["artifacts"], selectors.place_of(tenant_id, digest), content)
    except OSError as exc:
        raise Unavailable(
            "The storage of artifacts does not take this one just now.", code="artifacts_unavailable"
        ) from exc
    with acting_in(tenant_id, "storing an artifact"):
        stored = Artifact(
            tenant_id=tenant_id, digest=digest, media_type=media_type, size=len(content), created_at=database_now()
        )
        Artifact.objects.bulk_create([stored], ignore_conflicts=True)
    return artifact_pointer(digest)


def pointer_of(content: bytes) -> str:
    """The pointer that :func:`store_artifact` answers for a content."""
    return artifact_pointer(hashlib.sha256(content).hexdigest())


def _elsewhere(tenant_id: int, pointer: str, channel: str | None, checksum: str | None) -> Delivery:
    scheme = scheme_of(pointer)
    if scheme == INLINE:
        raise InvalidPointer(
            "An inline result is sent as `result`.", errors=[FieldError("/result_pointer", "is inline")]
        )
    if scheme != ARTIFACT:
        return Delivery(channel=channel or scheme, pointer=pointer, checksum=checksum)
    try:
        with acting_in(tenant_id, "looking up an artifact"):
            stored = selectors.artifact(tenant_id=tenant_id, digest=artifact_digest(pointer))
    except UnknownArtifact as exc:
        raise InvalidPointer(
            "There is no such artifact.", errors=[FieldError("/result_pointer", "names no artifact")]
        ) from exc
    return Delivery(
        channel=channel or scheme,
        pointer=pointer,
        checksum=f"sha256:{stored.digest}",
        size=stored.size,
        media_type=stored.media_type,
    )


def _write(storage: Storage, place: str, content: bytes) -> None:
    """Write the bytes to their place; a half-written file is replaced."""
    if storage.exists(place):
        if storage.size(place) == len(content):
            return
        storage.delete(place)
    written = storage.save(place, ContentFile(content))
    if written != place:
        # A rival has stored the same bytes at this moment.
        storage.delete(written)


@transaction.atomic
def fetch_result(*, caller: Caller, task_id: int) -> TaskResult:
    """A task's result without the content of an artifact; notes the time of the first call.

    :raises NotFound: `unknown_task` if the caller neither asked for it nor is to be told of it.
    :raises Conflict: `not_finished` if it is still open.
    """
    refuse_strangers(caller=caller, task_ids=[task_id])
    FinishedTask.objects.filter(task_id=task_id, fetched_at=None).update(fetched_at=database_now())
    return selectors.result(format_ref("task", task_id))
