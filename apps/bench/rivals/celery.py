"""Celery with Redis: messages acknowledged when they are done, no results kept."""

import os
import sys
import time
from collections.abc import Callable
from typing import Final

import redis
from django.conf import settings

from apps.bench import load
from apps.bench.rows import Slice
from apps.bench.web import Processes
from config.stack.processes import Program

_QUEUE: Final = "bench"
# Nobody consumes from it.
_STOCK: Final = "stock"
PREFIX: Final = "rival:"
_PATIENCE: Final = 60.0


class CeleryWithRedis:
    """A worker pool of its own on the run's broker."""

    name = "Celery with Redis"

    def __init__(self, processes: Processes, *, workers: int) -> None:
        os.environ["GATEHOUSE_BENCH_BROKER"] = settings.CELERY_BROKER_URL
        processes.start(
            Program(
                name="rival",
                argv=(
                    *(sys.executable, "-m", "celery", "-A", "apps.bench.rivals.celery_tasks", "worker"),
                    *("--loglevel", "error", "--concurrency", str(workers)),
                    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
                ),
                env=dict(os.environ),
                cwd=settings.BASE_DIR,
                log=processes.data.log("rival"),
            )
        )
        # Warm once they have done something.
        self.slices(tasks=1, clients=1)()

    def slices(self, *, tasks: int, clients: int) -> Callable[[], Slice]:
        """Clients queue so many tasks; it is over when the workers have acknowledged the last."""

        def measure() -> Slice:
            began = load.Moment()
            load.drive(_queueing(_QUEUE, began), clients=clients, times=tasks // clients)
            self._await_the_last()
            return Slice(units=tasks // clients * clients, seconds=time.monotonic() - began.at)

        return measure

    def consuming(self, *, tasks: int) -> Callable[[], Slice]:
        """So many messages lie ready before the workers see the first; it is over when they have acknowledged the last."""

        def measure() -> Slice:
            load.drive(_queueing(_STOCK, load.Moment()), times=tasks)
            began = time.monotonic()
            with redis.Redis.from_url(settings.REDIS_URL) as broker:
                broker.rename(f"{PREFIX}{_STOCK}", f"{PREFIX}{_QUEUE}")
            self._await_the_last()
            return Slice(units=tasks, seconds=time.monotonic() - began)

        return measure

    def _await_the_last(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        with redis.Redis.from_url(settings.REDIS_URL) as broker:
            while broker.llen(f"{PREFIX}{_QUEUE}") or broker.hlen(f"{PREFIX}unacked"):
                if time.monotonic() > deadline:
                    raise load.ClientFailed(f"Celery has not done its tasks in {_PATIENCE:.0f} s.")
                time.sleep(0.002)


def _queueing(queue: str, began: load.Moment) -> load.Work:
    def work(_number: int) -> load.Operation:
        from apps.bench.rivals.celery_tasks import app, echo  # noqa: PLC0415  # reads its broker when it is loaded

        # Connected before the clock runs, as every client is.
        with app.producer_or_acquire() as producer:
            producer.connection.ensure_connection()

        def queue_one() -> int:
            began.note()
            echo.apply_async(kwargs={"n": 1}, queue=queue)
            return 1

        return queue_one

    return work
