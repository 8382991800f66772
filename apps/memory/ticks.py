"""The periodic jobs of memory."""

from datetime import timedelta

from apps.core.ticks import tick
from apps.memory import search, services, vectors


@tick(every=timedelta(seconds=5))
def fold_totals() -> None:
    """Sum up what writers have added to the totals of the search index."""
    search.fold_totals()


@tick(every=timedelta(seconds=20))
def count_frequencies() -> None:
    """Count the memories of frequent terms, which are too many to count at each question."""
    search.count_frequencies()


@tick(every=timedelta(minutes=1))
def forget_expired() -> None:
    """Delete memories that are due by their subjects' `delete_after_days`."""
    services.forget_expired()


# In a thread of its own: it waits for the embedder.
@tick(every=timedelta(seconds=5), calls_out=True)
def embed_memories() -> None:
    """Ask the embedder, if this deployment names one, for the vectors of memories that have none."""
    vectors.embed_memories()
