"""Celery with Redis: messages are acknowledged when they are done, and no results are kept."""

import os
import time
from collections.abc import Callable
from typing import Final

import redis
from django.conf import settings

from benchmarks import load
from benchmarks.report import Slice
from benchmarks.web import PATIENCE, Processes

_BENCH: Final = "peer:bench"
# Nobody consumes from it.
_STOCK: Final = "peer:stock"


class Celery:
    """A worker pool of its own on the run's broker."""

    name = "Celery with Redis"

    def __init__(self, processes: Processes, *, workers: int) -> None:
        os.environ["GATEHOUSE_BENCH_BROKER"] = settings.CELERY_BROKER_URL
        processes.python(
            "peer",
            *("-m", "celery", "-A", "benchmarks.peers.celery_app", "worker", "--loglevel", "error"),
            *("--concurrency", str(workers), "--without-gossip", "--without-mingle", "--without-heartbeat"),
        )
        # The workers are warm once they have done something.
        self.whole(tasks=1, clients=1)()

    def producing(self, *, clients: int, seconds: float) -> Callable[[], Slice]:
        """Clients queue one message after the other."""

        def measure() -> Slice:
            done = load.drive(_queueing("stock"), clients=clients, seconds=seconds)
            with redis.Redis.from_url(settings.REDIS_URL) as broker:
                broker.delete(_STOCK)
            return done

        return measure

    def whole(self, *, tasks: int, clients: int) -> Callable[[], Slice]:
        """Clients queue so many messages; it is over when the workers have acknowledged the last."""

        def measure() -> Slice:
            began = load.Moment()
            load.drive(_queueing("bench", began), clients=clients, times=tasks // clients)
            _await_the_last()
            return Slice(units=tasks // clients * clients, seconds=time.monotonic() - began.at)

        return measure

    def consuming(self, *, tasks: int) -> Callable[[], Slice]:
        """So many messages wait before the workers see the first; it is over when they have acknowledged the last."""

        def measure() -> Slice:
            load.drive(_queueing("stock"), times=tasks)
            began = time.monotonic()
            with redis.Redis.from_url(settings.REDIS_URL) as broker:
                broker.rename(_STOCK, _BENCH)
            _await_the_last()
            return Slice(units=tasks, seconds=time.monotonic() - began)

        return measure


def _await_the_last() -> None:
    deadline = time.monotonic() + PATIENCE
    with redis.Redis.from_url(settings.REDIS_URL) as broker:
        while broker.llen(_BENCH) or broker.hlen("peer:unacked"):
            if time.monotonic() > deadline:
                raise load.ClientFailed(f"Celery has not done its tasks in {PATIENCE:.0f} s.")
            time.sleep(0.002)


def _queueing(queue: str, began: load.Moment | None = None) -> load.Work:
    def work(_number: int) -> load.Operation:
        from benchmarks.peers.celery_app import app, echo  # noqa: PLC0415  # reads its broker when it is loaded

        with app.producer_or_acquire() as producer:
            producer.connection.ensure_connection()

        def queue_one() -> int:
            if began is not None:
                began.note()
            echo.apply_async(kwargs={"n": 1}, queue=queue)
            return 1

        return queue_one

    return work
