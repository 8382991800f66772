"""Tasks that are queued again and again: once for each moment, whatever strikes."""

import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from apps.core.errors import DomainError
from apps.principals.models import Principal, Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks import services
from apps.tasks.errors import InvalidParams, InvalidTimetable, UnknownQueue, UnknownRecipient, UnknownTaskType
from apps.tasks.models import Schedule, Task
from apps.tasks.services import ScheduleDraft
from apps.tasks.states import Misfire
from tests.factories import make_caller, make_tenant, make_token
from tests.tasks.making import SCHEMA, make_type
from tests.tasks.test_http import get, send

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def at(moment: datetime) -> None:
    """The database's clock, for the rest of the test."""
    with connection.cursor() as cursor:
        cursor.execute("select set_config('gatehouse.now', %s, true)", [moment.isoformat()])


def schedule(caller: Caller, *, name: str = "daily", **more: Any) -> Schedule:
    given: dict[str, Any] = {"task_type": "index", "cron": "0 13 * * *", **more}
    with acting_as(caller):
        made, _ = services.set_schedule(caller=caller, draft=ScheduleDraft(name=name, **given))
    return made


def fire() -> int:
    return services.fire_schedules()


def queued() -> list[Task]:
    with acting_as_system("test"):
        return list(Task.objects.order_by("pk"))


def kept(caller: Caller) -> Schedule:
    with acting_as(caller):
        return Schedule.objects.get()


def test_a_moment_queues_one_task_and_nothing_runs_early(kee: Caller) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee)
    at(NOON + timedelta(minutes=59, seconds=59))
    assert (fire(), queued()) == (0, [])
    at(NOON + timedelta(hours=1))
    assert [fire(), fire()] == [1, 0]
    (task,) = queued()
    found = kept(kee)
    assert (found.last_task_id, found.last_at, found.next_at) == (
        task.pk,
        NOON + timedelta(hours=1),
        NOON + timedelta(hours=25),
    )
    assert (task.requester_id, task.recipient_id) == (kee.principal_id, kee.principal_id)


@pytest.mark.parametrize(("misfire", "tasks"), [(Misfire.ONCE, 1), (Misfire.SKIP, 0), (Misfire.ALL, 3), (None, 1)])
def test_missed_moments_are_made_up_for_by_their_policy(kee: Caller, misfire: Misfire | None, tasks: int) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee, misfire=misfire)
    at(NOON + timedelta(days=3))
    assert [fire(), fire()] == [1, 0]
    assert len(queued()) == tasks
    assert kept(kee).next_at == NOON + timedelta(days=3, hours=1)


@pytest.mark.parametrize("misfire", Misfire)
def test_a_moment_that_is_late_by_less_than_a_minute_queues_its_task_whatever_the_policy(
    kee: Caller, misfire: Misfire
) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee, cron=None, every_seconds=20, misfire=misfire)
    at(NOON + timedelta(seconds=59))
    assert [fire(), fire()] == [1, 0]
    assert len(queued()) == 2


@pytest.mark.parametrize(("misfire", "tasks"), [(Misfire.ONCE, 4), (Misfire.SKIP, 3), (Misfire.ALL, 9)])
def test_what_was_missed_is_made_up_for_beside_what_is_late(kee: Caller, misfire: Misfire, tasks: int) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee, cron=None, every_seconds=20, misfire=misfire)
    at(NOON + timedelta(seconds=190))
    assert [fire(), fire()] == [1, 0]
    assert len(queued()) == tasks


def test_many_missed_moments_are_made_up_for_in_portions(kee: Caller) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee, cron=None, every_seconds=60, misfire=Misfire.ALL)
    at(NOON + timedelta(minutes=120))
    assert [fire(), fire(), fire(), fire()] == [1, 1, 1, 0]
    assert len(queued()) == 120


def test_a_schedule_that_cannot_queue_says_why_and_goes_on(kee: Caller) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee)
    make_type(kee, enabled=False)
    at(NOON + timedelta(hours=1))
    assert fire() == 1
    assert (queued(), kept(kee).last_refusal) == ([], "The task type 'index' takes no new tasks just now.")
    make_type(kee, enabled=True)
    at(NOON + timedelta(hours=25))
    assert fire() == 1
    assert (len(queued()), kept(kee).last_refusal) == (1, "")
    with acting_as_system("test"):
        Principal.objects.filter(pk=kee.principal_id).update(disabled_at=NOON)
    at(NOON + timedelta(hours=49))
    assert fire() == 1
    assert (len(queued()), kept(kee).last_refusal) == (1, "Kee is disabled.")


