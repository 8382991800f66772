"""The operator's questions: is work flowing, and is anything stuck?

Each answer counts what the transaction may see: all tenants for the system, an operator's own for an operator.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Count, Min, Q

from apps.core import pulse
from apps.tasks.models import HotTask, TerminalRecord
from apps.tasks.states import Status


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
    ages = {who: pulse.last_known_age(who) for who in ("beat", "worker")}
    return [
        Gauge(name="gatehouse_tasks_ready", says="Tasks that a worker may claim.", value=queues.ready),
        Gauge(name="gatehouse_tasks_waiting", says="Tasks that wait for a moment or a task.", value=queues.waiting),
        Gauge(name="gatehouse_tasks_leased", says="Tasks that a worker holds.", value=queues.leased),
        Gauge(name="gatehouse_tasks_overdue", says="Leases past their deadline.", value=queues.overdue),
        Gauge(name="gatehouse_tasks_oldest_ready_seconds", says="Age of the oldest ready task.", value=oldest),
        Gauge(name="gatehouse_tasks_dead_letters", says="Tasks that failed for good.", value=dead_letters()),
        *(
            Gauge(
                name=f"gatehouse_{who}_silence_seconds",
                says=f"Since the last sign of life of a {who}.",
                value=age.total_seconds() if age is not None else float("inf"),
            )
            for who, age in ages.items()
        ),
    ]
