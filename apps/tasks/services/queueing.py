"""Queueing tasks: task types and their schemas, queues, dependencies and schedules."""

import difflib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db import DatabaseError, transaction

from apps.core import foreign_schemas, strict_json
from apps.core.errors import (
    Conflict,
    DomainError,
    FieldError,
    Forbidden,
    Invalid,
    NotFound,
    TooLarge,
    Unavailable,
    only,
)
from apps.core.ids import format_ref, random_id
from apps.core.notifications import send_on_commit
from apps.core.sql import database_now, execute, fetch
from apps.digests import services as digests
from apps.principals.models import Principal
from apps.principals.selectors import principal_ids_named
from apps.principals.services import ASYNCGATE
from apps.principals.tenancy import Caller, acting_as_system, acting_in, on_behalf_of
from apps.receipts import services as receipts
from apps.receipts.services import Poster
from apps.tasks import handlers, selectors, sql, timetables
from apps.tasks.lease_tokens import task_of
from apps.tasks.models import (
    RETRY_PREFIX,
    Dependency,
    FinishedTask,
    IdempotencyKey,
    Queue,
    RateWindow,
    Schedule,
    Task,
    TaskType,
)
from apps.tasks.services import running
from apps.tasks.services.running import End, admit
from apps.tasks.shapes import QueuedTask, QueueTask, Rate, RegisterTaskType, ScheduleTask, rate_columns
from apps.tasks.signals import task_queued
from apps.tasks.states import IfDependencyFails, Outcome, Reason, Status
from apps.tasks.timetables import Timetable

MAX_PARAMS_BYTES: Final = 262_144
# So many registered types are compared with an unknown name, and so many are listed.
_MOST_NEAR: Final = 1_000
_MOST_NAMED: Final = 10
# By column the member of a request.
_LIMITS: Final = {"concurrency": "concurrency", "rate": "rate", "rate_seconds": "rate", "enabled": "enabled"}


def check_schema(schema: Mapping[str, Any]) -> None:
    """:raises Invalid: `invalid_schema` if the document can't be used as a schema."""
    if (fault := foreign_schemas.fault_of_schema(schema)) is not None:
        raise Invalid(
            f"This is no usable JSON Schema: {fault}",
            errors=[FieldError("/params_schema", fault)],
            code="invalid_schema",
        )


