"""What operators do to tasks and queues, retries of dead letters, and what must happen by itself."""

import json
import logging
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import DatabaseError, transaction

from apps.core.errors import Conflict, DomainError, only
from apps.core.ids import format_ref
from apps.core.notifications import send_on_commit
from apps.core.sql import database_now, execute, fetch
from apps.principals.models import Principal
from apps.principals.tenancy import Caller, acting_as_system, acting_in, on_behalf_of
from apps.receipts.shapes import GroupInput
from apps.tasks import handlers, sql
from apps.tasks.models import Budget, BulkAction, FinishedTask, IdempotencyKey, Task, retry_key
from apps.tasks.services import running
from apps.tasks.services.queueing import as_before, queue_many
from apps.tasks.services.running import Back, admit, bury, refuse_strangers, unknown
from apps.tasks.shapes import BudgetInput, QueuedTask, QueueTask
from apps.tasks.signals import task_queued
from apps.tasks.states import BulkVerb, Outcome, Status


@transaction.atomic
def retry(*, caller: Caller | None, task_id: int) -> QueuedTask:
    """Queue a dead letter again, as a new task of its requester.

    A second retry answers the task of the first one.

    :param caller: one of its parties; None for an operator.
    :raises NotFound: `unknown_task` if there is no such task, or the caller neither asked for it nor is to be told of it.
    :raises Conflict: `not_a_dead_letter` if it has not failed.
    :raises DomainError: if its type takes no such task any more.
    """
    if caller is not None:
        refuse_strangers(caller=caller, task_ids=[task_id])
    return only(retry_many(task_ids=[task_id]))


@transaction.atomic
def retry_many(*, task_ids: Collection[int]) -> list[QueuedTask | DomainError]:
    """Retry dead letters of one tenant, each with its own answer, in the order of their ids."""
    dead = {record.task_id: record for record in FinishedTask.objects.filter(task_id__in=task_ids)}
    tasks = Task.objects.filter(pk__in=task_ids).select_related("task_type", "queue", "recipient").order_by("pk")
    answers: dict[int, QueuedTask | DomainError] = {}
    wanted: dict[int, list[Task]] = {}
    for task in tasks:
        record = dead.get(task.pk)
        if record is None or record.status != Status.FAILED:
            answers[task.pk] = Conflict(f"{task} has not failed.", code="not_a_dead_letter")
        else:
            wanted.setdefault(task.requester_id, []).append(task)
    for requester_id, theirs in wanted.items():
        answers |= _retried(requester_id, theirs, dead)
    return [answers.get(pk) or unknown(pk) for pk in sorted(set(task_ids))]


def _retried(
    requester_id: int, tasks: list[Task], dead: dict[int, FinishedTask]
) -> dict[int, QueuedTask | DomainError]:
    # A principal may have another name by now, or a queue: what was retried before is known by its key alone.
    used = IdempotencyKey.objects.filter(principal_id=requester_id, key__in=[retry_key(task.pk) for task in tasks])
    known = {first.key: first for first in used}
    answers: dict[int, QueuedTask | DomainError] = {
        task.pk: as_before(known[retry_key(task.pk)]) for task in tasks if retry_key(task.pk) in known
    }
    fresh = [task for task in tasks if task.pk not in answers]
    if fresh:
        requester = on_behalf_of(Principal.objects.select_related("tenant").get(pk=requester_id))
        budgets = Budget.objects.in_bulk([task.pk for task in fresh])
        requests = [_request(task, dead[task.pk], budgets.get(task.pk)) for task in fresh]
        keys = [task.pk for task in fresh]
        answers |= dict(zip(keys, queue_many(requester=requester, requests=requests, retried=keys), strict=True))
    return answers


def _request(task: Task, record: FinishedTask, budget: Budget | None) -> QueueTask:
    return QueueTask(
        task_type=task.task_type.name,
        params=task.params,
        recipient_ai=task.recipient.name,
        queue=task.queue.name,
        priority=task.priority,
        concurrency_key=task.concurrency_key,
        idempotency_key=retry_key(task.pk),
        caused_by_receipt_id=record.receipt_id,
        group=None if task.group is None else GroupInput(**task.group),
        # With nothing spent.
        budget=budget
        and BudgetInput(
            tokens=budget.max_tokens, cost_usd=None if budget.max_cost_usd is None else float(budget.max_cost_usd)
        ),
    )


