"""A worker: leases tasks, renews the leases while your functions work, and reports the outcomes.

    worker = Worker(Client.from_environment())

    @worker.handles("greeting")
    def greet(task: Task) -> str:
        return f"Hello {task.params['name']}"

    worker.run()

Each task has its own thread. A handler may run again for the same task, here or elsewhere, if a run is cut off.
"""

import logging
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from gatehouse_client.client import Client
from gatehouse_client.errors import GatehouseError, LeaseLost, RateLimited, Refused, Unreachable
from gatehouse_client.inputs import LeaseFrom
from gatehouse_client.outputs import CompletedTask, LeasedTask
from gatehouse_client.task import Failed, Result, Stop, Task

logger = logging.getLogger("gatehouse_client")

# How often a waiting thread checks whether to stop.
_GLANCE: Final = 0.1
_IDLE: Final = 1.0
# The time for handlers to end after the stop, and then for the last reports.
_LAST_WORDS: Final = 2.0
_BEAT_TIMEOUT: Final = 5.0
# After failed heartbeats.
_AGAIN: Final = 0.5
# The hub's limits of one request.
_MOST_LEASED: Final = 100
_MOST_REPORTED: Final = 500
_LONGEST_CODE: Final = 100
_LONGEST_MESSAGE: Final = 4000
_LONGEST_PAUSE: Final = 604_800.0

Handler = Callable[[Task], Any]
H = TypeVar("H", bound=Handler)


