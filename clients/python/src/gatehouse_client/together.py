"""What callers ask for while a request is on its way goes together in the next one."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Generic, TypeVar

from gatehouse_client.errors import GatehouseError

# The hub takes twice as much in one request.
_MOST_BYTES: Final = 4 * 1024 * 1024
_COMPANY_COMES_WITHIN: Final = 0.002
# Whoever is in no request by then sends for all that wait: one that hangs delays nobody for longer.
_PATIENCE: Final = 1.0

A = TypeVar("A")


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """What one caller asks for."""

    content: bytes
    """As JSON."""
    task_id: str = ""
    """Of a completion."""
    since: float = field(default_factory=time.monotonic)
    """When it was asked."""


# How many items the hub takes in one request.
TASKS: Final = 1_000
COMPLETIONS: Final = 500


@dataclass(slots=True, eq=False)
class _Place(Generic[A]):
    item: Item
    turn: threading.Lock = field(default_factory=threading.Lock)
    leads: bool = False
    answer: A | None = None


class Together(Generic[A]):
    """Asks for many threads at once. Each gets its own answer or its own error, as if it had asked alone.

    One request is on its way at a time, and one more for each second that one hangs. Those that come meanwhile wait;
    the first of them then sends for all. Who gets no answer that way, because the hub refused it or did not answer,
    asks alone.
    """

    def __init__(
        self, alone: Callable[[Item], A], together: Callable[[Sequence[Item]], Sequence[A | None]], most: int
    ) -> None:
        """:param together: returns an answer for each item, or None for a refused one."""
        self._alone = alone
        self._together = together
        self._most = most
        self._lock = threading.Lock()
        self._is_led = False
        self._waiting: list[_Place[A]] = []
        # Those who got their answers together are likely to ask together again: the first waits a moment for the others.
        self._expected = 1
        self._gathers: _Place[A] | None = None

    def ask(self, item: Item) -> A:
        """The answer to this item."""
        mine = _Place[A](item)
        if self._comes_to_lead(mine):
            with self._leading(mine) as group:
                if len(group) == 1:
                    return self._alone(item)
                # Everybody then asks alone, and hears of it.
                with suppress(GatehouseError):
                    answers = self._together([one.item for one in group])
                    for one, answer in zip(group, answers, strict=True):
                        one.answer = answer
        return self._alone(item) if mine.answer is None else mine.answer

    def _comes_to_lead(self, mine: _Place[A]) -> bool:
        """Wait until this one may send, or until another has asked for it."""
        with self._lock:
            mine.turn.acquire()
            mine.leads = not self._is_led
            self._is_led = True
            if not mine.leads:
                self._waiting.append(mine)
                if self._gathers is not None and self._is_enough():
                    self._gathers.turn.release()
                    self._gathers = None
        try:
            if not (mine.leads or mine.turn.acquire(timeout=_PATIENCE) or self._takes_over(mine)):
                mine.turn.acquire()
            if mine.leads:
                with self._lock:
                    self._gathers = None if self._is_enough() else mine
                if self._gathers is mine:
                    mine.turn.acquire(timeout=_COMPANY_COMES_WITHIN)
        except BaseException:  # a signal's: the others go on
            if not self._withdraws(mine) and mine.leads:
                with self._lock:
                    self._pass_on()
            raise
        return mine.leads

    def _takes_over(self, mine: _Place[A]) -> bool:
        """Lead beside a request that hangs. False: its turn comes just now, to lead or to be answered."""
        is_waiting = self._withdraws(mine)
        mine.leads = mine.leads or is_waiting
        return is_waiting

    def _withdraws(self, mine: _Place[A]) -> bool:
        """Take one out that is in no request yet; says whether it was so."""
        with self._lock:
            is_waiting = mine in self._waiting
            if is_waiting:
                self._waiting.remove(mine)
            return is_waiting

    def _is_enough(self) -> bool:
        """Whether as many wait as are expected, with who leads them. The lock is held."""
        return len(self._waiting) + 1 >= self._expected

    @contextmanager
    def _leading(self, mine: _Place[A]) -> Iterator[list[_Place[A]]]:
        """Those for whom this one asks; at the end the next one leads."""
        with self._lock:
            self._gathers = None
            places = [mine, *self._waiting]
            taken = take([one.item for one in places], self._most)
            group, self._waiting = places[:taken], places[taken:]
        try:
            yield group
        finally:
            with self._lock:
                self._expected = len(group) + len(self._waiting)
                self._pass_on()
            for one in group[1:]:
                one.turn.release()

    def _pass_on(self) -> None:
        """Let the next one lead. The lock is held."""
        self._gathers = None
        self._is_led = bool(self._waiting)
        if self._waiting:
            following = self._waiting.pop(0)
            following.leads = True
            following.turn.release()


def take(items: Sequence[Item], most: int) -> int:
    """How many of these go in one request: one at least."""
    sizes = accumulate(len(item.content) for item in items[:most])
    return max(sum(size <= _MOST_BYTES for size in sizes), 1)