def test_beat_knows_each_schedule_and_its_message_fires_it(kee: Caller) -> None:
    make_type(kee)
    at(NOON)
    made = schedule(kee, timezone="Europe/Vienna")
    row = PeriodicTask.objects.get(name=f"schedule: {made.pk}")
    assert (row.task, row.enabled, str(row.crontab.timezone), row.crontab.hour) == (
        "tasks.fire",
        True,
        "Europe/Vienna",
        "13",
    )
    tenant_id, schedule_id = json.loads(row.args)
    assert not services.fire_schedule(tenant_id=tenant_id, schedule_id=schedule_id)
    at(NOON + timedelta(days=1))
    assert services.fire_schedule(tenant_id=tenant_id, schedule_id=schedule_id)
    assert len(queued()) == 1

    schedule(kee, cron=None, every_seconds=30)
    row.refresh_from_db()
    assert (row.crontab, row.interval.every) == (None, 30)
    with acting_as(kee):
        services.stop_schedule(schedule_id=made.pk)
    row.refresh_from_db()
    assert (row.enabled, kept(kee).next_at) == (False, None)
    with acting_as(kee):
        services.resume_schedule(schedule_id=made.pk)
    row.refresh_from_db()
    assert row.enabled
    with acting_as(kee):
        services.remove_schedule(caller=kee, name="daily")
    assert not PeriodicTask.objects.filter(pk=row.pk).exists()


def test_two_rows_of_beats_with_one_timetable_are_no_trouble(kee: Caller) -> None:
    make_type(kee)
    for _ in range(2):
        IntervalSchedule.objects.create(every=30, period=IntervalSchedule.SECONDS)
        CrontabSchedule.objects.create(minute="0", hour="13", timezone="UTC")
    schedule(kee, cron=None, every_seconds=30)
    schedule(kee)
    assert PeriodicTask.objects.get(name__startswith="schedule:").crontab is not None


@pytest.mark.django_db(transaction=True)
def test_clocks_that_strike_together_queue_one_task() -> None:
    kee = make_caller(make_tenant("acme"))
    make_type(kee)
    made = schedule(kee, cron=None, every_seconds=3600)
    with acting_as(kee):
        Schedule.objects.update(anchor_at=made.anchor_at - timedelta(hours=1), next_at=made.anchor_at)
    together = threading.Barrier(6)
    fired: list[bool] = []

    def strike() -> None:
        try:
            together.wait(20)
            fired.append(services.fire_schedule(tenant_id=kee.tenant_id, schedule_id=made.pk))
        finally:
            connection.close()

    clocks = [threading.Thread(target=strike) for _ in range(6)]
    for clock in clocks:
        clock.start()
    for clock in clocks:
        clock.join(30)
    assert sorted(fired) == [False] * 5 + [True]
    assert len(queued()) == 1


@pytest.mark.parametrize(
    ("refusal", "given"),
    [
        (UnknownTaskType, {"task_type": "nothing"}),
        (InvalidParams, {"params": {"path": 1}}),
        (UnknownQueue, {"params": {"path": "/"}, "queue": "nowhere"}),
        (UnknownRecipient, {"params": {"path": "/"}, "recipient": "Nobody"}),
        (InvalidTimetable, {"params": {"path": "/"}, "cron": "0 0 30 2 *"}),
        (InvalidTimetable, {"params": {"path": "/"}, "every_seconds": 5}),
    ],
)
def test_what_could_never_queue_is_refused_at_once(
    kee: Caller, refusal: type[DomainError], given: dict[str, Any]
) -> None:
    make_type(kee, schema=SCHEMA)
    with pytest.raises(refusal):
        schedule(kee, **given)
    with acting_as(kee):
        assert not Schedule.objects.exists()
    assert not PeriodicTask.objects.filter(name__startswith="schedule:").exists()


def test_schedules_are_kept_listed_and_removed_by_their_owner_alone(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    token, stranger = make_token(tenant, "Kee"), make_token(tenant, "Hexy")
    asked = {"name": "a b", "task_type": "index", "cron": "*/5 * * * *"}
    status, made = send(token, "schedules", asked)
    assert (status, made["enabled"], made["misfire"], made["last_task_id"]) == (201, True, "once", None)
    assert send(token, "schedules", {**asked, "enabled": False})[0] == 200
    assert send(token, "schedules", {**asked, "name": "b"})[0] == 201
    assert send(stranger, "schedules", asked)[0] == 201
    assert send(token, "schedules", {**asked, "cron": "99 * * * *"})[1]["code"] == "invalid_timetable"

    _, first = get(token, "schedules?limit=1")
    _, second = get(token, f"schedules?limit=1&cursor={first['next']}")
    assert [one["name"] for page in (first, second) for one in page["schedules"]] == ["a b", "b"]
    assert (first["schedules"][0]["enabled"], second["next"]) == (False, None)
    assert send(stranger, "schedules/b", method="DELETE")[1]["code"] == "unknown_schedule"
    assert send(token, "schedules/b", method="DELETE") == (200, {"name": "b"})
    assert [one["name"] for one in get(token, "schedules")[1]["schedules"]] == ["a b"]
