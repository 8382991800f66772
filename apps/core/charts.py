"""The history of queues as data for Chart.js."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

# The deepest queues have a line each.
_COLOURS: Final = ("#9333ea", "#0891b2", "#ca8a04", "#16a34a", "#db2777")


@dataclass(slots=True)
class Period:
    """What ended in some minutes, and by queue the most that waited at the end of one of them."""

    at: datetime
    ended: int = 0
    failed: int = 0
    queued: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of a page; `data` is JSON."""

    title: str
    kind: Literal["bar", "line"]
    data: str


def ended(title: str, periods: Sequence[Period]) -> Chart:
    """What ended in each period, failures apart."""
    failed = [one.failed for one in periods]
    series = [
        ("Succeeded or canceled", "#9333ea", [one.ended - one.failed for one in periods]),
        ("Failed", "#dc2626", failed),
    ]
    return Chart(title, "bar", _data(periods, series, stack="ends"))


def queued(title: str, periods: Sequence[Period], *, label: str = "%H:%M") -> Chart:
    """What waited in each of the deepest queues; `label` is the form of the times below."""
    most: dict[str, int] = {}
    for period in periods:
        for queue, depth in period.queued.items():
            if depth:
                most[queue] = max(most.get(queue, 0), depth)
    deepest = sorted(most, key=lambda queue: (-most[queue], queue))
    lines = zip(deepest, _COLOURS, strict=False)
    series = [(name, colour, [one.queued.get(name, 0) for one in periods]) for name, colour in lines]
    return Chart(title, "line", _data(periods, series, label=label))


def compared(title: str, amounts: Mapping[str, int]) -> Chart:
    """One bar for each name."""
    shown = {"label": title, "data": list(amounts.values()), "backgroundColor": _COLOURS[0], "displayYAxis": True}
    return Chart(title, "bar", json.dumps({"labels": list(amounts), "datasets": [shown]}))


def _data(
    periods: Sequence[Period], series: list[tuple[str, str, list[int]]], *, label: str = "%H:%M", stack: str = ""
) -> str:
    shown = {"displayYAxis": True, "maxTicksXLimit": 6, "pointRadius": 0, **({"stack": stack} if stack else {})}
    datasets = [
        {"label": name, "data": data, "backgroundColor": colour, "borderColor": colour, **shown}
        for name, colour, data in series
    ]
    return json.dumps({"labels": [one.at.strftime(label) for one in periods], "datasets": datasets})
