"""What tests of tasks need, made by the product's own services in the transaction that is open."""

from typing import Any

from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services
from apps.tasks.models import TaskType
from apps.tasks.services.types import TypeDraft
from apps.tasks.shapes import Delivery, Grant, QueuedTask, QueueRequest
from tests.factories import T0

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "depth": {"type": "integer", "minimum": 0}},
    "required": ["path"],
    "additionalProperties": False,
}


def make_type(
    caller: Caller,
    name: str = "index",
    *,
    queue: str = "default",
    schema: dict[str, Any] | None = None,
    requires: list[str] | None = None,
    **policy: Any,
) -> TaskType:
    with acting_as(caller):
        made, _ = services.register_type(
            caller=caller,
            draft=TypeDraft(name=name, queue=queue, params_schema=schema or {}, requires=requires or [], policy=policy),
            now=T0,
        )
    return made


def queue(caller: Caller, task_type: str = "index", params: dict[str, Any] | None = None, **more: Any) -> QueuedTask:
    with acting_as(caller):
        return services.queue(requester=caller, request=QueueRequest(task_type=task_type, params=params or {}, **more))


def number(task: QueuedTask | str) -> int:
    return int((task if isinstance(task, str) else task.task_id).removeprefix("task_"))


def lease(worker: Caller, *, queues: tuple[str, ...] = ("default",), **more: Any) -> list[Grant]:
    with acting_as(worker):
        return services.lease(worker=worker, queues=queues, **more)


def lease_one(worker: Caller, **more: Any) -> Grant:
    (grant,) = lease(worker, **more)
    return grant


def complete(worker: Caller, grant: Grant, content: Any = None, summary: str | None = None) -> Any:
    delivery = services.prepare(tenant_id=worker.tenant_id, task_id=grant.task_id, result=content)
    with acting_as(worker):
        return services.complete(
            worker=worker,
            task_id=grant.task_id,
            lease_token=grant.lease_token,
            delivery=delivery,
            summary=summary,
        )


NO_RESULT = Delivery()
