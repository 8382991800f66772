"""The history of queues as data for Chart.js."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from apps.tasks import selectors
from apps.tasks.selectors import Period

_HOUR, _DAY, _MONTH = timedelta(hours=1), timedelta(days=1), timedelta(days=30)
_MINUTE, _QUARTER, _SHIFT = timedelta(minutes=1), timedelta(minutes=15), timedelta(hours=6)
# The deepest queues have a line each.
_COLOURS: Final = ("#9333ea", "#0891b2", "#ca8a04", "#16a34a", "#db2777")


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of a page; `data` is JSON."""

    title: str
    kind: Literal["bar", "line"]
    data: str


def of_all(*, now: datetime) -> list[Chart]:
    """The last hour and day of all visible queues."""
    now = now.replace(second=0, microsecond=0)
    hour = selectors.history(since=now - _HOUR, step=_MINUTE)
    day = selectors.history(since=now - _DAY, step=_QUARTER)
    return [
        Chart("Ended a minute, last hour", "bar", _ended(hour)),
        Chart("Ended in 15 minutes, last day", "bar", _ended(day)),
        Chart("Queued, last day", "line", _queued(day)),
    ]


def of_queue(queue_id: int, *, now: datetime) -> list[Chart]:
    """The last day and month of one queue."""
    now = now.replace(second=0, microsecond=0)
    day = selectors.history(since=now - _DAY, step=_QUARTER, queue_id=queue_id)
    month = selectors.history(since=now - _MONTH, step=_SHIFT, queue_id=queue_id)
    return [
        Chart("Ended in 15 minutes, last day", "bar", _ended(day)),
        Chart("Queued, last day", "line", _queued(day)),
        Chart("Queued, last 30 days", "line", _queued(month, label="%d %b")),
    ]


def _ended(periods: Sequence[Period]) -> str:
    failed = [one.failed for one in periods]
    series = [
        ("Succeeded or canceled", "#9333ea", [one.ended - one.failed for one in periods]),
        ("Failed", "#dc2626", failed),
    ]
    return _chart(periods, series, stack="ends")


def _queued(periods: Sequence[Period], *, label: str = "%H:%M") -> str:
    most: dict[str, int] = {}
    for period in periods:
        for queue, queued in period.queued.items():
            most[queue] = max(most.get(queue, 0), queued)
    deepest = sorted(most, key=lambda queue: (-most[queue], queue))
    lines = zip(deepest, _COLOURS, strict=False)
    series = [(name, colour, [one.queued.get(name, 0) for one in periods]) for name, colour in lines]
    return _chart(periods, series, label=label)


def _chart(
    periods: Sequence[Period], series: list[tuple[str, str, list[int]]], *, label: str = "%H:%M", stack: str = ""
) -> str:
    shown = {"displayYAxis": True, "maxTicksXLimit": 6, "pointRadius": 0, **({"stack": stack} if stack else {})}
    datasets = [
        {"label": name, "data": data, "backgroundColor": colour, "borderColor": colour, **shown}
        for name, colour, data in series
    ]
    return json.dumps({"labels": [one.at.strftime(label) for one in periods], "datasets": datasets})
