"""What happened to a task."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from apps.core.ids import decode_position, encode_cursor
from apps.core.operations import Route, operation
from apps.core.schemas import Cursor, Output
from apps.principals.tenancy import Caller
from apps.tasks import selectors, services
from apps.tasks.fences import task_of
from apps.tasks.tools.verbs import QUEUE, TaskNamed


class TaskTimeline(TaskNamed):
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    """How many runs; each has several events."""
    cursor: Cursor | None = None
    """`next` of the page before."""


class TimelineEvent(Output):
    at: datetime
    event: str
    run_id: int | None
    holder: str | None
    detail: dict[str, Any] | None


class Timeline(Output):
    task_id: str
    events: list[TimelineEvent]
    next: str | None
    """The cursor of further runs; null on the last page, which also tells the end."""


@operation(
    title="A task's timeline",
    scope=QUEUE,
    routes=[Route("GET", "/api/v1/tasks/{task_id}/timeline")],
    read_only=True,
)
def task_timeline(caller: Caller, given: TaskTimeline) -> Timeline:
    """What happened to a task that you asked for or are to be told of, in order: queued, each run with its holder,
    its last progress and how it ended, the end of the task, the receipts of both."""
    services.refuse_stranger(caller=caller, task_id=task_of(given.task_id))
    story = selectors.timeline(
        given.task_id, after=decode_position(given.cursor) if given.cursor else 0, limit=given.limit
    )
    return Timeline(
        task_id=given.task_id,
        events=[
            TimelineEvent(at=found.at, event=found.event, run_id=found.run_id, holder=found.holder, detail=found.detail)
            for found in story.events
        ],
        next=None if story.following is None else encode_cursor(story.following),
    )
