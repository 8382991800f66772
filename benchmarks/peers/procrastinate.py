"""Procrastinate: a queue in the same PostgreSQL, driven through its own job manager."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import psycopg
from django.conf import settings

from benchmarks import load
from benchmarks.report import Slice

_SCHEMA: Final = "procrastinate"
_OPTIONS: Final = f"-c role=none -c search_path={_SCHEMA}"
_LEFT: Final = "select count(*) as jobs from procrastinate_jobs where queue_name = %(queue)s and status = 'todo'"
_Cycle = Callable[[Any, Any, str], Awaitable[None]]


class Procrastinate:
    """Its tables in a schema of their own."""

    name = "procrastinate"

    def __init__(self) -> None:
        with psycopg.connect(settings.DATABASE_URL, autocommit=True) as connection:
            connection.execute("set role none")
            connection.execute(f"create schema if not exists {_SCHEMA}")
        asyncio.run(_make_tables())

    @staticmethod
    def is_installed() -> bool:
        """Whether the library is there; it comes with the extra `rivals`."""
        return find_spec("procrastinate") is not None

    def producing(self, *, batch: int, clients: int, seconds: float) -> Callable[[], Slice]:
        """Each client defers one batch after the other."""

        async def cycle(manager: Any, _worker: Any, queue: str) -> None:
            await _defer(manager, queue, batch)

        return partial(load.drive, _work("produced", cycle, batch), clients=clients, seconds=seconds)

    def whole(self, *, batch: int, clients: int, seconds: float) -> Callable[[], Slice]:
        """Each client defers a batch of jobs, fetches them one by one, as its workers do, and finishes each."""

        async def cycle(manager: Any, worker: Any, queue: str) -> None:
            await _defer(manager, queue, batch)
            await _finish(manager, worker, queue, batch)

        return partial(load.drive, _work("bench", cycle, batch), clients=clients, seconds=seconds)

    def finishing(self, *, batch: int, clients: int, seconds: float, times: int) -> Callable[[], Slice]:
        """Each client fetches and finishes jobs that were deferred before, so many batches at most."""

        async def stock(manager: Any, _worker: Any, queue: str) -> None:
            left = await manager.connector.execute_query_one_async(_LEFT, queue=queue)
            await _defer(manager, queue, times * batch - left["jobs"])

        async def cycle(manager: Any, worker: Any, queue: str) -> None:
            await _finish(manager, worker, queue, batch)

        def measure() -> Slice:
            load.drive(_work("stock", stock, 0), clients=clients, times=1)
            return load.drive(_work("stock", cycle, batch), clients=clients, seconds=seconds, times=times)

        return measure


def _work(queues: str, cycle: _Cycle, batch: int) -> load.Work:
    def work(number: int) -> load.Operation:
        from procrastinate.manager import JobManager  # noqa: PLC0415  # an extra

        loop = asyncio.new_event_loop()
        connector = _connector()
        loop.run_until_complete(connector.open_async())
        manager = JobManager(connector)
        worker = loop.run_until_complete(manager.register_worker())

        def once() -> int:
            loop.run_until_complete(cycle(manager, worker, f"{queues}-{number}"))
            return batch

        return once

    return work


async def _defer(manager: Any, queue: str, number: int) -> None:
    from procrastinate.jobs import Job  # noqa: PLC0415  # an extra

    names: dict[str, Any] = {"id": None, "lock": None, "queueing_lock": None, "priority": 0}
    drafts = [Job(queue=queue, task_name="echo", task_kwargs={"n": 1}, **names) for _ in range(number)]
    if number == 1:
        await manager.defer_job_async(drafts[0])
    elif drafts:
        await manager.batch_defer_jobs_async(drafts)


async def _finish(manager: Any, worker: Any, queue: str, number: int) -> None:
    from procrastinate.jobs import Status  # noqa: PLC0415  # an extra

    for _ in range(number):
        job = await manager.fetch_job(queues=[queue], worker_id=worker)
        await manager.finish_job(job, status=Status.SUCCEEDED, delete_job=False)


def _connector() -> Any:
    from procrastinate import PsycopgConnector  # noqa: PLC0415  # an extra

    return PsycopgConnector(conninfo=settings.DATABASE_URL, min_size=1, max_size=1, kwargs={"options": _OPTIONS})


async def _make_tables() -> None:
    from procrastinate import App  # noqa: PLC0415  # an extra

    app = App(connector=_connector())
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
