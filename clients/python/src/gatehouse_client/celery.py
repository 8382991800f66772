"""Gatehouse in a Celery app: tasks that the hub keeps, and that the app's own Celery workers execute.

    from gatehouse_client.celery import GatehouseTask

    @app.task(base=GatehouseTask)
    def thumbnail(path: str, width: int = 100) -> str: ...

    thumbnail.delay("a.png", width=20).task_id

The hub has the task, its schema and its result, and tells the requester of its end. A Celery message only says that there
is something to do: lost or doubled, it loses and doubles nothing.
"""

import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, NoReturn

from celery import Task as CeleryTask
from celery import current_app, shared_task
from celery.signals import worker_ready
from kombu.exceptions import OperationalError

from gatehouse_client.client import Client
from gatehouse_client.functions import as_handler, as_params, as_type
from gatehouse_client.outputs import QueuedTask
from gatehouse_client.task import Failed
from gatehouse_client.worker import Worker

logger = logging.getLogger("gatehouse_client")

_GRACE: Final = 20.0


class GatehouseTask(CeleryTask):  # type: ignore[type-arg]  # it is not generic when it runs
    """A task type of the hub. A parameter annotated `gatehouse_client.Task` is given the run: its progress and its stop."""

    abstract = True
    declares: Mapping[str, Any] = {}
    """What the type has besides its name and params: `@app.task(base=GatehouseTask, declares={"max_attempts": 5})`."""

    def apply_async(  # type: ignore[override]  # it is the hub's task, no AsyncResult
        self,
        args: Any = None,
        kwargs: Any = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        queue: str | None = None,
        **options: Any,
    ) -> QueuedTask:
        """Queue a task.

        :param queue: the Celery queue whose workers execute it.
        :param options: what else the hub's tasks have: `idempotency_key`, `priority`, `budget` and so on.
        :raises TypeError: if the arguments don't fit the function.
        :raises Refused: if the hub refuses the task.
        """
        params = as_params(self.run, *(args or ()), **(kwargs or {}))
        if countdown is not None:
            eta = datetime.now(UTC) + timedelta(seconds=countdown)
        _make_known(os.getpid(), self)
        queued = _hub(os.getpid()).queue(
            task_type=self.name, params=params, run_at=None if eta is None else eta.isoformat(), **options
        )
        routed: dict[str, Any] = {"eta": eta, "queue": queue or getattr(self, "queue", None)}
        try:
            work.apply_async((self.name,), **{name: value for name, value in routed.items() if value is not None})
        except OperationalError as fault:  # the hub has the task, and beat sends `work` as well
            logger.warning("Celery was not told of the task %s, beat will: %s", queued.task_id, fault)
        return queued

    def retry(self, *_args: Any, exc: Exception | None = None, countdown: float | None = None, **_: Any) -> NoReturn:
        """End this run. The hub tries again, as often as the type allows.

        :raises Failed: always.
        """
        raise Failed("retry", str(exc or "Another attempt was asked for."), retryable=True, retry_after=countdown)


@shared_task(name="gatehouse_client.celery.work", ignore_result=True)
def work(name: str | None = None) -> None:
    """Execute one task, if there is one. Beat sends it too, for retries and for what others queue.

    :param name: a task of this type. Default: of any, and another one after it until none is left.
    """
    worker = Worker(_hub(os.getpid()), capacity=1, wait_seconds=0, grace=_GRACE)
    for task in _tasks():
        if name in {None, task.name}:
            worker.handles(task.name)(as_handler(task.run))
    if worker.run(at_most=1) and name is None:
        work.signature_from_request(args=(), kwargs={}).apply_async()


def _tasks() -> list[GatehouseTask]:
    return [task for task in current_app.tasks.values() if isinstance(task, GatehouseTask)]


@cache
def _hub(_process: int) -> Client:
    """The hub of this process: its connections are not shared with a fork."""
    return Client.from_environment()


@cache
def _make_known(process: int, task: GatehouseTask) -> None:
    _hub(process).register_type(**as_type(task.run, **{"name": task.name, **task.declares}))


@worker_ready.connect
def _make_all_known(**_: Any) -> None:
    for task in _tasks():
        _make_known(os.getpid(), task)
