from datetime import timedelta

from apps.core.ticks import tick
from apps.tasks import services
from apps.tasks.signals import task_queued


@tick(every=timedelta(seconds=1))
def bring_back() -> None:
    """Bring back what has expired and ready what is due, in batches until none is full."""
    for _ in range(10):
        if max(services.bring_back()) < services.SWEEP_BATCH:
            return


@tick(every=timedelta(seconds=1))
def end_what_must() -> None:
    """End what must not run again; it may take long, and what can run waits for it nowhere."""
    for _ in range(10):
        if services.end_what_must() < services.SWEEP_BATCH:
            return


@tick(every=timedelta(seconds=2))
def admit_waiting() -> None:
    """Give free concurrency keys to those who wait: one was passed over while another transaction had it at hand."""
    services.admit_waiting()


@tick(every=timedelta(seconds=1))
def announce() -> None:
    """Announce again what is ready and has a handler here: its message was lost, or all hands were busy."""
    for found in services.unannounced():
        task_queued.send(sender=None, tenant_id=found.tenant_id, queue=found.queue, task_type=found.task_type)


@tick(every=timedelta(seconds=1))
def announce_room() -> None:
    """Tell those who wait where a limit may let another through: rates do with time, and nobody says so."""
    for found in services.kept_back():
        task_queued.send(sender=None, tenant_id=found.tenant_id, queue=found.queue, task_type=found.task_type)


@tick(every=timedelta(seconds=1))
def fire_schedules() -> None:
    """Queue what is due by schedule."""
    for _ in range(10):
        if services.fire_schedules() < services.SCHEDULE_BATCH:
            return


@tick(every=timedelta(seconds=2))
def release_dependants() -> None:
    """Release what waited for tasks that have ended: the message that says so was lost, or a chain has further links."""
    for _ in range(20):
        if not services.release_dependants():
            return


@tick(every=timedelta(seconds=5))
def count_minutes() -> None:
    """Count what has ended."""
    for _ in range(10):
        if services.count_minutes() < services.MINUTES_BATCH:
            return


@tick(every=timedelta(minutes=10))
def forget_minutes() -> None:
    """Remove the counts of long ago."""
    services.forget_minutes()


@tick(every=timedelta(seconds=5))
def settle_fair_shares() -> None:
    """Put what was queued before its queue became fair on the turns of its requesters, in batches until none is full."""
    for _ in range(50):
        if services.settle_fair_shares() < services.FAIR_SHARES_BATCH:
            return


_retention = services.Walk()


@tick(every=timedelta(seconds=30))
def forget() -> None:
    """Remove what has been kept its time."""
    for _ in range(20):
        _retention.forget()
        if _retention.is_at_the_beginning:
            return


@tick(every=timedelta(seconds=30))
def make_partitions() -> None:
    """Make room for the tasks to come."""
    services.make_partitions()


@tick(every=timedelta(minutes=5))
def drop_partitions() -> None:
    """Remove at once what has been kept its time whole."""
    services.drop_partitions()
