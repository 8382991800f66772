"""Schedules: one task for each time, whatever happens, and when these times are."""

import itertools
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from apps.principals.models import Principal, Tenant
from apps.principals.tenancy import Caller, acting_as, acting_as_system
from apps.tasks import timetables
from apps.tasks.models import Schedule, Task
from apps.tasks.services import queueing
from apps.tasks.shapes import ScheduleTask
from apps.tasks.timetables import Timetable
from tests.factories import at, make_token, refused
from tests.tasks.making import SCHEMA, get, make_type, send
from tests.waiters import together

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def schedule(caller: Caller, *, name: str = "daily", **more: Any) -> Schedule:
    given: dict[str, Any] = {"task_type": "index", "cron": "0 13 * * *", **more}
    with acting_as(caller):
        made, _ = queueing.set_schedule(caller=caller, draft=ScheduleTask(name=name, **given))
    return made


def fire() -> int:
    return queueing.fire_schedules()


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


@pytest.mark.parametrize("given", [{}, {"cron": None, "every_seconds": 3600}])
def test_missed_times_become_one_task(kee: Caller, given: dict[str, Any]) -> None:
    make_type(kee)
    at(NOON)
    schedule(kee, **given)
    at(NOON + timedelta(days=3))
    assert [fire(), fire()] == [1, 0]
    found = kept(kee)
    assert len(queued()) == 1
    assert (found.last_at, found.next_at) == (NOON + timedelta(hours=1), NOON + timedelta(days=3, hours=1))


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


def test_stopped_schedule_queues_nothing_until_it_is_resumed(kee: Caller) -> None:
    make_type(kee)
    at(NOON)
    made = schedule(kee)
    with acting_as(kee):
        queueing.switch(schedule_id=made.pk, on=False)
    at(NOON + timedelta(days=3))
    assert fire() == 0
    with acting_as(kee):
        queueing.switch(schedule_id=made.pk, on=True)
    assert fire() == 0
    at(NOON + timedelta(days=3, hours=1))
    assert fire() == 1


@pytest.mark.django_db(transaction=True)
def test_rival_clocks_queue_one_task(kee: Caller) -> None:
    make_type(kee)
    made = schedule(kee, cron=None, every_seconds=3600)
    with acting_as(kee):
        Schedule.objects.update(anchor_at=made.anchor_at - timedelta(hours=1), next_at=made.anchor_at)
    fired = together(*[fire] * 6)
    assert sorted(fired) == [0] * 5 + [1]
    assert len(queued()) == 1


@pytest.mark.parametrize(
    ("refusal", "given"),
    [
        ("unknown_task_type", {"task_type": "nothing"}),
        ("invalid_params", {"params": {"path": 1}}),
        ("unknown_queue", {"params": {"path": "/"}, "queue": "nowhere"}),
        ("unknown_recipient", {"params": {"path": "/"}, "recipient_ai": "Nobody"}),
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


def test_schedules_belong_to_their_owner(tenant: Tenant, kee: Caller) -> None:
    make_type(kee)
    token, stranger = make_token(tenant, "Kee"), make_token(tenant, "Hexy")
    asked = {"name": "a b", "task_type": "index", "cron": "*/5 * * * *"}
    status, made = send(token, "schedules", asked)
    assert (status, made["enabled"], made["last_task_id"]) == (201, True, None)
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


def test_cron_follows_the_local_clock() -> None:
    found = moments(cron("0 8 * * 1-5", "Europe/Vienna"), datetime(2026, 3, 26, 12, tzinfo=UTC), 3)
    local = [moment.astimezone(VIENNA) for moment in found]
    assert [f"{moment:%a %d %H:%M}" for moment in local] == ["Fri 27 08:00", "Mon 30 08:00", "Tue 31 08:00"]
    # The clocks went forward between the first and the second.
    assert [moment.hour for moment in found] == [7, 6, 6]


def test_sunday_may_be_seven() -> None:
    assert cron("0 8 * * 5-7") == cron("0 8 * * 0,5,6")
    assert cron("0 8 * * 0-7") == cron("0 8 * * */7,1-6")


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


def test_rare_day_is_found() -> None:
    assert cron("0 0 29 2 *").following(ANCHOR) == datetime(2028, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cron": "99 * * *"}, r"five fields: minute \(0-59\), hour \(0-23\), .* '99 \* \* \*' has 4"),
        ({"cron": "61 * * * *"}, "The minute '61' .* must be 0-59"),
        ({"cron": "* * * 0 *"}, "The month '0' .* must be 1-12"),
        ({"cron": "* * * * moonday"}, "The day of week 'moonday'"),
        ({"cron": "*/0 * * * *"}, "The minute"),
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
def test_following_is_the_first_after_any_moment_before(
    fields: tuple[str, ...], start: datetime, timezone: str
) -> None:
    assume(fields[2:4] != ("31", "2"))
    timetable = cron(" ".join(fields), timezone)
    after = start.replace(tzinfo=UTC)
    following = timetable.following(after)
    assert following is not None
    assert following > after
    assert timetable.following(after + (following - after) / 2) == following
    assert timetable.following(following - timedelta(microseconds=1)) == following
