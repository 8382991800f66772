"""The periodic jobs of memory."""

from datetime import timedelta

from apps.core.ticks import tick
from apps.memory import search, services, vectors

tick(every=timedelta(seconds=5))(search.fold_totals)
tick(every=timedelta(seconds=20))(search.count_frequencies)
tick(every=timedelta(minutes=1))(services.forget_expired)
tick(every=timedelta(seconds=5), calls_out=True)(vectors.embed_memories)
