"""Schedules: one task for each time, whatever happens, and when these times are."""

import itertools
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from apps.principals.models import Principal, Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks import timetables
from apps.tasks.models import Schedule, Task
from apps.tasks.services import scheduling
from apps.tasks.services.scheduling import ScheduleDraft
from apps.tasks.states import Misfire
from apps.tasks.timetables import Timetable
from tests.factories import at, make_token, refused
from tests.tasks.making import SCHEMA, get, make_type, send
from tests.waiters import together

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def schedule(caller: Caller, *, name: str = "daily", **more: Any) -> Schedule:
    given: dict[str, Any] = {"task_type": "index", "cron": "0 13 * * *", **more}
    with acting_as(caller):
        made, _ = scheduling.set_schedule(caller=caller, draft=ScheduleDraft(name=name, **given))
    return made


def fire() -> int:
    return scheduling.fire_schedules()


def queued() -> list[Task]:
    with acting_as_system("test"):
        return list(Task.objects.order_by("pk"))


def kept(caller: Caller) -> Schedule:
    with acting_as(caller):
        return Schedule.objects.get()


def test_schedule_queues_one_task_at_its_time(kee: Caller) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee)
    at(NOON + timedelta(minutes=59, seconds=59))
    assert (fire(), queued()) == (0, [])
    at(NOON + timedelta(hours=1))
    assert [fire(), fire()] == [1, 0]
    (task,) = queued()
    found = kept(kee)
    assert (found.last_task_id, found.last_at) == (task.pk, NOON + timedelta(hours=1))
    assert found.next_at == NOON + timedelta(hours=25)
    assert (task.requester_id, task.recipient_id) == (kee.principal_id, kee.principal_id)


@pytest.mark.parametrize(("misfire", "tasks"), [(Misfire.ONCE, 1), (Misfire.SKIP, 0), (Misfire.ALL, 3), (None, 1)])
def test_misfire_policy_decides_about_missed_times(kee: Caller, misfire: Misfire | None, tasks: int) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee, misfire=misfire)
    at(NOON + timedelta(days=3))
    assert [fire(), fire()] == [1, 0]
    assert len(queued()) == tasks
    assert kept(kee).next_at == NOON + timedelta(days=3, hours=1)


@pytest.mark.parametrize(("misfire", "tasks"), [(Misfire.ONCE, 4), (Misfire.SKIP, 3), (Misfire.ALL, 9)])
@pytest.mark.parametrize("late", [59, 190])
def test_times_late_by_over_a_minute_are_missed(kee: Caller, misfire: Misfire, tasks: int, late: int) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee, cron=None, every_seconds=20, misfire=misfire)
    at(NOON + timedelta(seconds=late))
    assert [fire(), fire()] == [1, 0]
    assert len(queued()) == (tasks if late > 60 else 2)


def test_many_missed_times_are_queued_in_batches(kee: Caller) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee, cron=None, every_seconds=60, misfire=Misfire.ALL)
    at(NOON + timedelta(minutes=120))
    assert [fire(), fire(), fire(), fire()] == [1, 1, 1, 0]
    assert len(queued()) == 120


def test_schedule_notes_a_refusal_and_goes_on(kee: Caller) -> None:
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


def test_beat_has_a_row_for_each_schedule(kee: Caller) -> None:
    make_type(kee)
    at(NOON)
    made = schedule(kee, timezone="Europe/Vienna")
    row = PeriodicTask.objects.get(name=f"schedule: {made.pk}")
    assert (row.task, row.enabled) == ("tasks.fire", True)
    assert (str(row.crontab.timezone), row.crontab.hour) == ("Europe/Vienna", "13")
    tenant_id, schedule_id = json.loads(row.args)
    assert not scheduling.fire_schedule(tenant_id=tenant_id, schedule_id=schedule_id)
    at(NOON + timedelta(days=1))
    assert scheduling.fire_schedule(tenant_id=tenant_id, schedule_id=schedule_id)
    assert len(queued()) == 1

    schedule(kee, cron=None, every_seconds=30)
    row.refresh_from_db()
    assert (row.crontab, row.interval.every) == (None, 30)
    with acting_as(kee):
        scheduling.stop_schedule(schedule_id=made.pk)
    row.refresh_from_db()
    assert (row.enabled, kept(kee).next_at) == (False, None)
    with acting_as(kee):
        scheduling.resume_schedule(schedule_id=made.pk)
    row.refresh_from_db()
    assert row.enabled
    with acting_as(kee):
        scheduling.remove_schedule(caller=kee, name="daily")
    assert not PeriodicTask.objects.filter(pk=row.pk).exists()


