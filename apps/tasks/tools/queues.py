"""Figures of queues."""

from apps.core.operations import Route, operation
from apps.core.schemas import Empty, Output
from apps.principals.tenancy import Caller
from apps.tasks import selectors
from apps.tasks.selectors import QueueFigures
from apps.tasks.tools.verbs import QUEUE, WORK


class QueueOutput(Output):
    """A queue as it is, and how it fared in the last five minutes."""

    queue: str
    paused: bool
    queued: int
    scheduled: int
    leased: int
    expired: int
    """Leases past their deadline, which the next claim or sweep takes back."""
    oldest_wait_seconds: float
    finished_per_minute: float
    failure_rate: float
    """The share of what succeeded or failed."""
    latency_p50_seconds: float | None
    """From when a task might have begun to its end; null where nothing ended."""
    latency_p95_seconds: float | None
    latency_p99_seconds: float | None
    expiries: int
    """Leases that expired of the tasks that ended."""
    dead_letters: int
    """Of the newest ten thousand of all queues."""


class Queues(Output):
    queues: list[QueueOutput]


@operation(title="List queues", scope=[QUEUE, WORK], routes=[Route("GET", "/api/v1/queues")], read_only=True)
def list_queues(caller: Caller, given: Empty) -> Queues:
    """How much waits in each queue, for how long, whether it is paused, and how fast and how well it is done."""
    return Queues(queues=[_queue(found) for found in selectors.queue_figures(tenant_id=caller.tenant_id)])


def _queue(found: QueueFigures) -> QueueOutput:
    health, pace = found.health, found.pace
    return QueueOutput(
        queue=health.queue,
        paused=health.paused,
        queued=health.queued,
        scheduled=health.scheduled,
        leased=health.leased,
        expired=health.expired,
        oldest_wait_seconds=health.oldest_wait_seconds,
        finished_per_minute=pace.finished_per_minute,
        failure_rate=pace.failure_rate,
        latency_p50_seconds=pace.latency_p50,
        latency_p95_seconds=pace.latency_p95,
        latency_p99_seconds=pace.latency_p99,
        expiries=pace.expiries,
        dead_letters=found.dead_letters,
    )
