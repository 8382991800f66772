"""Home: what an operator asks first. Every count links to a list of exactly the rows that it counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.urls import reverse

from apps.console import selectors
from apps.core import charts, notifications
from apps.core.admin import COUNTED, counted, link_to_list, link_to_page, span
from apps.delivery.models import Delivery, Kind, Target
from apps.delivery.models import State as DeliveryState
from apps.digests.models import Inbox, Thread
from apps.executions.models import Execution
from apps.executions.states import Status as ExecutionStatus
from apps.receipts.models import Obligation
from apps.tasks import selectors as tasks
from apps.tasks.models import FinishedTask, LiveTask, Queue, Task
from apps.tasks.shapes import QueueFigures
from apps.tasks.states import Status
from apps.workers.models import State, Worker

Tone = Literal["good", "warning", "danger", "plain"]

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_LATE: Final = timedelta(minutes=5)
# Queues in the table.
_ROWS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number, and the list of what it counts."""

    label: str
    value: str
    tone: Tone = "plain"
    link: str = ""
    says: str = ""
    """What it means, where the label is too short to say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Figures that belong together."""

    title: str
    figures: list[Figure]


def live(*, now: datetime) -> dict[str, Any]:
    """The figures of this moment, and a table of the busiest queues."""
    queues = tasks.queue_figures(tenant_id=None, up_to=COUNTED)
    cards = [
        _tasks(queues),
        _inboxes(now),
        _deliveries(),
        _workers(),
        _executions(now),
        _processes(),
    ]
    return {"now": now, "cards": cards, "queues": _queues(queues)}


def _tasks(queues: Mapping[int, QueueFigures]) -> Card:
    of, dead = tasks.rows, tasks.found(Task.objects.all(), status="dead")

    oldest = max(queues, key=lambda pk: queues[pk].oldest_wait_seconds, default=0)
    age = timedelta(seconds=queues[oldest].oldest_wait_seconds) if oldest and queues[oldest].queued else None
    ended, failed = of(within=_HOUR), of(status=Status.FAILED, within=_DAY)
    return Card(
        title="Tasks",
        figures=[
            _count("Queued", of(status=Status.QUEUED), {"status": Status.QUEUED}),
            Figure(
                label="Oldest queued",
                value=span(age),
                tone=_late(age),
                link=reverse("admin:tasks_queue_change", args=[oldest]) if age else "",
            ),
            _count("Scheduled", of(status=Status.SCHEDULED), {"status": Status.SCHEDULED}),
            _count("Waiting", of(status=Status.WAITING), {"status": Status.WAITING}, says="For other tasks"),
            _count("Leased", of(status=Status.LEASED), {"status": Status.LEASED}),
            _count("Leases overdue", of(status="overdue"), {"status": "overdue"}, bad="warning"),
            _count("Ended in the last hour", ended, {"ended": "hour"}),
            _count("Failed in the last day", failed, {"status": Status.FAILED, "ended": "day"}, bad="warning"),
            _count("Dead letters", dead, {"status": "dead"}, bad="danger", says="Failed, and not retried"),
        ],
    )


def _inboxes(now: datetime) -> Card:
    due = now - selectors.FLUSHED_WITHIN
    return Card(
        title="Inboxes",
        figures=[
            _count("With unread receipts", Inbox.objects.filter(visible_unread__gt=0), {"visible_unread__gt": 0}),
            _count("With a digest to come", Inbox.objects.filter(pending_unread__gt=0), {"pending_unread__gt": 0}),
            _count(
                "Digests overdue",
                Thread.objects.filter(flush_due_at__lt=due),
                {"flush_due_at__lt": due.isoformat()},
                bad="danger",
            ),
            _count("Open obligations", Obligation.objects.filter(closed_at=None), {"closed_at__isempty": 1}),
        ],
    )


def _deliveries() -> Card:
    silent = Target.objects.filter(retry_at__isnull=False)
    wasted = Target.objects.filter(kind=Kind.WEBHOOK, wasted__gt=0)
    pending, dead = (Delivery.objects.filter(state=state) for state in (DeliveryState.PENDING, DeliveryState.DEAD))
    return Card(
        title="Deliveries",
        figures=[
            _count("On their way", pending, {"state__exact": DeliveryState.PENDING}),
            _count("Dead deliveries", dead, {"state__exact": DeliveryState.DEAD}, bad="danger"),
            _count("Targets that don't answer", silent, {"retry_at__isnull": False}, bad="warning"),
            _count(
                "Webhooks woken for nothing",
                wasted,
                {"kind__exact": Kind.WEBHOOK, "wasted__gt": 0},
                says="Everything had been acked before the call",
            ),
        ],
    )


