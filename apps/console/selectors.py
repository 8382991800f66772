"""The operator's questions: is work flowing, and is anything stuck?

Each answer counts what the transaction may see: all tenants for the system, an operator's own for an operator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Count, Min, Q, Sum

from apps.core import notifications
from apps.delivery import selectors as delivery
from apps.delivery.models import Delivery, Kind, Target
from apps.delivery.models import State as DeliveryState
from apps.digests import selectors as digests
from apps.digests.models import Inbox, ReceiptState, Thread
from apps.receipts.models import Obligation
from apps.tasks import selectors as tasks
from apps.tasks.models import FinishedTask, LiveTask
from apps.tasks.shapes import QueueFigures as FiguresOfQueue
from apps.tasks.states import Status
from apps.workers.models import State, Worker

# The tick that flushes runs every second; what is due for longer was passed over.
FLUSHED_WITHIN: Final = timedelta(seconds=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """How much work there is, by what it waits for."""

    ready: int
    waiting: int
    leased: int
    overdue: int
    """Leases past their deadline, which the next claim or sweep takes back."""
    oldest_ready_at: datetime | None


def queue_figures(*, now: datetime) -> QueueFigures:
    """The open tasks. Reads `task_live` only, which holds no history."""
    found = LiveTask.objects.aggregate(
        ready=Count("pk", filter=Q(ready_at__isnull=False, holder=None)),
        waiting=Count("pk", filter=Q(ready_at=None)),
        leased=Count("pk", filter=Q(holder__isnull=False)),
        overdue=Count("pk", filter=Q(lease_expires_at__lt=now)),
        oldest_ready_at=Min("ready_at", filter=Q(holder=None)),
    )
    return QueueFigures(**found)


def dead_letters() -> int:
    """Tasks that failed for good."""
    return FinishedTask.objects.filter(status=Status.FAILED).count()


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxFigures:
    """What waits for agents, and whether it reaches them."""

    unread: int
    pending: int
    """Receipts that are buffered for a digest."""
    overdue: int
    """Buffers that should have been flushed before now."""
    oldest_due_at: datetime | None
    obligations: int
    oldest_pending_at: datetime | None
    """When the first receipt of the buffer that is due next was posted."""


def inbox_figures(*, now: datetime) -> InboxFigures:
    """The inboxes' own counters and the threads that wait; never the receipts themselves."""
    counters = Inbox.objects.aggregate(
        unread=Sum("visible_unread", default=0), pending=Sum("pending_unread", default=0)
    )
    due = Thread.objects.filter(flush_due_at__lt=now - FLUSHED_WITHIN).aggregate(
        overdue=Count("pk"), oldest_due_at=Min("flush_due_at")
    )
    next_due = Thread.objects.filter(flush_due_at__isnull=False).order_by("flush_due_at")[:1].values("pk")
    waiting = ReceiptState.objects.filter(thread__in=next_due, acked_at=None, pending=True)
    return InboxFigures(
        **counters,
        **due,
        obligations=Obligation.objects.filter(closed_at=None).count(),
        oldest_pending_at=waiting.aggregate(oldest=Min("receipt__created_at"))["oldest"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFigures:
    """Receipts on their way to other deployments."""

    pending: int
    dead: int
    oldest_at: datetime | None
    overdue_since: datetime | None
    """Since when the delivery that is due the longest waits, of targets that may be called."""
    open_breakers: int


def delivery_figures(*, now: datetime) -> DeliveryFigures:
    """What is pending or dead; delivered ones, which are many, are not read."""
    pending = Delivery.objects.filter(state=DeliveryState.PENDING, target__kind=Kind.REMOTE)
    callable_ = pending.filter(due_at__lt=now - FLUSHED_WITHIN, target__retry_at=None, target__stopped_at=None)
    return DeliveryFigures(
        **pending.aggregate(pending=Count("pk"), oldest_at=Min("created_at")),
        **callable_.aggregate(overdue_since=Min("due_at")),
        dead=Delivery.objects.filter(state=DeliveryState.DEAD).count(),
        open_breakers=Target.objects.filter(kind=Kind.REMOTE, retry_at__isnull=False).count(),
    )


def _delivery_gauges(*, now: datetime) -> "list[Gauge]":
    """By kind, and by the name of a remote target: no label names a tenant."""
    found = delivery_figures(now=now)
    age = (now - found.oldest_at).total_seconds() if found.oldest_at else 0.0
    of_kinds = (
        ("enabled", "Targets that are called."),
        ("stopped", "Targets that are not called until they are resumed."),
        ("sent", "Calls that delivered, of the targets that exist."),
        ("failed", "Calls that failed."),
        ("wasted", "Wakes for which everything had been acked before the call."),
    )
    by_target: Any = (
        Target.objects.filter(kind=Kind.REMOTE)
        .values("name")
        .annotate(**{name: Sum(column) for name, (_, column) in _OF_TARGETS.items()})
    )
    return [
        Gauge(name="delegate_receipt_retry_queue_size", says="Receipts queued for retry.", value=found.pending),
        Gauge(name="gatehouse_deliveries_oldest_seconds", says="Age of the oldest pending delivery.", value=age),
        Gauge(name="gatehouse_deliveries_dead", says="Deliveries that wait for an operator.", value=found.dead),
        Gauge(name="gatehouse_targets_open", says="Remote targets with an open breaker.", value=found.open_breakers),
        *(
            Gauge(
                name=f"gatehouse_targets_{name}", says=says, value=getattr(of_kind, name), labels={"kind": of_kind.kind}
            )
            for of_kind in delivery.figures()
            for name, says in of_kinds
        ),
        *(gauge for row in by_target.order_by("name") for gauge in _of_target(row.pop("name"), row)),
    ]


_OF_TARGETS: Final = {
    "sum_sent": ("Receipts that a target has.", "sent"),
    "sum_seconds": ("Sum of the times from posting to delivery: divide by those sent.", "delivery_seconds"),
    "sum_failed": ("Calls that delivered nothing.", "failed"),
    "sum_given_up": ("Deliveries that died.", "dead"),
}


def _of_target(name: str, sums: Mapping[str, float]) -> "list[Gauge]":
    return [
        Gauge(
            name=f"gatehouse_deliveries_{figure.removeprefix('sum_')}",
            says=says,
            value=sums[figure],
            labels={"target": name},
        )
        for figure, (says, _) in _OF_TARGETS.items()
    ]


def workers_by_health() -> dict[str, int]:
    """How many registered workers are in each state; every state is named."""
    counted = dict(Worker.objects.filter(unregistered_at=None).values_list("state").annotate(Count("pk")))
    return {str(state): counted.get(state, 0) for state in State}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A number for Prometheus."""

    name: str
    says: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


# Queues are named by whoever queues: the busiest have gauges of their own, by name over all tenants.
_QUEUES_SHOWN: Final = 50


def _queue_gauges() -> "list[Gauge]":
    found = sorted(tasks.queue_figures(tenant_id=None).values(), key=lambda one: one.finished_per_minute + one.queued)
    gauges: dict[tuple[str, str, str], Gauge] = {}
    for one in found[-_QUEUES_SHOWN:]:
        for gauge in _of_queue(one):
            key = (gauge.name, one.queue, gauge.labels.get("quantile", ""))
            known = gauges.get(key)
            value = gauge.value
            if known is not None:
                value = known.value + value if gauge.name in _SUMMED else max(known.value, value)
            gauges[key] = replace(gauge, value=value)
    return list(gauges.values())


_SUMMED: Final = {
    f"gatehouse_queue_{name}" for name in ("ready", "waiting", "leased", "finished_per_minute", "dead_letters")
}


def _of_queue(found: FiguresOfQueue) -> "list[Gauge]":
    """One queue's figures; queues of one name in several tenants are summed, or the worst is told."""
    figures = [
        ("ready", "Tasks of the queue that a worker may claim.", found.queued),
        ("waiting", "Tasks of the queue that wait for a moment or a task.", found.scheduled),
        ("leased", "Tasks of the queue that a worker holds.", found.leased),
        ("oldest_ready_seconds", "Age of the oldest ready task of the queue.", found.oldest_wait_seconds),
        ("finished_per_minute", "Tasks of the queue that ended, over five minutes.", found.finished_per_minute),
        ("failure_ratio", "Share of failures among them.", found.failure_rate),
        ("expiries", "Leases that expired of tasks that ended in five minutes.", found.expiries),
        ("dead_letters", "Of the newest dead letters, those of the queue.", found.dead_letters),
    ]
    quantiles = {"0.5": found.latency_p50_seconds, "0.95": found.latency_p95_seconds, "0.99": found.latency_p99_seconds}
    return [
        *(
            Gauge(name=f"gatehouse_queue_{name}", says=says, value=value, labels={"queue": found.queue})
            for name, says, value in figures
        ),
        *(
            Gauge(
                name="gatehouse_queue_latency_seconds",
                says="From when a task might have begun to its end, over five minutes.",
                value=seconds,
                labels={"queue": found.queue, "quantile": quantile},
            )
            for quantile, seconds in quantiles.items()
            if seconds is not None
        ),
    ]


def gauge_kinds(*, now: datetime) -> "list[Gauge]":
    """One gauge of each name, in the order of the names, whatever there is to count."""
    nothing: dict[str, Any] = dict.fromkeys(FiguresOfQueue.model_fields, 0.0)
    every = [
        *gauges(now=now),
        *_of_queue(FiguresOfQueue.model_construct(**nothing)),
        *_of_target("", dict.fromkeys(_OF_TARGETS, 0.0)),
    ]
    return sorted({gauge.name: gauge for gauge in every}.values(), key=lambda gauge: gauge.name)


def _age(moment: datetime | None, now: datetime) -> float:
    return (now - moment).total_seconds() if moment else float("inf")


def gauges(*, now: datetime) -> list[Gauge]:
    """The state of the whole deployment."""
    queues = queue_figures(now=now)
    oldest = (now - queues.oldest_ready_at).total_seconds() if queues.oldest_ready_at else 0.0
    inboxes = inbox_figures(now=now)
    lateness = (now - inboxes.oldest_due_at).total_seconds() if inboxes.oldest_due_at else 0.0
    waited = (now - inboxes.oldest_pending_at).total_seconds() if inboxes.oldest_pending_at else 0.0
    retained_at = digests.last_retention()
    ages = {who: notifications.heartbeat_age(who) for who in ("beat", "worker")}
    return [
        Gauge(name="gatehouse_tasks_ready", says="Tasks that a worker may claim.", value=queues.ready),
        Gauge(name="gatehouse_tasks_waiting", says="Tasks that wait for a moment or a task.", value=queues.waiting),
        Gauge(name="gatehouse_tasks_leased", says="Tasks that a worker holds.", value=queues.leased),
        Gauge(name="gatehouse_tasks_overdue", says="Leases past their deadline.", value=queues.overdue),
        Gauge(name="gatehouse_tasks_oldest_ready_seconds", says="Age of the oldest ready task.", value=oldest),
        Gauge(name="gatehouse_tasks_dead_letters", says="Tasks that failed for good.", value=dead_letters()),
        *_queue_gauges(),
        Gauge(name="gatehouse_inbox_unread", says="Unacked receipts in visible entries.", value=inboxes.unread),
        Gauge(name="gatehouse_inbox_pending", says="Receipts buffered for a digest.", value=inboxes.pending),
        Gauge(name="gatehouse_inbox_oldest_pending_seconds", says="Age of the oldest buffered receipt.", value=waited),
        Gauge(name="gatehouse_digests_overdue", says="Digests past their moment.", value=inboxes.overdue),
        Gauge(name="gatehouse_digests_lateness_seconds", says="Of the digest longest overdue.", value=lateness),
        Gauge(
            name="gatehouse_retention_age_seconds",
            says="Since the last full sweep of retention.",
            value=_age(retained_at, now),
        ),
        Gauge(name="gatehouse_obligations_open", says="What is owed.", value=inboxes.obligations),
        *_delivery_gauges(now=now),
        *(
            Gauge(name="gatehouse_workers", says="MCP workers by health.", value=count, labels={"state": state})
            for state, count in workers_by_health().items()
        ),
        *(
            Gauge(
                name=f"gatehouse_{who}_silence_seconds",
                says=f"Since the last sign of life of a {who}.",
                value=age.total_seconds() if age is not None else float("inf"),
            )
            for who, age in ages.items()
        ),
    ]
