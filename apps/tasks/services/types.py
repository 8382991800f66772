"""Task types and queues."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.principals.tenancy import Caller
from apps.tasks import registry
from apps.tasks.errors import TaskTypeInCode, UnknownQueue, UnknownTaskType
from apps.tasks.models import Queue, TaskType
from apps.tasks.params import check_schema
from apps.tasks.registry import Policy


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


@transaction.atomic
def type_for(*, tenant_id: int, name: str, now: datetime) -> TaskType:
    """The tenant's type of this name; a handler's type is made at its first use and follows its declaration.

    :raises UnknownTaskType: if there is none.
    """
    found = TaskType.objects.select_related("queue").filter(tenant_id=tenant_id, name=name).first()
    policy = registry.policy_of(name)
    if policy is None:
        if found is None:
            raise UnknownTaskType(f"There is no task type {name[:100]!r}.")
        return found
    if found is not None and _follows(found, policy):
        return found
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


@transaction.atomic
def pause_queue(*, caller: Caller, name: str, now: datetime) -> None:
    """Give out nothing from this queue until it is resumed; leased tasks go on.

    :raises UnknownQueue: if there is none.
    """
    queue_named(tenant_id=caller.tenant_id, name=name)
    Queue.objects.filter(tenant_id=caller.tenant_id, name=name, paused_at=None).update(paused_at=now)


@transaction.atomic
def resume_queue(*, caller: Caller, name: str) -> None:
    """Give out work again.

    :raises UnknownQueue: if there is none.
    """
    queue_named(tenant_id=caller.tenant_id, name=name)
    Queue.objects.filter(tenant_id=caller.tenant_id, name=name).update(paused_at=None)


def _queue(tenant_id: int, name: str, now: datetime) -> Queue:
    return Queue.objects.get_or_create(tenant_id=tenant_id, name=name, defaults={"created_at": now})[0]


def _policy_members(policy: Policy) -> dict[str, Any]:
    return {
        "params_schema": dict(policy.params_schema),
        "title": policy.title,
        "priority": policy.priority,
        "lease_seconds": policy.lease_seconds,
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
