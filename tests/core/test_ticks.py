"""Ticks: two drivers, one of which suffices, and neither in the other's way."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.core.management import call_command
from django_celery_beat.models import PeriodicTask

from apps.core import ticks
from apps.core.ticks import Tick
from tests.waiters import Other

Register = Callable[..., None]


@pytest.fixture
def register() -> Iterator[Register]:
    """Registers ticks; there are no others meanwhile."""
    own = dict(ticks._ticks)
    ticks._ticks.clear()

    def register(name: str, run: Callable[[], object], *, calls_out: bool = False) -> None:
        ticks._ticks[name] = Tick(name, timedelta(0), run, calls_out)

    yield register
    ticks._ticks.clear()
    ticks._ticks.update(own)


def test_tick_that_runs_elsewhere_is_left_alone(transactional_db: None, register: Register) -> None:
    entered, leave, ran = threading.Event(), threading.Event(), []

    def slow() -> None:
        ran.append(threading.current_thread().name)
        entered.set()
        assert leave.wait(20)

    register("test.slow", slow)
    rival = Other(lambda: ticks.run("test.slow"))
    try:
        assert entered.wait(20)
        assert ticks.run("test.slow") is False
        leave.set()
        assert rival.ends() is None
        assert ran == [rival.name]
        assert ticks.run("test.slow") is True
    finally:
        leave.set()
        rival.ends()


def run_until(stop: threading.Event, *, calls_out: tuple[bool, ...]) -> None:
    """Run both kinds, or one, each in its thread, until one of them stops all."""
    threads = [
        threading.Thread(target=ticks.run_forever, args=[stop], kwargs={"calls_out": kind}, daemon=True)
        for kind in calls_out
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not any(thread.is_alive() for thread in threads)


def test_failing_tick_is_repeated_and_stops_no_other(transactional_db: None, register: Register) -> None:
    stop, failures, others, once = threading.Event(), [], [], []

    def failing() -> None:
        failures.append(1)
        raise ZeroDivisionError

    def other() -> None:
        others.append(1)
        if len(others) == 3:
            stop.set()

    for name, run in ("test.once", lambda: once.append(1)), ("test.failing", failing), ("test.other", other):
        ticks._ticks[name] = Tick(name, timedelta(seconds=60 if name == "test.once" else 0.5), run)
    for _ in range(2):
        ticks.run_tick("test.once")
    run_until(stop, calls_out=(False,))
    # Its deadline is the last one, so it was looked at between two rounds of the others.
    assert (len(failures), len(others), len(once)) == (3, 3, 1)


def test_tick_that_calls_out_delays_only_its_kind(transactional_db: None, register: Register) -> None:
    stop, leave, entered, others = threading.Event(), threading.Event(), threading.Event(), []

    def waiting() -> None:
        entered.set()
        assert leave.wait(30)

    def other() -> None:
        # The other tick has begun, and does not end before this one has run three times.
        assert entered.wait(30)
        others.append(1)
        if len(others) == 3:
            stop.set()
            leave.set()

    register("test.waiting", waiting, calls_out=True)
    register("test.other", other)
    run_until(stop, calls_out=(True, False))
    assert len(others) == 3


def test_schedules_are_written_from_code_and_follow_it(db: None, register: Register) -> None:
    PeriodicTask.objects.filter(name__startswith="tick: ").delete()
    register("test.gone", print)
    call_command("sync_schedules")
    assert PeriodicTask.objects.get(name="tick: test.gone").args == '["test.gone"]'
    ticks._ticks.clear()
    register("test.kept", print)
    register("test.outside", print, calls_out=True)
    for _ in range(2):
        call_command("sync_schedules")
    names = PeriodicTask.objects.filter(name__startswith="tick: ").values_list("name", flat=True)
    assert list(names) == ["tick: test.kept"]