@transaction.atomic
def revoke_lease(*, task_id: int) -> Status:
    """Revoke the lease of a task: the task returns to its place, and no attempt is counted.

    A task that was to be canceled, has a spent budget, or has had all its runs, ends. The holder's later calls
    are refused.

    :raises Conflict: `not_leased` if nobody holds it.
    """
    hold = running.lock([task_id]).get(task_id)
    if hold is None or hold.holder_id is None:
        raise Conflict(f"Nobody holds {format_ref('task', task_id)}.", code="not_leased")
    end = running.must_end(hold, outcome=Outcome.REVOKED)
    if end is not None:
        running.settle(hold.tenant_id, [end])
        return end.status
    running.put_back([Back(task_id=task_id, fencing_token=hold.fencing_token, outcome=Outcome.REVOKED)])
    return Status.QUEUED


MOST_AT_ONCE: Final = 100_000
_BULK_BATCH: Final = 100
_REFUSALS_KEPT: Final = 20


@transaction.atomic
def act_on_many(*, tenant_id: int, task_ids: Sequence[int], verb: BulkVerb, operator: str, reason: str) -> BulkAction:
    """Cancel or retry many tasks of one tenant, in the background: see :func:`go_on`."""
    said = {"verb": verb, "operator": operator, "reason": reason, "created_at": database_now()}
    return BulkAction.objects.create(tenant_id=tenant_id, task_ids=task_ids, **said)


def go_on() -> int:
    """Do the next hundred tasks of the oldest bulk action; says how many. Opens its own transaction.

    Safe to repeat: a task that was canceled or retried before stays as it is.
    """
    with acting_as_system("bulk actions"):
        action = BulkAction.objects.select_for_update(skip_locked=True).filter(ended_at=None).order_by("pk").first()
        if action is None:
            return 0
        task_ids = action.task_ids[action.position : action.position + _BULK_BATCH]
        with acting_in(action.tenant_id, "bulk actions"):
            answers = _answers(action, task_ids)
        refused = [
            f"{format_ref('task', pk)}: {answer.detail}"
            for pk, answer in zip(sorted(task_ids), answers, strict=True)
            if isinstance(answer, DomainError)
        ]
        action.position += len(task_ids)
        action.done += len(task_ids) - len(refused)
        action.refusals = (action.refusals + refused)[:_REFUSALS_KEPT]
        action.ended_at = database_now() if action.position == len(action.task_ids) else None
        action.save()
        return len(task_ids)


def _answers(action: BulkAction, task_ids: Sequence[int]) -> Sequence[object]:
    """What became of each task, in the order of their ids."""
    if action.verb == BulkVerb.RETRY:
        return [_unless_before(answer) for answer in retry_many(task_ids=task_ids)]
    statuses = running.cancel_any(tenant_id=action.tenant_id, task_ids=task_ids)
    return [running.status_or_refusal(pk, statuses.get(pk)) for pk in sorted(task_ids)]


def _unless_before(answer: QueuedTask | DomainError) -> QueuedTask | DomainError:
    if isinstance(answer, DomainError) or not answer.is_duplicate:
        return answer
    return Conflict(f"It was retried as {answer.task_id} before.", code="retried_before")


# What must happen by itself: expired leases, ends, announcements, statistics and retention.

logger = logging.getLogger(__name__)

SWEEP_BATCH: Final = 100
ADMIT_BATCH: Final = 1_000
# How long an end waits for its recipient's inbox: the next sweep comes soon.
_PATIENCE: Final = "200ms"


def bring_back() -> tuple[int, int]:
    """Reclaim expired leases and ready due tasks, a bounded batch of each, in its own transaction; says how many.

    Safe to repeat and to overlap.
    """
    with acting_as_system("sweep of leases"):
        ((requeued, readied, tenants, keys, ready),) = fetch(sql.RECLAIM_ALL, hot=True)
        admit(list(zip(tenants, keys, strict=True)))
        for tenant_id, queue, task_type in json.loads(ready):
            send_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)
    return requeued, readied


def admit_waiting() -> int:
    """Give free concurrency keys to waiting tasks; says how many keys. Opens its own transaction.

    Whoever frees a key skips a task that another transaction has locked.
    """
    with acting_as_system("looking for free keys"):
        keys: list[tuple[int, str]] = fetch(sql.FREE_KEYS, {"limit": ADMIT_BATCH}, hot=True)
        admit(keys)
    return len(keys)


