"""What tests of tasks need, made by the product's own services in the transaction that is open."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from apps.core.errors import DomainError, only
from apps.core.sql import execute
from apps.digests.models import Entry
from apps.principals.tenancy import Caller, acting_as
from apps.receipts.models import Obligation, Receipt
from apps.tasks import selectors
from apps.tasks.models import Budget, FinishedTask, IdempotencyKey, LiveTask, Run, Task, TaskType
from apps.tasks.services import queueing, running
from apps.tasks.shapes import (
    Completed,
    Completion,
    FailTask,
    Finished,
    HeartbeatAnswer,
    HeldLease,
    LeasedTask,
    LeaseNext,
    ProgressInput,
    QueuedTask,
    QueueTask,
    RegisterTaskType,
    ReleaseTask,
    SpendInput,
    TaskError,
    UnsuccessfulRun,
)
from apps.tasks.states import Order
from tests.factories import T0, ask

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "depth": {"type": "integer", "minimum": 0}},
    "required": ["path"],
    "additionalProperties": False,
}
# Later, and earlier, than anything that a test queues.
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
DAY = 86_400


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
        made, _ = queueing.register_type(
            tenant_id=caller.tenant_id,
            given=RegisterTaskType(
                name=name, queue=queue, params_schema=schema or {}, requires=requires or [], **policy
            ),
            now=T0,
        )
    return made


def set_queue(caller: Caller, name: str = "default", **limits: Any) -> None:
    with acting_as(caller):
        queueing.set_queue(tenant_id=caller.tenant_id, name=name, **limits)


def pause(caller: Caller, name: str = "default", *, drain: bool = False) -> None:
    with acting_as(caller):
        queueing.pause(queueing.queue_named(tenant_id=caller.tenant_id, name=name), drain=drain)


def resume(caller: Caller, name: str = "default") -> None:
    with acting_as(caller):
        queueing.resume(queueing.queue_named(tenant_id=caller.tenant_id, name=name))


def queue(caller: Caller, task_type: str = "index", params: dict[str, Any] | None = None, **more: Any) -> QueuedTask:
    with acting_as(caller):
        return queueing.queue(requester=caller, request=asked(task_type, params=params or {}, **more))


def asked(task_type: str = "index", **more: Any) -> QueueTask:
    return QueueTask(task_type=task_type, **more)


def queue_many(caller: Caller, *requests: QueueTask) -> list[Any]:
    with acting_as(caller):
        return queueing.queue_many(requester=caller, requests=requests)


def number(task: QueuedTask | LeasedTask | str) -> int:
    return int((task if isinstance(task, str) else task.task_id).removeprefix("task_"))


def lease(worker: Caller, *, queues: tuple[str, ...] = ("default",), **more: Any) -> list[LeasedTask]:
    with acting_as(worker):
        return running.lease(worker=worker, queues=queues, **more)


def lease_one(worker: Caller, **more: Any) -> LeasedTask:
    (grant,) = lease(worker, **more)
    return grant


def leased(kee: Caller, worker: Caller, **policy: Any) -> LeasedTask:
    """A task of the type `index`, with this policy, that the worker holds."""
    make_type(kee, **policy)
    queue(kee)
    return lease_one(worker)


def proof(grant: LeasedTask) -> dict[str, Any]:
    return {"task_id": grant.task_id, "lease_token": grant.lease_token}


def beats(*said: tuple[LeasedTask, Mapping[str, Any]]) -> list[HeldLease]:
    """Heartbeats of these leases, each with what it says."""
    return [_beat(grant, **more) for grant, more in said]


def _beat(grant: LeasedTask, *, checkpoint: Any = None, sequence: int | None = None, **more: Any) -> HeldLease:
    progress = ProgressInput(**{name: more[name] for name in ("percent", "message") if name in more})
    spend = SpendInput(**{name: more[name] for name in ("tokens", "cost_usd") if name in more})
    return HeldLease(**proof(grant), progress=progress, checkpoint=checkpoint, spend=spend, sequence=sequence)


def beat_many(worker: Caller, *said: tuple[LeasedTask, Mapping[str, Any]]) -> list[HeartbeatAnswer]:
    with acting_as(worker):
        return running.heartbeat(worker=worker, heartbeats=beats(*said))


def beat(worker: Caller, grant: LeasedTask, **more: Any) -> HeartbeatAnswer:
    (answer,) = beat_many(worker, (grant, more))
    return answer


def complete(worker: Caller, grant: LeasedTask, content: Any = None, summary: str | None = None) -> Finished:
    delivery = running.prepare(tenant_id=worker.tenant_id, task_id=number(grant), result=content)
    with acting_as(worker):
        completion = Completion(
            task_id=number(grant), lease_token=grant.lease_token, delivery=delivery, summary=summary
        )
        return only(running.complete_many([(worker, completion)]).answers)


def complete_many(
    worker: Caller, grants: Sequence[LeasedTask], *, lease_next: LeaseNext | None = None, content: Any = None
) -> Completed:
    completions = [
        Completion(
            task_id=number(grant),
            lease_token=grant.lease_token,
            delivery=running.prepare(tenant_id=worker.tenant_id, task_id=number(grant), result=content),
        )
        for grant in grants
    ]
    with acting_as(worker):
        return running.complete_many([(worker, one) for one in completions], lease_next=lease_next)


def fail(
    worker: Caller, grant: LeasedTask, *, retryable: bool = True, retry_after: float | None = None
) -> UnsuccessfulRun:
    error = TaskError(code="broken", message="It broke.")
    failure = FailTask(**proof(grant), error=error, retryable=retryable, retry_after=retry_after)
    with acting_as(worker):
        return only([running.fail(worker=worker, failure=failure)])


def fail_next(worker: Caller) -> int:
    """Lease a task and fail it for good."""
    grant = lease_one(worker)
    fail(worker, grant, retryable=False)
    return number(grant)


def release(worker: Caller, grant: LeasedTask) -> UnsuccessfulRun:
    with acting_as(worker):
        return only(running.release_many(worker=worker, releases=[ReleaseTask(**proof(grant))]))


def cancel(caller: Caller, task_id: int) -> str:
    with acting_as(caller):
        return running.cancel(caller=caller, task_id=task_id)


def order(caller: Caller, task_id: int, what: Order) -> None:
    with acting_as(caller):
        running.control(caller=caller, task_id=task_id, order=what)


def status(caller: Caller, task_id: int) -> str:
    with acting_as(caller):
        return str(selectors.status(f"task_{task_id}").status)


def do(kee: Caller, worker: Caller, task_type: str = "index", **more: Any) -> int:
    """A task with a run and an end."""
    task = number(queue(kee, task_type, **more))
    grant = lease_one(worker, task_types=[task_type])
    complete(worker, grant)
    return task


def known(caller: Caller) -> list[set[int]]:
    """The tasks that are known of, by their rows, records and runs."""
    with acting_as(caller):
        return [
            set(Task.objects.values_list("pk", flat=True)),
            set(FinishedTask.objects.values_list("pk", flat=True)),
            {run.task_id for run in Run.objects.all()},
        ]


def terminal_receipts(caller: Caller, task_id: int) -> list[Receipt]:
    with acting_as(caller):
        found = Receipt.objects.filter(source_system="asyncgate", metadata__task_id=f"task_{task_id}")
        return list(found.exclude(event_type="task_queued"))


def snapshot(caller: Caller) -> list[list[Any]]:
    """Every row that a verb could change."""
    models: tuple[Any, ...] = (Task, LiveTask, Run, Budget, FinishedTask, IdempotencyKey, Receipt, Entry)
    with acting_as(caller):
        rows = [list(model.objects.order_by("pk").values()) for model in models]
        return [*rows, list(Obligation.objects.order_by("pk").values_list("closed_at"))]


def later(seconds: float) -> None:
    """Move the database's clock for the rest of the test."""
    execute(
        "select set_config('gatehouse.now', (statement_timestamp() + make_interval(secs => %s))::text, true)", [seconds]
    )


def codes(answers: Sequence[Any]) -> list[str]:
    return [answer.code if isinstance(answer, DomainError) else str(answer.status) for answer in answers]


def own(query: Mapping[str, str]) -> bool:
    """Whether a statement reads or writes a table of tasks."""
    return any(table in query["sql"] for table in ("tasks_", "task_live", "task_history"))


def send(token: str, path: str, body: dict[str, Any] | None = None, *, method: str = "POST") -> tuple[int, Any]:
    return ask(method, path, token, body)


def get(token: str, path: str) -> tuple[int, Any]:
    return send(token, path, method="GET")
