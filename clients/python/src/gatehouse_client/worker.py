"""A worker: leases tasks, renews the leases while your functions work, and reports the outcomes.

    worker = Worker(Client.from_environment())

    @worker.task
    def greet(name: str) -> str:
        return f"Hello {name}"

    worker.run()

A function may run again for the same task, here or elsewhere, if a run is cut off.

The threads of the handlers do not wait for the hub. Outcomes go in groups, and the answers bring the next tasks. Short
tasks are leased ahead of the threads; what no thread begins within a second goes back to its queue.
"""

import itertools
import logging
import random
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar, overload

from gatehouse_client.client import Client
from gatehouse_client.errors import GatehouseError, LeaseLost, RateLimited, Refused, Unreachable
from gatehouse_client.functions import as_handler, as_type
from gatehouse_client.inputs import LeaseFrom, RegisterTaskType
from gatehouse_client.outputs import CompletedTasks, LeasedTask
from gatehouse_client.task import Failed, Result, Stop, Task
from gatehouse_client.together import COMPLETIONS, Item, take
from gatehouse_client.verbs import as_item

logger = logging.getLogger("gatehouse_client")

# How often a waiting thread checks whether to stop.
_GLANCE: Final = 0.1
# How many requests with outcomes are on their way at once.
_REPORTERS: Final = 2
_IDLE: Final = 1.0
# The time for handlers to end after the stop, and then for the last reports.
_LAST_WORDS: Final = 2.0
_BEAT_TIMEOUT: Final = 5.0
# After failed heartbeats.
_AGAIN: Final = 0.5
# How long a report is repeated before the worker looks whether it is to end.
_REPEATED: Final = 5.0
# Tasks that wait here for a thread, by the time that their handlers take as a rule; and how long they may wait.
_AHEAD_SECONDS: Final = 0.1
_MOST_AHEAD: Final = 200
_LONGEST_WAIT: Final = 1.0
_LATEST_COUNTS: Final = 0.1
# Idle threads end.
_THREAD_IDLES: Final = 5.0
# The hub's limits of one request.
_MOST_LEASED: Final = 100
_MOST_REPORTED: Final = 500
_LONGEST_CODE: Final = 100
_LONGEST_MESSAGE: Final = 4000
_LONGEST_PAUSE: Final = 604_800.0

