"""What an inbox does by itself."""

from datetime import timedelta

from django.utils import timezone

from apps.core.ticks import tick
from apps.digests import services


@tick(every=timedelta(seconds=1))
def flush_due() -> None:
    """Publish the burst buffers that are due."""
    services.flush_due()


@tick(every=timedelta(seconds=10))
def forward_retired() -> None:
    """Hand on what retired inboxes hold."""
    services.forward_retired(now=timezone.now())


@tick(every=timedelta(seconds=15))
def retain() -> None:
    """Remove for a while what has been kept its time."""
    services.retain()


@tick(every=timedelta(seconds=20))
def self_check() -> None:
    """Go over everything once an hour, a little at a time, and mend what is not as it must be."""
    services.self_check()
