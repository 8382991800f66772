"""What tests of tasks need, made by the product's own services in the transaction that is open."""

from collections.abc import Mapping
from typing import Any

from django.db import connection

from apps.principals.tenancy import Caller, acting_as
from apps.tasks import services
from apps.tasks.models import TaskType
from apps.tasks.services.types import QueueDraft, TypeDraft
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


def make_types(caller: Caller) -> None:
    """Some, each with a queue of its own."""
    for number_of_it in range(10):
        make_type(caller, f"kind-{number_of_it}", queue=f"line-{number_of_it}")


def set_queue(caller: Caller, name: str = "default", **limits: Any) -> None:
    with acting_as(caller):
        services.set_queue(caller=caller, draft=QueueDraft(name=name, **limits))


def queue(caller: Caller, task_type: str = "index", params: dict[str, Any] | None = None, **more: Any) -> QueuedTask:
    with acting_as(caller):
        return services.queue(requester=caller, request=QueueRequest(task_type=task_type, params=params or {}, **more))


def fill(caller: Caller, *, leased: int = 0, ready: int = 0, ended: int = 0, runs: int = 0) -> None:
    """Rows in bulk, so that reading a table whole is dear; in the caller's own queue and type."""
    row = """insert into task_live (task_id, tenant_id, queue_id, task_type_id, ready_at, fence, lease_seconds,
                 priority_rank, failures, max_attempts, expiries, max_expiries, flags, holder_id, lease_expires_at)
             select nextval('tasks_task_id_seq'), k.tenant_id, k.queue_id, k.id, now() - interval '1 hour', 1, 60,
                    5, 0, 3, 0, 3, 0, {holder} from tasks_tasktype k, generate_series(1, %(rows)s) where not k.in_code"""
    with acting_as(caller), connection.cursor() as cursor:
        given = {"tenant": caller.tenant_id, "holder": caller.principal_id}
        cursor.execute(row.format(holder="%(holder)s, now() + interval '1 hour'"), {**given, "rows": leased})
        cursor.execute(row.format(holder="null, null"), {**given, "rows": ready})
        cursor.execute(
            """insert into task_history (task_id, tenant_id, status, fence, summary, receipt_id, finished_at)
               select nextval('tasks_task_id_seq'), %(tenant)s, 'succeeded', 1, '', 'r', now() - n * interval '1 second'
               from generate_series(1, %(rows)s) n""",
            {**given, "rows": ended},
        )
        cursor.execute(
            """insert into tasks_run (id, tenant_id, holder_id, started_at, message)
               select (1000000::bigint + n) << 16, %(tenant)s, %(holder)s, now(), '' from generate_series(1, %(rows)s) n""",
            {**given, "rows": runs},
        )


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


def own(query: Mapping[str, str]) -> bool:
    """Whether a statement reads or writes a table of tasks."""
    return any(table in query["sql"] for table in ("tasks_", "task_live", "task_history"))
