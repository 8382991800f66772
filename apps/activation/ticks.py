"""What happens by itself: agents are woken though no message said that their inbox has changed."""

from datetime import timedelta

from apps.activation import services
from apps.core.ticks import tick


@tick(every=timedelta(seconds=1))
def announce_due() -> None:
    """Find the targets that are to be woken; worker processes call them."""
    services.announce_due()
