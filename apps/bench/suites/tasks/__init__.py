"""Tasks: queueing, leasing and completing them, beside other people's queues and beside what the database could do."""

from collections.abc import Iterator
from functools import partial

from apps.bench import load
from apps.bench.bench import Bench
from apps.bench.rivals.celery import CeleryWithRedis
from apps.bench.rows import Row
from apps.bench.suites.tasks import claims, cycles, over_http, verbs, waiting


def run(bench: Bench) -> Iterator[Row]:
    """Every case of the suite."""
    owner = bench.world.agents[0]
    load.apart(partial(verbs.make_lines, owner, bench.scale.clients))
    # The one that copies the database, while there is little in it and nobody visits it.
    yield from cycles.beside_the_same_statements(bench, owner)
    celery = CeleryWithRedis(bench.processes, workers=bench.machine["cores"])
    yield from cycles.beside_rivals(bench, owner, celery)
    yield from over_http.rows(bench, celery)
    yield from waiting.rows(bench, owner)
    bench.processes.end()
    yield from claims.rows(bench, owner)
