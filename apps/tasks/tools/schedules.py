"""Work that comes again and again."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from apps.core.ids import decode_position, encode_cursor
from apps.core.operations import Reply, Route, operation
from apps.core.schemas import Cursor, Input, Name, NewName, Output, Text
from apps.principals.tenancy import Caller
from apps.tasks import selectors, services
from apps.tasks.models import Schedule
from apps.tasks.services import ScheduleDraft
from apps.tasks.states import Misfire
from apps.tasks.tools.verbs import QUEUE, TypeName


class ScheduleTask(Input):
    name: NewName
    """Yours alone: the same name again changes the schedule, which then begins anew."""
    task_type: TypeName
    params: dict[str, Any] = Field(default_factory=dict)
    recipient_ai: Name | None = None
    """Who is told how each task ends; left out, the caller."""
    queue: NewName | None = None
    priority: Annotated[int, Field(ge=1, le=10)] | None = None
    cron: Annotated[Text, Field(min_length=9, max_length=200)] | None = None
    """Minute, hour, day of month, month, day of week, all of which must match: `0 8 * * 1-5`."""
    every_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    """Instead of cron: every so many seconds from this moment on."""
    timezone: Annotated[Text, Field(min_length=1, max_length=50)] = "UTC"
    """The clock that cron reads: Europe/Vienna."""
    misfire: Misfire | None = None
    """What becomes of moments missed by over a minute: one task for all of them, one for each, or none. Left out, the
    type's."""
    enabled: bool = True


class ScheduleOutput(Output):
    name: str
    task_type: str
    params: dict[str, Any]
    recipient_ai: str
    queue: str | None
    priority: int | None
    cron: str | None
    every_seconds: int | None
    timezone: str
    misfire: str
    enabled: bool
    next_at: datetime | None
    last_at: datetime | None
    last_task_id: str | None
    last_refusal: str | None
    """Why the last task could not be queued; null if it was."""


@operation(
    title="Schedule a task",
    scope=QUEUE,
    output=ScheduleOutput,
    routes=[Route("POST", "/api/v1/schedules", status=201, also=(200,))],
    idempotent=True,
)
def schedule_task(caller: Caller, given: ScheduleTask) -> Reply:
    """Queue a task at every moment of a timetable, as if you had asked for it then. Each is queued once, however many
    clocks strike; the ends arrive in the recipient's inbox."""
    draft = ScheduleDraft(
        name=given.name,
        task_type=given.task_type,
        params=given.params,
        recipient=given.recipient_ai,
        queue=given.queue,
        priority=given.priority,
        cron=given.cron,
        every_seconds=given.every_seconds,
        timezone=given.timezone,
        misfire=given.misfire,
        enabled=given.enabled,
    )
    schedule, is_new = services.set_schedule(caller=caller, draft=draft)
    return Reply(_schedule(schedule), 201 if is_new else 200)


class ListSchedules(Input):
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Cursor | None = None
    """`next` of the page before."""


class Schedules(Output):
    schedules: list[ScheduleOutput]
    next: str | None
    """The cursor of the next page; null on the last."""


@operation(title="List schedules", scope=QUEUE, routes=[Route("GET", "/api/v1/schedules")], read_only=True)
def list_schedules(caller: Caller, given: ListSchedules) -> Schedules:
    """Your schedules: when each is due next, and what it queued last."""
    after = decode_position(given.cursor) if given.cursor else 0
    found = selectors.schedules(owner_id=caller.principal_id, after=after, limit=given.limit + 1)
    page = found[: given.limit]
    return Schedules(
        schedules=[_schedule(schedule) for schedule in page],
        next=encode_cursor(page[-1].pk) if len(found) > len(page) else None,
    )


class ScheduleNamed(Input):
    name: Name


class RemovedSchedule(Output):
    name: str


@operation(
    title="Remove a schedule",
    scope=QUEUE,
    routes=[Route("DELETE", "/api/v1/schedules/{name}")],
    destructive=True,
)
def remove_schedule(caller: Caller, given: ScheduleNamed) -> RemovedSchedule:
    """Queue no more by a schedule of yours. Tasks that it has queued go on."""
    services.remove_schedule(caller=caller, name=given.name)
    return RemovedSchedule(name=given.name)


def _schedule(schedule: Schedule) -> ScheduleOutput:
    return ScheduleOutput(
        name=schedule.name,
        task_type=schedule.task_type.name,
        params=schedule.params,
        recipient_ai=schedule.recipient.name,
        queue=None if schedule.queue is None else schedule.queue.name,
        priority=schedule.priority,
        cron=schedule.cron,
        every_seconds=schedule.every_seconds,
        timezone=schedule.timezone,
        misfire=schedule.misfire or schedule.task_type.misfire,
        enabled=schedule.next_at is not None,
        next_at=schedule.next_at,
        last_at=schedule.last_at,
        last_task_id=None if schedule.last_task_id is None else f"task_{schedule.last_task_id}",
        last_refusal=schedule.last_refusal or None,
    )
