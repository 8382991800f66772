"""Procrastinate: a queue in the same PostgreSQL, through its own job manager."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import ModuleType
from typing import Any, Final

import psycopg
from django.conf import settings

from apps.bench import load
from apps.bench.rows import Slice

_SCHEMA: Final = "procrastinate"
# Of the role's own defaults, only what procrastinate's tables need is changed: they are outside the product's walls.
_OPTIONS: Final = f"-c role=none -c search_path={_SCHEMA}"
_LEFT: Final = "select count(*) as jobs from procrastinate_jobs where queue_name = %(queue)s and status = 'todo'"


class Procrastinate:
    """Its tables in a schema of their own; made when it is made. None of it where the library is not installed."""

    name = "procrastinate"

    def __init__(self) -> None:
        self._library = _library()
        with psycopg.connect(settings.DATABASE_URL, autocommit=True) as connection:
            connection.execute("set role none")
            connection.execute(f"create schema if not exists {_SCHEMA}")
        asyncio.run(self._make_tables())

    @staticmethod
    def is_there() -> bool:
        """Whether the library is installed: it comes with the extra `rivals`."""
        try:
            _library()
        except ImportError:
            return False
        return True

    def slices(self, *, batch: int, clients: int, seconds: float) -> Callable[[], Slice]:
        """Each client defers a batch of jobs, fetches them one by one, as its workers do, and finishes each."""

        async def cycle(manager: Any, worker: int, queue: str) -> None:
            await self._defer(manager, queue, batch)
            await self._finish(manager, worker, queue, batch)

        return partial(load.drive, self._work("bench", cycle, batch), clients=clients, seconds=seconds)

    def finishing(self, *, batch: int, clients: int, seconds: float, times: int) -> Callable[[], Slice]:
        """Each client fetches and finishes jobs that were deferred before, so many batches at most."""

        async def stock(manager: Any, worker: int, queue: str) -> None:
            left = await manager.connector.execute_query_one_async(_LEFT, queue=queue)
            await self._defer(manager, queue, times * batch - left["jobs"])

        async def cycle(manager: Any, worker: int, queue: str) -> None:
            await self._finish(manager, worker, queue, batch)

        stocking, work = self._work("stock", stock, 0), self._work("stock", cycle, batch)

        def measure() -> Slice:
            load.drive(stocking, clients=clients, times=1)
            return load.drive(work, clients=clients, seconds=seconds, times=times)

        return measure

    def _work(self, queues: str, cycle: Callable[[Any, int, str], Coroutine[Any, Any, None]], batch: int) -> load.Work:
        def work(number: int) -> load.Operation:
            loop = asyncio.new_event_loop()
            manager = loop.run_until_complete(self._manager())
            worker = loop.run_until_complete(manager.register_worker())

            def once() -> int:
                loop.run_until_complete(cycle(manager, worker, f"{queues}-{number}"))
                return batch

            return once

        return work

    async def _defer(self, manager: Any, queue: str, number: int) -> None:
        drafts = [
            self._library.jobs.Job(
                id=None, queue=queue, lock=None, queueing_lock=None, task_name="echo", task_kwargs={"n": 1}, priority=0
            )
            for _ in range(number)
        ]
        if number == 1:
            await manager.defer_job_async(drafts[0])
        elif drafts:
            await manager.batch_defer_jobs_async(drafts)

    async def _finish(self, manager: Any, worker: int, queue: str, number: int) -> None:
        for _ in range(number):
            job = await manager.fetch_job(queues=[queue], worker_id=worker)
            await manager.finish_job(job, status=self._library.jobs.Status.SUCCEEDED, delete_job=False)

    async def _manager(self) -> Any:
        connector = self._library.PsycopgConnector(
            conninfo=settings.DATABASE_URL, min_size=1, max_size=1, kwargs={"options": _OPTIONS}
        )
        await connector.open_async()
        return self._library.manager.JobManager(connector)

    async def _make_tables(self) -> None:
        connector = self._library.PsycopgConnector(
            conninfo=settings.DATABASE_URL, min_size=1, max_size=1, kwargs={"options": _OPTIONS}
        )
        app = self._library.App(connector=connector)
        making: Coroutine[Any, Any, None] = app.schema_manager.apply_schema_async()
        async with app.open_async():
            await making


def _library() -> ModuleType:
    import procrastinate  # noqa: PLC0415  # an extra
    import procrastinate.jobs  # noqa: PLC0415
    import procrastinate.manager  # noqa: PLC0415

    return procrastinate
