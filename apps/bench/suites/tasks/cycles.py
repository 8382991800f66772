"""Cycles of the core, in process: beside other people's queues, and beside its own statements said by pgbench."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import psycopg
from django.conf import settings

from apps.bench import growth, load, pgbench, replay
from apps.bench.bench import Bench
from apps.bench.rivals.celery import CeleryWithRedis
from apps.bench.rivals.procrastinate import Procrastinate
from apps.bench.rows import Comparison, Row, Slice
from apps.bench.suites.tasks import verbs
from apps.bench.world import AGENTS
from apps.principals.tenancy import Caller

BATCH: Final = 50
# For one task at a time, and for batches: docs/decisions/0038.
_OF_PROCRASTINATE: Final = {1: 0.25, BATCH: 4.5}
_OF_CELERY: Final = {1: 0.13, BATCH: 1.5}
_OF_PGBENCH: Final = {1: 0.40, BATCH: 0.40}
# More than any machine does in a second.
_CYCLES_A_SECOND: Final = {1: 600, BATCH: 40}
_LONGEST: Final = 2.0
# How many are told of the ends of a stock's tasks.
_RECIPIENTS: Final = {verbs.stock: AGENTS, verbs.stock_of_one: 1}
_A_FEW: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How many at a time, out of which stock, and how often in a slice."""

    batch: int
    of: Callable[[int], str]
    times: int

    def row(self, compared: Comparison) -> Row:
        """Held to a floor, unless all are told to one recipient, whose inbox they wait for."""
        several = self.of is verbs.stock
        row = Row.of_rates(
            compared,
            case="lease, complete" if several else "lease, complete, of one recipient",
            unit="tasks/s",
            baseline_is="pgbench, same SQL",
            batch=self.batch,
        )
        return row.at_least(_OF_PGBENCH[self.batch]) if several else row


def beside_the_same_statements(bench: Bench, owner: Caller) -> Iterator[Row]:
    """Leases and completions of one client, beside pgbench saying what they say to the database.

    Every slice begins with a copy of one database: what is said again finds what was found when it was recorded.
    """
    program = pgbench.program()
    if program is None:
        return
    kinds = _stocked_up(bench, owner)
    growth.tidy(growth.original())
    database = growth.copy_of(growth.original())
    works = [growth.within(database, verbs.lease_cycles(owner, batch=kind.batch, of=kind.of)) for kind in kinds]
    growth.copy()
    recordings = [replay.record(work, owner.acting, times=kind.times) for kind, work in zip(kinds, works, strict=True)]
    ours: list[list[Slice]] = [[] for _ in kinds]
    bare: list[list[Slice]] = [[] for _ in kinds]
    for _ in range(bench.scale.rounds):
        growth.copy()
        for kind, work, slices in zip(kinds, works, ours, strict=True):
            slices.append(load.drive(work, times=kind.times))
        done = _ended(database)
        growth.copy()
        for kind, work, slices, recording in zip(kinds, works, bare, recordings, strict=True):
            # As it was recorded: after the client got warm.
            load.drive(work, times=0)
            slices.append(recording.said_again(program, database, units=kind.batch))
        if _ended(database) != done:
            raise load.ClientFailed("pgbench has not done the same work.")
    for kind, (of_ours, of_pgbench) in zip(kinds, zip(ours, bare, strict=True), strict=True):
        yield kind.row(Comparison(ours=of_ours, baseline=of_pgbench))


def _stocked_up(bench: Bench, owner: Caller) -> list[_Kind]:
    kinds = [
        _Kind(batch=batch, of=of, times=replay.WARM_UPS + max(2, round(_spell(bench) * a_second / 2)))
        for of in _RECIPIENTS
        for batch, a_second in _CYCLES_A_SECOND.items()
    ]
    for of, recipients in _RECIPIENTS.items():
        tasks = sum(verbs.stocked(kind.times, batch=kind.batch) for kind in kinds if kind.of is of)
        load.apart(partial(verbs.queue_up, owner, of(0), tasks, recipients))
    return kinds


def _ended(database: str) -> int:
    with psycopg.connect(settings.DATABASE_URL, dbname=database) as owner:
        owner.execute("set role none")
        ((ended,),) = owner.execute("select count(*) from tasks_terminalrecord").fetchall()
    return int(ended)


