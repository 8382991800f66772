"""Queues: their figures, and how much of a queue or a type is given out at a time."""

from collections.abc import Mapping
from typing import Annotated

from django.utils import timezone
from pydantic import Field

from apps.core.operations import Route, operation
from apps.core.schemas import Empty, Input, Name, NewName, Output
from apps.principals.tenancy import Caller
from apps.tasks import selectors, services
from apps.tasks.models import Queue
from apps.tasks.services import QueueDraft
from apps.tasks.services.types import queue_named
from apps.tasks.shapes import QueueFigures
from apps.tasks.tools.verbs import (
    QUEUE,
    WORK,
    Rate,
    TaskTypeOutput,
    TypeName,
    rate_columns,
    rate_output,
    task_type_output,
)


class Queues(Output):
    queues: list[QueueFigures]


@operation(title="List queues", scope=[QUEUE, WORK], routes=[Route("GET", "/api/v1/queues")], read_only=True)
def list_queues(caller: Caller, given: Empty) -> Queues:
    """How much waits in each queue, for how long, whether it is paused, and how fast and how well it is done."""
    return Queues(queues=list(selectors.queue_figures(tenant_id=caller.tenant_id).values()))


class SetQueueLimits(Input):
    queue: NewName
    concurrency: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """At most so many of its tasks are leased at a time."""
    rate: Rate | None = None
    """At most so many leases are granted in any such period."""
    fair: bool = False
    """Whether its requesters are served by turns; the priorities of each order its own tasks only."""


class QueuePolicy(Output):
    queue: str
    paused: bool
    concurrency: int | None
    rate: Mapping[str, float] | None
    fair: bool


@operation(
    title="Set a queue's limits",
    scope=[QUEUE, "admin"],
    routes=[Route("PUT", "/api/v1/queues/{queue}")],
    idempotent=True,
)
def set_queue_limits(caller: Caller, given: SetQueueLimits) -> QueuePolicy:
    """Bound how much of a queue is given out, as for the sake of what its tasks use: these limits take the place of those
    it has, and what is left out is not limited. register_task_type bounds a single kind of work."""
    draft = QueueDraft(name=given.queue, concurrency=given.concurrency, fair=given.fair, **rate_columns(given.rate))
    return _policy(services.set_queue(caller=caller, draft=draft))


class QueueNamed(Input):
    queue: Name


class PauseQueue(QueueNamed):
    drain: bool = False
    """Whether what is leased is to be given back: its holders are told at their next heartbeats."""


@operation(
    title="Pause a queue",
    scope=[QUEUE, "admin"],
    routes=[Route("POST", "/api/v1/queues/{queue}/pause")],
    idempotent=True,
)
def pause_queue(caller: Caller, given: PauseQueue) -> QueuePolicy:
    """Give out nothing from this queue until resume_queue, as while what its tasks need is away. What is leased goes on,
    unless it is to be drained; more can be queued meanwhile."""
    services.pause_queue(caller=caller, name=given.queue, now=timezone.now(), drain=given.drain)
    return _policy(queue_named(tenant_id=caller.tenant_id, name=given.queue))


@operation(
    title="Resume a queue",
    scope=[QUEUE, "admin"],
    routes=[Route("POST", "/api/v1/queues/{queue}/resume")],
    idempotent=True,
)
def resume_queue(caller: Caller, given: QueueNamed) -> QueuePolicy:
    """Give out work from a paused queue again; workers that wait for it are woken."""
    services.resume_queue(caller=caller, name=given.queue)
    return _policy(queue_named(tenant_id=caller.tenant_id, name=given.queue))


def _policy(line: Queue) -> QueuePolicy:
    return QueuePolicy(
        queue=line.name,
        paused=line.paused_at is not None,
        concurrency=line.concurrency,
        rate=rate_output(line),
        fair=line.fair,
    )


class TypeNamed(Input):
    task_type: TypeName


@operation(
    title="Pause a task type",
    scope=[QUEUE, "admin"],
    routes=[Route("POST", "/api/v1/task-types/{task_type}/pause")],
    idempotent=True,
    tool=False,
)
def pause_task_type(caller: Caller, given: TypeNamed) -> TaskTypeOutput:
    """Give out no task of this type until it is resumed; what is leased goes on."""
    return task_type_output(services.pause_type(caller=caller, name=given.task_type, now=timezone.now()))


@operation(
    title="Resume a task type",
    scope=[QUEUE, "admin"],
    routes=[Route("POST", "/api/v1/task-types/{task_type}/resume")],
    idempotent=True,
    tool=False,
)
def resume_task_type(caller: Caller, given: TypeNamed) -> TaskTypeOutput:
    """Give out tasks of this type again."""
    return task_type_output(services.resume_type(caller=caller, name=given.task_type))
