"""The life of a task as bars: when it waited, and each of its runs. Pure."""

from collections.abc import Sequence
from datetime import datetime

from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from apps.core.admin import span
from apps.tasks.shapes import TimelineEvent

_COLOURS = {"waited": "#d4d4d8", "running": "#60a5fa", "succeeded": "#16a34a", "failed": "#dc2626"}
_OTHER = "#ca8a04"


def drawn(events: Sequence[TimelineEvent], *, now: datetime) -> SafeString:
    """A line for each wait and each run, from the moment of queueing to the end or to now."""
    bars, since = list[tuple[str, str, datetime, datetime]](), events[0].at
    run: TimelineEvent | None = None
    for event in events[1:]:
        if event.event == "leased":
            bars.append(("waited", "", since, event.at))
            run = event
        elif run is not None and event.event.startswith("run_"):
            bars.append((event.event.removeprefix("run_"), f"run {run.run_id} on {run.holder}", run.at, event.at))
            run, since = None, event.at
    ended = events[-1].event in {"succeeded", "failed", "canceled", "fetched"}
    if run is not None:
        bars.append(("running", f"run {run.run_id} on {run.holder}", run.at, now))
    elif not ended:
        bars.append(("waited", "", since, now))
    elif not bars:
        bars.append(("waited", "", since, events[-1].at))
    began, last = events[0].at, max([events[0].at, *(end for *_, end in bars)])
    whole = (last - began).total_seconds() or 1.0
    return format_html_join(
        "",
        '<div class="flex items-center gap-2 py-0.5"><div class="shrink-0 truncate" style="width:14rem">{} {}</div>'
        '<div class="grow relative h-4"><div class="absolute h-4 rounded-xs" title="{} to {} UTC"'
        ' style="left:{}%;width:{}%;min-width:2px;background:{}"></div></div><div class="shrink-0 text-right" style="width:4rem">{}</div></div>',
        (
            (
                what,
                detail,
                f"{start:%H:%M:%S}",
                f"{end:%H:%M:%S}",
                f"{100 * (start - began).total_seconds() / whole:.2f}",
                f"{100 * (end - start).total_seconds() / whole:.2f}",
                _COLOURS.get(what, _OTHER),
                span(end - start),
            )
            for what, detail, start, end in bars
        ),
    )
