"""Queueing tasks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from django.db import transaction

from apps.core import strict_json
from apps.core.errors import Conflict, DomainError, FieldError, Invalid, NotFound, Unavailable, only
from apps.core.ids import format_ref, random_id
from apps.core.notifications import send_on_commit
from apps.digests import services as digests
from apps.principals.selectors import principal_ids_named
from apps.principals.services import ASYNCGATE
from apps.principals.tenancy import Caller
from apps.receipts import services as receipts
from apps.receipts.services import Poster
from apps.tasks import handlers, sql
from apps.tasks.lease_tokens import task_of
from apps.tasks.models import RETRY_PREFIX, IdempotencyKey, Queue, TaskType
from apps.tasks.services import budgets, dependencies, leasing, recording
from apps.tasks.services.types import check_params, types_for
from apps.tasks.shapes import QueuedTask, QueueTask
from apps.tasks.signals import task_queued
from apps.tasks.states import Status


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
        known = dependencies.open_among(
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
                waits_for = dependencies.to_wait_for(self._depends_on[nth], known)
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
        budgets.check(request.budget)
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
        gate = Poster(tenant_id=self._tenant_id, principal_id=recording.gate_of(self._tenant_id), name=ASYNCGATE)
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
        leasing.admit([self._key(nth) for nth in sorted(left_out & waiting.keys())])
        if not made:
            return {}
        dependencies.keep(
            self._tenant_id,
            {task_id: (drafts[nth].waits_for, self._requests[nth].on_dependency_failure) for nth, task_id, *_ in made},
        )
        budgets.keep(self._tenant_id, {task_id: (self._requests[nth].budget, at) for nth, task_id, at, _ in made})
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
        leasing.hold_keys(keys)
        now, busy = leasing.busy_keys(keys)
        found: dict[int, dict[str, bool]] = {}
        for nth in sorted(keyed, key=lambda nth: (-drafts[nth].priority, nth)):
            run_at = self._requests[nth].run_at
            later = run_at is not None and run_at > now
            found[nth] = {"is_later": later, "waits": keyed[nth] in busy}
            if not later and not drafts[nth].waits_for:
                busy.add(keyed[nth])
        return found

    def _key(self, nth: int) -> leasing.Key:
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
