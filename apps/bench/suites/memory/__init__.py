"""Memory: recall among few and many memories; envelopes, kept and made anew; what an agent begins with."""

from collections.abc import Iterator

from apps.bench.bench import Bench
from apps.bench.rows import Row
from apps.bench.suites.memory import enveloping, recalling, starting


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    yield from recalling.rows(bench)
    yield from enveloping.rows(bench)
    yield from starting.rows(bench)
