"""Schedules. Several clocks may look for what is due; the locked row decides."""

import logging
from datetime import datetime
from typing import Final

from django.db import DatabaseError, transaction

from apps.core.errors import DomainError, Invalid, NotFound
from apps.core.sql import database_now
from apps.principals.models import Principal
from apps.principals.tenancy import Caller, acting_as_system, acting_in, on_behalf_of
from apps.tasks import timetables
from apps.tasks.models import Schedule
from apps.tasks.services.queueing import queue
from apps.tasks.services.types import check_params, queue_named, type_for
from apps.tasks.shapes import QueueTask, ScheduleTask
from apps.tasks.timetables import Timetable

logger = logging.getLogger(__name__)

SCHEDULE_BATCH: Final = 100


@transaction.atomic
def set_schedule(*, caller: Caller, draft: ScheduleTask) -> tuple[Schedule, bool]:
    """Add a schedule of the caller's, or change the one of this name; says whether it is new.

    It starts from now: earlier times are not made up for.

    :raises NotFound: `unknown_task_type` if the tenant has no such type.
    :raises Invalid: `invalid_params` if the params do not fit the type's schema.
    :raises NotFound: `unknown_queue` if a queue is named that the tenant does not have.
    :raises NotFound: `unknown_recipient` if the tenant has no such principal.
    :raises Invalid: `invalid_timetable` if the timetable can't be read, or has no moment.
    """
    now = database_now()
    timetable = timetables.read(cron=draft.cron, every_seconds=draft.every_seconds, timezone=draft.timezone, anchor=now)
    next_at = timetable.following(now)
    if next_at is None:
        raise Invalid("This cron expression never occurs.", code="invalid_timetable")
    task_type = type_for(tenant_id=caller.tenant_id, name=draft.task_type)
    check_params(draft.params, task_type.params_schema)
    values = {
        "task_type": task_type,
        "recipient_id": _recipient(caller, draft.recipient_ai),
        "queue": None if draft.queue is None else queue_named(tenant_id=caller.tenant_id, name=draft.queue),
        "priority": draft.priority,
        "params": draft.params,
        "cron": draft.cron,
        "every_seconds": draft.every_seconds,
        "timezone": draft.timezone,
        "anchor_at": now,
        "next_at": next_at if draft.enabled else None,
        "changed_at": now,
    }
    schedule, is_new = Schedule.objects.update_or_create(
        tenant_id=caller.tenant_id,
        owner_id=caller.principal_id,
        name=draft.name,
        defaults=values,
        create_defaults={**values, "created_at": now},
    )
    return schedule, is_new


@transaction.atomic
def remove_schedule(*, caller: Caller, name: str) -> None:
    """Remove a schedule. Tasks that it has queued go on.

    :raises NotFound: `unknown_schedule` if the caller has none of this name.
    """
    mine = Schedule.objects.filter(tenant_id=caller.tenant_id, owner_id=caller.principal_id, name=name)
    if not mine.delete()[0]:
        raise NotFound(f"You have no schedule {name[:100]!r}.", code="unknown_schedule")


@transaction.atomic
def switch(*, schedule_id: int, on: bool) -> None:
    """Queue nothing by this schedule, or queue from the next time on. Times missed meanwhile are not made up for.

    :raises NotFound: `unknown_schedule` if there is none.
    """
    schedule = Schedule.objects.select_for_update(of=("self",)).filter(pk=schedule_id).first()
    if schedule is None:
        raise NotFound("There is no such schedule.", code="unknown_schedule")
    schedule.next_at = _timetable(schedule).following(database_now()) if on else None
    schedule.save(update_fields=["next_at"])


def fire_schedules() -> int:
    """Queue what is due in all tenants, a bounded batch; says for how many schedules.

    Opens its own transactions. Safe to repeat and to overlap. A schedule that can't queue does not block
    others.
    """
    with acting_as_system("looking for due schedules"):
        due = list(
            Schedule.objects.filter(next_at__lte=database_now())
            .order_by("next_at")
            .values_list("tenant_id", "pk")[:SCHEDULE_BATCH]
        )
    return sum(_fire(tenant_id=tenant_id, schedule_id=pk) for tenant_id, pk in due)


def _fire(*, tenant_id: int, schedule_id: int) -> bool:
    """Queue one schedule's task if it is due; says whether it was. Opens its own transaction."""
    try:
        with acting_in(tenant_id, "firing a schedule"):
            return _fire_locked(schedule_id)
    except DatabaseError:
        logger.exception("schedule %s is left to the next sweep", schedule_id)
        return False


def _fire_locked(schedule_id: int) -> bool:
    # A rival that has locked it fires it.
    held = Schedule.objects.select_for_update(of=("self",), skip_locked=True)
    schedule = held.select_related("task_type", "queue", "owner__tenant", "recipient").filter(pk=schedule_id).first()
    now = database_now()
    if schedule is None or schedule.next_at is None or schedule.next_at > now:
        return False
    # However many times were missed, they become one task.
    moment, refusal, last_task = schedule.next_at, "", schedule.last_task_id
    try:
        last_task = _queue(schedule, moment)
    except DomainError as exc:
        refusal = exc.detail
        logger.warning("schedule %s could not queue its task: %s", schedule.pk, exc.detail)
    Schedule.objects.filter(pk=schedule.pk).update(
        next_at=_timetable(schedule).following(now),
        last_at=moment,
        last_task_id=last_task,
        last_refusal=refusal[:500],
    )
    return True


def _queue(schedule: Schedule, moment: datetime) -> int:
    if schedule.owner.disabled_at is not None:
        raise NotFound(f"{schedule.owner.name} is disabled.", code="unknown_recipient")
    queued = queue(
        requester=on_behalf_of(schedule.owner),
        request=QueueTask(
            task_type=schedule.task_type.name,
            params=schedule.params,
            recipient_ai=schedule.recipient.name,
            queue=None if schedule.queue is None else schedule.queue.name,
            priority=schedule.priority,
            idempotency_key=f"schedule:{schedule.pk}:{moment.isoformat()}",
        ),
    )
    return int(queued.task_id.removeprefix("task_"))


def _timetable(schedule: Schedule) -> Timetable:
    return timetables.read(
        cron=schedule.cron,
        every_seconds=schedule.every_seconds,
        timezone=schedule.timezone,
        anchor=schedule.anchor_at,
    )


def _recipient(caller: Caller, name: str | None) -> int:
    if name is None:
        return caller.principal_id
    found = Principal.objects.enabled().filter(tenant_id=caller.tenant_id).named(name).first()
    if found is None:
        raise NotFound(f"There is no principal {name[:50]!r} to report to.", code="unknown_recipient")
    return found.pk