class Worker:
    """Works until `stop()`, SIGTERM or SIGINT.

    Then it leases nothing more, gives running handlers `grace` seconds to finish, and releases the rest. A second signal
    ends the grace.
    """

    def __init__(
        self,
        client: Client,
        *,
        capacity: int = 4,
        queues: Sequence[str] = (),
        capabilities: Sequence[str] = (),
        lease_seconds: int | None = None,
        wait_seconds: float = 5.0,
        grace: float = 20.0,
    ) -> None:
        """
        :param capacity: how many tasks to work on at once.
        :param queues: default: the queues of the handled types.
        :param lease_seconds: default: the type's.
        :param wait_seconds: how long a lease request waits. An idle worker may take as long to end.
        """
        self._client = client
        self._capacity = capacity
        self._queues = queues
        self._capabilities = capabilities
        self._lease_seconds = lease_seconds
        self._wait_seconds = wait_seconds
        self._grace = grace
        self._handlers: dict[str, Handler] = {}
        self._running: dict[str, Task] = {}
        self._changed = threading.Condition()
        # Set by signal handlers, which may interrupt a holder of the lock: so it is polled without one.
        self._stop_at: float | None = None

    def handles(self, *task_types: str) -> Callable[[H], H]:
        """Register the handler of these task types. It returns the result: any JSON, or a `Result`."""

        def declare(handler: H) -> H:
            self._handlers.update(dict.fromkeys(task_types, handler))
            return handler

        return declare

    def stop(self) -> None:
        """Stop: `run` returns when no task is held. A second call ends the grace."""
        again = self._stop_at is not None
        self._stop_at = time.monotonic() + (0 if again else self._grace)

    def run(self) -> None:
        """Work until stopped.

        :raises Refused: if the hub refuses the worker: an unknown token, a missing scope, no handlers.
        """
        over = threading.Event()
        heart = threading.Thread(target=self._keep_alive, args=(over,), name="heartbeats", daemon=True)
        heart.start()
        try:
            with self._stopped_by_signals():
                try:
                    self._take_tasks()
                finally:
                    self._drain()
        finally:
            over.set()
            self._notify()
            heart.join()

    # The main thread: leases

    def _take_tasks(self) -> None:
        while self._stop_at is None:
            asked_at = time.monotonic()
            free = self._capacity - len(self._running)
            leases = self._lease(min(free, _MOST_LEASED)) if free > 0 else []
            for lease in leases:
                self._begin(self._taken(lease))
            if not leases:
                # A hub that does not let the request wait is not asked without a pause.
                self._rest(asked_at + _IDLE - time.monotonic())

    def _lease(self, capacity: int) -> list[LeasedTask]:
        hub = self._client.within(patience=0)
        try:
            return hub.lease(capacity=capacity, wait_seconds=self._wait_seconds, **self._source())
        except (Unreachable, RateLimited) as exc:
            logger.warning("no tasks were leased: %s", exc)
            self._rest(exc.retry_after)
            return []

    def _source(self) -> LeaseFrom:
        return {
            "task_types": list(self._handlers),
            "queues": self._queues,
            "capabilities": self._capabilities,
            "lease_seconds": self._lease_seconds,
        }

    def _begin(self, task: Task) -> None:
        threading.Thread(target=self._work, args=(task,), daemon=True).start()

    def _taken(self, lease: LeasedTask) -> Task:
        task = Task(lease, self._client, is_ending=lambda: self._stop_at is not None)
        with self._changed:
            self._running[lease.lease_token] = task
            self._changed.notify_all()
        return task

    def _rest(self, seconds: float) -> None:
        """Wait for the time, the end of a task, or the stop."""
        until = time.monotonic() + seconds * random.uniform(0.7, 1.0)  # noqa: S311  # spreads load, hides nothing
        with self._changed:
            held = len(self._running)
            while self._stop_at is None and time.monotonic() < until and len(self._running) == held:
                self._changed.wait(_GLANCE)

    def _drain(self) -> None:
        if self._stop_at is None:
            self.stop()
        self._wait_for_all(lambda: self._stop_at or 0)
        for task in self._held():
            task.stop("drained")
        last = time.monotonic() + _LAST_WORDS
        self._wait_for_all(lambda: last)
        held = [task for task in self._held() if not task.is_lost]
        until = time.monotonic() + _LAST_WORDS
        for start in range(0, len(held), _MOST_REPORTED):
            self._give_back(held[start : start + _MOST_REPORTED], until)

    def _give_back(self, tasks: Sequence[Task], until: float) -> None:
        """Release the tasks of handlers that do not stop. Their later writes are refused by the fencing token."""
        try:
            self._report_spend(tasks, until)
        except GatehouseError as exc:
            logger.warning("the spend of %s runs was not reported: %s", len(tasks), exc)
        try:
            answers = self._hurried(until).release_many([task.lease for task in tasks])
        except GatehouseError as exc:
            logger.warning("%s tasks were not released, their leases will expire: %s", len(tasks), exc)
            return
        for task, answer in zip(tasks, answers, strict=True):
            if answer.code:
                logger.warning("%s run %s was not released: %s", task.task_id, task.run_id, answer.detail)

    def _hurried(self, until: float) -> Client:
        left = max(until - time.monotonic(), _GLANCE)
        return self._client.within(patience=left, timeout=left)

    def _wait_for_all(self, deadline: Callable[[], float]) -> None:
        with self._changed:
            while self._running and time.monotonic() < deadline():
                self._changed.wait(_GLANCE)

    def _held(self) -> list[Task]:
        with self._changed:
            return list(self._running.values())

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            signal.signal(number, lambda *_: self.stop())
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # A thread for each task: its handler, its report, and then the same for the next task

    def _work(self, task: Task) -> None:
        following: Task | None = task
        while following is not None:
            threading.current_thread().name = following.task_id
            following = self._execute(following)

    def _execute(self, task: Task) -> Task | None:
        """Do a task to its end; returns the one that was leased instead."""
        try:
            came_too_late = self._stop_at is not None
            report: partial[Any] = partial(self._client.release, task.lease) if came_too_late else self._outcome(task)
            answer = self._report(task, report)
            leases = answer.next if isinstance(answer, CompletedTask) else []
            following = [self._taken(lease) for lease in leases]
        finally:
            with self._changed:
                del self._running[task.lease.lease_token]
                self._changed.notify_all()
        # A repeated completion may be given what was leased for others that were made with it.
        for other in following[1:]:
            self._begin(other)
        return following[0] if following else None

    def _outcome(self, task: Task) -> partial[Any]:
        """Run the handler; returns the report of its outcome. Its exceptions go no further."""
        client, lease = self._client, task.lease
        try:
            answer = self._handlers[lease.task_type](task)
        except Stop:
            return partial(client.release, lease)
        except Failed as failed:
            return partial(
                client.fail,
                lease,
                _sendable(failed.code, _LONGEST_CODE) or "failed",
                _sentence(failed),
                retryable=failed.retryable,
                retry_after=failed.retry_after,
                details=failed.details,
            )
        except Refused as refusal:
            # A refusal of the handler's own request.
            message = _sendable(refusal.detail, _LONGEST_MESSAGE) or "Refused."
            pause = min(refusal.retry_after, _LONGEST_PAUSE) if isinstance(refusal, RateLimited) else 0.0
            code = _sendable(refusal.code, _LONGEST_CODE)
            return partial(client.fail, lease, code, message, retryable=True, retry_after=pause or None)
        except (Exception, SystemExit) as exc:
            logger.exception("the handler of %s failed on %s", lease.task_type, task.task_id)
            message = f"{type(exc).__name__} in {lease.task_type}."
            return partial(client.fail, lease, "handler_error", message, retryable=True)
        result = answer if isinstance(answer, Result) else Result(content=answer)
        return partial(
            client.complete,
            lease,
            result.content,
            summary=result.summary,
            result_pointer=result.pointer,
            result_channel=result.channel,
            checksum=result.checksum,
            lease_next=1 if self._stop_at is None else 0,
            lease_from=self._source(),
        )

    def _report(self, task: Task, report: partial[Any]) -> object:
        """Report to the hub, for as long as it takes. The lease is renewed meanwhile."""
        if task.is_lost:
            logger.warning("the lease of %s run %s was lost", task.task_id, task.run_id)
            return None
        while True:
            try:
                self._report_spend([task])
                return report()
            except LeaseLost as refusal:
                logger.warning("the outcome of %s run %s was refused: %s", task.task_id, task.run_id, refusal)
            except (Unreachable, RateLimited) as exc:
                logger.warning("the outcome of %s is not reported yet: %s", task.task_id, exc)
                if self._stop_at is None or time.monotonic() < self._stop_at:
                    continue
            except (Refused, TypeError, ValueError) as exc:
                logger.exception("the outcome of %s can't be reported", task.task_id)
                # A refused result is not computed again; a failure keeps its retryability.
                self._report_refused_outcome(task, exc, retryable=bool(report.keywords.get("retryable")))
            return None

    def _report_spend(self, tasks: Sequence[Task], until: float | None = None) -> None:
        """Report the spend since the last heartbeat.

        :param until: when to give up; default: never.
        """
        while beats := {task: beat for task in tasks if (beat := task.last_beat()) is not None}:
            hub = self._client if until is None else self._hurried(until)
            answers = hub.heartbeat(list(beats.values()))
            for (task, beat), answer in zip(beats.items(), answers, strict=True):
                task.handle(answer, beat)
            if until is not None and time.monotonic() >= until:
                return
            if any(answer.status == "retry" for answer in answers):
                time.sleep(_GLANCE)

    def _report_refused_outcome(self, task: Task, exc: Exception, *, retryable: bool) -> None:
        code = exc.code if isinstance(exc, Refused) else "unsendable_result"
        message = _sendable(f"The result was not taken: {exc}", _LONGEST_MESSAGE)
        try:
            self._client.fail(task.lease, code, message, retryable=retryable)
        except GatehouseError:
            logger.exception("the failure can't be reported either; the lease of %s will expire", task.task_id)

    # One thread for all heartbeats

    def _keep_alive(self, over: threading.Event) -> None:
        while not over.is_set():
            now = time.monotonic()
            with self._changed:
                tasks = [task for task in self._running.values() if not task.is_lost]
                next_at = min((task.due_at for task in tasks), default=now + 1)
                if next_at > now:
                    self._changed.wait(next_at - now)
                    continue
            self._beat([task for task in tasks if task.due_at <= now + _GLANCE][:_MOST_REPORTED])

    def _beat(self, tasks: list[Task]) -> None:
        beats = [task.next_beat() for task in tasks]
        try:
            answers = self._client.within(patience=0, timeout=_BEAT_TIMEOUT).heartbeat(beats)
        except (Unreachable, RateLimited) as exc:
            logger.warning("%s heartbeats failed: %s", len(beats), exc)
            for task, beat in zip(tasks, beats, strict=True):
                task.restore(beat)
                task.due_at = time.monotonic() + _AGAIN
        except Exception:
            # The content of one was refused, and is dropped: bare heartbeats renew all leases.
            logger.exception("%s heartbeats were refused", len(beats))
            for task in tasks:
                task.due_at = time.monotonic() + _AGAIN
        else:
            for task, beat, answer in zip(tasks, beats, answers, strict=True):
                task.handle(answer, beat)


def _sentence(failed: Failed) -> str:
    """The message of a failure, or the class of its cause."""
    origin = failed.__cause__ or failed.__context__ or failed
    return _sendable(failed.message, _LONGEST_MESSAGE) or f"{type(origin).__name__}."


def _sendable(text: str, longest: int) -> str:
    """A text within the hub's limits."""
    return text[:longest].replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
