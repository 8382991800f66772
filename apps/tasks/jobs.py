"""Celery's part: a message says that a queue has work, and the executor leases, runs and reports it, task by task.

All state is in the database. A thread renews the lease while the handler runs. How many tasks run at a time is Celery's
concurrency.
"""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from celery import shared_task
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, connection

from apps.core.errors import Conflict, DomainError, RateLimited, Unavailable
from apps.core.notifications import Publisher
from apps.principals.models import Principal
from apps.principals.services import ASYNCGATE
from apps.principals.tenancy import Caller, acting_in, on_behalf_of
from apps.tasks import handlers, results
from apps.tasks.handlers import Canceled, Failed, Postponed
from apps.tasks.lease_tokens import task_of
from apps.tasks.models import Task
from apps.tasks.services import queueing, running
from apps.tasks.shapes import (
    Completion,
    Delivery,
    FailTask,
    HeartbeatAnswer,
    HeldLease,
    LeasedTask,
    ProgressInput,
    ReleaseTask,
    TaskError,
)
from apps.tasks.signals import dependency_finished, task_queued

logger = logging.getLogger(__name__)

# A message is worked on for at most this long, far under Celery's time limits, before another takes over.
_PATIENCE_SECONDS: Final = 120.0
_BEATS_PER_LEASE: Final = 3
_REPORT_TRIES: Final = 6
# Equal messages at a time: so many executors are called to one queue.
_MOST_AT_ONCE: Final = 16
# Until a heartbeat that met another at its row is sent again.
_AGAIN_SECONDS: Final = 0.1
_ALL: Final = 100

Ended = tuple[Delivery, str | None] | FailTask | Canceled | Postponed


def work(tenant_id: int, queue: str) -> bool:
    """Execute the tasks of a tenant's queue; says whether the queue is empty."""
    with acting_in(tenant_id, "executing tasks"):
        gate = on_behalf_of(Principal.objects.named(ASYNCGATE).select_related("tenant").get(tenant_id=tenant_id))
    started = time.monotonic()
    while time.monotonic() - started < _PATIENCE_SECONDS:
        with gate.acting():
            grants = running.lease(
                worker=gate, queues=[queue], task_types=handlers.names(), host=socket.gethostname()[:100]
            )
            if not grants:
                return True
            task = Task.objects.select_related("requester__tenant").get(pk=task_of(grants[0].task_id))
        _Run(gate, grants[0], on_behalf_of(task.requester)).execute()
    return False


