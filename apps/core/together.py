"""Calls that come at the same moment, made as one: whoever leads makes it for those who came while it was busy.

Nobody waits for company: who finds nobody at work begins at once, alone. Only those who come meanwhile are a group, which
one of them makes its one call for when the work before is done.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

from apps.core.errors import DomainError
from apps.core.retries import Busy, DatabaseAway, has_undone, retried

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# Who is in no group by then goes alone: work that hangs holds up nobody who came after it.
_PATIENCE: Final = 0.05


class _Member(Generic[T, R]):
    """One call: in line until it is woken, then the leader of a group, or answered."""

    def __init__(self, item: T) -> None:
        self.item = item
        self.group: list[_Member[T, R]] = []
        self.answer: R | DomainError | None = None
        self.woken = threading.Lock()
        self.woken.acquire()


class Together(Generic[T, R]):
    """The lines of those who wait, by what they have in common."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Hashable, list[_Member[T, R]]] = {}

    def do(
        self,
        common: Hashable,
        item: T,
        *,
        alone: Callable[[], R],
        many: Callable[[Sequence[T]], Sequence[R | DomainError | None]],
    ) -> R:
        """The answer to one call.

        :param many: makes the call for several, in one transaction; None in place of an answer has that one made alone.
            If it fails as a whole, each is made alone: what is wrong with one is no other's trouble.
        """
        me: _Member[T, R] = _Member(item)
        with self._lock:
            line = self._lines.get(common)
            if line is None:
                self._lines[common] = []
                me.group = [me]
            else:
                line.append(me)
        if not me.group:
            if not self._woken(me, line or []):
                return alone()
            if not me.group:
                return _outcome(me, alone)
        try:
            if len(me.group) == 1:
                return alone()
            _call(me.group, many)
        finally:
            self._hand_over(common)
            for member in me.group[1:]:
                member.woken.release()
        return _outcome(me, alone)

    def _woken(self, me: _Member[T, R], line: list[_Member[T, R]]) -> bool:
        """Wait to be answered or to lead; False if neither has come within sight, and it is in line no more."""
        if me.woken.acquire(timeout=_PATIENCE):
            return True
        with self._lock:
            if me in line:
                line.remove(me)
                return False
        return me.woken.acquire()

    def _hand_over(self, common: Hashable) -> None:
        with self._lock:
            line = self._lines.pop(common)
            if not line:
                return
            self._lines[common] = []
            first, first.group = line[0], list(line)
            line.clear()
        first.woken.release()


def _call(group: Sequence[_Member[T, R]], many: Callable[[Sequence[T]], Sequence[R | DomainError | None]]) -> None:
    try:
        answers = retried(lambda: many([member.item for member in group]), attempts=1)
    except DatabaseAway as away:
        if has_undone(away):
            logger.warning("%s calls are made apart", len(group), exc_info=True)
            return
        # It may have happened, which nobody should learn from a second try.
        answers = [DatabaseAway(away.detail) for _ in group]
    except Busy as busy:  # who needs what others hold waits for it alone
        logger.info("%s calls are made apart: %s", len(group), busy.detail)
        return
    except Exception:  # each will hear of its own trouble when it is made alone
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
