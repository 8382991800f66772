"""The dashboard's cards: the operator's questions with their answers, the worrying ones coloured."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from django.contrib import admin
from django.db.models import Model
from django.urls import reverse
from django_celery_beat.models import PeriodicTask

from apps.console import selectors
from apps.core import notifications
from apps.delivery.models import Target
from apps.digests.models import Inbox
from apps.memory.models import Memory
from apps.memory.states import Kind
from apps.tasks.models import Task
from apps.workers.models import State, Worker

Tone = Literal["good", "warning", "danger", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of the dashboard."""

    label: str
    value: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Figures that belong together, and where to look further."""

    title: str
    link: str
    figures: list[Figure]


def cards(*, now: datetime) -> list[Card]:
    """What the dashboard shows."""
    return [_work(now), _inbox(now), _deliveries(now), _workers(), _memory(), _life()]


def _work(now: datetime) -> Card:
    queues = selectors.queue_figures(now=now)
    oldest = now - queues.oldest_ready_at if queues.oldest_ready_at else None
    return Card(
        title="Tasks",
        link=_listing(Task),
        figures=[
            Figure(label="Queued", value=str(queues.ready)),
            Figure(label="Oldest queued", value=_age(oldest), tone=_late(oldest, timedelta(minutes=5))),
            Figure(label="Scheduled", value=str(queues.waiting)),
            Figure(label="Leased", value=str(queues.leased)),
            _none_is_good("Leases overdue", queues.overdue, "warning"),
            _none_is_good("Dead letters", selectors.dead_letters(), "danger"),
        ],
    )


def _inbox(now: datetime) -> Card:
    inboxes = selectors.inbox_figures(now=now)
    return Card(
        title="Inbox",
        link=_listing(Inbox),
        figures=[
            Figure(label="Unread receipts", value=str(inboxes.unread)),
            Figure(label="Buffered for digests", value=str(inboxes.pending)),
            _none_is_good("Digests overdue", inboxes.overdue, "danger"),
            Figure(label="Open obligations", value=str(inboxes.obligations)),
        ],
    )


def _deliveries(now: datetime) -> Card:
    found = selectors.delivery_figures(now=now)
    oldest = now - found.oldest_at if found.oldest_at else None
    return Card(
        title="Deliveries",
        link=_listing(Target),
        figures=[
            Figure(label="Pending", value=str(found.pending)),
            Figure(label="Oldest", value=_age(oldest), tone=_late(oldest, timedelta(minutes=5))),
            _none_is_good("Targets that don't answer", found.open_breakers, "warning"),
            _none_is_good("Dead deliveries", found.dead, "danger"),
        ],
    )


def _workers() -> Card:
    unwell: dict[str, Tone] = {State.DEGRADED: "warning", State.OFFLINE: "warning", State.QUARANTINED: "danger"}
    return Card(
        title="MCP workers",
        link=_listing(Worker),
        figures=[
            Figure(label=state.capitalize(), value=str(count), tone=unwell.get(state, "plain") if count else "plain")
            for state, count in selectors.workers_by_health().items()
        ],
    )


def _memory() -> Card:
    return Card(
        title="Memory",
        link=_listing(Memory),
        figures=[
            Figure(label="Observations", value=str(Memory.objects.of_kind(Kind.OBSERVATION).count())),
            Figure(label="Patterns", value=str(Memory.objects.of_kind(Kind.PATTERN).count())),
            Figure(label="Concepts", value=str(Memory.objects.of_kind(Kind.CONCEPT).count())),
        ],
    )


def _life() -> Card:
    return Card(
        title="Processes",
        link=_listing(PeriodicTask),
        figures=[_sign_of_life("Beat", "beat"), _sign_of_life("Celery workers", "worker")],
    )


def _sign_of_life(label: str, who: str) -> Figure:
    age = notifications.heartbeat_age(who)
    if age is None or age > notifications.SILENT_AFTER:
        return Figure(label=label, value="silent" if age is None else f"silent for {_age(age)}", tone="danger")
    return Figure(label=label, value=f"alive {_age(age)} ago", tone="good")


def _none_is_good(label: str, count: int, otherwise: Tone) -> Figure:
    return Figure(label=label, value=str(count), tone=otherwise if count else "good")


def _late(age: timedelta | None, limit: timedelta) -> Tone:
    return "warning" if age is not None and age > limit else "good"


def _age(age: timedelta | None) -> str:
    """`3 min`, or a hyphen."""
    if age is None:
        return "-"
    seconds = int(age.total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _listing(model: type[Model]) -> str:
    meta = model._meta  # noqa: SLF001  # Django documents _meta as public
    shown = admin.site.is_registered(model)
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist") if shown else ""
