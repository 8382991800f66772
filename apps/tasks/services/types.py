"""Task types, their schemas, and queues."""

import difflib
import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.core import foreign_schemas
from apps.core.errors import Conflict, FieldError, Invalid, NotFound, TooLarge, only
from apps.core.notifications import send_on_commit
from apps.core.sql import database_now, execute, fetch
from apps.principals.tenancy import acting_as_system
from apps.tasks import handlers, selectors, sql
from apps.tasks.models import Queue, RateWindow, TaskType
from apps.tasks.shapes import Rate, RegisterTaskType, rate_columns
from apps.tasks.signals import task_queued

MAX_PARAMS_BYTES: Final = 262_144
# So many registered types are compared with an unknown name, and so many are listed.
_MOST_NEAR: Final = 1_000
_MOST_NAMED: Final = 10


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
def register_type(*, tenant_id: int, given: RegisterTaskType, now: datetime) -> tuple[TaskType, bool]:
    """Add a type to a tenant, or change it; says whether it is new. Its queue is made if needed.

    Open tasks keep the attempts and expiries that they were queued with.

    :raises Invalid: `invalid_schema` if the schema can't be used.
    :raises Conflict: `task_type_in_code` if a handler of the product owns the name.
    """
    check_schema(given.params_schema)
    if handlers.declaration(given.name) is not None:
        raise Conflict(
            f"The task type {given.name!r} belongs to a handler of this deployment.", code="task_type_in_code"
        )
    task_type, is_new = _stored(tenant_id, given, now)
    if not is_new and task_type.rate is None:
        RateWindow.objects.filter(queue=None, task_type=task_type).delete()
    return task_type, is_new


def _stored(tenant_id: int, given: RegisterTaskType, now: datetime, **more: Any) -> tuple[TaskType, bool]:
    values = {**given.columns, "queue": _queue(tenant_id, given.queue, now), "changed_at": now, **more}
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


def _queue(tenant_id: int, name: str, now: datetime) -> Queue:
    return Queue.objects.get_or_create(tenant_id=tenant_id, name=name, defaults={"created_at": now})[0]
