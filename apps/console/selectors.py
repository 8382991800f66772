"""The operator's questions: is work flowing, and is anything stuck?

Each answer counts what the transaction may see: all tenants for the system, an operator's own for an operator.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Count, Min, Q, Sum

from apps.core import notifications
from apps.delivery.models import Delivery, Kind, Target
from apps.delivery.models import State as DeliveryState
from apps.digests.models import Inbox, Thread
from apps.receipts.models import Obligation
from apps.tasks import selectors as tasks
from apps.tasks.models import FinishedTask, LiveTask
from apps.tasks.shapes import QueueFigures
from apps.tasks.states import Status
from apps.workers.models import State, Worker

# The tick that flushes runs twice a second; what is due for longer was passed over.
FLUSHED_WITHIN: Final = timedelta(seconds=3)

# Queues are named by whoever queues: the busiest have gauges of their own, by name over all tenants.
_QUEUES_SHOWN: Final = 50
# Of each gauge of a queue: the figure, how those of queues of one name are joined, and what it says.
_OF_QUEUES: Final[Mapping[str, tuple[str, Callable[[Sequence[float]], float], str]]] = {
    "ready": ("queued", sum, "Tasks of the queue that a worker may claim; none while it is paused."),
    "waiting": ("scheduled", sum, "Tasks of the queue that wait for a moment or a task."),
    "leased": ("leased", sum, "Tasks of the queue that a worker holds."),
    "oldest_ready_seconds": ("oldest_wait_seconds", max, "Age of the oldest of them."),
    "finished_per_minute": (
        "finished_per_minute",
        sum,
        "Tasks of the queue that ended, over five minutes or the newest 10,000 of all queues.",
    ),
    "failure_ratio": ("failure_rate", max, "Share of failures among them."),
    "expiries": ("expiries", sum, "Leases that expired of tasks that ended in five minutes."),
    "dead_letters": ("dead_letters", sum, "Of the newest dead letters, those of the queue."),
}
_QUANTILES: Final = {"0.5": "latency_p50_seconds", "0.95": "latency_p95_seconds", "0.99": "latency_p99_seconds"}
_OF_KINDS: Final = {
    "enabled": "Targets that are called.",
    "stopped": "Targets that are not called until they are resumed.",
    "sent": "Calls that delivered, of the targets that exist.",
    "failed": "Calls that failed.",
    "wasted": "Wakes for which everything had been acked before the call.",
}
# Of each gauge of a remote target: the column, and what it says.
_OF_TARGETS: Final = {
    "sent": ("sent", "Receipts that a target has."),
    "seconds": ("delivery_seconds", "Sum of the times from posting to delivery: divide by those sent."),
    "failed": ("failed", "Calls that delivered nothing."),
    "given_up": ("dead", "Deliveries that died."),
}
GAUGES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "gatehouse_tasks_ready": ("Tasks that a worker may claim.", ()),
    "gatehouse_tasks_waiting": ("Tasks that wait for a moment or a task.", ()),
    "gatehouse_tasks_leased": ("Tasks that a worker holds.", ()),
    "gatehouse_tasks_overdue": ("Leases past their deadline.", ()),
    "gatehouse_tasks_oldest_ready_seconds": ("Age of the oldest ready task.", ()),
    "gatehouse_tasks_dead_letters": ("Tasks that failed for good.", ()),
    **{f"gatehouse_queue_{name}": (says, ("queue",)) for name, (_, _, says) in _OF_QUEUES.items()},
    "gatehouse_queue_latency_seconds": (
        "From when a task might have begun to its end, over five minutes.",
        ("queue", "quantile"),
    ),
    "gatehouse_inbox_unread": ("Unacked receipts in visible entries.", ()),
    "gatehouse_inbox_pending": ("Receipts buffered for a digest.", ()),
    "gatehouse_digests_overdue": ("Digests past their moment.", ()),
    "gatehouse_digests_lateness_seconds": ("Of the digest longest overdue.", ()),
    "gatehouse_obligations_open": ("What is owed.", ()),
    "delegate_receipt_retry_queue_size": ("Receipts queued for retry.", ()),
    "gatehouse_deliveries_oldest_seconds": (
        "How long the delivery that is longest overdue has been due, of targets that are called.",
        (),
    ),
    "gatehouse_deliveries_dead": ("Deliveries that wait for an operator.", ()),
    "gatehouse_targets_open": ("Remote targets with an open breaker.", ()),
    **{f"gatehouse_targets_{name}": (says, ("kind",)) for name, says in _OF_KINDS.items()},
    **{f"gatehouse_deliveries_{name}": (says, ("target",)) for name, (_, says) in _OF_TARGETS.items()},
    "gatehouse_workers": ("MCP workers by health.", ("state",)),
    "gatehouse_beat_silence_seconds": ("Since the last sign of life of a beat.", ()),
    "gatehouse_worker_silence_seconds": ("Since the last sign of life of a worker.", ()),
}
"""What Prometheus is told: of each gauge what it says, and the names of its labels. No label names a tenant."""

Gauge = tuple[str, Sequence[str], float]
"""The name of a gauge, its labels' values, and its value."""