class _Run:
    """One run: what its handler sees of it, the thread that renews its lease, and the report of its end."""

    def __init__(self, gate: Caller, grant: LeasedTask, requester: Caller) -> None:
        self.task_id = grant.task_id
        self.run_id = grant.run_id
        self.caller = requester
        self.checkpoint = grant.checkpoint
        self._gate, self._grant = gate, grant
        self._leased_until = time.monotonic() + grant.lease_ms / 1000
        self._stop_working, self._done = threading.Event(), threading.Event()
        # Both its handler and the heartbeats' thread speak for it: what was said is numbered in its order.
        self._saying = threading.Lock()
        self._said: tuple[float | None, str | None] = (None, None)
        self._sequence = 0

    def execute(self) -> None:
        """Run the handler, and report how it ended."""
        with self._kept_alive():
            ended = self._ended()
            if not self._is_reported(ended):
                self._is_reported(self._unrecordable(ended))
        outcome = "completed" if isinstance(ended, tuple) else "failed" if isinstance(ended, FailTask) else "released"
        logger.info("%s run %s of %s %s", self.task_id, self.run_id, self._grant.task_type, outcome)

    def _is_reported(self, ended: Ended) -> bool:
        """Report the end, again while the database is away for a moment: a repeated report is answered once.

        Says whether it can be recorded. An end that is not reported is that of its lease.
        """
        for tried in count():
            try:
                self._report(ended)
            except (DataError, IntegrityError, DomainError, ValueError):
                logger.exception("the end of %s run %s can't be recorded", self.task_id, self.run_id)
                return False
            except (DatabaseError, InterfaceError):
                connection.close()
                if tried == _REPORT_TRIES:
                    raise
                time.sleep(0.1 * 2**tried)
            else:
                break
        return True

    @property
    def cancelled(self) -> bool:
        return self._stop_working.is_set()

    def progress(self, percent: float, message: str = "") -> None:
        self._say(percent, message)

    def heartbeat(self, *, progress: float | None = None, message: str | None = None, checkpoint: Any = None) -> None:
        saved = None if checkpoint is None else results.as_json(checkpoint)
        self._say(progress, message)
        while (answer := self._beat(saved)).status != "ok":
            if answer.status == "lost" or time.monotonic() >= self._leased_until:
                raise Canceled
            time.sleep(_AGAIN_SECONDS)
        if saved is not None:
            self.checkpoint = saved

    def _say(self, percent: float | None, message: str | None) -> None:
        if percent is not None and not 0 <= percent <= _ALL:
            raise ValueError(f"{percent} is no percentage.")
        told = None if message is None else results.legible(message, results.LONGEST_PROGRESS)
        with self._saying:
            before = self._said
            self._said = (before[0] if percent is None else percent, before[1] if told is None else told)

    def _beat(self, checkpoint: Any = None) -> HeartbeatAnswer:
        """Renew the lease and tell the newest progress; the run stops if it is lost or canceled."""
        begun = time.monotonic()
        with self._saying:
            self._sequence += 1
            (percent, message), sequence = self._said, self._sequence
        progress = ProgressInput(percent=percent, message=message)
        beat = HeldLease(**self._proof, progress=progress, checkpoint=checkpoint, sequence=sequence)
        with self._gate.acting():
            (answer,) = running.heartbeat(worker=self._gate, heartbeats=[beat])
        if answer.status == "ok":
            self._leased_until = begun + answer.lease_ms / 1000
        if answer.status == "lost" or answer.order == "cancel":
            self._stop_working.set()
        return answer

    @contextmanager
    def _kept_alive(self) -> Iterator[None]:
        """Renew the lease in a thread with its own connection until the block ends."""
        thread = threading.Thread(target=self._keep, name="heartbeats", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _keep(self) -> None:
        while not self._done.wait(self._grant.lease_ms / 1000 / _BEATS_PER_LEASE):
            try:
                self._beat()
            except Exception as exc:  # the next one tries again; the fencing token decides
                level = logging.WARNING if _is_away(exc) else logging.ERROR
                logger.log(level, "a heartbeat of %s did not get through", self.task_id, exc_info=True)
            finally:
                connection.close()

    def _ended(self) -> Ended:
        """How the handler ended. None of its exceptions goes further."""
        try:
            return self._outcome()
        except Exception as exc:  # a handler's defect is its task's failure, told to whoever asked
            task_type = self._grant.task_type
            logger.exception("the handler of %s failed", task_type)
            return self._failure("handler_error", f"{type(exc).__name__} in {task_type}.", retryable=True)

    def _outcome(self) -> Ended:
        grant = self._grant
        try:
            result = handlers.handler_of(grant.task_type)(self, grant.params)
            results.check_result(pointer=result.pointer, summary=result.summary)
            task_id = task_of(grant.task_id)
            delivery = running.prepare(tenant_id=self._gate.tenant_id, task_id=task_id, pointer=result.pointer)
        except (Canceled, Postponed) as stopped:
            return stopped
        except Failed as failed:
            return self._failure(failed.code, failed.message, retryable=failed.retryable)
        except DomainError as refusal:
            return self._failure(
                refusal.code,
                refusal.detail,
                retryable=isinstance(refusal, Conflict | RateLimited | Unavailable),
                retry_after=results.pause(refusal.retry_after) if isinstance(refusal, RateLimited) else None,
            )
        return delivery, result.summary

    def _failure(self, code: str, message: str, *, retryable: bool, retry_after: float | None = None) -> FailTask:
        """A failure that can be recorded: long texts are cut, unstorable characters replaced."""
        code = results.legible(code, results.LONGEST_CODE) or "failed"
        error = TaskError(code=code, message=results.legible(message, results.LONGEST_ERROR) or code)
        return FailTask(**self._proof, error=error, retryable=retryable, retry_after=retry_after)

    def _report(self, ended: Ended) -> None:
        """Report the end. A refusal is logged: the fencing token has kept that end out."""
        answer: object
        with self._gate.acting():
            if isinstance(ended, tuple):
                proof = {**self._proof, "task_id": task_of(self.task_id)}
                done = Completion(**proof, delivery=ended[0], summary=ended[1])
                answer = running.complete_many([(self._gate, done)]).answers[0]
            elif isinstance(ended, FailTask):
                answer = running.fail(worker=self._gate, failure=ended)
            else:
                releases = [ReleaseTask(**self._proof)]
                (answer,) = running.release_many(worker=self._gate, releases=releases, retry_after=_pause(ended))
        if isinstance(answer, DomainError):
            # Somebody else has the task, or it was canceled.
            level = logging.WARNING if isinstance(answer, Conflict) else logging.ERROR
            logger.log(level, "the end of %s run %s was not taken: %s", self.task_id, self.run_id, answer.detail)

    @property
    def _proof(self) -> dict[str, Any]:
        return {"task_id": self._grant.task_id, "lease_token": self._grant.lease_token}

    def _unrecordable(self, ended: Ended) -> Ended:
        """The end that is recorded for a run whose own end could not be recorded."""
        if isinstance(ended, Canceled | Postponed):
            return Canceled()
        retryable = isinstance(ended, FailTask) and ended.retryable
        return self._failure("unrecordable_result", "What it ended with can't be recorded.", retryable=retryable)


def _pause(stopped: Canceled | Postponed) -> float:
    return results.pause(stopped.retry_after.total_seconds()) if isinstance(stopped, Postponed) else 0.0


def _is_away(exc: Exception) -> bool:
    """Whether the error comes from the state of the database, so that a repetition may succeed."""
    return isinstance(exc, DatabaseError | InterfaceError) and not isinstance(exc, DataError | IntegrityError)


# An older message is dropped unread: the tick has sent another.
_FRESH_SECONDS: Final = 10


# Acked early: a message that dies with its process is replaced by the tick, and a second one would find nothing.
@shared_task(name="tasks.execute", ignore_result=True, acks_late=False)
def execute(tenant_id: int, queue: str) -> None:
    """Execute the tasks of a queue until it is empty. Safe to lose, repeat or overlap."""
    if not work(tenant_id, queue):
        _publisher.publish(tenant_id, queue)


@shared_task(name="tasks.release_dependants", ignore_result=True)
def release_dependants(tenant_id: int) -> None:
    """Release tasks whose dependencies have ended. Safe to lose, repeat or overlap."""
    queueing.release_dependants_in(tenant_id=tenant_id)


_publisher = Publisher("tasks.execute", expires=_FRESH_SECONDS, most_at_once=_MOST_AT_ONCE)
_release_publisher = Publisher("tasks.release_dependants", expires=_FRESH_SECONDS, queue="notify")


def listen() -> None:
    """Connect the signals: ready work with a handler here becomes a Celery message."""
    task_queued.connect(_announced, dispatch_uid="tasks.execute")
    dependency_finished.connect(_dependency_finished, dispatch_uid="tasks.release_dependants")


def _announced(*, tenant_id: int, queue: str, task_type: str, **_: Any) -> None:
    if handlers.declaration(task_type) is not None:
        _publisher.publish(tenant_id, queue)


def _dependency_finished(*, tenant_id: int, **_: Any) -> None:
    _release_publisher.publish(tenant_id)
