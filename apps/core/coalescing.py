"""Coalescing: calls that arrive while an equal one is at work are made together, in one transaction.

A call that finds none at work is made at once. Those that arrive meanwhile form a group, which is made in one call when
the work before is done. Who waits in a thread makes the call of the group that it is the first of. Calls that the event
loop awaits are made by threads of this module, one group after the other.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Generic, TypeVar

from django.db import connection

from apps.core.errors import DomainError
from apps.core.sql import Busy, DatabaseAway, has_undone, retried

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# A call that is in no group by then is made alone: work that hangs delays none that arrives after it.
_PATIENCE: Final = 0.05
# Of one group. More would keep their locks for longer than they save.
_MOST: Final = 400
# More than there are connections to the database: some wait for one.
_THREADS: Final = 32
GROUP_PATIENCE: Final = "100ms"
"""How long a group waits for a lock, as PostgreSQL reads it: longer than another group takes to write. A group must
not keep its own locks for longer."""


class _Member(Generic[T, R]):
    """One call: waiting until it is released, then the first of a group, or answered."""

    def __init__(self, item: T, alone: Callable[[], R], many: "Many[T, R]") -> None:
        self.item, self.alone, self.many = item, alone, many
        self.group: list[_Member[T, R]] = []
        self.answer: R | DomainError | None = None
        self.released = threading.Lock()
        self.released.acquire()

    def release(self) -> None:
        self.released.release()


class _Awaited(_Member[T, R]):
    """One that the event loop awaits."""

    def __init__(self, item: T, alone: Callable[[], R], many: "Many[T, R]") -> None:
        super().__init__(item, alone, many)
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[R] = self._loop.create_future()
        self._context = contextvars.copy_context()

    def release(self) -> None:
        """Its answer is there, or it is to be made alone."""
        if self.answer is None:
            _threads.submit(_connected, self.make_alone)
        elif isinstance(self.answer, DomainError):
            self._tell(self.outcome.set_exception, self.answer)
        else:
            self._tell(self.outcome.set_result, self.answer)

    def make_alone(self) -> None:
        try:
            answer = self._context.run(self.alone)
        except Exception as fault:  # noqa: BLE001  # who awaits it raises it
            self._tell(self.outcome.set_exception, fault)
        else:
            self._tell(self.outcome.set_result, answer)

    def _tell(self, set_outcome: Callable[..., None], *outcome: object) -> None:
        def tell() -> None:
            if not self.outcome.done():  # its client may be gone
                set_outcome(*outcome)

        self._loop.call_soon_threadsafe(tell)


Many = Callable[[Sequence[T]], Sequence[R | DomainError | None]]
"""Makes the call for several, in one transaction; a call that it answers with None is made alone. If it fails as a
whole, each is made alone: a fault of one call does not reach the others."""


class Coalescer(Generic[T, R]):
    """The waiting calls, by what they have in common."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, list[_Member[T, R]]] = {}

    def call(self, common: Hashable, item: T, *, alone: Callable[[], R], many: Many[T, R]) -> R:
        """The answer to one call, for which this thread waits."""
        me = _Member(item, alone, many)
        with self._lock:
            waiting = self._waiting.get(common)
            if waiting is None:
                self._waiting[common] = []
                me.group = [me]
            else:
                waiting.append(me)
        if waiting is not None and not me.released.acquire(timeout=_PATIENCE):
            if self._withdraw(common, me):
                return alone()
            me.released.acquire()
        if not me.group:
            return _outcome(me)
        try:
            if len(me.group) == 1:
                return alone()
            _call(me.group)
        finally:
            self._start_next(common)
            for member in me.group[1:]:
                member.release()
        return _outcome(me)

    async def awaited(self, common: Hashable, item: T, *, alone: Callable[[], R], many: Many[T, R]) -> R:
        """The answer to one call, while the event loop goes on. Those of one turn of the loop are a group at once."""
        me = _Awaited(item, alone, many)
        with self._lock:
            waiting = self._waiting.get(common)
            if waiting is None:
                self._waiting[common] = [me]
                asyncio.get_running_loop().call_soon(self._start_next, common)
            else:
                waiting.append(me)
        giving_up = asyncio.get_running_loop().call_later(_PATIENCE, self._give_up, common, me)
        try:
            return await me.outcome
        finally:
            giving_up.cancel()

    def _give_up(self, common: Hashable, me: _Awaited[T, R]) -> None:
        if self._withdraw(common, me):
            me.release()

    def _withdraw(self, common: Hashable, me: _Member[T, R]) -> bool:
        """Take a call out that is in no group yet; says whether it was so."""
        with self._lock:
            waiting = self._waiting.get(common, [])
            if me not in waiting:
                return False
            waiting.remove(me)
            return True

    def _start_next(self, common: Hashable) -> None:
        """Have the next group made, where there is one."""
        group = self._next(common)
        if not group:
            return
        if isinstance(group[0], _Awaited):
            _threads.submit(_connected, partial(self._work, common, group))
        else:
            group[0].group = group
            group[0].release()

    def _next(self, common: Hashable) -> list[_Member[T, R]]:
        with self._lock:
            waiting = self._waiting[common]
            group = waiting[:_MOST]
            del waiting[:_MOST]
            if not group:
                del self._waiting[common]
            return group

    def _work(self, common: Hashable, group: list[_Member[T, R]]) -> None:
        """Make this group, and those that have come meanwhile, until there is none or who waits in a thread makes it."""
        while group and isinstance(first := group[0], _Awaited):
            if len(group) == 1:
                first.make_alone()
            else:
                _call(group)
                for member in group:
                    member.release()
            if connection.errors_occurred:
                connection.close()
            group = self._next(common)
        if group:
            group[0].group = group
            group[0].release()


_threads: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="group")


def _connected(work: Callable[[], None]) -> None:
    """Do what a thread of this module is given, and give its database connection back."""
    try:
        work()
    except Exception:  # a defect here; nobody asks for the outcome
        logger.exception("coalesced calls were lost")
    finally:
        connection.close()


def _call(group: Sequence[_Member[T, R]]) -> None:
    try:
        answers = retried(lambda: group[0].many([member.item for member in group]), attempts=1)
    except DatabaseAway as away:
        if has_undone(away):
            logger.warning("%s calls are made apart", len(group), exc_info=True)
            return
        # The transaction may have committed, so the calls are not made a second time.
        answers = [DatabaseAway(away.detail) for _ in group]
    except Busy as busy:  # a call that needs a lock of others waits for it alone
        logger.info("%s calls are made apart: %s", len(group), busy.detail)
        return
    except Exception:  # each raises its own fault when it is made alone
        logger.warning("%s calls are made apart", len(group), exc_info=True)
        return
    for member, answer in zip(group, answers, strict=True):
        member.answer = answer


def _outcome(me: _Member[T, R]) -> R:
    if me.answer is None:
        return me.alone()
    if isinstance(me.answer, DomainError):
        raise me.answer
    return me.answer
