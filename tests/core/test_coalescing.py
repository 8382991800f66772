"""Coalesced calls: made as one, answered each for itself."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
from django.db import OperationalError

from apps.core import coalescing
from apps.core.coalescing import Coalescer
from apps.core.errors import Conflict, DomainError
from apps.core.sql import DatabaseAway
from tests.waiters import until

Answer = str | DomainError | None


class Taken(Conflict):
    code = "taken"


class Counter:
    """Coalesces calls while the first of them is held up, and records how each was made."""

    def __init__(self, many: Callable[[Sequence[str]], Sequence[Answer]]) -> None:
        self.line = Coalescer[str, str]()
        self.groups: list[list[str]] = []
        self.alone: list[str] = []
        self._many, self._held, self._go = many, threading.Event(), threading.Event()

    def call(self, item: str, common: str = "kee") -> str:
        def many(items: Sequence[str]) -> Sequence[Answer]:
            self.groups.append(list(items))
            return self._many(items)

        return self.line.call(common, item, alone=lambda: self._alone(item), many=many)

    def _alone(self, item: str) -> str:
        if item == "first":
            self._held.set()
            assert self._go.wait(20)
        self.alone.append(item)
        if item.startswith("bad"):
            raise Taken(f"{item} is taken.")
        return f"{item} alone"

    def call_all(self, items: Sequence[str]) -> list[Future[str]]:
        """The outcomes of the first call and of those that arrive while it is at work."""
        with ThreadPoolExecutor(len(items) + 1) as threads:
            futures = [threads.submit(self.call, "first")]
            assert self._held.wait(20)
            for number, item in enumerate(items, start=1):
                futures.append(threads.submit(self.call, item))
                self._wait_for(number)
            self._go.set()
        return futures

    def _wait_for(self, waiting: int) -> None:
        until(lambda: len(self.line._waiting["kee"]) == waiting)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "_PATIENCE", 20.0)


def test_first_call_is_made_alone_at_once() -> None:
    counter = Counter(lambda items: [f"{item} together" for item in items])
    assert [counter.call(item) for item in ("a", "b")] == ["a alone", "b alone"]
    assert counter.groups == []
    assert counter.line._waiting == {}


def test_calls_that_arrive_meanwhile_are_one_call() -> None:
    counter = Counter(lambda items: [Taken("b") if item == "b" else f"{item} together" for item in items])
    first, a, b, c = counter.call_all(["a", "b", "c"])
    assert (first.result(), a.result(), c.result()) == ("first alone", "a together", "c together")
    assert isinstance(b.exception(), Taken)
    assert counter.groups == [["a", "b", "c"]]
    assert counter.alone == ["first"]
    assert counter.line._waiting == {}


def test_single_waiting_or_unfit_call_is_made_alone() -> None:
    counter = Counter(lambda _items: pytest.fail("there is no company"))
    assert [future.result() for future in counter.call_all(["a"])] == ["first alone", "a alone"]
    counter = Counter(lambda items: [None if item == "b" else f"{item} together" for item in items])
    _, a, b = counter.call_all(["a", "b"])
    assert (a.result(), b.result()) == ("a together", "b alone")


def _canceled(_items: Sequence[str]) -> Sequence[Answer]:
    raise OperationalError("canceling statement") from psycopg.errors.QueryCanceled("it took too long")


def _broken(_items: Sequence[str]) -> Sequence[Answer]:
    raise ValueError("one of them is no good")


@pytest.mark.parametrize("many", [_broken, _canceled])
def test_failed_group_is_made_one_by_one(many: Callable[[Sequence[str]], Sequence[Answer]]) -> None:
    counter = Counter(many)
    _, a, bad, c = counter.call_all(["a", "bad", "c"])
    assert (a.result(), c.result()) == ("a alone", "c alone")
    assert isinstance(bad.exception(), Taken)
    assert len(counter.groups) == 1


def test_group_with_unknown_outcome_is_not_repeated() -> None:
    def lost(_items: Sequence[str]) -> Sequence[Answer]:
        raise OperationalError("the connection is lost")

    counter = Counter(lost)
    _, *others = counter.call_all(["a", "b"])
    assert [type(future.exception()) for future in others] == [DatabaseAway, DatabaseAway]
    assert counter.alone == ["first"]


@pytest.mark.parametrize(("common", "patience"), [("kee", 0.01), ("hexy", 20.0)])
def test_call_waits_for_no_other_key_and_no_longer_than_its_patience(
    monkeypatch: pytest.MonkeyPatch, common: str, patience: float
) -> None:
    monkeypatch.setattr(coalescing, "_PATIENCE", patience)
    counter = Counter(lambda items: [f"{item} together" for item in items])
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(counter.call, "first")
        assert counter._held.wait(20)
        assert counter.call("a", common) == "a alone"
        assert not first.done()
        counter._go.set()
        assert first.result() == "first alone"
    assert counter.line._waiting == {}
