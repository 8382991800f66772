"""What an inbox does by itself."""

from datetime import timedelta

from apps.core.ticks import tick
from apps.digests import services


@tick(every=timedelta(seconds=1))
def flush_due() -> None:
    """Publish the burst buffers that are due."""
    services.flush_due()
