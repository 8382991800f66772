"""Other queues, set up as their manuals say: Celery with Redis, and procrastinate in the same PostgreSQL.

Celery's workers load this module without Django: `celery -A benchmarks.peers`.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import psycopg
import redis
from celery import Celery
from django.conf import settings

from benchmarks.measure import ClientFailed, Operation, Slice, Work, drive

if TYPE_CHECKING:
    from benchmarks.bench import Bench

CELERY: Final = "Celery with Redis"
PROCRASTINATE: Final = "procrastinate"
_PATIENCE: Final = 60.0
_PREFIX: Final = "peer:"
# Nobody consumes from it.
_STOCK: Final = "stock"

# Messages are acknowledged when they are done, and no results are kept. Without Django's fixup, which would open and close
# a database connection around each task.
app = Celery("bench", fixups=[])
app.conf.update(
    broker_transport_options={"global_keyprefix": _PREFIX},
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue="bench",
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)


@app.task(name="echo")
def echo(**_params: object) -> None:
    """Do nothing."""


class CeleryPeer:
    """A worker pool of its own on the run's broker."""

    def __init__(self, bench: "Bench") -> None:
        app.conf.broker_url = settings.CELERY_BROKER_URL
        self.messages = max(bench.scale.clients, round(400 * bench.scale.seconds))
        bench.start(
            "peer",
            *("-m", "celery", "-A", "benchmarks.peers", "worker", "--loglevel", "error"),
            *("--concurrency", str(bench.machine["cores"])),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            CELERY_BROKER_URL=settings.CELERY_BROKER_URL,
        )
        # The workers are warm once they have done something.
        drive(_messages("bench"), times=1)
        _await_the_last()

    def producing(self, *, threads: int, seconds: float) -> Slice:
        """The threads of one process queue one message after the other."""
        done = drive(lambda number: by_threads(_messages(_STOCK)(number), threads), seconds=seconds)
        with redis.Redis.from_url(settings.REDIS_URL) as broker:
            broker.delete(_PREFIX + _STOCK)
        return done

    def whole(self, *, clients: int) -> Slice:
        """Clients queue messages; it is over when the workers have acknowledged the last."""
        done = drive(_messages("bench"), clients=clients, times=self.messages // clients)
        _await_the_last()
        return Slice(units=done.units, seconds=time.perf_counter() - done.began)

    def consuming(self) -> Slice:
        """Messages wait before the workers see the first; it is over when they have acknowledged the last."""
        drive(_messages(_STOCK), times=self.messages)
        began = time.perf_counter()
        with redis.Redis.from_url(settings.REDIS_URL) as broker:
            broker.rename(_PREFIX + _STOCK, f"{_PREFIX}bench")
        _await_the_last()
        return Slice(units=self.messages, seconds=time.perf_counter() - began)


def _await_the_last() -> None:
    deadline = time.monotonic() + _PATIENCE
    with redis.Redis.from_url(settings.REDIS_URL) as broker:
        while broker.llen(f"{_PREFIX}bench") or broker.hlen(f"{_PREFIX}unacked"):
            if time.monotonic() > deadline:
                raise ClientFailed(f"Celery has not done its tasks in {_PATIENCE:.0f} s.")
            time.sleep(0.002)


def _messages(queue: str) -> Work:
    def work(_number: int) -> Operation:
        with app.producer_or_acquire() as producer:
            producer.connection.ensure_connection()

        return lambda: echo.apply_async(kwargs={"n": 1}, queue=queue) and None

    return work


def by_threads(call: Operation, threads: int) -> Operation:
    """So many threads make forty calls each; the next forty when all are answered."""
    pool = ThreadPoolExecutor(threads)
    return lambda: len([*pool.map(lambda _: call(), range(40 * threads))])


_OPTIONS: Final = "-c role=none -c search_path=procrastinate"
_LEFT: Final = "select count(*) as jobs from procrastinate_jobs where queue_name = %(queue)s and status = 'todo'"


class Procrastinate:
    """Driven through its own job manager; its tables are in a schema of their own. It comes with the extra `rivals`."""

    def __init__(self) -> None:
        with psycopg.connect(settings.DATABASE_URL_OWNER, autocommit=True) as connection:
            connection.execute("set role none")
            connection.execute("create schema if not exists procrastinate")
            connection.execute("set search_path to procrastinate")
            connection.execute(_procrastinate().schema_manager.get_schema())

    def whole(self, *, batch: int, clients: int, seconds: float) -> Slice:
        """Each client defers a batch of jobs, fetches them one by one, as its workers do, and finishes each."""
        return drive(_cycles("bench", batch, deferred=batch, finished=batch), clients=clients, seconds=seconds)

    def finishing(self, *, batch: int, clients: int, seconds: float, times: int) -> Slice:
        """Each client fetches and finishes jobs that were deferred before, so many batches at most."""
        drive(_cycles(_STOCK, 0, filled=times * batch), clients=clients, times=1)
        return drive(_cycles(_STOCK, batch, finished=batch), clients=clients, seconds=seconds, times=times)


def _cycles(queues: str, units: int, *, deferred: int = 0, filled: int = 0, finished: int = 0) -> Work:
    """In each cycle a client defers jobs into its queue, or fills it, and finishes some."""

    def work(number: int) -> Operation:
        from procrastinate.jobs import Job, Status  # noqa: PLC0415  # an extra

        loop, manager, queue = asyncio.new_event_loop(), _procrastinate().job_manager, f"{queues}-{number}"
        loop.run_until_complete(manager.connector.open_async())
        worker = loop.run_until_complete(manager.register_worker())
        names = dict.fromkeys(("id", "lock", "queueing_lock"))
        job = Job(queue=queue, task_name="echo", task_kwargs={"n": 1}, priority=0, **names)

        async def cycle() -> None:
            left = await manager.connector.execute_query_one_async(_LEFT, queue=queue) if filled else {"jobs": 0}
            if drafts := [job] * (deferred + filled - left["jobs"]):
                await manager.batch_defer_jobs_async(drafts)
            for _ in range(finished):
                fetched = await manager.fetch_job(queues=[queue], worker_id=worker)
                await manager.finish_job(fetched, status=Status.SUCCEEDED, delete_job=False)

        def once() -> int:
            loop.run_until_complete(cycle())
            return units

        return once

    return work


def _procrastinate() -> Any:
    from procrastinate import App, PsycopgConnector  # noqa: PLC0415  # an extra

    options = {"options": _OPTIONS}
    return App(connector=PsycopgConnector(conninfo=settings.DATABASE_URL_OWNER, min_size=1, max_size=1, kwargs=options))
