"""When a schedule's moments are: every so many seconds from an anchor, or where a cron expression matches the clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo

from celery.schedules import ParseException, crontab

from apps.tasks.errors import InvalidTimetable

# The 29th of February falls on a given weekday every 28 years, and once in 40 across a century.
_SEARCHED: Final = timedelta(days=366 * 41)
_FIELDS: Final = 5
_HOURS: Final = 24


class Timetable(Protocol):
    def following(self, after: datetime) -> datetime | None:
        """The first moment after this one; None if there is none."""

    def latest(self, until: datetime) -> datetime | None:
        """The last moment that is not after this one; None if there is none."""


@dataclass(frozen=True, slots=True)
class Every:
    """Moments a fixed time apart, whatever happens meanwhile."""

    span: timedelta
    anchor: datetime

    def following(self, after: datetime) -> datetime | None:
        return self.anchor + max(1, (after - self.anchor) // self.span + 1) * self.span

    def latest(self, until: datetime) -> datetime | None:
        passed = (until - self.anchor) // self.span
        return self.anchor + passed * self.span if passed >= 1 else None


@dataclass(frozen=True, slots=True)
class Cron:
    """Moments at which all five fields match the clock of a time zone.

    A time of day that the clock leaves out in spring comes as much later; one that it shows twice in autumn counts
    the first time, unless the expression names every hour.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days_of_month: frozenset[int]
    months: frozenset[int]
    days_of_week: frozenset[int]
    zone: ZoneInfo

    def following(self, after: datetime) -> datetime | None:
        first = after.astimezone(self.zone).date() - timedelta(days=1)
        for day in self._days(first, forward=True):
            for moment in _moments(self, day):
                if moment > after:
                    return moment
        return None

    def latest(self, until: datetime) -> datetime | None:
        for day in self._days(until.astimezone(self.zone).date() + timedelta(days=1), forward=False):
            for moment in reversed(_moments(self, day)):
                if moment <= until:
                    return moment
        return None

    def _days(self, first: date, *, forward: bool) -> Iterator[date]:
        for passed in range(_SEARCHED.days):
            day = first + timedelta(days=passed if forward else -passed)
            # Cron's week begins with Sunday as 0.
            if (
                day.month in self.months
                and day.day in self.days_of_month
                and (day.isoweekday() % 7) in self.days_of_week
            ):
                yield day


@cache
def _times(minutes: frozenset[int], hours: frozenset[int]) -> tuple[tuple[int, int], ...]:
    return tuple((hour, minute) for hour in sorted(hours) for minute in sorted(minutes))


def _moments(cron: Cron, day: date) -> list[datetime]:
    folds = (0, 1) if len(cron.hours) == _HOURS else (0,)
    return sorted(
        {
            datetime(day.year, day.month, day.day, hour, minute, tzinfo=cron.zone, fold=fold).astimezone(UTC)
            for hour, minute in _times(cron.minutes, cron.hours)
            for fold in folds
        }
    )


def read(*, cron: str | None, every_seconds: int | None, timezone: str, anchor: datetime) -> Timetable:
    """The timetable that is meant.

    :raises InvalidTimetable: if it can't be read, or not exactly one of the two is given.
    """
    if (cron is None) == (every_seconds is None):
        raise InvalidTimetable("A schedule has a cron expression or every_seconds.")
    if every_seconds is not None:
        return Every(timedelta(seconds=every_seconds), anchor)
    fields = (cron or "").split()
    if len(fields) != _FIELDS:
        raise InvalidTimetable("A cron expression has five fields: minute, hour, day of month, month, day of week.")
    if any(len(field) > longest for field, longest in zip(fields, _LONGEST, strict=True)):
        raise InvalidTimetable("A field of this cron expression is too long.")
    try:
        zone = ZoneInfo(timezone)
        # Beat reads the same expression with this.
        sets: Any = crontab(**dict(zip(_NAMES, fields, strict=True)))
    except (ParseException, ValueError, KeyError, OSError) as exc:
        raise InvalidTimetable(f"This timetable can't be read: {exc}") from exc
    return Cron(
        minutes=frozenset(sets.minute),
        hours=frozenset(sets.hour),
        days_of_month=frozenset(sets.day_of_month),
        months=frozenset(sets.month_of_year),
        days_of_week=frozenset(sets.day_of_week),
        zone=zone,
    )


# What beat's table holds of each.
_LONGEST: Final = (240, 96, 124, 64, 64)
_NAMES: Final = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
