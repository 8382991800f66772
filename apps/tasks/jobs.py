"""Celery's part: a message says that a queue has work, and the executor leases, runs and reports it.

All state is in the database. Quick tasks are leased and reported many at a time; a long task is leased alone. One thread
renews the leases of what the process holds. It reports runs that wait behind a long handler, and releases what has not
begun.
"""

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from celery import shared_task
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, connection

from apps.core.errors import Conflict, DomainError, Invalid, RateLimited, Unavailable
from apps.core.ids import format_ref
from apps.core.notifications import Publisher
from apps.core.strict_json import UnstorableJSON
from apps.principals.models import Principal
from apps.principals.services import ASYNCGATE
from apps.principals.tenancy import Caller, acting_in, on_behalf_of
from apps.tasks import handlers, results
from apps.tasks.handlers import Canceled, Failed, Postponed, Result
from apps.tasks.services import artifacts, beating, dependencies, ending, leasing
from apps.tasks.services.artifacts import NOTHING
from apps.tasks.shapes import (
    Completion,
    Delivery,
    FailedRun,
    Failure,
    Grant,
    Heartbeat,
    HeartbeatAnswer,
    Released,
)
from apps.tasks.signals import dependency_finished, task_queued

logger = logging.getLogger(__name__)

# A message is worked on for at most this long, far under Celery's time limits, before another takes over.
_PATIENCE_SECONDS: Final = 120.0
_BEATS_PER_LEASE: Final = 3
_REPORT_TRIES: Final = 6
_MOST_AT_ONCE: Final = 16
# A batch that is through within this was of quick tasks: the next may be larger.
_QUICK_SECONDS: Final = 0.5
# How long what is done waits for its report, and what has not begun for the handler before it.
_REPORT_WITHIN_SECONDS: Final = 0.25
_BEGIN_WITHIN_SECONDS: Final = 1.0
# Until a heartbeat that met another at its row is sent again.
_AGAIN_SECONDS: Final = 0.1
_ALL: Final = 100

T = TypeVar("T")


def work(tenant_id: int, queue: str) -> bool:
    """Execute the tasks of a tenant's queue; says whether the queue is empty."""
    with acting_in(tenant_id, "executing tasks"):
        gate = on_behalf_of(Principal.objects.named(ASYNCGATE).select_related("tenant").get(tenant_id=tenant_id))
    started = time.monotonic()
    size = 1
    while (begun := time.monotonic()) - started < _PATIENCE_SECONDS:
        with gate.acting():
            grants = leasing.lease(
                worker=gate, queues=[queue], task_types=handlers.names(), capacity=size, host=socket.gethostname()[:100]
            )
            asked = Principal.objects.select_related("tenant").filter(pk__in={one.requester_id for one in grants})
            requesters = {principal.pk: on_behalf_of(principal) for principal in asked} if grants else {}
        if not grants:
            return True
        _Batch(gate, grants, requesters).run_all()
        quick = time.monotonic() - begun < _QUICK_SECONDS
        size = min(2 * size, _MOST_AT_ONCE) if quick else 1
    return False


class _Run:
    """One run as its handler sees it."""

    def __init__(self, batch: "_Batch", grant: Grant, requester: Caller) -> None:
        self.task_id = format_ref("task", grant.task_id)
        self.run_id = grant.fencing_token
        self.caller = requester
        self.checkpoint = grant.checkpoint
        self.grant = grant
        self.leased_until = time.monotonic() + grant.lease_ms / 1000
        self.stop_working = threading.Event()
        self._batch = batch
        # Both its handler and the heartbeats' thread speak for it: what was said is numbered in its order.
        self._saying = threading.Lock()
        self._said: tuple[float | None, str | None] = (None, None)
        self._sequence = 0

    @property
    def cancelled(self) -> bool:
        return self.stop_working.is_set()

    def progress(self, percent: float, message: str = "") -> None:
        self._say(percent, message)

    def heartbeat(self, *, progress: float | None = None, message: str | None = None, checkpoint: Any = None) -> None:
        saved = None if checkpoint is None else results.as_json(checkpoint)
        self._say(progress, message)
        while (answer := self._batch.beat([self.sign_of_life(saved)])[0]).status != "ok":
            if answer.status == "lost" or time.monotonic() >= self.leased_until:
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

    def sign_of_life(self, checkpoint: Any = None) -> Heartbeat:
        """A heartbeat with the newest progress."""
        with self._saying:
            self._sequence += 1
            percent, message = self._said
            return Heartbeat(
                task_id=self.grant.task_id,
                lease_token=self.grant.lease_token,
                percent=percent,
                message=message,
                checkpoint=checkpoint,
                sequence=self._sequence,
            )


