"""What failed for good, and doing it again."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from apps.core.ids import decode_position, encode_cursor, format_ref
from apps.core.operations import Reply, Route, operation
from apps.core.schemas import Cursor, Input, Output
from apps.principals.tenancy import Caller
from apps.tasks import selectors, services
from apps.tasks.fences import task_of
from apps.tasks.tools.verbs import QUEUE, QueuedTaskOutput, TaskNamed, queued_task


class ListDeadLetters(Input):
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Cursor | None = None
    """`next` of the page before."""


class DeadLetter(Output):
    """A task that failed for good, whole: it can be replayed."""

    task_id: str
    task_type: str
    queue: str
    reason: str
    error: dict[str, Any] | None
    summary: str
    runs: int
    created_at: datetime
    failed_at: datetime
    receipt_id: str
    replayed_as: str | None
    """The task that its replay has made."""


class DeadLetters(Output):
    dead_letters: list[DeadLetter]
    next: str | None
    """The cursor of the next page, which may be shorter than asked for; null on the last."""


@operation(title="List dead letters", scope=QUEUE, routes=[Route("GET", "/api/v1/dead-letters")], read_only=True)
def list_dead_letters(caller: Caller, given: ListDeadLetters) -> DeadLetters:
    """Tasks that you asked for or are to be told of and that failed for good, newest first."""
    before = decode_position(given.cursor) if given.cursor else None
    page = selectors.dead_letters(principal_id=caller.principal_id, before=before, limit=given.limit)
    return DeadLetters(
        dead_letters=[
            DeadLetter(
                task_id=format_ref("task", found.task_id),
                task_type=found.task_type,
                queue=found.queue,
                reason=found.reason,
                error=found.error,
                summary=found.summary,
                runs=found.runs,
                created_at=found.created_at,
                failed_at=found.failed_at,
                receipt_id=found.receipt_id,
                replayed_as=None if found.replayed_as is None else format_ref("task", found.replayed_as),
            )
            for found in page.letters
        ],
        next=None if page.following is None else encode_cursor(page.following),
    )


@operation(
    title="Replay a dead letter",
    scope=QUEUE,
    output=QueuedTaskOutput,
    routes=[Route("POST", "/api/v1/tasks/{task_id}/retry", status=201, also=(200,))],
    idempotent=True,
)
def retry_task(caller: Caller, given: TaskNamed) -> Reply:
    """Queue a task that failed for good again, as a new task with the same params. Asked again, this answers the task
    of the first replay."""
    queued = services.replay(caller=caller, task_id=task_of(given.task_id))
    return Reply(queued_task(queued), 200 if queued.is_duplicate else 201)