def _workers() -> Card:
    unwell: dict[str, Tone] = {State.DEGRADED: "warning", State.OFFLINE: "warning", State.QUARANTINED: "danger"}
    there = Worker.objects.filter(unregistered_at=None)
    return Card(
        title="MCP workers",
        figures=[
            _count(
                state.capitalize(),
                there.filter(state=state),
                {"state__exact": state, "unregistered_at__isnull": True},
                bad=unwell.get(state, "plain"),
            )
            for state in State
        ],
    )


def _executions(now: datetime) -> Card:
    def count(label: str, status: ExecutionStatus, *, bad: Tone = "plain", **since: datetime) -> Figure:
        shown_by = {"status__exact": status} | {name: moment.isoformat() for name, moment in since.items()}
        return _count(label, Execution.objects.filter(status=status, **since), shown_by, bad=bad)

    return Card(
        title="Executions",
        figures=[
            count("Executing", ExecutionStatus.EXECUTING),
            count("Wait for a decision", ExecutionStatus.NEEDS_ESCALATION, bad="warning"),
            count("Failed in the last day", ExecutionStatus.FAILED, bad="warning", ended_at__gte=now - _DAY),
        ],
    )


def _processes() -> Card:
    ages = notifications.heartbeats()
    workers = [who for who in ages if who.startswith("worker ")][:_ROWS] or ["worker"]
    named = {"beat": "Beat"} | {who: f"Celery {who}" for who in workers}
    return Card(title="Processes", figures=[_sign_of_life(label, ages.get(who)) for who, label in named.items()])


def _sign_of_life(label: str, age: timedelta | None) -> Figure:
    if age is None or age > notifications.SILENT_AFTER:
        return Figure(label=label, value="silent" if age is None else f"silent for {span(age)}", tone="danger")
    return Figure(label=label, value=f"alive {span(age)} ago", tone="good")


def _count(
    label: str,
    rows: "QuerySet[Any]",
    shown_by: Mapping[str, object],
    *,
    bad: Tone = "plain",
    says: str = "",
) -> Figure:
    """Counts as far as the list does. `bad` is the tone of any."""
    count = rows.order_by()[:COUNTED].count()
    none: Tone = "plain" if bad == "plain" else "good"
    # What stands for tasks is listed as tasks.
    listed = Task if rows.model in {LiveTask, FinishedTask} else rows.model
    meta = listed._meta  # noqa: SLF001  # Django documents _meta as public
    link = reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist")
    return Figure(
        label=label,
        value=counted(count),
        tone=bad if count else none,
        link=f"{link}?{urlencode(shown_by)}",
        says=says,
    )


def _queues(queues: Mapping[int, QueueFigures]) -> dict[str, Any]:
    busiest = sorted(queues.items(), key=lambda one: (-one[1].queued - one[1].leased, one[1].queue))[:_ROWS]
    of = Queue.objects.select_related("tenant").in_bulk([pk for pk, _ in busiest])
    several = len({queue.tenant_id for queue in of.values()}) > 1

    def named(pk: int, found: QueueFigures) -> str:
        state = " (paused)" if found.paused else ": nobody leases from it" if found.nobody_leases else ""
        return f"{of[pk].tenant.slug}: {found.queue}{state}" if several else f"{found.queue}{state}"

    def tasks_of(pk: int, status: Status, count: str) -> str:
        return link_to_list(
            "tasks_task", count, tenant__id__exact=of[pk].tenant_id, queue__name=of[pk].name, status=status
        )

    rows = [
        [
            link_to_page("tasks_queue", pk, named(pk, found)),
            tasks_of(pk, Status.QUEUED, counted(found.queued)),
            span(found.oldest_wait_seconds) if found.queued else "-",
            tasks_of(pk, Status.LEASED, f"{found.leased:,}"),
            f"{found.finished_per_minute:.1f}",
            f"{found.failure_rate:.0%}",
            f"{span(found.latency_p50_seconds)} / {span(found.latency_p95_seconds)}",
        ]
        for pk, found in busiest
    ]
    headers = ["Queue", "Queued", "Oldest", "Leased", "Ended a minute", "Failed", "Latency p50 / p95"]
    return {"headers": headers, "rows": rows}


def drawn() -> list[charts.Chart]:
    """The last hour and day."""
    hour = tasks.history(step=timedelta(minutes=1), steps=60)
    day = tasks.history(step=timedelta(minutes=15), steps=96)
    return [
        charts.ended("Ended a minute, last hour", hour),
        charts.ended("Ended in 15 minutes, last day", day),
        charts.queued("Queued, last day", day),
    ]


def _late(age: timedelta | None) -> Tone:
    return "warning" if age is not None and age > _LATE else "good"