Handler = Callable[[Task], Any]
H = TypeVar("H", bound=Handler)
F = TypeVar("F", bound=Callable[..., Any])


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
        self._types: list[RegisterTaskType] = []
        self._reporting = client.within(patience=_REPEATED)
        lock = threading.Lock()
        # All tasks held here, those whose threads are to come, and the outcomes to report.
        self._held: dict[str, Task] = {}
        self._waiting: deque[tuple[float, Task]] = deque()
        self._done: deque[tuple[Task, Item]] = deque()
        # For the main thread, for the threads of handlers, and for those that report.
        self._changed = threading.Condition(lock)
        self._comes = threading.Condition(lock)
        self._reports = threading.Condition(lock)
        self._threads = 0
        self._idle_threads = 0
        self._leased = 0
        self._at_most: int | None = None
        self._asked = 0
        self._on_their_way = 0
        self._is_fed = False
        self._takes = _LONGEST_WAIT
        self._is_over = False
        # Set by signal handlers, which may interrupt a holder of the lock: so it is polled without one.
        self._stop_at: float | None = None

    def handles(self, *task_types: str) -> Callable[[H], H]:
        """Register the handler of these task types. It returns the result: any JSON, or a `Result`."""

        def declare(handler: H) -> H:
            self._handlers.update(dict.fromkeys(task_types, handler))
            return handler

        return declare

    @overload
    def task(self, function: F, /) -> F: ...

    @overload
    def task(self, /, **declared: Any) -> Callable[[F], F]: ...

    def task(self, function: Any = None, /, **declared: Any) -> Any:
        """Make a function a task type of its name: `@worker.task`, or `@worker.task(max_attempts=5)`.

        The params' schema comes from its annotations; `run` registers it. A parameter annotated `Task` is given the run,
        a coroutine function an event loop of its own.
        """
        if function is None:
            return partial(self.task, **declared)
        task_type = as_type(function, **declared)
        self._types.append(task_type)
        self._handlers[task_type["name"]] = as_handler(function)
        return function

    def stop(self) -> None:
        """Stop: `run` returns when no task is held. A second call ends the grace."""
        again = self._stop_at is not None
        self._stop_at = time.monotonic() + (0 if again else self._grace)

    def run(self, *, at_most: int | None = None) -> int:
        """Work until stopped.

        :param at_most: end after so many tasks, or as soon as there is none.
        :returns: how many tasks were leased.
        :raises Refused: if the hub refuses the worker: an unknown token, a missing scope, no handlers.
        """
        helpers = [threading.Thread(target=self._keep_alive, name="heartbeats", daemon=True)]
        helpers += [threading.Thread(target=self._report_done, name="reports", daemon=True) for _ in range(_REPORTERS)]
        self._is_over = False
        self._leased, self._at_most = 0, at_most
        for helper in helpers:
            helper.start()
        try:
            with self._stopped_by_signals():
                try:
                    self._register_types()
                    self._take_tasks()
                finally:
                    self._drain()
        finally:
            with self._changed:
                self._is_over = True
                self._reports.notify_all()
                self._comes.notify_all()
            for helper in helpers:
                helper.join()
            self._stop_at = None
        return self._leased

    # The main thread: leases

    def _register_types(self) -> None:
        hub = self._client.within(patience=0)
        for task_type in self._types:
            while self._stop_at is None:
                try:
                    hub.register_type(**task_type)
                    break
                except (Unreachable, RateLimited) as exc:
                    logger.warning("the task type %s is not registered yet: %s", task_type["name"], exc)
                    self._rest(max(exc.retry_after, _IDLE))

    def _take_tasks(self) -> None:
        while self._stop_at is None:
            with self._changed:
                if self._at_most is not None and self._leased >= self._at_most and not self._held:
                    return
                room = 0 if self._is_fed and self._on_their_way else min(self._room(), _MOST_LEASED)
                if room <= 0:
                    self._changed.wait(_GLANCE)
                    continue
                self._asked += room
            asked_at = time.monotonic()
            try:
                leases = self._lease(room)
            finally:
                with self._changed:
                    self._asked -= room
            self._take(leases)
            if not leases:
                if self._at_most is not None:
                    self._at_most = self._leased
                    continue
                # A hub that does not let the request wait is not asked without a pause.
                self._rest(asked_at + _IDLE - time.monotonic())

    def _room(self, ended: int = 0) -> int:
        """How many more tasks to lease, when so many of those held have ended. The lock is held."""
        ahead = min(int(self._capacity * _AHEAD_SECONDS / max(self._takes, 1e-6)), _MOST_AHEAD)
        room = self._capacity + ahead - len(self._held) + ended - self._asked
        return room if self._at_most is None else min(room, self._at_most - self._leased - self._asked)

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
            "host": socket.gethostname()[:100],
        }

    def _take(self, leases: Sequence[LeasedTask]) -> None:
        tasks = [Task(lease, self._client, is_ending=lambda: self._stop_at is not None) for lease in leases]
        now = time.monotonic()
        with self._changed:
            self._leased += len(tasks)
            self._held.update((task.lease.lease_token, task) for task in tasks)
            self._waiting.extend((now, task) for task in tasks)
            self._comes.notify(len(tasks))
            for _ in range(min(len(self._waiting) - self._idle_threads, self._capacity - self._threads)):
                self._threads += 1
                threading.Thread(target=self._work, daemon=True).start()

    def _rest(self, seconds: float) -> None:
        """Wait for the time, the end of a task, or the stop."""
        until = time.monotonic() + seconds * random.uniform(0.7, 1.0)  # noqa: S311  # spreads load, hides nothing
        with self._changed:
            held = len(self._held)
            while self._stop_at is None and time.monotonic() < until and len(self._held) == held:
                self._changed.wait(_GLANCE)

    def _drain(self) -> None:
        if self._stop_at is None:
            self.stop()
        self._wait_for_all(lambda: self._stop_at or 0)
        for task in self._all_held():
            task.stop("drained")
        last = time.monotonic() + _LAST_WORDS
        self._wait_for_all(lambda: last)
        held = [task for task in self._all_held() if not task.is_lost]
        until = time.monotonic() + _LAST_WORDS
        for start in range(0, len(held), _MOST_REPORTED):
            self._give_back(held[start : start + _MOST_REPORTED], until)

    def _give_back(self, tasks: Sequence[Task], until: float) -> None:
        """Release tasks. What handlers that go on write later is refused by the fencing token."""
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
            while self._held and time.monotonic() < deadline():
                self._changed.wait(_GLANCE)

    def _all_held(self) -> list[Task]:
        with self._changed:
            return list(self._held.values())

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

    # The threads of the handlers

    def _work(self) -> None:
        while (task := self._next()) is not None:
            threading.current_thread().name = task.task_id
            began = time.monotonic()
            outcome = partial(self._reporting.release, task.lease) if self._stop_at is not None else self._outcome(task)
            with self._changed:
                self._takes += _LATEST_COUNTS * (time.monotonic() - began - self._takes)
                if isinstance(outcome, Item):
                    self._done.append((task, outcome))
                    if self._is_enough():
                        self._reports.notify()
                    continue
            self._report(task, outcome)
            self._forget([task])

    def _next(self) -> Task | None:
        """The next task for this thread; None if it is to end."""
        with self._changed:
            self._idle_threads += 1
            try:
                self._comes.wait_for(lambda: bool(self._waiting) or self._is_over, _THREAD_IDLES)
            finally:
                self._idle_threads -= 1
            if self._waiting:
                return self._waiting.popleft()[1]
            self._threads -= 1
            return None

    def _forget(self, tasks: Sequence[Task]) -> None:
        with self._changed:
            for task in tasks:
                del self._held[task.lease.lease_token]
            self._changed.notify_all()

    def _outcome(self, task: Task) -> Item | partial[Any]:
        """Run the handler; returns its completion, or the report of another outcome. Its exceptions go no further."""
        client, lease = self._reporting, task.lease
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
        try:
            return as_item(
                lease,
                result.content,
                summary=result.summary,
                result_pointer=result.pointer,
                result_channel=result.channel,
                checksum=result.checksum,
            )
        except (TypeError, ValueError) as exc:
            logger.exception("the outcome of %s can't be reported", task.task_id)
            return self._refused_outcome(task, exc, retryable=False)

    # Two threads report

    def _report_done(self) -> None:
        while group := self._group():
            try:
                self._complete(group)
            except Exception:
                logger.exception("the outcomes of %s tasks can't be reported; their leases will expire", len(group))
            with self._changed:
                self._on_their_way -= len(group)
            self._forget([task for task, _ in group])

    def _is_enough(self) -> bool:
        """Whether there are outcomes to report, and at least half as many as are on their way. The lock is held."""
        return bool(self._done) and 2 * len(self._done) >= self._on_their_way

    def _group(self) -> list[tuple[Task, Item]]:
        """The outcomes that go in the next request; none at the end."""
        with self._changed:
            while not self._is_enough():
                if self._is_over:
                    return []
                self._reports.wait(_GLANCE)
            # The other half of what is held is worked on meanwhile.
            most = max(1, -(-len(self._held) // _REPORTERS))
            first = list(itertools.islice(self._done, most))
            taken = take([item for _, item in first], COMPLETIONS)
            self._on_their_way += taken
            return [self._done.popleft() for _ in range(taken)]

    def _complete(self, group: Sequence[tuple[Task, Item]]) -> None:
        """Report what is done, for as long as it takes, and lease the next tasks."""
        with self._changed:
            room = 0 if self._stop_at is not None else max(min(self._room(len(group)), _MOST_LEASED), 0)
            self._asked += room
        leases: Sequence[LeasedTask] = []
        refused: Sequence[tuple[Task, Item]] = []
        try:
            self._report_spend([task for task, _ in group])
            answer = self._reported([item for _, item in group], room)
            if answer is not None:
                leases = answer.next
                refused = [one for one, told in zip(group, answer.results, strict=True) if told.code]
        except GatehouseError:
            # Each is then reported alone, and its error heard.
            refused = group
        finally:
            with self._changed:
                self._asked -= room
                self._is_fed = len(leases) == room
        self._take(leases)
        for task, item in refused:
            self._report(task, partial(self._reporting.complete_item, item))

    def _reported(self, items: Sequence[Item], room: int) -> CompletedTasks | None:
        """The answer to these completions; None if there is none until the worker ends."""
        while True:
            try:
                return self._reporting.complete_items(items, lease_next=room, lease_from=self._source())
            except (Unreachable, RateLimited) as exc:
                logger.warning("the outcomes of %s tasks are not reported yet: %s", len(items), exc)
                if self._stop_at is not None and time.monotonic() >= self._stop_at:
                    return None
                time.sleep(min(exc.retry_after, _REPEATED))

    def _report(self, task: Task, report: partial[Any]) -> None:
        """Report an outcome to the hub, for as long as it takes. The lease is renewed meanwhile."""
        while not task.is_lost:
            try:
                self._report_spend([task])
                report()
            except LeaseLost as refusal:
                logger.warning("the outcome of %s run %s was refused: %s", task.task_id, task.run_id, refusal)
            except (Unreachable, RateLimited) as exc:
                logger.warning("the outcome of %s is not reported yet: %s", task.task_id, exc)
                if self._stop_at is None or time.monotonic() < self._stop_at:
                    time.sleep(min(exc.retry_after, _REPEATED))
                    continue
            except (Refused, TypeError, ValueError) as exc:
                logger.exception("the outcome of %s can't be reported", task.task_id)
                # A refused result is not computed again; a failure keeps its retryability.
                try:
                    self._refused_outcome(task, exc, retryable=bool(report.keywords.get("retryable")))()
                except GatehouseError:
                    logger.exception("the failure can't be reported either; the lease of %s will expire", task.task_id)
            return
        logger.warning("the lease of %s run %s was lost", task.task_id, task.run_id)

    def _report_spend(self, tasks: Sequence[Task], until: float | None = None) -> None:
        """Report the spend since the last heartbeat.

        :param until: when to give up; default: never.
        """
        while beats := {task: beat for task in tasks if (beat := task.last_beat()) is not None}:
            hub = self._reporting if until is None else self._hurried(until)
            answers = hub.heartbeat(list(beats.values()))
            for (task, beat), answer in zip(beats.items(), answers, strict=True):
                task.handle(answer, beat)
            if until is not None and time.monotonic() >= until:
                return
            if any(answer.status == "retry" for answer in answers):
                time.sleep(_GLANCE)

    def _refused_outcome(self, task: Task, exc: Exception, *, retryable: bool) -> partial[Any]:
        code = exc.code if isinstance(exc, Refused) else "unsendable_result"
        message = _sendable(f"The result was not taken: {exc}", _LONGEST_MESSAGE)
        return partial(self._reporting.fail, task.lease, code, message, retryable=retryable)

    # One thread for all heartbeats

    def _keep_alive(self) -> None:
        while not self._is_over:
            now = time.monotonic()
            with self._changed:
                due = [task for task in self._held.values() if task.due_at <= now + _GLANCE and not task.is_lost]
            if due:
                self._beat(due[:_MOST_REPORTED])
            else:
                time.sleep(_GLANCE)
            self._give_back_waiting()

    def _give_back_waiting(self) -> None:
        """Release what no thread begins soon: others may have time."""
        before = time.monotonic() - (_LONGEST_WAIT if self._stop_at is None else 0)
        late: list[Task] = []
        with self._changed:
            while self._waiting and self._waiting[0][0] <= before:
                late.append(self._waiting.popleft()[1])
            if late:
                self._takes = max(self._takes, _LONGEST_WAIT)
        if late:
            self._give_back(late, time.monotonic() + _LAST_WORDS)
            self._forget(late)

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
