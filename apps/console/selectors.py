"""The operator's questions: is work flowing, and is anything stuck?

Each answer counts what the transaction may see: all tenants for the system, an operator's own for an operator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Count, Min, Q, Sum

from apps.core import pulse
from apps.digests.models import Inbox, Thread
from apps.receipts.models import Obligation
from apps.tasks.models import HotTask, TerminalRecord
from apps.tasks.states import Status
from apps.workers.models import Worker
from apps.workers.states import State

# The tick that publishes runs every second; what is due for longer was passed over.
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
    """The open tasks. Reads the hot table only, which holds no history."""
    found = HotTask.objects.aggregate(
        ready=Count("pk", filter=Q(ready_at__isnull=False, holder=None)),
        waiting=Count("pk", filter=Q(ready_at=None)),
        leased=Count("pk", filter=Q(holder__isnull=False)),
        overdue=Count("pk", filter=Q(lease_expires_at__lt=now)),
        oldest_ready_at=Min("ready_at", filter=Q(holder=None)),
    )
    return QueueFigures(**found)


def dead_letters() -> int:
    """Tasks that failed for good."""
    return TerminalRecord.objects.filter(status=Status.FAILED).count()


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxFigures:
    """What waits for agents, and whether it reaches them."""

    unread: int
    pending: int
    """Receipts that are still gathered into a digest."""
    overdue: int
    """Digests that should have been published before now."""
    oldest_due_at: datetime | None
    obligations: int


def inbox_figures(*, now: datetime) -> InboxFigures:
    """The inboxes' own counters and the threads that wait; never the receipts themselves."""
    counters = Inbox.objects.aggregate(
        unread=Sum("visible_unread", default=0), pending=Sum("pending_unread", default=0)
    )
    due = Thread.objects.filter(flush_due_at__lt=now - FLUSHED_WITHIN).aggregate(
        overdue=Count("pk"), oldest_due_at=Min("flush_due_at")
    )
    return InboxFigures(**counters, **due, obligations=Obligation.objects.filter(closed_at=None).count())


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


def gauges(*, now: datetime) -> list[Gauge]:
    """The state of the whole deployment."""
    queues = queue_figures(now=now)
    oldest = (now - queues.oldest_ready_at).total_seconds() if queues.oldest_ready_at else 0.0
    inboxes = inbox_figures(now=now)
    lateness = (now - inboxes.oldest_due_at).total_seconds() if inboxes.oldest_due_at else 0.0
    ages = {who: pulse.last_known_age(who) for who in ("beat", "worker")}
    return [
        Gauge(name="gatehouse_tasks_ready", says="Tasks that a worker may claim.", value=queues.ready),
        Gauge(name="gatehouse_tasks_waiting", says="Tasks that wait for a moment or a task.", value=queues.waiting),
        Gauge(name="gatehouse_tasks_leased", says="Tasks that a worker holds.", value=queues.leased),
        Gauge(name="gatehouse_tasks_overdue", says="Leases past their deadline.", value=queues.overdue),
        Gauge(name="gatehouse_tasks_oldest_ready_seconds", says="Age of the oldest ready task.", value=oldest),
        Gauge(name="gatehouse_tasks_dead_letters", says="Tasks that failed for good.", value=dead_letters()),
        Gauge(name="gatehouse_inbox_unread", says="Unacked receipts in visible entries.", value=inboxes.unread),
        Gauge(name="gatehouse_inbox_pending", says="Receipts gathered for a digest.", value=inboxes.pending),
        Gauge(name="gatehouse_digests_overdue", says="Digests past their moment.", value=inboxes.overdue),
        Gauge(name="gatehouse_digests_lateness_seconds", says="Of the digest longest overdue.", value=lateness),
        Gauge(name="gatehouse_obligations_open", says="What is owed.", value=inboxes.obligations),
        *(
            Gauge(name="gatehouse_workers", says="Workers by health.", value=count, labels={"state": state})
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
