from datetime import timedelta

from apps.core import notifications
from apps.core.ticks import tick


@tick(every=timedelta(seconds=5))
def show_life() -> None:
    """Say that some worker process ticks, whoever drives it."""
    notifications.heartbeat("worker")
