"""Coalescing: calls that arrive while an equal one is at work are made together, in one transaction.

A call that finds none at work is made at once, alone. Those that arrive meanwhile form a group; its first member makes
the call for all of them when the work before is done.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

from apps.core.errors import DomainError
from apps.core.sql import Busy, DatabaseAway, has_undone, retried

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# A call that is in no group by then is made alone: work that hangs delays none that arrives after it.
_PATIENCE: Final = 0.05
# Of one group. More would keep their locks for longer than they save.
_MOST: Final = 400
GROUP_PATIENCE: Final = "100ms"
"""How long a group waits for a lock, as PostgreSQL reads it: longer than another group takes to write. A group must
not keep its own locks for longer."""


class _Member(Generic[T, R]):
    """One call: waiting until it is released, then the first of a group, or answered."""

    def __init__(self, item: T) -> None:
        self.item = item
        self.group: list[_Member[T, R]] = []
        self.answer: R | DomainError | None = None
        self.released = threading.Lock()
        self.released.acquire()


class Coalescer(Generic[T, R]):
    """The waiting calls, by what they have in common."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, list[_Member[T, R]]] = {}

    def call(
        self,
        common: Hashable,
        item: T,
        *,
        alone: Callable[[], R],
        many: Callable[[Sequence[T]], Sequence[R | DomainError | None]],
    ) -> R:
        """The answer to one call.

        :param many: makes the call for several, in one transaction; a call that it answers with None is made alone. If
            it fails as a whole, each is made alone: a fault of one call does not reach the others.
        """
        me: _Member[T, R] = _Member(item)
        with self._lock:
            waiting = self._waiting.get(common)
            if waiting is None:
                self._waiting[common] = []
                me.group = [me]
            else:
                waiting.append(me)
        if waiting is not None and not me.released.acquire(timeout=_PATIENCE):
            with self._lock:
                if me in waiting:
                    waiting.remove(me)
                    return alone()
            me.released.acquire()
        if not me.group:
            return _outcome(me, alone)
        try:
            if len(me.group) == 1:
                return alone()
            _call(me.group, many)
        finally:
            self._start_next(common)
            for member in me.group[1:]:
                member.released.release()
        return _outcome(me, alone)

    def _start_next(self, common: Hashable) -> None:
        with self._lock:
            waiting = self._waiting[common]
            if not waiting:
                del self._waiting[common]
                return
            first = waiting[0]
            first.group = waiting[:_MOST]
            del waiting[:_MOST]
        first.released.release()


def _call(group: Sequence[_Member[T, R]], many: Callable[[Sequence[T]], Sequence[R | DomainError | None]]) -> None:
    try:
        answers = retried(lambda: many([member.item for member in group]), attempts=1)
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


def _outcome(me: _Member[T, R], alone: Callable[[], R]) -> R:
    if me.answer is None:
        return alone()
    if isinstance(me.answer, DomainError):
        raise me.answer
    return me.answer