def end_what_must() -> int:
    """End tasks that must not run again, a bounded batch; says how many.

    Opens one transaction for each recipient. An end that fails, or whose recipient's inbox is locked, is left
    to the next sweep and does not block others. Safe to repeat and to overlap.
    """
    with acting_as_system("sweep of leases"):
        doomed = fetch(sql.DOOMED, hot=True)
    # One transaction for each recipient, so that an inbox is waited for once.
    theirs: dict[tuple[int, int], list[int]] = {}
    for tenant_id, task_id, recipient_id in doomed:
        theirs.setdefault((tenant_id, recipient_id), []).append(task_id)
    return sum(_end_of_one(tenant_id, task_ids) for (tenant_id, _), task_ids in theirs.items())


def _end_of_one(tenant_id: int, task_ids: Sequence[int]) -> int:
    """End tasks together, or one by one if one of them can't end."""
    try:
        with acting_in(tenant_id, "sweep of leases"):
            execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
            return bury(tenant_id=tenant_id, task_ids=task_ids)
    except DatabaseError as exc:
        if len(task_ids) > 1 and not isinstance(exc.__cause__, psycopg.errors.LockNotAvailable):
            return sum(_end_of_one(tenant_id, [task_id]) for task_id in task_ids)
        refs = ", ".join(format_ref("task", task_id) for task_id in task_ids)
        logger.warning("%s could not be ended; the next sweep tries again", refs, exc_info=exc)
        return 0


def ready_again() -> list[tuple[int, str, str]]:
    """Queues whose work for handlers has been ready for a second, or where a limit may keep back ready work: tenant, queue
    and type. Opens its own transaction.
    """
    with acting_as_system("looking for ready work"):
        return [*fetch(sql.UNANNOUNCED, {"types": handlers.names()}, hot=True), *fetch(sql.KEPT_BACK, hot=True)]


# An end is dated when its statement begins; after this long it is committed, or counts in no figure.
_SETTLED: Final = timedelta(seconds=5)
HISTORY_DAYS: Final = 30
# Of each minute: what bounds the rows of the history.
_QUEUES_IN_HISTORY: Final = 50


def keep_history() -> int:
    """Write the minutes that are over into the history of their queues, and delete old ones; says how many rows are new.
    Opens its own transaction.

    Safe to repeat and to overlap.
    """
    given = {"settled": _SETTLED, "queues": _QUEUES_IN_HISTORY, "history": timedelta(days=HISTORY_DAYS)}
    with acting_as_system("keeping the history of queues"):
        return int(execute(sql.KEEP_HISTORY, given, hot=True))


FORGET_BATCH: Final = 1_000
# Whatever a type says: who looks at the end of a task has a day to do so.
LEAST: Final = timedelta(days=1)
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Walk:
    """How far one process has come in deleting ended tasks."""

    def __init__(self) -> None:
        self._ends = _BEGINNING
        self._keys = 0

    def forget(self) -> int:
        """Delete a range of ended tasks that have been kept their time, in all tenants; says how many.

        Opens its own transactions. A task goes with its runs, budget and record. Safe to repeat and to overlap.
        """
        return self._forget_ends() + self._forget_keys()

    @property
    def is_at_the_beginning(self) -> bool:
        """Whether the next call starts again from the oldest."""
        return self._ends == _BEGINNING and not self._keys

    def _forget_ends(self) -> int:
        given: dict[str, Any] = {
            "after": self._ends,
            "kept": settings.TASKS_KEPT,
            "least": LEAST,
            "limit": FORGET_BATCH,
        }
        with acting_as_system("forgetting tasks"):
            ((reached, forgotten),) = fetch(sql.FORGET, given, hot=True)
        self._ends = reached or _BEGINNING
        return int(forgotten)

    def _forget_keys(self) -> int:
        given: dict[str, Any] = {"after": self._keys, "kept": settings.TASK_KEYS_KEPT, "limit": FORGET_BATCH}
        with acting_as_system("forgetting idempotency keys"):
            ((reached, forgotten),) = fetch(sql.FORGET_KEYS, given, hot=True)
        self._keys = reached or 0
        return int(forgotten)