def test_duplicate_timetables_of_beat_are_tolerated(kee: Caller) -> None:
    make_type(kee)
    for _ in range(2):
        IntervalSchedule.objects.create(every=30, period=IntervalSchedule.SECONDS)
        CrontabSchedule.objects.create(minute="0", hour="13", timezone="UTC")
    schedule(kee, cron=None, every_seconds=30)
    schedule(kee)
    assert PeriodicTask.objects.get(name__startswith="schedule:").crontab is not None


@pytest.mark.django_db(transaction=True)
def test_rival_clocks_queue_one_task(kee: Caller) -> None:
    make_type(kee)
    made = schedule(kee, cron=None, every_seconds=3600)
    with acting_as(kee):
        Schedule.objects.update(anchor_at=made.anchor_at - timedelta(hours=1), next_at=made.anchor_at)
    fired = together(*[lambda: scheduling.fire_schedule(tenant_id=kee.tenant_id, schedule_id=made.pk)] * 6)
    assert sorted(fired) == [False] * 5 + [True]
    assert len(queued()) == 1


@pytest.mark.parametrize(
    ("refusal", "given"),
    [
        ("unknown_task_type", {"task_type": "nothing"}),
        ("invalid_params", {"params": {"path": 1}}),
        ("unknown_queue", {"params": {"path": "/"}, "queue": "nowhere"}),
        ("unknown_recipient", {"params": {"path": "/"}, "recipient": "Nobody"}),
        ("invalid_timetable", {"params": {"path": "/"}, "cron": "0 0 30 2 *"}),
        ("invalid_timetable", {"params": {"path": "/"}, "every_seconds": 5}),
    ],
)
def test_impossible_schedule_is_refused(kee: Caller, refusal: str, given: dict[str, Any]) -> None:
    make_type(kee, schema=SCHEMA)
    with refused(refusal):
        schedule(kee, **given)
    with acting_as(kee):
        assert not Schedule.objects.exists()
    assert not PeriodicTask.objects.filter(name__startswith="schedule:").exists()


