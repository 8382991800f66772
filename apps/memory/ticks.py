"""What memory does by itself."""

from datetime import timedelta

from apps.core.ticks import tick
from apps.memory import services


@tick(every=timedelta(seconds=5))
def fold_tallies() -> None:
    """Sum up what each tenant's writers have added to its tally."""
    services.fold_tallies()


@tick(every=timedelta(seconds=20))
def count_common_words() -> None:
    """Count what stands in so many passages that a question can't."""
    services.count_common_words()


@tick(every=timedelta(minutes=1))
def forget_expired() -> None:
    """Delete what subjects wish to have deleted after so many days."""
    services.forget_expired()


# In a thread of its own: it waits for somebody else's server.
@tick(every=timedelta(seconds=5), calls_out=True)
def embed_memories() -> None:
    """Have what was written since embedded, where the deployment names an embedder."""
    services.embed_memories()
