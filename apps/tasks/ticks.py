from datetime import timedelta

from apps.core.ticks import tick
from apps.tasks import services
from apps.tasks.signals import task_queued


@tick(every=timedelta(seconds=1))
def sweep() -> None:
    """Bring back what has expired and ready what is due, in batches until none is full."""
    for _ in range(10):
        swept = services.sweep()
        if max(swept.requeued, swept.readied, swept.buried) < services.SWEEP_BATCH:
            return


@tick(every=timedelta(seconds=1))
def announce() -> None:
    """Announce again what is ready and has a handler here: its message was lost, or all hands were busy."""
    for found in services.unannounced():
        task_queued.send(sender=None, tenant_id=found.tenant_id, queue=found.queue, task_type=found.task_type)