class _Batch:
    """The runs that one process holds at a time, and the thread that renews their leases."""

    def __init__(self, gate: Caller, grants: Sequence[Grant], requesters: dict[int, Caller]) -> None:
        self.gate = gate
        self._runs = {grant.task_id: _Run(self, grant, requesters[grant.requester_id]) for grant in grants}
        self._waiting = deque(self._runs.values())
        self._ended: list[_EndedRun] = []
        self._interval = min(grant.lease_ms for grant in grants) / 1000 / _BEATS_PER_LEASE
        self._begun_at = self._ended_at = time.monotonic()
        # Held while runs change hands: waiting, working, ended, reported.
        self._lock = threading.Lock()
        self._done = threading.Event()

    def run_all(self) -> None:
        """Run every handler whose run is not released, and report all runs."""
        with self._kept_alive():
            while (run := self._next()) is not None:
                ended = _EndedRun(run, Canceled() if run.cancelled else _ended(run, self.gate))
                with self._lock:
                    if not self._ended:
                        self._ended_at = time.monotonic()
                    self._ended.append(ended)
            self._report()
        # What the thread could not report has come back.
        self._report()

    def beat(self, beats: Sequence[Heartbeat]) -> list[HeartbeatAnswer]:
        """Renew leases, and stop the runs that are lost or canceled."""
        begun = time.monotonic()
        with self.gate.acting():
            answers = beating.heartbeat(worker=self.gate, heartbeats=beats)
        for beat, answer in zip(beats, answers, strict=True):
            run = self._runs.get(beat.task_id)
            if run is None:
                continue
            if answer.status == "ok":
                run.leased_until = begun + answer.lease_ms / 1000
            if answer.status == "lost" or answer.order == "cancel":
                run.stop_working.set()
        return answers

    def _next(self) -> _Run | None:
        with self._lock:
            self._begun_at = time.monotonic()
            return self._waiting.popleft() if self._waiting else None

    @contextmanager
    def _kept_alive(self) -> Iterator[None]:
        """Renew the leases in a thread with its own connection until the block ends."""
        thread = threading.Thread(target=self._keep, name="heartbeats", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _keep(self) -> None:
        beaten_at = time.monotonic()
        try:
            while not self._done.wait(min(self._interval, _REPORT_WITHIN_SECONDS)):
                now = time.monotonic()
                try:
                    if self._waiting and now - self._begun_at > _BEGIN_WITHIN_SECONDS:
                        self._give_back()
                    if self._ended and now - self._ended_at > _REPORT_WITHIN_SECONDS:
                        self._report()
                    if now - beaten_at >= self._interval:
                        beaten_at = now
                        self._beat_all()
                except Exception as exc:  # whatever one of them brings about, the others are kept alive
                    # The next beat tries again; if a lease runs out first, the fencing token decides.
                    level = logging.WARNING if _is_away(exc) else logging.ERROR
                    logger.log(level, "heartbeats did not get through", exc_info=True)
                    connection.close()
        finally:
            connection.close()

    def _beat_all(self) -> None:
        with self._lock:
            held = list(self._runs.values())
        if not held:
            return
        try:
            self.beat([run.sign_of_life() for run in held])
        except Exception as exc:
            if _is_away(exc):
                raise
            logger.exception("heartbeats were not taken together")
            self._beat_each(held)

    def _beat_each(self, held: Sequence[_Run]) -> None:
        for run in held:
            try:
                self.beat([run.sign_of_life()])
            except Exception as exc:
                if _is_away(exc):
                    raise
                logger.exception("a heartbeat of %s run %s was not taken", run.task_id, run.run_id)

    def _give_back(self) -> None:
        """Release the runs that wait behind a long handler, so that others can do them."""
        with self._lock:
            waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._settle([_EndedRun(run, Canceled()) for run in waiting])

    def _report(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, []
        self._settle(ended)

    def _settle(self, ended: "Sequence[_EndedRun]") -> None:
        if not ended:
            return
        try:
            self._tell(ended)
        except Exception as exc:
            if _is_away(exc):
                self._put_back(ended)
                raise
            # What can't be recorded of one keeps none of the others back.
            logger.exception("runs could not be reported together")
            self._settle_each(ended)
        else:
            self._let_go(ended)

    def _settle_each(self, ended: "Sequence[_EndedRun]") -> None:
        for nth, one in enumerate(ended):
            try:
                self._tell_alone(one)
            except (DatabaseError, InterfaceError):
                self._put_back(ended[nth:])
                raise
            self._let_go([one])

    def _tell_alone(self, one: "_EndedRun") -> None:
        """Report the end of this run, or that its end can't be recorded."""
        for told in (one, _EndedRun(one.run, _unrecordable(one.ended))):
            try:
                self._tell([told])
            except Exception as exc:
                if _is_away(exc):
                    raise
                logger.exception("the end of %s run %s can't be recorded", one.run.task_id, one.run.run_id)
            else:
                return

    def _tell(self, ended: "Sequence[_EndedRun]") -> None:
        _insist(lambda: _report(self.gate, ended))

    def _put_back(self, ended: "Sequence[_EndedRun]") -> None:
        with self._lock:
            self._ended = [*ended, *self._ended]

    def _let_go(self, ended: "Sequence[_EndedRun]") -> None:
        with self._lock:
            for one in ended:
                del self._runs[one.run.grant.task_id]


Ended = tuple[Delivery, str | None] | Failure | Canceled | Postponed


@dataclass(frozen=True, slots=True)
class _EndedRun:
    """A run whose handler has ended, and how."""

    run: _Run
    ended: "Ended"


def _ended(run: _Run, gate: Caller) -> Ended:
    """How the handler ended. None of its exceptions goes further."""
    try:
        return _outcome(run, gate)
    except Exception as exc:  # a handler's defect is its task's failure, told to whoever asked
        task_type = run.grant.task_type
        logger.exception("the handler of %s failed", task_type)
        return Failure(code="handler_error", message=f"{type(exc).__name__} in {task_type}.", retryable=True)


def _outcome(run: _Run, gate: Caller) -> Ended:
    grant = run.grant
    try:
        result = handlers.handler_of(grant.task_type)(run, grant.params)
        return _delivery(gate, grant, result), result.summary
    except (Canceled, Postponed) as stopped:
        return stopped
    except Failed as failed:
        failure = Failure(
            code=failed.code,
            message=failed.message,
            retryable=failed.retryable,
        )
    except DomainError as refusal:
        failure = Failure(
            code=refusal.code,
            message=refusal.detail,
            retryable=isinstance(refusal, Conflict | RateLimited | Unavailable),
            retry_after=refusal.retry_after if isinstance(refusal, RateLimited) else None,
        )
    return results.mended(failure)


def _delivery(gate: Caller, grant: Grant, result: Result) -> Delivery:
    results.check_result(pointer=result.pointer, summary=result.summary)
    try:
        content = NOTHING if result.content is None else results.as_json(result.content)
    except UnstorableJSON as exc:
        raise Invalid(exc.detail, errors=exc.errors, code="unrecordable_result") from exc
    return artifacts.prepare(
        tenant_id=gate.tenant_id,
        task_id=grant.task_id,
        result=content,
        pointer=result.pointer,
    )


def _unrecordable(ended: Ended) -> Ended:
    """The end that is recorded for a run whose own end could not be recorded."""
    if isinstance(ended, Canceled | Postponed):
        return Canceled()
    return Failure(
        code="unrecordable_result",
        message="What it ended with can't be recorded.",
        retryable=isinstance(ended, Failure) and ended.retryable,
    )


def _report(gate: Caller, ended: Sequence[_EndedRun]) -> None:
    """Report the ends of these runs, one transaction for each kind of end.

    Each transaction locks tasks first and inboxes last. A refusal is logged: the fencing token has kept that
    result out.
    """
    completions = [
        Completion(**_proof(one), delivery=one.ended[0], summary=one.ended[1])
        for one in ended
        if isinstance(one.ended, tuple)
    ]
    failures = [FailedRun(**_proof(one), failure=one.ended) for one in ended if isinstance(one.ended, Failure)]
    releases = [
        Released(**_proof(one), retry_after=_pause(one.ended))
        for one in ended
        if isinstance(one.ended, Canceled | Postponed)
    ]
    answers: list[object] = []
    if completions:
        with gate.acting():
            answers += ending.complete_many([(gate, one) for one in completions]).answers
    if failures:
        with gate.acting():
            answers += ending.fail_many(worker=gate, failures=failures)
    if releases:
        with gate.acting():
            answers += ending.release_many(worker=gate, releases=releases)
    for refusal in answers:
        if isinstance(refusal, DomainError):
            # Somebody else has the task, or it was canceled.
            expected = isinstance(refusal, Conflict)
            logger.log(
                logging.WARNING if expected else logging.ERROR, "the end of a run was not taken: %s", refusal.detail
            )


def _pause(stopped: Canceled | Postponed) -> float:
    return results.pause(stopped.retry_after.total_seconds()) if isinstance(stopped, Postponed) else 0.0


def _proof(one: _EndedRun) -> dict[str, Any]:
    return {"task_id": one.run.grant.task_id, "lease_token": one.run.grant.lease_token}


def _insist(report: Callable[[], T]) -> T:
    """Report again while the database is away for a moment. A repeated report is answered once."""
    for tried in range(_REPORT_TRIES):
        try:
            return report()
        except Exception as exc:
            if not _is_away(exc):
                raise
            connection.close()
            time.sleep(0.1 * 2**tried)
    return report()


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
    dependencies.release_dependants_in(tenant_id=tenant_id)


def _publish(tenant_id: int, queue: str) -> None:
    execute.apply_async(args=(tenant_id, queue), expires=_FRESH_SECONDS, retry=False)


def _publish_release(tenant_id: int) -> None:
    release_dependants.apply_async(args=(tenant_id,), queue="notify", expires=_FRESH_SECONDS, retry=False)


_publisher = Publisher(_publish, most_at_once=_MOST_AT_ONCE)
_release_publisher = Publisher(_publish_release)


def listen() -> None:
    """Connect the signals: ready work with a handler here becomes a Celery message."""
    task_queued.connect(_announced, dispatch_uid="tasks.execute")
    dependency_finished.connect(_dependency_finished, dispatch_uid="tasks.release_dependants")


def _announced(*, tenant_id: int, queue: str, task_type: str, **_: Any) -> None:
    if handlers.policy_of(task_type) is not None:
        _publisher.publish(tenant_id, queue)


def _dependency_finished(*, tenant_id: int, **_: Any) -> None:
    _release_publisher.publish(tenant_id)
