"""Scheduled work on inboxes."""

from datetime import timedelta

from apps.core.ticks import tick
from apps.digests import services

tick(every=timedelta(seconds=0.5))(services.queue_wakes)
tick(every=timedelta(seconds=0.5))(services.flush_due)

_retention = services.Walk()


@tick(every=timedelta(seconds=15))
def retain() -> None:
    """Delete for a second what has been kept long enough."""
    _retention.go_on(seconds=1)