def messages(bench: Bench) -> int:
    """How many messages Celery is given in a slice."""
    return max(bench.scale.clients, round(400 * bench.scale.seconds))


def beside_rivals(bench: Bench, owner: Caller, celery: CeleryWithRedis) -> Iterator[Row]:
    """Whole lives of tasks, and the part of them that is a worker's."""
    procrastinate = Procrastinate() if Procrastinate.is_there() else None
    for batch in (1, BATCH):
        statements: dict[str, int] = {}
        for clients in _sides(bench, batch):
            for case in (
                _whole(bench, owner, procrastinate, celery, batch=batch, clients=clients),
                _of_workers(bench, owner, procrastinate, celery, batch=batch, clients=clients),
            ):
                compared = load.beside_each(
                    case.ours, [rival.slices for rival in case.rivals], rounds=bench.scale.rounds
                )
                if case.name not in statements:
                    statements[case.name] = load.statements(case.work)
                for rival, one in zip(case.rivals, compared, strict=True):
                    row = Row.of_rates(
                        one,
                        case=case.name,
                        unit="tasks/s",
                        baseline_is=rival.name,
                        clients=clients,
                        batch=batch,
                        statements=statements[case.name],
                    )
                    yield row if rival.floor is None else row.at_least(rival.floor)


def _sides(bench: Bench, batch: int) -> list[int]:
    """How many clients work side by side."""
    several = bench.scale.clients if batch == 1 else min(bench.scale.clients, 4)
    # One round says nothing of figures, only whether it works.
    return [several] if bench.scale.rounds == 1 else [1, several]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rival:
    name: str
    slices: Callable[[], Slice]
    floor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    name: str
    work: load.Work
    """One operation of it, for its statements to be counted."""
    ours: Callable[[], Slice]
    rivals: Sequence[_Rival]


def _whole(
    bench: Bench,
    owner: Caller,
    procrastinate: Procrastinate | None,
    celery: CeleryWithRedis,
    *,
    batch: int,
    clients: int,
) -> _Case:
    """Tasks from their queueing to their completion, with two receipts each."""
    work, seconds = verbs.whole_cycles(owner, batch=batch), bench.scale.seconds
    # Celery queues one by one, whatever the batch.
    rivals = [_Rival(name=celery.name, slices=celery.slices(tasks=messages(bench), clients=clients))]
    if procrastinate is not None:
        slices = procrastinate.slices(batch=batch, clients=clients, seconds=seconds)
        rivals.append(_Rival(name=procrastinate.name, slices=slices))
    ours = partial(load.drive, work, clients=clients, seconds=seconds)
    return _Case(name="queue, lease, complete", work=work, ours=ours, rivals=rivals)


def _of_workers(
    bench: Bench,
    owner: Caller,
    procrastinate: Procrastinate | None,
    celery: CeleryWithRedis,
    *,
    batch: int,
    clients: int,
) -> _Case:
    """Tasks that were queued before the clock runs, leased and completed."""
    seconds = _spell(bench)
    cycles = max(1, round(seconds * _CYCLES_A_SECOND[batch]))
    work = verbs.lease_cycles(owner, batch=batch)
    stocking = [
        partial(verbs.queue_up, owner, verbs.stock(number), verbs.stocked(cycles, batch=batch))
        for number in range(clients)
    ]

    def ours() -> Slice:
        load.side_by_side(stocking)
        return load.drive(work, clients=clients, seconds=seconds, times=cycles)

    def restocked(number: int) -> load.Operation:
        verbs.queue_up(owner, verbs.stock(number), verbs.stocked(_A_FEW, batch=batch))
        return work(number)

    rivals = [
        _Rival(name=celery.name, slices=celery.consuming(tasks=messages(bench)), floor=_OF_CELERY[batch]),
    ]
    if procrastinate is not None:
        slices = procrastinate.finishing(batch=batch, clients=clients, seconds=seconds, times=cycles)
        rivals.append(_Rival(name=procrastinate.name, slices=slices, floor=_OF_PROCRASTINATE[batch]))
    return _Case(name="lease, complete", work=restocked, ours=ours, rivals=rivals)


def _spell(bench: Bench) -> float:
    """How long a slice lasts for which tasks have to lie ready."""
    return min(bench.scale.seconds, _LONGEST)
