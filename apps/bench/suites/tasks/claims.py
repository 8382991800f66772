"""What signs of life leave behind, and what a claim costs where much lies or nothing may be cleaned up."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import psycopg
from django.conf import settings
from django.db import connection

from apps.bench import growth, load
from apps.bench.bench import Bench
from apps.bench.load import Operation, Work
from apps.bench.rows import Comparison, Row, Slice
from apps.bench.suites.tasks.verbs import LINE
from apps.principals.tenancy import Caller, acting_as_system
from apps.tasks import services
from apps.tasks.services import Beat, QueueRequest

_CLAIM_FLOOR: Final = 1.5
_HOT_FLOOR: Final = 0.95
_WAL_FLOOR: Final = 160
_BEATS: Final = 1_000
_CLAIMS: Final = 40
_FEW: Final = 1_000
# What half an hour brings at a hundred tasks a second.
_CHURN: Final = 180_000


def rows(bench: Bench, owner: Caller) -> Iterator[Row]:
    """Heartbeats; claims from a line that has grown, and under a snapshot that others hold."""
    yield from _heartbeats(owner)
    yield from _claims(bench, owner)


def _heartbeats(owner: Caller) -> Iterator[Row]:
    """What signs of life leave behind: how many touched no index, and how much log each wrote."""
    hot, wal = load.apart(partial(_beat, owner))
    row = Row(case="heartbeats that touch no index", unit="share", ours=hot)
    yield row.judged(f"{_HOT_FLOOR:.0%} or more", met=hot >= _HOT_FLOOR)
    row = Row(case="log written by a heartbeat", unit="bytes", ours=wal)
    yield row.judged(f"{_WAL_FLOOR} or less", met=wal <= _WAL_FLOOR)


def _beat(owner: Caller) -> tuple[float, float]:
    with owner.acting():
        for _ in range(10):
            services.queue(requester=owner, request=QueueRequest(task_type=LINE, params={"n": 1}))
    with owner.acting():
        held = services.lease(worker=owner, queues=[LINE], capacity=10)
    beats = [Beat(task_id=grant.task_id, lease_token=grant.lease_token) for grant in held]
    before = _written()
    for _ in range(_BEATS // len(beats)):
        with owner.acting():
            services.heartbeat(worker=owner, beats=beats)
    updates, hot, log = (after - then for after, then in zip(_written(), before, strict=True))
    for grant in held:
        with owner.acting():
            services.release(worker=owner, task_id=grant.task_id, lease_token=grant.lease_token)
    return hot / updates, log / updates


def _written() -> tuple[int, int, int]:
    """Rows of open tasks that were changed, how many of them within their page, and bytes of log."""
    with acting_as_system("measuring"), connection.cursor() as cursor:
        cursor.execute("select pg_stat_force_next_flush()")
    with acting_as_system("measuring"), connection.cursor() as cursor:
        cursor.execute(
            "select n_tup_upd, n_tup_hot_upd, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
            " from pg_stat_user_tables where relname = 'tasks_hottask'"
        )
        updates, hot, log = cursor.fetchone()
        return updates, hot, log


def _claims(bench: Bench, owner: Caller) -> Iterator[Row]:
    """A claim in a long line with a long past, beside one in a copy of the database from before."""
    scale = bench.scale
    ready, finished = min(scale.receipts // 10, 100_000), scale.receipts
    growth.fill_tasks(owner, queue=LINE, ready=_FEW, finished=0)
    grown, empty = growth.original(), growth.copy()
    growth.fill_tasks(owner, queue=LINE, ready=ready, finished=finished)
    for database in (grown, empty):
        growth.tidy(database)
    work = _claim(owner)
    compared = load.in_turns(
        partial(load.drive, growth.within(grown, work), times=_CLAIMS),
        partial(load.drive, growth.within(empty, work), times=_CLAIMS),
        rounds=scale.rounds,
    )
    row = Row.of_latencies(
        compared,
        case="claim one, grown",
        baseline_is="empty database",
        statements=load.statements(work),
        note=f"{ready:,} ready in this queue, {finished:,} finished; the other database has {_FEW}.",
    )
    yield row.at_most(_CLAIM_FLOOR)
    yield _under_a_snapshot(bench, owner)


def _claim(worker: Caller) -> Work:
    """Commits that do not wait for the disk: it would hide what is asked for."""

    def work(_number: int) -> Operation:
        with connection.cursor() as cursor:
            cursor.execute("set synchronous_commit = off")

        def claim() -> int:
            with worker.acting():
                return len(services.lease(worker=worker, queues=[LINE]))

        return claim

    return work


def _under_a_snapshot(bench: Bench, owner: Caller) -> Row:
    """Claims while nothing may be cleaned up of what has come and gone since, beside claims after that."""
    churned = min(bench.scale.receipts * 2 // 5, _CHURN)
    claiming, holding = load.Countdown(1), load.Countdown(1)

    def under() -> Slice:
        with claiming.one():
            while not holding.over:
                time.sleep(0.01)
            growth.churn_tasks(owner, queue=LINE, tasks=churned)
            return _timed_claims(owner)

    _, ours = load.side_by_side([partial(_hold_a_snapshot, claiming, holding), under])
    growth.tidy(growth.original())
    baseline = load.apart(partial(_timed_claims, owner))
    row = Row.of_latencies(
        Comparison(ours=[ours], baseline=[baseline]),
        case="claim one, under a held snapshot",
        baseline_is="the same after a vacuum",
        note=f"{churned:,} tasks came into this queue and went since the snapshot.",
    )
    return row.at_most(_CLAIM_FLOOR)


def _hold_a_snapshot(claiming: load.Countdown, holding: load.Countdown) -> None:
    with psycopg.connect(settings.DATABASE_URL) as connection_:
        connection_.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection_.execute("set idle_in_transaction_session_timeout = 0")
        connection_.execute("select 1")
        with holding.one():
            pass
        while not claiming.over:
            time.sleep(0.05)


def _timed_claims(owner: Caller) -> Slice:
    claim = _claim(owner)(0)
    latencies = []
    for _ in range(_CLAIMS):
        began = time.perf_counter()
        claim()
        latencies.append(time.perf_counter() - began)
    return Slice(units=_CLAIMS, seconds=sum(latencies), latencies=latencies)
