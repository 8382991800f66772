"""Calls that meet: made as one, answered each for itself."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
from django.db import OperationalError

from apps.core import together
from apps.core.errors import Conflict, DomainError
from apps.core.retries import DatabaseAway
from apps.core.together import Together

Answer = str | DomainError | None


class Taken(Conflict):
    code = "taken"


class Counter:
    """Meets callers while the first of them is held up; remembers how each was answered."""

    def __init__(self, many: Callable[[Sequence[str]], Sequence[Answer]]) -> None:
        self.line = Together[str, str]()
        self.groups: list[list[str]] = []
        self.alone: list[str] = []
        self._many, self._held, self._go = many, threading.Event(), threading.Event()

    def call(self, item: str, common: str = "kee") -> str:
        def many(items: Sequence[str]) -> Sequence[Answer]:
            self.groups.append(list(items))
            return self._many(items)

        return self.line.do(common, item, alone=lambda: self._alone(item), many=many)

    def _alone(self, item: str) -> str:
        if item == "first":
            self._held.set()
            assert self._go.wait(20)
        self.alone.append(item)
        if item.startswith("bad"):
            raise Taken(f"{item} is taken.")
        return f"{item} alone"

    def meet(self, items: Sequence[str]) -> list[Future[str]]:
        """What becomes of the items that arrive while the first is at work, and of the first."""
        with ThreadPoolExecutor(len(items) + 1) as threads:
            futures = [threads.submit(self.call, "first")]
            assert self._held.wait(20)
            for number, item in enumerate(items, start=1):
                futures.append(threads.submit(self.call, item))
                self._wait_for(number)
            self._go.set()
        return futures

    def _wait_for(self, waiting: int) -> None:
        until(lambda: len(self.line._lines["kee"]) == waiting)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_PATIENCE", 20.0)


def test_who_finds_nobody_at_work_is_alone_at_once() -> None:
    counter = Counter(lambda items: [f"{item} together" for item in items])
    assert [counter.call(item) for item in ("a", "b")] == ["a alone", "b alone"]
    assert counter.groups == []
    assert counter.line._lines == {}


def test_those_who_come_meanwhile_are_one_call_and_each_hears_its_own_answer() -> None:
    counter = Counter(lambda items: [Taken("b") if item == "b" else f"{item} together" for item in items])
    first, a, b, c = counter.meet(["a", "b", "c"])
    assert (first.result(), a.result(), c.result()) == ("first alone", "a together", "c together")
    assert isinstance(b.exception(), Taken)
    assert counter.groups == [["a", "b", "c"]]
    assert counter.alone == ["first"]
    assert counter.line._lines == {}


def test_one_who_comes_by_itself_meanwhile_is_made_alone() -> None:
    counter = Counter(lambda _items: pytest.fail("there is no company"))
    assert [future.result() for future in counter.meet(["a"])] == ["first alone", "a alone"]


def test_what_can_not_be_made_together_is_made_alone() -> None:
    counter = Counter(lambda items: [None if item == "b" else f"{item} together" for item in items])
    _, a, b = counter.meet(["a", "b"])
    assert (a.result(), b.result()) == ("a together", "b alone")


def test_a_group_that_fails_is_made_one_by_one() -> None:
    def many(_items: Sequence[str]) -> Sequence[Answer]:
        raise ValueError("one of them is no good")

    counter = Counter(many)
    _, a, bad, c = counter.meet(["a", "bad", "c"])
    assert (a.result(), c.result()) == ("a alone", "c alone")
    assert isinstance(bad.exception(), Taken)
    assert len(counter.groups) == 1


def test_a_group_whose_outcome_is_unknown_is_not_made_again() -> None:
    def many(_items: Sequence[str]) -> Sequence[Answer]:
        raise OperationalError("the connection is lost")

    counter = Counter(many)
    _, *others = counter.meet(["a", "b"])
    assert [type(future.exception()) for future in others] == [DatabaseAway, DatabaseAway]
    assert counter.alone == ["first"]


def test_a_group_that_the_database_broke_off_is_made_one_by_one() -> None:
    def many(_items: Sequence[str]) -> Sequence[Answer]:
        raise OperationalError("canceling statement") from psycopg.errors.QueryCanceled("it took too long")

    counter = Counter(many)
    _, *others = counter.meet(["a", "b"])
    assert [future.result() for future in others] == ["a alone", "b alone"]


def test_who_is_in_no_group_for_long_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_PATIENCE", 0.01)
    counter = Counter(lambda items: [f"{item} together" for item in items])
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(counter.call, "first")
        assert counter._held.wait(20)
        assert counter.call("a") == "a alone"
        assert not first.done()
        counter._go.set()
        assert first.result() == "first alone"
    assert counter.line._lines == {}


def test_strangers_do_not_wait_for_each_other() -> None:
    counter = Counter(lambda items: [f"{item} together" for item in items])
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(counter.call, "first")
        assert counter._held.wait(20)
        assert counter.call("a", "hexy") == "a alone"
        counter._go.set()
        first.result()
