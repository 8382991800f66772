"""Months, by which dates are told where a subject wants them anonymous. All in UTC."""

from calendar import monthrange
from datetime import UTC, datetime


def first_moment(moment: datetime) -> datetime:
    """The first moment of its month."""
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def last_moment(moment: datetime) -> datetime:
    """The last moment of its month, a microsecond before the next."""
    begin = first_moment(moment)
    _, days = monthrange(begin.year, begin.month)
    return begin.replace(day=days, hour=23, minute=59, second=59, microsecond=999_999)