def test_schedules_belong_to_their_owner(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    token, stranger = make_token(tenant, "Kee"), make_token(tenant, "Hexy")
    asked = {"name": "a b", "task_type": "index", "cron": "*/5 * * * *"}
    status, made = send(token, "schedules", asked)
    assert (status, made["enabled"], made["misfire"], made["last_task_id"]) == (201, True, "once", None)
    assert send(token, "schedules", {**asked, "enabled": False})[0] == 200
    assert send(token, "schedules", {**asked, "name": "b"})[0] == 201
    assert send(stranger, "schedules", asked)[0] == 201
    assert send(token, "schedules", {**asked, "cron": "99 * * *"})[1]["code"] == "invalid_timetable"

    _, first = get(token, "schedules?limit=1")
    _, second = get(token, f"schedules?limit=1&cursor={first['next']}")
    assert [one["name"] for page in (first, second) for one in page["schedules"]] == ["a b", "b"]
    assert (first["schedules"][0]["enabled"], second["next"]) == (False, None)
    assert send(stranger, "schedules/b", method="DELETE")[1]["code"] == "unknown_schedule"
    assert send(token, "schedules/b", method="DELETE") == (200, {"name": "b"})
    assert [one["name"] for one in get(token, "schedules")[1]["schedules"]] == ["a b"]


ANCHOR = datetime(2026, 1, 1, tzinfo=UTC)
VIENNA = ZoneInfo("Europe/Vienna")


def cron(text: str, timezone: str = "UTC") -> Timetable:
    return timetables.read(cron=text, every_seconds=None, timezone=timezone, anchor=ANCHOR)


def every(seconds: int) -> Timetable:
    return timetables.read(cron=None, every_seconds=seconds, timezone="UTC", anchor=ANCHOR)


def moments(timetable: Timetable, after: datetime, count: int) -> list[datetime]:
    found = []
    for _ in range(count):
        following = timetable.following(after)
        assert following is not None
        after = following
        found.append(after)
    return found


def test_intervals_keep_their_rhythm() -> None:
    assert every(90).following(ANCHOR) == ANCHOR + timedelta(seconds=90)
    assert every(90).following(ANCHOR + timedelta(seconds=90)) == ANCHOR + timedelta(seconds=180)
    assert every(90).latest(ANCHOR + timedelta(seconds=89)) is None
    assert every(90).latest(ANCHOR + timedelta(days=1)) == ANCHOR + timedelta(seconds=86_400)


def test_cron_follows_the_local_clock() -> None:
    found = moments(cron("0 8 * * 1-5", "Europe/Vienna"), datetime(2026, 3, 26, 12, tzinfo=UTC), 3)
    local = [moment.astimezone(VIENNA) for moment in found]
    assert [f"{moment:%a %d %H:%M}" for moment in local] == ["Fri 27 08:00", "Mon 30 08:00", "Tue 31 08:00"]
    # The clocks went forward between the first and the second.
    assert [moment.hour for moment in found] == [7, 6, 6]


def test_sunday_may_be_seven(kee: Caller) -> None:
    assert cron("0 8 * * 5-7") == cron("0 8 * * 0,5,6")
    assert cron("0 8 * * 0-7") == cron("0 8 * * */7,1-6")
    make_type(kee)
    schedule(kee, cron="0 8 * * 7")
    assert PeriodicTask.objects.get(name__startswith="schedule:").crontab.day_of_week == "0"


def test_skipped_local_time_runs_an_hour_later() -> None:
    night = datetime(2026, 3, 28, 23, tzinfo=UTC)
    (moment,) = moments(cron("30 2 * * *", "Europe/Vienna"), night, 1)
    assert f"{moment.astimezone(VIENNA):%d %H:%M}" == "29 03:30"


def test_repeated_local_time_counts_once() -> None:
    evening = datetime(2026, 10, 24, 22, tzinfo=UTC)
    nightly = moments(cron("30 2 * * *", "Europe/Vienna"), evening, 2)
    assert [f"{moment:%d %H:%M}" for moment in nightly] == ["25 00:30", "26 01:30"]
    hourly = moments(cron("30 * * * *", "Europe/Vienna"), evening, 5)
    assert {later - earlier for earlier, later in itertools.pairwise(hourly)} == {timedelta(hours=1)}


def test_rare_day_is_found_in_both_directions() -> None:
    leap = cron("0 0 29 2 *")
    assert leap.following(ANCHOR) == datetime(2028, 2, 29, tzinfo=UTC)
    assert leap.latest(ANCHOR) == datetime(2024, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cron": "99 * * *"}, r"five fields: minute \(0-59\), hour \(0-23\), .* '99 \* \* \*' has 4"),
        ({"cron": "61 * * * *"}, "The minute '61' .* must be 0-59"),
        ({"cron": "* * * 0 *"}, "The month '0' .* must be 1-12"),
        ({"cron": "* * * * moonday"}, "The day of week 'moonday'"),
        ({"cron": "*/0 * * * *"}, "The minute"),
        ({"cron": f"0 {'1,' * 48}1 * * *"}, "The hour .* longer than 96"),
        ({}, "either cron or every_seconds"),
        ({"cron": "* * * * *", "every_seconds": 5}, "either cron or every_seconds"),
        ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, "Unknown time zone 'Mars/Olympus'"),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "Unknown time zone"),
    ],
)
def test_invalid_timetable_is_refused_with_what_is_wrong(given: dict[str, Any], says: str) -> None:
    with refused("invalid_timetable") as refusal:
        timetables.read(**{"cron": None, "every_seconds": None, "timezone": "UTC", "anchor": ANCHOR, **given})
    assert re.search(says, refusal.value.detail)


_FIELD = {
    0: ["*", "*/15", "7", "3,40"],
    1: ["*", "*/6", "2", "1-3"],
    2: ["*", "1", "*/10", "31"],
    3: ["*", "2", "3,10"],
    4: ["*", "0", "1-5"],
}


@settings(max_examples=60)
@given(
    fields=st.tuples(*(st.sampled_from(_FIELD[place]) for place in range(5))),
    start=st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),  # noqa: DTZ001  # hypothesis takes naive bounds
    timezone=st.sampled_from(["UTC", "Europe/Vienna", "Australia/Lord_Howe", "America/New_York"]),
)
def test_following_and_latest_agree(fields: tuple[str, ...], start: datetime, timezone: str) -> None:
    assume(fields[2:4] != ("31", "2"))
    timetable = cron(" ".join(fields), timezone)
    after = start.replace(tzinfo=UTC)
    following = timetable.following(after)
    assert following is not None
    assert following > after
    assert timetable.latest(following) == following
    latest = timetable.latest(following - timedelta(microseconds=1))
    assert latest is None or latest <= after
