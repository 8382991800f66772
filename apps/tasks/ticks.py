from datetime import timedelta
from typing import Final

from apps.core.ticks import tick
from apps.tasks.services import operating, queueing
from apps.tasks.signals import task_queued

tick(every=timedelta(seconds=2))(operating.admit_waiting)
tick(every=timedelta(seconds=20))(operating.keep_history)


@tick(every=timedelta(seconds=1))
def bring_back() -> None:
    """Reclaim expired leases and ready due tasks, in batches until none is full."""
    for _ in range(30):
        if max(operating.bring_back()) < operating.SWEEP_BATCH:
            return


@tick(every=timedelta(seconds=1))
def end_what_must() -> None:
    """End tasks that must not run again."""
    for _ in range(30):
        if operating.end_what_must() < operating.SWEEP_BATCH:
            return


@tick(every=timedelta(seconds=1))
def announce() -> None:
    """Announce ready work again: its message may have been lost, or a limit may let it through now."""
    for tenant_id, queue, task_type in operating.ready_again():
        task_queued.send(sender=None, tenant_id=tenant_id, queue=queue, task_type=task_type)


@tick(every=timedelta(seconds=1))
def fire_schedules() -> None:
    """Queue what schedules have due."""
    for _ in range(10):
        if queueing.fire_schedules() < queueing.SCHEDULE_BATCH:
            return


@tick(every=timedelta(seconds=2))
def release_dependants() -> None:
    """Release dependants whose message was lost, and the further links of chains."""
    for _ in range(20):
        if not queueing.release_dependants():
            return


@tick(every=timedelta(seconds=1))
def go_on_with_bulk_actions() -> None:
    """Cancel and retry what operators have selected."""
    for _ in range(10):
        if not operating.go_on():
            return


@tick(every=timedelta(seconds=20))
def settle_fair_shares() -> None:
    """Note the requesters of tasks that were queued before their queue became fair."""
    for _ in range(500):
        if queueing.settle_fair_shares() < queueing.FAIR_SHARES_BATCH:
            return


_retention = operating.Walk()
_AT_LEISURE: Final = 7


@tick(every=timedelta(seconds=10))
def forget() -> None:
    """Delete ended tasks that have been kept their time."""
    for nth in range(100):
        gone = _retention.forget()
        # What is kept still is passed over at leisure.
        if _retention.is_at_the_beginning or (not gone and nth >= _AT_LEISURE):
            return
