"""Task types and queues."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.core.notifications import send_on_commit
from apps.core.sql import database_now, hot_cursor
from apps.principals.tenancy import Caller, acting_as_system
from apps.tasks import registry, selectors, sql
from apps.tasks.errors import TaskTypeInCode, UnknownQueue, UnknownTaskType
from apps.tasks.models import Queue, TaskType
from apps.tasks.params import check_schema
from apps.tasks.registry import Policy
from apps.tasks.signals import task_queued


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeDraft:
    """A type as its owner wants it. Left out: the model's defaults."""

    name: str
    queue: str
    params_schema: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    requires: list[str] = field(default_factory=list)
    policy: dict[str, Any] = field(default_factory=dict)
    """Members of TaskType by name: priority, max_attempts, lease_seconds, …"""


@transaction.atomic
def register_type(*, caller: Caller, draft: TypeDraft, now: datetime) -> tuple[TaskType, bool]:
    """Add a type to the caller's tenant, or change it; says whether it is new. Its queue is made if need be.

    Open tasks keep the attempts and expiries that they were queued with.

    :raises InvalidSchema: if the schema can't be used.
    :raises TaskTypeInCode: if a handler of the product owns the name.
    """
    check_schema(draft.params_schema)
    if registry.policy_of(draft.name) is not None:
        raise TaskTypeInCode(f"The task type {draft.name!r} belongs to a handler of this deployment.")
    values = {
        "queue": _queue(caller.tenant_id, draft.queue, now),
        "params_schema": draft.params_schema,
        "title": draft.title or draft.name.replace("_", " ").capitalize(),
        "requires": sorted(set(draft.requires)),
        "changed_at": now,
        **draft.policy,
    }
    return TaskType.objects.update_or_create(
        tenant_id=caller.tenant_id, name=draft.name, defaults=values, create_defaults={**values, "created_at": now}
    )


def types_for(*, tenant_id: int, names: Collection[str]) -> dict[str, TaskType | UnknownTaskType]:
    """The tenant's types of these names, or that there is none; a handler's type is made at its first use and follows
    its declaration.
    """
    known = selectors.types_named(tenant_id=tenant_id, names=names)
    return {name: _followed(tenant_id, name, known.get(name)) for name in names}


def type_for(*, tenant_id: int, name: str) -> TaskType:
    """As :func:`types_for`, one.

    :raises UnknownTaskType: if there is none.
    """
    found = types_for(tenant_id=tenant_id, names=[name])[name]
    if isinstance(found, UnknownTaskType):
        raise found
    return found


def _followed(tenant_id: int, name: str, found: TaskType | None) -> TaskType | UnknownTaskType:
    policy = registry.policy_of(name)
    if policy is None:
        return found or UnknownTaskType(f"There is no task type {name[:100]!r}.")
    if found is not None and _follows(found, policy):
        return found
    now = database_now()
    values = _values(policy, _queue(tenant_id, policy.queue, now), now)
    made, _ = TaskType.objects.update_or_create(
        tenant_id=tenant_id, name=name, defaults=values, create_defaults={**values, "created_at": now}
    )
    return made


def queue_named(*, tenant_id: int, name: str) -> Queue:
    """:raises UnknownQueue: if the tenant has no queue of this name."""
    found = Queue.objects.filter(tenant_id=tenant_id, name=name).first()
    if found is None:
        raise UnknownQueue(f"There is no queue {name[:50]!r}.")
    return found


FAIR_SHARES_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDraft:
    """A queue as its owner wants it: None is no limit."""

    name: str
    concurrency: int | None = None
    rate: int | None = None
    rate_seconds: float | None = None
    fair: bool = False


@transaction.atomic
def set_queue(*, caller: Caller, draft: QueueDraft) -> Queue:
    """Give a queue these limits, in place of those it has. Leases that are held go on.

    :raises UnknownQueue: if there is none: a queue comes with its first type.
    """
    line = queue_named(tenant_id=caller.tenant_id, name=draft.name)
    for name in ("concurrency", "rate", "rate_seconds", "fair"):
        setattr(line, name, getattr(draft, name))
    line.save(update_fields=["concurrency", "rate", "rate_seconds", "fair"])
    if line.fair:
        _settle_fair_shares()
    _announce(tenant_id=caller.tenant_id, queue=line.pk)
    return line