def gauges(*, now: datetime) -> Iterator[Gauge]:
    """The state of the whole deployment."""

    def since(moment: datetime | None) -> float:
        return (now - moment).total_seconds() if moment else 0.0

    # `task_live` holds no history.
    open_tasks = LiveTask.objects.aggregate(
        ready=Count("pk", filter=Q(ready_at__isnull=False, holder=None)),
        waiting=Count("pk", filter=Q(ready_at=None)),
        leased=Count("pk", filter=Q(holder__isnull=False)),
        overdue=Count("pk", filter=Q(lease_expires_at__lt=now)),
        oldest=Min("ready_at", filter=Q(holder=None)),
    )
    inboxes = Inbox.objects.aggregate(unread=Sum("visible_unread", default=0), pending=Sum("pending_unread", default=0))
    late = Thread.objects.filter(flush_due_at__lt=now - FLUSHED_WITHIN).aggregate(
        count=Count("pk"), oldest=Min("flush_due_at")
    )
    pending = Delivery.objects.filter(state=DeliveryState.PENDING, target__kind=Kind.REMOTE)
    due = Delivery.objects.filter(state=DeliveryState.PENDING, target__retry_at=None, target__stopped_at=None)
    single = {
        "gatehouse_tasks_ready": open_tasks["ready"],
        "gatehouse_tasks_waiting": open_tasks["waiting"],
        "gatehouse_tasks_leased": open_tasks["leased"],
        "gatehouse_tasks_overdue": open_tasks["overdue"],
        "gatehouse_tasks_oldest_ready_seconds": since(open_tasks["oldest"]),
        "gatehouse_tasks_dead_letters": FinishedTask.objects.filter(status=Status.FAILED).count(),
        "gatehouse_inbox_unread": inboxes["unread"],
        "gatehouse_inbox_pending": inboxes["pending"],
        "gatehouse_digests_overdue": late["count"],
        "gatehouse_digests_lateness_seconds": since(late["oldest"]),
        "gatehouse_obligations_open": Obligation.objects.filter(closed_at=None).count(),
        "delegate_receipt_retry_queue_size": pending.count(),
        "gatehouse_deliveries_oldest_seconds": since(due.filter(due_at__lt=now).aggregate(at=Min("due_at"))["at"]),
        "gatehouse_deliveries_dead": Delivery.objects.filter(state=DeliveryState.DEAD).count(),
        "gatehouse_targets_open": Target.objects.filter(kind=Kind.REMOTE, retry_at__isnull=False).count(),
    }
    for who in ("beat", "worker"):
        age = notifications.heartbeat_age(who)
        single[f"gatehouse_{who}_silence_seconds"] = float("inf") if age is None else age.total_seconds()
    yield from ((name, (), value) for name, value in single.items())
    by_health = dict(Worker.objects.filter(unregistered_at=None).values_list("state").annotate(Count("pk")))
    yield from (("gatehouse_workers", (str(state),), by_health.get(state, 0)) for state in State)
    yield from _queue_gauges()
    yield from _target_gauges()


def _target_gauges() -> Iterator[Gauge]:
    """By kind, every kind, and by the names of the remote targets."""
    by_kind: Any = Target.objects.values("kind").annotate(
        sum_enabled=Count("pk", filter=Q(stopped_at=None)),
        sum_stopped=Count("pk", filter=~Q(stopped_at=None)),
        **{f"sum_{name}": Sum(name) for name in ("sent", "failed", "wasted")},
    )
    found = {row["kind"]: row for row in by_kind}
    for kind in Kind:
        of_kind = found.get(kind, {})
        yield from ((f"gatehouse_targets_{name}", (kind,), of_kind.get(f"sum_{name}", 0)) for name in _OF_KINDS)
    by_name: Any = Target.objects.filter(kind=Kind.REMOTE).values("name").order_by("name")
    for row in by_name.annotate(**{f"sum_{name}": Sum(column) for name, (column, _) in _OF_TARGETS.items()}):
        yield from ((f"gatehouse_deliveries_{name}", (row["name"],), row[f"sum_{name}"]) for name in _OF_TARGETS)


def _queue_gauges() -> Iterator[Gauge]:
    """Of queues of one name in several tenants the sum is told, or the worst."""
    by_name: dict[str, list[QueueFigures]] = defaultdict(list)
    for found in tasks.queue_figures(tenant_id=None).values():
        held = {"queued": 0, "oldest_wait_seconds": 0.0} if found.paused else {}
        by_name[found.queue].append(found.model_copy(update=held))
    busiest = sorted(by_name.items(), key=lambda named: sum(one.finished_per_minute + one.queued for one in named[1]))
    for queue, figures in busiest[-_QUEUES_SHOWN:]:
        for name, (figure, joined, _) in _OF_QUEUES.items():
            yield f"gatehouse_queue_{name}", (queue,), joined([getattr(one, figure) for one in figures])
        for quantile, figure in _QUANTILES.items():
            told = [seconds for one in figures if (seconds := getattr(one, figure)) is not None]
            if told:
                yield "gatehouse_queue_latency_seconds", (queue, quantile), max(told)
