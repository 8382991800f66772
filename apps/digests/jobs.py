"""Scheduled work on inboxes."""

from datetime import timedelta

from apps.core.ticks import tick
from apps.digests import services


@tick(every=timedelta(seconds=0.5))
def queue_wakes() -> None:
    """Queue the wakes that are due."""
    services.queue_wakes()


@tick(every=timedelta(seconds=0.5))
def flush_due() -> None:
    """Flush the buffers that are due."""
    services.flush_due()


_retention = services.Walk()


@tick(every=timedelta(seconds=15))
def retain() -> None:
    """Delete for a second what has been kept long enough."""
    _retention.go_on(seconds=1)
