"""When a schedule's moments are."""

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from apps.tasks import timetables
from apps.tasks.errors import InvalidTimetable
from apps.tasks.timetables import Timetable

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


def test_spans_keep_their_rhythm() -> None:
    assert every(90).following(ANCHOR) == ANCHOR + timedelta(seconds=90)
    assert every(90).following(ANCHOR + timedelta(seconds=90)) == ANCHOR + timedelta(seconds=180)
    assert every(90).latest(ANCHOR + timedelta(seconds=89)) is None
    assert every(90).latest(ANCHOR + timedelta(days=1)) == ANCHOR + timedelta(seconds=86_400)


def test_weekdays_at_eight_are_at_eight_by_the_clock_of_the_place() -> None:
    found = moments(cron("0 8 * * 1-5", "Europe/Vienna"), datetime(2026, 3, 26, 12, tzinfo=UTC), 3)
    local = [moment.astimezone(VIENNA) for moment in found]
    assert [f"{moment:%a %d %H:%M}" for moment in local] == ["Fri 27 08:00", "Mon 30 08:00", "Tue 31 08:00"]
    # The clocks went forward between the first and the second.
    assert [moment.hour for moment in found] == [7, 6, 6]


def test_a_time_that_the_clock_leaves_out_comes_as_much_later() -> None:
    night = datetime(2026, 3, 28, 23, tzinfo=UTC)
    (moment,) = moments(cron("30 2 * * *", "Europe/Vienna"), night, 1)
    assert f"{moment.astimezone(VIENNA):%d %H:%M}" == "29 03:30"


def test_a_time_that_the_clock_shows_twice_counts_once_unless_every_hour_does() -> None:
    evening = datetime(2026, 10, 24, 22, tzinfo=UTC)
    nightly = moments(cron("30 2 * * *", "Europe/Vienna"), evening, 2)
    assert [f"{moment:%d %H:%M}" for moment in nightly] == ["25 00:30", "26 01:30"]
    hourly = moments(cron("30 * * * *", "Europe/Vienna"), evening, 5)
    assert {later - earlier for earlier, later in itertools.pairwise(hourly)} == {timedelta(hours=1)}


def test_a_rare_day_is_found_both_ways() -> None:
    leap = cron("0 0 29 2 *")
    assert leap.following(ANCHOR) == datetime(2028, 2, 29, tzinfo=UTC)
    assert leap.latest(ANCHOR) == datetime(2024, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    "given",
    [
        {"cron": "* * * *", "every_seconds": None},
        {"cron": "61 * * * *", "every_seconds": None},
        {"cron": "a b c d e", "every_seconds": None},
        {"cron": None, "every_seconds": None},
        {"cron": "* * * * *", "every_seconds": 5},
        {"cron": "* * * * *", "every_seconds": None, "timezone": "Mars/Olympus"},
        {"cron": "* * * * *", "every_seconds": None, "timezone": "../../etc/passwd"},
        {"cron": "*/0 * * * *", "every_seconds": None},
        {"cron": f"0 {'1,' * 48}1 * * *", "every_seconds": None},
        {"cron": "0 0 30 2 *", "every_seconds": None},
    ],
)
def test_what_is_no_timetable_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidTimetable):
        timetables.read(**{"timezone": "UTC", "anchor": ANCHOR, **given})  # type: ignore[arg-type]  # as it was given


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
def test_the_next_moment_is_the_next_and_the_latest_the_latest(
    fields: tuple[str, ...], start: datetime, timezone: str
) -> None:
    assume(fields[2:4] != ("31", "2"))
    timetable = cron(" ".join(fields), timezone)
    after = start.replace(tzinfo=UTC)
    following = timetable.following(after)
    assert following is not None
    assert following > after
    assert timetable.latest(following) == following
    latest = timetable.latest(following - timedelta(microseconds=1))
    assert latest is None or latest <= after