def check_params(params: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Refuse parameters that do not fit.

    :raises Invalid: `invalid_params` with a pointer to each fault.
    :raises TooLarge: `params_too_large` if they are over 256 KiB as JSON.
    """
    size = len(json.dumps(params, ensure_ascii=False).encode())
    if size > MAX_PARAMS_BYTES:
        raise TooLarge(f"The params are {size} bytes, {MAX_PARAMS_BYTES} are allowed.", code="params_too_large")
    if errors := foreign_schemas.faults(params, schema, under="params"):
        raise Invalid(
            "; ".join(f"{error.pointer}: {error.message}" for error in errors[:5]), errors=errors, code="invalid_params"
        )


@transaction.atomic
def register_type(
    *, tenant_id: int, given: RegisterTaskType, now: datetime, may_limit: bool = True
) -> tuple[TaskType, bool]:
    """Add a type to a tenant, or change it; says whether it is new. Its queue is made if needed.

    Open tasks keep the attempts and expiries that they were queued with, and a type that is there the limits that are
    left out.

    :param may_limit: whether the limits of a type that is there may change.
    :raises Forbidden: `missing_scope` if they may not and would.
    :raises Invalid: `invalid_schema` if the schema can't be used.
    :raises Conflict: `task_type_in_code` if a handler of the product owns the name.
    """
    check_schema(given.params_schema)
    if handlers.declaration(given.name) is not None:
        raise Conflict(
            f"The task type {given.name!r} belongs to a handler of this deployment.", code="task_type_in_code"
        )
    found = TaskType.objects.select_for_update(no_key=True).filter(name=given.name).first()
    held = {name: getattr(found, name) for name in _LIMITS} if found else {}
    left_out = {name: kept for name, kept in held.items() if _LIMITS[name] not in given.model_fields_set}
    if not may_limit and held != {name: given.columns[name] for name in held} | left_out:
        detail = f"The limits of {given.name!r}, and whether it is enabled, change with the scope tasks:manage alone."
        raise Forbidden(detail, code="missing_scope")
    task_type, is_new = _stored(tenant_id, given, now, **left_out)
    if not is_new and task_type.rate is None:
        RateWindow.objects.filter(queue=None, task_type=task_type).delete()
    return task_type, is_new


def _stored(tenant_id: int, given: RegisterTaskType, now: datetime, **more: Any) -> tuple[TaskType, bool]:
    values = {**given.columns, "queue": _queue_row(tenant_id, given.queue, now), "changed_at": now, **more}
    return TaskType.objects.update_or_create(
        tenant_id=tenant_id, name=given.name, defaults=values, create_defaults={**values, "created_at": now}
    )


def types_for(*, tenant_id: int, names: Collection[str]) -> dict[str, TaskType | NotFound]:
    """The tenant's types of these names, or the refusal of an unknown one.

    The type of a handler is made at its first use and follows its declaration.
    """
    known = selectors.types_named(tenant_id=tenant_id, names=names)
    found = {name: _followed(tenant_id, name, known.get(name)) for name in names}
    return {name: task_type or _unknown(tenant_id, name) for name, task_type in found.items()}


def type_for(*, tenant_id: int, name: str) -> TaskType:
    """As :func:`types_for`, one.

    :raises NotFound: `unknown_task_type` if there is none.
    """
    return only([types_for(tenant_id=tenant_id, names=[name])[name]])


def _unknown(tenant_id: int, name: str) -> NotFound:
    """The refusal of an unknown type, with the near name or some known ones."""
    registered = TaskType.objects.filter(tenant_id=tenant_id).order_by("name").values_list("name", flat=True)
    known = [*registered[:_MOST_NEAR], *handlers.names()]
    if near := difflib.get_close_matches(name[:100], known, n=1):
        hint = f"Did you mean {near[0]!r}?"
    elif known:
        hint = f"Known types: {', '.join(sorted(set(known))[:_MOST_NAMED])}."
    else:
        hint = "No type is registered yet."
    return NotFound(f"Unknown task type {name[:100]!r}. {hint}", code="unknown_task_type")


def _followed(tenant_id: int, name: str, found: TaskType | None) -> TaskType | None:
    declared = handlers.declaration(name)
    if declared is None or (found is not None and _follows(found, declared)):
        return found
    made, _ = _stored(tenant_id, declared, database_now(), in_code=True)
    return made


def _follows(found: TaskType, declared: RegisterTaskType) -> bool:
    columns = {**declared.columns, "in_code": True}
    return found.queue.name == declared.queue and all(getattr(found, name) == value for name, value in columns.items())


def queue_named(*, tenant_id: int, name: str) -> Queue:
    """:raises NotFound: `unknown_queue` if the tenant has no queue of this name."""
    found = Queue.objects.filter(tenant_id=tenant_id, name=name).first()
    if found is None:
        raise NotFound(f"There is no queue {name[:50]!r}.", code="unknown_queue")
    return found


FAIR_SHARES_BATCH: Final = 1_000


@transaction.atomic
def set_queue(
    *,
    tenant_id: int,
    name: str,
    concurrency: int | None = None,
    rate: Rate | None = None,
    fair: bool = False,
) -> Queue:
    """Replace the limits of a queue; None is no limit. Leases that are held go on.

    :raises NotFound: `unknown_queue` if there is none: a queue comes with its first type.
    """
    line = queue_named(tenant_id=tenant_id, name=name)
    Queue.objects.filter(pk=line.pk).update(concurrency=concurrency, fair=fair, **rate_columns(rate))
    if fair:
        _settle_fair_shares()
    if rate is None:
        RateWindow.objects.filter(queue=line, task_type=None).delete()
    _announce(tenant_id=tenant_id, queue=line.pk)
    return queue_named(tenant_id=tenant_id, name=name)


def settle_fair_shares() -> int:
    """Note the requesters of tasks in queues that have become fair; says of how many. Opens its own
    transaction.
    """
    with acting_as_system("settling fair shares"):
        return _settle_fair_shares()


def _settle_fair_shares() -> int:
    settled: int = execute(sql.SETTLE_FAIR_SHARES, {"limit": FAIR_SHARES_BATCH}, hot=True)
    return settled


@transaction.atomic
def pause(pausable: Queue | TaskType, *, drain: bool = False) -> None:
    """Grant no leases from this queue, or of this type, until it is resumed. Leases that are held go on, or are ordered
    back to drain a queue.
    """
    type(pausable).objects.filter(pk=pausable.pk, paused_at=None).update(paused_at=database_now())
    pausable.refresh_from_db(fields=["paused_at"])
    if drain:
        execute(sql.DRAIN_QUEUE, {"queue": pausable.pk}, hot=True)


@transaction.atomic
def resume(pausable: Queue | TaskType) -> None:
    """Grant leases from this queue, or of this type, again."""
    pausable.paused_at = None
    pausable.save(update_fields=["paused_at"])
    if isinstance(pausable, Queue):
        _announce(tenant_id=pausable.tenant_id, queue=pausable.pk)
    else:
        _announce(tenant_id=pausable.tenant_id, task_type=pausable.pk)


def _announce(*, tenant_id: int, queue: int | None = None, task_type: int | None = None) -> None:
    """Notify waiting task workers of work that a claim finds now."""
    for queue_name, type_name in fetch(sql.AVAILABLE_AGAIN, {"queue": queue, "task_type": task_type}, hot=True):
        send_on_commit(task_queued, tenant_id=tenant_id, queue=queue_name, task_type=type_name)


def _queue_row(tenant_id: int, name: str, now: datetime) -> Queue:
    return Queue.objects.get_or_create(tenant_id=tenant_id, name=name, defaults={"created_at": now})[0]


# Tasks that wait for others: ready when all have succeeded, ended when one has not.
#
# The dependencies are written when the task is queued. A message on commit releases dependants quickly, a tick
# finds those whose message was lost.

logger = logging.getLogger(__name__)

# So many dependants are released, or ended, in one transaction; a chain of ends takes one for each of its links.
DEPENDANTS_BATCH: Final = 100
_WHY: Final = "releasing dependants"
# How long an end waits for its recipient's inbox: the next sweep comes soon.
_PATIENCE: Final = "500ms"


def open_among(*, requester: Caller, task_ids: Collection[int]) -> dict[int, bool]:
    """Which of these tasks have not succeeded yet; tasks that the requester may not see are left out.

    A task that ends before the caller commits is found by the tick.
    """
    if not task_ids:
        return {}
    parties = Task.objects.filter(pk__in=task_ids).values_list("pk", "requester_id", "recipient_id")
    visible = {pk for pk, *own in parties if requester.principal_id in own}
    done = FinishedTask.objects.filter(task_id__in=visible, status=Status.SUCCEEDED)
    succeeded = set(done.values_list("task_id", flat=True))
    return {pk: pk not in succeeded for pk in visible}


def to_wait_for(task_ids: Sequence[int], known: Mapping[int, bool]) -> tuple[int, ...]:
    """The tasks that a new task has to wait for. It can name only existing tasks, so there are no cycles.

    :raises NotFound: `unknown_task` if there is no such task, or its requester may not see it.
    """
    for task_id in task_ids:
        if task_id not in known:
            raise NotFound(f"There is no task {format_ref('task', task_id)}.", code="unknown_task")
    return tuple(sorted({task_id for task_id in task_ids if known[task_id]}))


def keep(tenant_id: int, waiting: Mapping[int, tuple[Sequence[int], IfDependencyFails]]) -> None:
    """Note the dependencies of tasks that are being queued, and what happens if one fails."""
    rows = [
        Dependency(tenant_id=tenant_id, task_id=task_id, on_task_id=on_task_id, if_it_fails=policy)
        for task_id, (on_task_ids, policy) in waiting.items()
        for on_task_id in on_task_ids
    ]
    if rows:
        Dependency.objects.bulk_create(rows)


def release_dependants() -> int:
    """Release or end the dependants of tasks that have ended, in all tenants; says how many.

    Opens its own transactions. Safe to repeat and to overlap. A locked task is left to the next tick.
    """
    with acting_as_system("looking for dependants"):
        tenants = [tenant_id for (tenant_id,) in fetch(sql.WAITED_ENOUGH, {"limit": DEPENDANTS_BATCH}, hot=True)]
    return sum(release_dependants_in(tenant_id=tenant_id) for tenant_id in tenants)


def release_dependants_in(*, tenant_id: int) -> int:
    """As :func:`release_dependants`, in one tenant."""
    with acting_in(tenant_id, _WHY):
        lost = [task_id for task_id, *_ in fetch(sql.LOST, {"task": None, "limit": DEPENDANTS_BATCH}, hot=True)]
    ended = _tried(partial(_end, tenant_id, None), tenant_id)
    if lost and ended is None:
        # One that can't be ended just now, or its recipient's busy inbox, keeps none of the others back.
        ended = sum(_tried(partial(_end, tenant_id, task_id), tenant_id) or 0 for task_id in lost)
    return (ended or 0) + (_tried(partial(_release, tenant_id), tenant_id) or 0)


def _tried(settle: Callable[[], int], tenant_id: int) -> int | None:
    """Run this in its own transaction with a short lock timeout; None if it failed."""
    try:
        with acting_in(tenant_id, _WHY):
            execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
            return settle()
    except DatabaseError as exc:
        logger.warning("dependants in tenant %s are left to the next sweep: %s", tenant_id, exc)
        return None


def _release(tenant_id: int) -> int:
    """Remove succeeded dependencies from the tasks that wait for them."""
    released = fetch(sql.RELEASE, {"limit": DEPENDANTS_BATCH}, hot=True)
    admit([(tenant_id, key) for *_, key, waits_for_key in released if waits_for_key])
    for queue, task_type in sorted({(queue, task_type) for queue, task_type, is_ready, *_ in released if is_ready}):
        send_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)
    return len(released)


def _end(tenant_id: int, only_task_id: int | None) -> int:
    """End the tasks whose dependency has failed or was canceled, or one of them."""
    lost = {
        task_id: rest for task_id, *rest in fetch(sql.LOST, {"task": only_task_id, "limit": DEPENDANTS_BATCH}, hot=True)
    }
    ended = running.record(tenant_id, [_loss(task_id, *rest) for task_id, rest in lost.items()])
    Dependency.objects.filter(task_id__in=[one.task_id for one in ended]).delete()
    return len(ended)


def _loss(task_id: int, on_task_id: int, on_status: str, if_it_fails: str) -> End:
    canceled = if_it_fails == IfDependencyFails.CANCEL
    message = f"{format_ref('task', on_task_id)}, which it depends on, has {_ENDS[Status(on_status)]}."
    error: dict[str, Any] = {"code": "dependency_failed", "message": message}
    return End(
        task_id=task_id,
        status=Status.CANCELED if canceled else Status.FAILED,
        outcome=Outcome.CANCELED if canceled else Outcome.FAILED,
        reason=Reason.DEPENDENCY_FAILED,
        error={**error, "details": {"task_id": format_ref("task", on_task_id)}},
        summary=message,
    )


_ENDS: Final = {Status.FAILED: "failed", Status.CANCELED: "been canceled"}


# Queueing tasks.


def queue(*, requester: Caller, request: QueueTask) -> QueuedTask:
    """Queue a task, with the ledger receipt that obliges AsyncGate to end it.

    The same idempotency key with the same request answers the first task again and changes nothing.

    :raises NotFound: `unknown_task_type` if the tenant has no such type.
    :raises Conflict: `task_type_disabled` if the type takes no tasks.
    :raises Invalid: `invalid_params` if the params do not fit the type's schema.
    :raises NotFound: `unknown_queue` if a queue is named that the tenant does not have.
    :raises NotFound: `unknown_recipient` if the tenant has no such principal.
    :raises NotFound: `unknown_task` if it depends on a task that does not exist, or not for its requester.
    :raises Conflict: `idempotency_conflict` if the key stands for another request.
    :raises Invalid: if the key is reserved for retries, or the budget limits nothing.
    :raises Malformed: if what it depends on is no reference to a task.
    """
    return only(queue_many(requester=requester, requests=[request]))


def queue_many(
    *, requester: Caller, requests: Sequence[QueueTask], retried: Sequence[int] = ()
) -> list[QueuedTask | DomainError]:
    """Queue many tasks as :func:`queue` does. A refused request changes nothing and does not affect the others.

    :param retried: the dead letters of which they are the retries, in the same order.
    """
    return queue_for([(requester, request) for request in requests], retried=retried)


# No savepoint: a refusal is an answer, and changes nothing.
@transaction.atomic(savepoint=False)
def queue_for(
    calls: Sequence[tuple[Caller, QueueTask]], *, retried: Sequence[int] = ()
) -> list[QueuedTask | DomainError]:
    """As :func:`queue_many`, for several requesters of one tenant. Only one of them may name dependencies."""
    if not calls:
        return []
    batch = _Batch(calls, retried)
    known: list[QueuedTask | Conflict | None] = [None] * len(calls)
    if any(request.concurrency_key for _, request in calls):  # which a repetition must not claim
        known = batch.answered()
    taken: dict[int, QueuedTask | DomainError] = {}
    # First by what this process saw last: a key that was used keeps its task out. What that does not serve is answered as
    # before, or judged by what is there now; then there are left repetitions within the batch, and keys that a rival has
    # committed since we looked.
    for as_seen in (True, False):
        left = [nth for nth, answer in enumerate(known) if answer is None and nth not in taken]
        taken |= batch.take_in(left, as_seen=as_seen)
        if any(nth not in taken for nth in left):
            known = batch.answered()
    gone = Unavailable("This idempotency key is being forgotten just now; ask again.")
    return [taken.get(nth) or answer or gone for nth, answer in enumerate(known)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A checked request."""

    task_type: TaskType
    line: Queue
    recipient_id: int | None  # None where the statement is to find it by its name
    priority: int
    params: dict[str, Any]
    receipt_id: str
    waits_for: tuple[int, ...] = ()
    """Tasks that it depends on and that have yet to succeed."""


_MOST_SEEN: Final = 5_000
_seen: Final[dict[int, dict[str, TaskType]]] = {}
"""By tenant: types as this process saw them last. The statement that uses them checks whether they are still so."""


class _Batch:
    """Requests of one transaction, and what they refer to."""

    def __init__(self, calls: Sequence[tuple[Caller, QueueTask]], retried: Sequence[int]) -> None:
        self._requesters = [requester for requester, _ in calls]
        self._requests = requests = [request for _, request in calls]
        self._retry_of: Sequence[int | None] = retried or [None] * len(calls)
        self._depends_on = [[task_of(ref) for ref in request.depends_on] for request in requests]
        self._tenant_id = calls[0][0].tenant_id
        # Only a key is ever compared by it.
        self._digests = [b"" if request.idempotency_key is None else _digest(request) for request in requests]

    def answered(self) -> list[QueuedTask | Conflict | None]:
        """The kept answers of requests whose idempotency key was used before."""
        keys: dict[int, set[str]] = {}
        for requester, request in zip(self._requesters, self._requests, strict=True):
            if request.idempotency_key is not None:
                keys.setdefault(requester.principal_id, set()).add(request.idempotency_key)
        firsts = {
            (principal_id, first.key): first
            for principal_id, wanted in keys.items()
            for first in IdempotencyKey.objects.filter(
                tenant_id=self._tenant_id, principal_id=principal_id, key__in=wanted
            )
        }
        return [
            _answered(first, digest) if (first := firsts.get(self._used_key(nth))) else None
            for nth, digest in enumerate(self._digests)
        ]

    def _used_key(self, nth: int) -> tuple[int, str]:
        """The requester and its idempotency key, which is empty for a request without one."""
        return self._requesters[nth].principal_id, self._requests[nth].idempotency_key or ""

    def take_in(self, places: Sequence[int], *, as_seen: bool) -> dict[int, QueuedTask | DomainError]:
        """Make tasks of the requests at these places, in their order.

        A request is left out if its key stands on an earlier one of the batch, or was taken by a rival meanwhile.

        :param as_seen: by what this process saw last, where that is still so; the other requests are left out.
        """
        if not places:
            return {}
        asked = {nth: handlers.unalias(one.task_type, one.params) for nth in places for one in [self._requests[nth]]}
        types, recipients = self._look({name for name, _ in asked.values()}, places, as_seen=as_seen)
        lines = {} if as_seen else self._lines(places)
        known = open_among(
            requester=self._requesters[places[0]],
            task_ids={task_id for nth in places for task_id in self._depends_on[nth]},
        )
        drafts: dict[int, _Draft] = {}
        answers: dict[int, QueuedTask | DomainError] = {}
        keys: set[tuple[int, str]] = set()
        for nth, (name, params) in asked.items():
            request = self._requests[nth]
            if self._used_key(nth) in keys or name not in types:
                continue
            try:
                waits_for = to_wait_for(self._depends_on[nth], known)
                drafts[nth] = replace(
                    self._draft(nth, only([types[name]]), params, lines, recipients),
                    waits_for=waits_for,
                )
            except DomainError as refusal:
                answers[nth] = refusal
            else:
                keys |= {self._used_key(nth)} if request.idempotency_key is not None else set()
        # What is refused is refused by what is so now.
        return {**({} if as_seen else answers), **self._write(drafts, as_seen=as_seen)}

    def _look(
        self, names: set[str], places: Iterable[int], *, as_seen: bool
    ) -> tuple[Mapping[str, TaskType | NotFound], Mapping[str, int] | None]:
        """The types of these names, and who is named; None where the statement is to find them."""
        tenant_id = self._tenant_id
        if as_seen:
            return _seen.get(tenant_id, {}), None
        types = types_for(tenant_id=tenant_id, names=names)
        recipients = {name for nth in places if (name := self._requests[nth].recipient_ai) is not None}
        seen = _seen.setdefault(tenant_id, {})
        seen |= {name: one for name, one in types.items() if isinstance(one, TaskType)}
        if len(_seen) + len(seen) > _MOST_SEEN:
            _seen.clear()
        return types, principal_ids_named(recipients, tenant_id=tenant_id) if recipients else {}

    def _lines(self, places: Iterable[int]) -> dict[str, Queue]:
        names = {self._requests[nth].queue for nth in places} - {None}
        if not names:
            return {}
        return {line.name: line for line in Queue.objects.filter(tenant_id=self._tenant_id, name__in=names)}

    def _draft(
        self,
        nth: int,
        task_type: TaskType,
        params: dict[str, Any],
        lines: Mapping[str, Queue],
        recipients: Mapping[str, int] | None,
    ) -> _Draft:
        request = self._requests[nth]
        if self._retry_of[nth] is None and (request.idempotency_key or "").startswith(RETRY_PREFIX):
            raise Invalid(
                f"Keys that begin with {RETRY_PREFIX} are those of dead letters that are queued again.",
                errors=[FieldError("/idempotency_key", f"begins with {RETRY_PREFIX}")],
            )
        if not task_type.enabled:
            raise Conflict(f"The task type {task_type.name!r} takes no new tasks just now.", code="task_type_disabled")
        check_params(params, task_type.params_schema)
        running.check_budget(request.budget)
        line = task_type.queue if request.queue is None else lines.get(request.queue)
        if line is None:
            raise NotFound(f"There is no queue {(request.queue or '')[:50]!r}.", code="unknown_queue")
        recipient_id: int | None = self._requesters[nth].principal_id
        if request.recipient_ai is not None:
            recipient_id = None if recipients is None else recipients.get(request.recipient_ai)
            if recipient_id is None and recipients is not None:
                raise NotFound(
                    f"There is no principal {request.recipient_ai!r} to report to.", code="unknown_recipient"
                )
        return _Draft(
            task_type=task_type,
            line=line,
            recipient_id=recipient_id,
            priority=request.priority or task_type.priority,
            params=params,
            receipt_id=random_id("rcpt"),
        )

    def _write(self, drafts: Mapping[int, _Draft], *, as_seen: bool) -> dict[int, QueuedTask | DomainError]:
        if not drafts:
            return {}
        waiting = self._waiting(drafts)
        gate = Poster(tenant_id=self._tenant_id, principal_id=running.gate_of(self._tenant_id), name=ASYNCGATE)
        causes = receipts.refer_to(
            gate, {one for nth in drafts if (one := self._requests[nth].caused_by_receipt_id) is not None}
        )
        rows = [
            {**self._row(nth, draft, causes, as_seen=as_seen), **waiting.get(nth, {})} for nth, draft in drafts.items()
        ]
        answers = digests.post_made(_TASKS, rows, tenant_id=self._tenant_id, poster_id=gate.principal_id)
        made = [(nth, task_id, at, Status(status)) for nth, task_id, at, status in sorted(answers)]
        left_out = drafts.keys() - {nth for nth, *_ in made}
        # What a rival's key has kept out had been given the concurrency key before others of the batch.
        running.admit([self._key(nth) for nth in sorted(left_out & waiting.keys())])
        if not made:
            return {}
        keep(
            self._tenant_id,
            {task_id: (drafts[nth].waits_for, self._requests[nth].on_dependency_failure) for nth, task_id, *_ in made},
        )
        running.keep_budgets(
            self._tenant_id, {task_id: (self._requests[nth].budget, at) for nth, task_id, at, _ in made}
        )
        ready = {
            (drafts[nth].line.name, drafts[nth].task_type.name) for nth, *_, status in made if status == Status.QUEUED
        }
        for line, task_type in sorted(ready):
            send_on_commit(task_queued, tenant_id=self._tenant_id, queue=line, task_type=task_type)
        return {
            nth: QueuedTask(
                task_id=format_ref("task", task_id),
                status=status,
                is_duplicate=False,
                receipt_id=drafts[nth].receipt_id,
            )
            for nth, task_id, _, status in made
        }

    def _waiting(self, drafts: Mapping[int, _Draft]) -> dict[int, dict[str, bool]]:
        """Which drafts have to wait for their concurrency key; the keys are locked from here on."""
        keyed = {nth: key for nth in drafts if (key := self._requests[nth].concurrency_key) is not None}
        if not keyed:
            return {}
        keys = [self._key(nth) for nth in keyed]
        running.hold_keys(keys)
        now, busy = running.busy_keys(keys)
        found: dict[int, dict[str, bool]] = {}
        for nth in sorted(keyed, key=lambda nth: (-drafts[nth].priority, nth)):
            run_at = self._requests[nth].run_at
            later = run_at is not None and run_at > now
            found[nth] = {"is_later": later, "waits": keyed[nth] in busy}
            if not later and not drafts[nth].waits_for:
                busy.add(keyed[nth])
        return found

    def _key(self, nth: int) -> running.Key:
        """The concurrency key of a request that has one."""
        return self._tenant_id, self._requests[nth].concurrency_key or ""

    def _row(self, nth: int, draft: _Draft, causes: Mapping[str, int], *, as_seen: bool) -> dict[str, Any]:
        requester, request, retry_of = self._requesters[nth], self._requests[nth], self._retry_of[nth]
        told = {
            "depends_on": request.depends_on,
            "retry_of": retry_of and format_ref("task", retry_of),
        }
        row = {
            "nth": nth,
            "requester": requester.principal_id,
            "requested_by": requester.name,
            "key": request.idempotency_key,
            "digest": self._digests[nth].hex(),
            "queue": draft.line.pk,
            "task_type": draft.task_type.pk,
            "version": draft.task_type.version if as_seen else None,
            "recipient_id": draft.recipient_id,
            "recipient_ai": request.recipient_ai if draft.recipient_id is None else None,
            "fair_requester": requester.principal_id if draft.line.fair else None,
            "priority": draft.priority,
            "params": draft.params,
            "run_at": None if request.run_at is None else request.run_at.isoformat(),
            "concurrency_key": request.concurrency_key,
            "retry_of": retry_of,
            "group": None if request.group is None else request.group.model_dump(),
            "caused_by": request.caused_by_receipt_id,
            "cause": causes.get(request.caused_by_receipt_id or ""),
            "receipt": draft.receipt_id,
            "open_dependencies": len(draft.waits_for),
            "has_budget": request.budget is not None,
            "told": {name: value for name, value in told.items() if value},
        }
        return {name: value for name, value in row.items() if value is not None}


_TASKS: Final = digests.Making(
    parts=sql.ENQUEUE,
    writes=sql.TAKE_IN,
    source=ASYNCGATE,
    answer="stored.asked, stored.nth, stored.at, stored.task_status",
    is_shown=False,
)


def _digest(request: QueueTask) -> bytes:
    """What makes two requests the same: everything but the key."""
    document = request.model_dump(exclude={"idempotency_key"})
    document["run_at"] = None if request.run_at is None else request.run_at.isoformat()
    return strict_json.digest(document)


def _answered(first: IdempotencyKey, digest: bytes) -> QueuedTask | Conflict:
    if bytes(first.request_digest) != digest:
        return Conflict(
            "This idempotency key was used for another request.",
            existing_task_id=first.answer["task_id"],
            code="idempotency_conflict",
        )
    return as_before(first)


def as_before(first: IdempotencyKey) -> QueuedTask:
    """The kept answer to the request that used this key."""
    return QueuedTask(
        task_id=first.answer["task_id"],
        status=Status(first.answer["status"]),
        is_duplicate=True,
        receipt_id=first.answer["receipt_id"],
    )


# Schedules. Several clocks may look for what is due; the locked row decides.

SCHEDULE_BATCH: Final = 100


@transaction.atomic
def set_schedule(*, caller: Caller, draft: ScheduleTask) -> tuple[Schedule, bool]:
    """Add a schedule of the caller's, or change the one of this name; says whether it is new.

    It starts from now: earlier times are not made up for.

    :raises NotFound: `unknown_task_type` if the tenant has no such type.
    :raises Invalid: `invalid_params` if the params do not fit the type's schema.
    :raises NotFound: `unknown_queue` if a queue is named that the tenant does not have.
    :raises NotFound: `unknown_recipient` if the tenant has no such principal.
    :raises Invalid: `invalid_timetable` if the timetable can't be read, or has no moment.
    """
    now = database_now()
    timetable = timetables.read(cron=draft.cron, every_seconds=draft.every_seconds, timezone=draft.timezone, anchor=now)
    next_at = timetable.following(now)
    if next_at is None:
        raise Invalid("This cron expression never occurs.", code="invalid_timetable")
    task_type = type_for(tenant_id=caller.tenant_id, name=draft.task_type)
    check_params(draft.params, task_type.params_schema)
    values = {
        "task_type": task_type,
        "recipient_id": _recipient(caller, draft.recipient_ai),
        "queue": None if draft.queue is None else queue_named(tenant_id=caller.tenant_id, name=draft.queue),
        "priority": draft.priority,
        "params": draft.params,
        "cron": draft.cron,
        "every_seconds": draft.every_seconds,
        "timezone": draft.timezone,
        "anchor_at": now,
        "next_at": next_at if draft.enabled else None,
        "changed_at": now,
    }
    schedule, is_new = Schedule.objects.update_or_create(
        tenant_id=caller.tenant_id,
        owner_id=caller.principal_id,
        name=draft.name,
        defaults=values,
        create_defaults={**values, "created_at": now},
    )
    return schedule, is_new


@transaction.atomic
def remove_schedule(*, caller: Caller, name: str) -> None:
    """Remove a schedule. Tasks that it has queued go on.

    :raises NotFound: `unknown_schedule` if the caller has none of this name.
    """
    mine = Schedule.objects.filter(tenant_id=caller.tenant_id, owner_id=caller.principal_id, name=name)
    if not mine.delete()[0]:
        raise NotFound(f"You have no schedule {name[:100]!r}.", code="unknown_schedule")


@transaction.atomic
def switch(*, schedule_id: int, on: bool) -> None:
    """Queue nothing by this schedule, or queue from the next time on. Times missed meanwhile are not made up for.

    :raises NotFound: `unknown_schedule` if there is none.
    """
    schedule = Schedule.objects.select_for_update(of=("self",)).filter(pk=schedule_id).first()
    if schedule is None:
        raise NotFound("There is no such schedule.", code="unknown_schedule")
    schedule.next_at = _timetable(schedule).following(database_now()) if on else None
    schedule.save(update_fields=["next_at"])


def fire_schedules() -> int:
    """Queue what is due in all tenants, a bounded batch; says for how many schedules.

    Opens its own transactions. Safe to repeat and to overlap. A schedule that can't queue does not block
    others.
    """
    with acting_as_system("looking for due schedules"):
        due = list(
            Schedule.objects.filter(next_at__lte=database_now())
            .order_by("next_at")
            .values_list("tenant_id", "pk")[:SCHEDULE_BATCH]
        )
    return sum(_fire(tenant_id=tenant_id, schedule_id=pk) for tenant_id, pk in due)


def _fire(*, tenant_id: int, schedule_id: int) -> bool:
    """Queue one schedule's task if it is due; says whether it was. Opens its own transaction."""
    try:
        with acting_in(tenant_id, "firing a schedule"):
            return _fire_locked(schedule_id)
    except DatabaseError:
        logger.exception("schedule %s is left to the next sweep", schedule_id)
        return False


def _fire_locked(schedule_id: int) -> bool:
    # A rival that has locked it fires it.
    held = Schedule.objects.select_for_update(of=("self",), skip_locked=True)
    schedule = held.select_related("task_type", "queue", "owner__tenant", "recipient").filter(pk=schedule_id).first()
    now = database_now()
    if schedule is None or schedule.next_at is None or schedule.next_at > now:
        return False
    # However many times were missed, they become one task.
    moment, refusal, last_task = schedule.next_at, "", schedule.last_task_id
    try:
        last_task = _queue(schedule, moment)
    except DomainError as exc:
        refusal = exc.detail
        logger.warning("schedule %s could not queue its task: %s", schedule.pk, exc.detail)
    Schedule.objects.filter(pk=schedule.pk).update(
        next_at=_timetable(schedule).following(now),
        last_at=moment,
        last_task_id=last_task,
        last_refusal=refusal[:500],
    )
    return True


def _queue(schedule: Schedule, moment: datetime) -> int:
    if schedule.owner.disabled_at is not None:
        raise NotFound(f"{schedule.owner.name} is disabled.", code="unknown_recipient")
    queued = queue(
        requester=on_behalf_of(schedule.owner),
        request=QueueTask(
            task_type=schedule.task_type.name,
            params=schedule.params,
            recipient_ai=schedule.recipient.name,
            queue=None if schedule.queue is None else schedule.queue.name,
            priority=schedule.priority,
            idempotency_key=f"schedule:{schedule.pk}:{moment.isoformat()}",
        ),
    )
    return int(queued.task_id.removeprefix("task_"))


def _timetable(schedule: Schedule) -> Timetable:
    return timetables.read(
        cron=schedule.cron,
        every_seconds=schedule.every_seconds,
        timezone=schedule.timezone,
        anchor=schedule.anchor_at,
    )


def _recipient(caller: Caller, name: str | None) -> int:
    if name is None:
        return caller.principal_id
    found = Principal.objects.enabled().filter(tenant_id=caller.tenant_id).named(name).first()
    if found is None:
        raise NotFound(f"There is no principal {name[:50]!r} to report to.", code="unknown_recipient")
    return found.pk
