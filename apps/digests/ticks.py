"""What an inbox does by itself."""

from datetime import timedelta

from apps.core.ticks import tick
from apps.digests import services


@tick(every=timedelta(seconds=1))
def flush_due() -> None:
    """Publish the burst buffers that are due."""
    services.flush_due()


@tick(every=timedelta(seconds=15))
def retain() -> None:
    """Remove for a while what has been kept its time."""
    services.retain()
