"""Coalescing: calls that arrive while an equal one is at work are made together, in one transaction.

A call that finds none at work is made at once. Those that arrive meanwhile form a group, for which a thread of this
module makes one call when the work before is done.
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Final, Generic, TypeVar

from django.db import connection

from apps.core.errors import DomainError
from apps.core.sql import Busy, DatabaseAway, has_undone, retried

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
Many = Callable[[Sequence[T]], Sequence[R | DomainError | None]]
"""Makes the call for several, in one transaction; a call that it answers with None is made alone. If it fails as a
whole, each is made alone: a fault of one call does not reach the others."""

# A call that is in no group by then is made alone: work that hangs delays none that arrives after it.
_PATIENCE: Final = 0.05
# Of one group. More would keep their locks for longer than they save.
_MOST: Final = 400
# More than there are connections to the database: some wait for one.
_threads: Final = ThreadPoolExecutor(32, thread_name_prefix="group")
GROUP_PATIENCE: Final = "100ms"
"""How long a group waits for a lock, as PostgreSQL reads it: longer than another group takes to write. A group must
not keep its own locks for longer."""


class _Member(Generic[T, R]):
    """One call, and what becomes of it."""

    def __init__(self, item: T, alone: Callable[[], R], many: Many[T, R]) -> None:
        self.item, self.alone, self.many = item, alone, many
        self._context = contextvars.copy_context()
        self.outcome: Future[R] = Future()
        self.outcome.set_running_or_notify_cancel()  # it is made also if its client is gone

    def make_alone(self) -> None:
        try:
            self.outcome.set_result(self._context.run(self.alone))
        except Exception as fault:  # noqa: BLE001  # the caller raises it
            self.outcome.set_exception(fault)


class Coalescer(Generic[T, R]):
    """The waiting calls, by what they have in common."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: dict[Hashable, list[_Member[T, R]]] = {}

    def call(self, common: Hashable, item: T, *, alone: Callable[[], R], many: Many[T, R]) -> R:
        """The answer to one call, for which this thread waits."""
        me = _Member(item, alone, many)
        with self._lock:
            is_first = common not in self._waiting
            waiting = self._waiting.setdefault(common, [])
            if not is_first:
                waiting.append(me)
        if is_first:
            try:
                return alone()
            finally:
                self._start_next(common)
        try:
            return me.outcome.result(_PATIENCE)
        except TimeoutError:
            return alone() if self._withdraw(common, me) else me.outcome.result()

    async def awaited(self, common: Hashable, item: T, *, alone: Callable[[], R], many: Many[T, R]) -> R:
        """The answer to one call, while the event loop goes on. Those of one turn of the loop are a group at once."""
        loop, me = asyncio.get_running_loop(), _Member(item, alone, many)
        with self._lock:
            if common not in self._waiting:
                loop.call_soon(self._start_next, common)
            self._waiting.setdefault(common, []).append(me)
        giving_up = loop.call_later(_PATIENCE, self._give_up, common, me)
        try:
            return await asyncio.wrap_future(me.outcome)
        finally:
            giving_up.cancel()

    def _give_up(self, common: Hashable, me: _Member[T, R]) -> None:
        if self._withdraw(common, me):
            _threads.submit(_connected, me.make_alone)

    def _withdraw(self, common: Hashable, me: _Member[T, R]) -> bool:
        """Take a call out that is in no group yet; says whether it was so."""
        with self._lock:
            waiting = self._waiting.get(common, [])
            is_waiting = me in waiting
            if is_waiting:
                waiting.remove(me)
            return is_waiting

    def _start_next(self, common: Hashable) -> None:
        if group := self._next(common):
            _threads.submit(_connected, partial(self._work, common, group))

    def _next(self, common: Hashable) -> list[_Member[T, R]]:
        with self._lock:
            waiting = self._waiting[common]
            group = waiting[:_MOST]
            del waiting[:_MOST]
            if not group:
                del self._waiting[common]
            return group

    def _work(self, common: Hashable, group: list[_Member[T, R]]) -> None:
        """Make the calls of this group, and of those that form meanwhile."""
        while group:
            if len(group) == 1:
                group[0].make_alone()
            else:
                _call(group)
            if connection.errors_occurred:
                connection.close()
            group = self._next(common)


def _connected(work: Callable[[], None]) -> None:
    """Do what a thread of this module is given, and give its database connection back."""
    try:
        work()
    except Exception:  # a defect of this module; nobody asks for the outcome
        logger.exception("coalesced calls were lost")
    finally:
        connection.close()


def _call(group: Sequence[_Member[T, R]]) -> None:
    answers: Sequence[R | DomainError | None] = [None] * len(group)
    try:
        made = retried(lambda: group[0].many([member.item for member in group]), attempts=1)
        answers = [answer for _, answer in zip(group, made, strict=True)]
    except DatabaseAway as away:
        if has_undone(away):
            logger.warning("%s calls are made apart", len(group), exc_info=True)
        else:  # The transaction may have committed, so the calls are not made a second time.
            answers = [DatabaseAway(away.detail) for _ in group]
    except Busy as busy:  # a call that needs a lock of others waits for it alone
        logger.info("%s calls are made apart: %s", len(group), busy.detail)
    except Exception:  # each raises its own fault when it is made alone
        logger.warning("%s calls are made apart", len(group), exc_info=True)
    for member, answer in zip(group, answers, strict=True):
        if answer is None:
            _threads.submit(_connected, member.make_alone)
        elif isinstance(answer, DomainError):
            member.outcome.set_exception(answer)
        else:
            member.outcome.set_result(answer)
