"""What memory does by itself."""

from datetime import timedelta

from apps.core.ticks import tick
from apps.memory import services


@tick(every=timedelta(seconds=5))
def fold_tallies() -> None:
    """Sum up what each tenant's writers have added to its tally."""
    services.fold_tallies()
