"""A worker: takes tasks, keeps their leases alive while your functions work, and reports how each ended.

    worker = Worker(Client.from_environment())

    @worker.handles("greeting")
    def greet(task: Task) -> str:
        return f"Hello {task.params['name']}"

    worker.run()

Each task has a thread of its own. A handler may run again for the same task, here or elsewhere, if this run breaks off.
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
from gatehouse_client.errors import (
    AlreadyDecided,
    BadLeaseToken,
    GatehouseError,
    LeaseLost,
    RateLimited,
    Refused,
    Unreachable,
)
from gatehouse_client.shapes import Completed, Lease, LeaseSource
from gatehouse_client.task import Failed, Result, Stop, Task

logger = logging.getLogger("gatehouse_client")

# How often a waiting thread looks whether it is to stop.
_GLANCE: Final = 0.1
_IDLE: Final = 1.0
# What handlers get to come to their end once they are told to, and then the hub to hear of it.
_LAST_WORDS: Final = 2.0
_BEAT_TIMEOUT: Final = 5.0
# After heartbeats that did not get through.
_AGAIN: Final = 0.5
# What the hub takes of one request.
_MOST_LEASED: Final = 100
_MOST_TOLD: Final = 500
_LONGEST_CODE: Final = 100
_LONGEST_MESSAGE: Final = 4000
_LONGEST_PAUSE: Final = 604_800.0

Handler = Callable[[Task], Any]
H = TypeVar("H", bound=Handler)


class Worker:
    """Works until it is told to stop, by `stop()`, SIGTERM or SIGINT.

    Then it takes nothing more, gives what it has begun `grace` seconds to finish, and gives back what did not. A
    second signal ends the grace.
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
        :param queues: where to look; left out, the queues of the types that there are handlers for.
        :param lease_seconds: left out, the type's.
        :param wait_seconds: how long a request for work waits for some; so long it may take until an idle worker ends.
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
        # Set in signals, which may come while the main thread holds the lock: so it has none, and is looked at often.
        self._stop_at: float | None = None

    def handles(self, *task_types: str) -> Callable[[H], H]:
        """Declare a function as what does tasks of these types. What it returns is the result: any JSON, or a
        `Result`."""

        def declare(handler: H) -> H:
            self._handlers.update(dict.fromkeys(task_types, handler))
            return handler

        return declare

    def stop(self) -> None:
        """Begin to end: `run` returns when nothing is held any more. Called again: without grace."""
        again = self._stop_at is not None
        self._stop_at = time.monotonic() + (0 if again else self._grace)

    def run(self) -> None:
        """Work until told to stop.

        :raises Refused: if the hub takes no such worker: an unknown token, a missing scope, no handlers.
        """
        over = threading.Event()
        heart = threading.Thread(target=self._keep_alive, args=(over,), name="heartbeats", daemon=True)
        heart.start()
        try:
            with self._told_by_signals():
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
                self._begin(lease)
            if not leases:
                # So that a hub which lets nobody wait is not asked without a pause.
                self._rest(asked_at + _IDLE - time.monotonic())

    def _lease(self, capacity: int) -> list[Lease]:
        hub = self._client.within(patience=0)
        try:
            return hub.lease(capacity=capacity, wait_seconds=self._wait_seconds, **self._source())
        except (Unreachable, RateLimited) as exc:
            logger.warning("no work is to be had: %s", exc)
            self._rest(exc.retry_after)
            return []

    def _source(self) -> LeaseSource:
        return {
            "task_types": list(self._handlers),
            "queues": self._queues,
            "capabilities": self._capabilities,
            "lease_seconds": self._lease_seconds,
        }

    def _begin(self, lease: Lease) -> None:
        task = Task(lease, self._client, is_ending=lambda: self._stop_at is not None)
        with self._changed:
            self._running[lease.lease_token] = task
        self._notify()
        threading.Thread(target=self._execute, args=(task,), name=lease.task_id, daemon=True).start()

    def _rest(self, seconds: float) -> None:
        """Until the time is over, a task has ended, or it is time to stop."""
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
        for start in range(0, len(held), _MOST_TOLD):
            self._give_back(held[start : start + _MOST_TOLD], until)

    def _give_back(self, tasks: Sequence[Task], until: float) -> None:
        """Of handlers that do not listen, be the hub there or not. What they still do is kept out by the fence."""
        try:
            self._tell_spend(tasks, until)
        except GatehouseError as exc:
            logger.warning("what %s runs have spent is not told: %s", len(tasks), exc)
        try:
            refusals = self._hurried(until).release_many([task.lease for task in tasks])
        except GatehouseError as exc:
            logger.warning("%s tasks are not given back, their leases will run out: %s", len(tasks), exc)
            return
        for task, refusal in zip(tasks, refusals, strict=True):
            if isinstance(refusal, Refused):
                logger.warning("%s run %s is not given back: %s", task.task_id, task.run_id, refusal)

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
    def _told_by_signals(self) -> Iterator[None]:
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

    # A thread for each task: its handler, then its report

    def _execute(self, task: Task) -> None:
        try:
            came_too_late = self._stop_at is not None
            report: partial[Any] = partial(self._client.release, task.lease) if came_too_late else self._outcome(task)
            told = self._report(task, report)
            for following in told.next if isinstance(told, Completed) else []:
                self._begin(following)
        finally:
            with self._changed:
                del self._running[task.lease.lease_token]
            self._notify()

    def _outcome(self, task: Task) -> partial[Any]:
        """How the handler ended, as what there is to tell the hub; nothing that it raises gets any further."""
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
            # What the handler itself asked of the hub.
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
        """Tell the hub, for as long as it takes; the lease is kept alive meanwhile."""
        if task.is_lost:
            logger.warning("the lease of %s run %s was lost", task.task_id, task.run_id)
            return None
        while True:
            try:
                self._tell_spend([task])
                return report()
            except (LeaseLost, AlreadyDecided, BadLeaseToken) as refusal:
                logger.warning("the end of %s run %s was not taken: %s", task.task_id, task.run_id, refusal)
            except (Unreachable, RateLimited) as exc:
                logger.warning("the end of %s is still to be told: %s", task.task_id, exc)
                if self._stop_at is None or time.monotonic() < self._stop_at:
                    continue
            except (Refused, TypeError, ValueError) as exc:
                logger.exception("the end of %s can't be told so", task.task_id)
                # A result that is not taken is not made again; a failure is what it said it is.
                self._tell_that_it_cannot_be_told(task, exc, retryable=bool(report.keywords.get("retryable")))
            return None

    def _tell_spend(self, tasks: Sequence[Task], until: float | None = None) -> None:
        """What their handlers have used since the last heartbeat.

        :param until: when to give up; left out, it takes as long as the client has patience each time.
        """
        while beats := {task: beat for task in tasks if (beat := task.last_beat()) is not None}:
            hub = self._client if until is None else self._hurried(until)
            answers = hub.heartbeat(list(beats.values()))
            for (task, beat), answer in zip(beats.items(), answers, strict=True):
                task.heard(answer, beat)
            if until is not None and time.monotonic() >= until:
                return
            if any(answer.status == "retry" for answer in answers):
                time.sleep(_GLANCE)

    def _tell_that_it_cannot_be_told(self, task: Task, exc: Exception, *, retryable: bool) -> None:
        code = exc.code if isinstance(exc, Refused) else "unsendable_result"
        message = _sendable(f"The result was not taken: {exc}", _LONGEST_MESSAGE)
        try:
            self._client.fail(task.lease, code, message, retryable=retryable)
        except GatehouseError:
            logger.exception("nor can it otherwise; the lease of %s will run out", task.task_id)

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
            self._beat([task for task in tasks if task.due_at <= now + _GLANCE][:_MOST_TOLD])

    def _beat(self, tasks: list[Task]) -> None:
        beats = [task.next_beat() for task in tasks]
        try:
            answers = self._client.within(patience=0, timeout=_BEAT_TIMEOUT).heartbeat(beats)
        except (Unreachable, RateLimited) as exc:
            logger.warning("%s heartbeats did not get through: %s", len(beats), exc)
            for task, beat in zip(tasks, beats, strict=True):
                task.unsaid(beat)
                task.due_at = time.monotonic() + _AGAIN
        except Exception:
            # What one of them told was not taken, and is not told again: bare heartbeats keep all of them alive.
            logger.exception("%s heartbeats were refused", len(beats))
            for task in tasks:
                task.due_at = time.monotonic() + _AGAIN
        else:
            for task, beat, answer in zip(tasks, beats, answers, strict=True):
                task.heard(answer, beat)


def _sentence(failed: Failed) -> str:
    """What a failure says; of one that says nothing, what it came from."""
    origin = failed.__cause__ or failed.__context__ or failed
    return _sendable(failed.message, _LONGEST_MESSAGE) or f"{type(origin).__name__}."


def _sendable(text: str, longest: int) -> str:
    """As much of a text as the hub takes."""
    return text[:longest].replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
