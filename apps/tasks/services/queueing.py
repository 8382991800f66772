"""Taking work in."""

import json
from dataclasses import asdict
from typing import Any, Final

from django.db import transaction

from apps.core import strict_json
from apps.core.errors import FieldError, Invalid, Unavailable
from apps.core.hints import hint_on_commit
from apps.core.ids import format_ref, random_id
from apps.core.sql import database_now, hot_cursor
from apps.digests import services as digests
from apps.principals.models import Principal
from apps.principals.services import ASYNCGATE
from apps.principals.tenancy import Caller
from apps.receipts.services import ObligationDraft, Poster, ReceiptDraft
from apps.tasks import registry, sql
from apps.tasks.errors import IdempotencyConflict, TaskTypeDisabled, UnknownRecipient
from apps.tasks.models import IdempotencyKey, Queue, TaskType
from apps.tasks.params import check_params
from apps.tasks.services.types import queue_named, type_for
from apps.tasks.shapes import QueuedTask, QueueRequest
from apps.tasks.signals import task_queued
from apps.tasks.states import STRICT, Status

POLL_SECONDS: Final = 2


@transaction.atomic
def queue(*, requester: Caller, request: QueueRequest) -> QueuedTask:
    """Take a task in, with the ledger receipt that AsyncGate owes its recipient an end.

    The same idempotency key with the same request answers the first task again and changes nothing.

    :raises UnknownTaskType: if the tenant has no such type.
    :raises TaskTypeDisabled: if the type takes no tasks.
    :raises InvalidParams: if the params do not fit the type's schema.
    :raises UnknownQueue: if a queue is named that the tenant does not have.
    :raises UnknownRecipient: if the tenant has no such principal.
    :raises IdempotencyConflict: if the key stands for another request.
    """
    digest = _digest(request)
    if known := _answered(requester, request.idempotency_key, digest):
        return known
    name, params = registry.unalias(request.task_type, request.params)
    task_type = type_for(tenant_id=requester.tenant_id, name=name, now=database_now())
    if not task_type.enabled:
        raise TaskTypeDisabled(f"The task type {task_type.name!r} takes no new tasks just now.")
    check_params(params, task_type.params_schema)
    line = _line(requester.tenant_id, request, task_type)
    gate, recipient_id = _gate_and_recipient(requester, request.recipient)

    receipt_id = random_id("rcpt")
    with hot_cursor() as cursor:
        cursor.execute(
            sql.ENQUEUE,
            {
                "tenant": requester.tenant_id,
                "requester": requester.principal_id,
                "recipient": recipient_id,
                "queue": line.pk,
                "task_type": task_type.pk,
                "priority": _priority(request, task_type),
                "params": json.dumps(params),
                "run_at": request.run_at,
                "group": None if request.group is None else json.dumps(asdict(request.group)),
                "caused_by": request.caused_by,
                "receipt": receipt_id,
                "key": request.idempotency_key,
                "digest": digest,
                "lease_seconds": task_type.lease_seconds,
                "max_attempts": task_type.max_attempts,
                "max_expiries": task_type.max_expiries,
                "flags": STRICT if task_type.strict else 0,
            },
        )
        row = cursor.fetchone()
    if row is None:
        # A rival has committed the same key since we looked.
        if first := _answered(requester, request.idempotency_key, digest):
            return first
        raise Unavailable("This idempotency key is being forgotten just now; ask again.")
    task_id, created_at, scheduled = row
    ref = format_ref("task", task_id)
    status = Status.SCHEDULED if scheduled else Status.QUEUED
    digests.post(
        poster=Poster(tenant_id=requester.tenant_id, principal_id=gate.pk, name=gate.name),
        draft=ReceiptDraft(
            recipient_id=recipient_id,
            source_system=ASYNCGATE,
            event_type="task_queued",
            dedupe_key=f"asyncgate:task_queued:{ref}:v1",
            receipt_id=receipt_id,
            receipt_id_is_fresh=True,
            title=f"{task_type.title or task_type.name} queued"[:200],
            summary=f"{ref} of type {task_type.name} waits in {line.name}.",
            metadata={
                "task_id": ref,
                "task_type": task_type.name,
                "status": str(status),
                "queue": line.name,
                "requested_by": requester.name,
                "created_at": created_at.isoformat(),
            },
            requires_action=True,
            caused_by=request.caused_by,
            surface="ledger",
            obligation=ObligationDraft(debtor_id=gate.pk, creditor_id=recipient_id),
        ),
        now=created_at,
    )
    if not scheduled:
        hint_on_commit(task_queued, tenant_id=requester.tenant_id, queue=line.name, task_type=task_type.name)
    return QueuedTask(
        task_id=ref,
        status=status,
        is_duplicate=False,
        receipt_id=receipt_id,
        poll_suggestion_seconds=POLL_SECONDS,
    )


def _digest(request: QueueRequest) -> bytes:
    """What makes two requests the same: everything but the key."""
    document: dict[str, Any] = asdict(request)
    del document["idempotency_key"]
    document["run_at"] = None if request.run_at is None else request.run_at.isoformat()
    return strict_json.digest(document)


def _answered(requester: Caller, key: str | None, digest: bytes) -> QueuedTask | None:
    if key is None:
        return None
    first = IdempotencyKey.objects.filter(
        tenant_id=requester.tenant_id, principal_id=requester.principal_id, key=key
    ).first()
    if first is None:
        return None
    if bytes(first.request_digest) != digest:
        raise IdempotencyConflict(
            "This idempotency key was used for another request.", existing_task_id=first.answer["task_id"]
        )
    return QueuedTask(
        task_id=first.answer["task_id"],
        status=Status(first.answer["status"]),
        is_duplicate=True,
        receipt_id=first.answer["receipt_id"],
        poll_suggestion_seconds=POLL_SECONDS,
    )


def _line(tenant_id: int, request: QueueRequest, task_type: TaskType) -> Queue:
    if request.queue is None or request.queue == task_type.queue.name:
        return task_type.queue
    return queue_named(tenant_id=tenant_id, name=request.queue)


def _priority(request: QueueRequest, task_type: TaskType) -> int:
    priority = task_type.priority if request.priority is None else request.priority
    if not 1 <= priority <= 10:  # noqa: PLR2004  # 10 goes first
        raise Invalid("A priority is 1 to 10.", errors=[FieldError("/priority", "is not 1 to 10")])
    return priority


def _gate_and_recipient(requester: Caller, recipient: str | None) -> tuple[Principal, int]:
    wanted = {ASYNCGATE} if recipient is None else {ASYNCGATE, recipient}
    found = {
        principal.name: principal
        for principal in Principal.objects.enabled().filter(tenant_id=requester.tenant_id, name__in=wanted)
    }
    if recipient is None:
        return found[ASYNCGATE], requester.principal_id
    if recipient not in found:
        raise UnknownRecipient(f"There is no principal {recipient[:50]!r} to report to.")
    return found[ASYNCGATE], found[recipient].pk