def settle_fair_shares() -> int:
    """Put tasks on the turn of their requesters in queues that have become fair; says of how many. Opens its own
    transaction.
    """
    with acting_as_system("settling fair shares"):
        return _settle_fair_shares()


def _settle_fair_shares() -> int:
    with hot_cursor() as cursor:
        cursor.execute(sql.SETTLE_FAIR_SHARES, {"limit": FAIR_SHARES_BATCH})
        settled: int = cursor.rowcount
    return settled


@transaction.atomic
def pause_queue(*, caller: Caller, name: str, now: datetime, drain: bool = False) -> None:
    """Give out nothing from this queue until it is resumed; leased tasks go on, or are ordered back to drain it.

    :raises UnknownQueue: if there is none.
    """
    line = queue_named(tenant_id=caller.tenant_id, name=name)
    Queue.objects.filter(pk=line.pk, paused_at=None).update(paused_at=now)
    if drain:
        with hot_cursor() as cursor:
            cursor.execute(sql.DRAIN_QUEUE, {"queue": line.pk})


@transaction.atomic
def resume_queue(*, caller: Caller, name: str) -> None:
    """Give out work again.

    :raises UnknownQueue: if there is none.
    """
    line = queue_named(tenant_id=caller.tenant_id, name=name)
    Queue.objects.filter(pk=line.pk).update(paused_at=None)
    _announce(tenant_id=caller.tenant_id, queue=line.pk)


@transaction.atomic
def pause_type(*, caller: Caller, name: str, now: datetime) -> TaskType:
    """Give out no task of this type until it is resumed; leased tasks go on.

    :raises UnknownTaskType: if there is none.
    """
    task_type = type_for(tenant_id=caller.tenant_id, name=name)
    TaskType.objects.filter(pk=task_type.pk, paused_at=None).update(paused_at=now)
    return type_for(tenant_id=caller.tenant_id, name=name)


@transaction.atomic
def resume_type(*, caller: Caller, name: str) -> TaskType:
    """Give out its tasks again.

    :raises UnknownTaskType: if there is none.
    """
    task_type = type_for(tenant_id=caller.tenant_id, name=name)
    TaskType.objects.filter(pk=task_type.pk).update(paused_at=None)
    _announce(tenant_id=caller.tenant_id, task_type=task_type.pk)
    return type_for(tenant_id=caller.tenant_id, name=name)


def _announce(*, tenant_id: int, queue: int | None = None, task_type: int | None = None) -> None:
    """Tell those who wait for work what a claim finds now that it may not have found before."""
    with hot_cursor() as cursor:
        cursor.execute(sql.AVAILABLE_AGAIN, {"queue": queue, "task_type": task_type})
        for queue_name, type_name in cursor.fetchall():
            send_on_commit(task_queued, tenant_id=tenant_id, queue=queue_name, task_type=type_name)


def _queue(tenant_id: int, name: str, now: datetime) -> Queue:
    return Queue.objects.get_or_create(tenant_id=tenant_id, name=name, defaults={"created_at": now})[0]


def _policy_members(policy: Policy) -> dict[str, Any]:
    return {
        "params_schema": dict(policy.params_schema),
        "title": policy.title,
        "priority": policy.priority,
        "lease_seconds": policy.lease_seconds,
        "heartbeat_seconds": policy.heartbeat_seconds,
        "deadline_seconds": policy.deadline_seconds,
        "max_attempts": policy.max_attempts,
        "max_expiries": policy.max_expiries,
        "backoff_seconds": policy.backoff_seconds,
        "backoff_cap_seconds": policy.backoff_cap_seconds,
        "in_code": True,
    }


def _follows(found: TaskType, policy: Policy) -> bool:
    members = _policy_members(policy)
    return found.queue.name == policy.queue and all(getattr(found, name) == value for name, value in members.items())


def _values(policy: Policy, queue: Queue, now: datetime) -> dict[str, Any]:
    members = _policy_members(policy)
    return {
        **members,
        "queue": queue,
        "max_lease_seconds": max(policy.lease_seconds, 3600),
        "requires": [],
        "changed_at": now,
    }
