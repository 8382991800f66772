"""The times of schedules: intervals from an anchor, or times that match a cron expression."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

from celery.schedules import ParseException, crontab_parser

from apps.core.errors import Invalid

# The 29th of February falls on a given weekday every 28 years, and once in 40 across a century.
_SEARCHED: Final = timedelta(days=366 * 41)
_HOURS: Final = 24
_FIELDS: Final = {"minute": (0, 59), "hour": (0, 23), "day of month": (1, 31), "month": (1, 12), "day of week": (0, 6)}
# As a day, not as a step.
_SEVEN: Final = re.compile(r"(?<![\d/])7(?!\d)")


@dataclass(frozen=True, slots=True)
class Every:
    """Times at a fixed interval."""

    span: timedelta
    anchor: datetime

    def following(self, after: datetime) -> datetime:
        """The first time after this one."""
        return self.anchor + max(1, (after - self.anchor) // self.span + 1) * self.span


@dataclass(frozen=True, slots=True)
class Cron:
    """Times at which all five fields match the clock of a time zone.

    A time that the clock skips in spring comes an hour later. A time that it repeats in autumn counts once,
    unless the expression names every hour.
    """

    # Not by croniter, which runs nightly work twice in autumn, nor by cronsim, which leaves out `*/15 2 * * *` in spring.
    zone: ZoneInfo
    minutes: frozenset[int]
    hours: frozenset[int]
    days_of_month: frozenset[int]
    months: frozenset[int]
    days_of_week: frozenset[int]

    def following(self, after: datetime) -> datetime | None:
        """The first time after this one; None if there is none."""
        first = after.astimezone(self.zone).date() - timedelta(days=1)
        for day in self._days(first):
            for moment in _moments(self, day):
                if moment > after:
                    return moment
        return None

    def _days(self, first: date) -> Iterator[date]:
        for passed in range(_SEARCHED.days):
            day = first + timedelta(days=passed)
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


Timetable = Every | Cron


def read(*, cron: str | None, every_seconds: int | None, timezone: str, anchor: datetime) -> Timetable:
    """The timetable that is meant.

    :raises Invalid: `invalid_timetable` if it can't be read, or not exactly one of the two is given.
    """
    if every_seconds is not None and cron is None:
        return Every(timedelta(seconds=every_seconds), anchor)
    if cron is None or every_seconds is not None:
        raise _invalid("Give either cron or every_seconds, and not both.")
    fields = cron.split()
    if len(fields) != len(_FIELDS):
        ranges = ", ".join(f"{name} ({first}-{last})" for name, (first, last) in _FIELDS.items())
        raise _invalid(f"A cron expression has five fields: {ranges}. {cron!r} has {len(fields)}.")
    # Sunday is 0, and 7 too.
    fields[-1] = _SEVEN.sub("0", fields[-1].replace("0-7", "0-6"))
    try:
        zone = ZoneInfo(timezone)
    except (ValueError, KeyError, OSError) as exc:
        raise _invalid(f"Unknown time zone {timezone!r}. An example is 'Europe/Vienna'.") from exc
    return Cron(zone, *map(_numbers, _FIELDS, fields))


def _invalid(detail: str) -> Invalid:
    return Invalid(detail, code="invalid_timetable")


def _numbers(name: str, text: str) -> frozenset[int]:
    """What is meant by the text of a field."""
    first, last = _FIELDS[name]
    try:
        return frozenset(crontab_parser(last - first + 1, first).parse(text))
    except (ParseException, ValueError) as exc:
        raise _invalid(f"The {name} {text!r} of this cron expression is invalid: it must be {first}-{last}.") from exc
