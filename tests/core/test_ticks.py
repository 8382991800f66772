"""Ticks: two drivers, one of which suffices, and neither in the other's way."""

import threading
from collections.abc import Callable
from datetime import timedelta

from django.core.management import call_command
from django.db import connection
from django_celery_beat.models import PeriodicTask

from apps.core import ticks
from apps.core.ticks import Tick


def _register(name: str, run: Callable[[], object]) -> None:
    ticks._ticks[name] = Tick(name, timedelta(0), run)


def test_a_tick_that_runs_elsewhere_is_left_alone(transactional_db: None) -> None:
    entered, leave, ran = threading.Event(), threading.Event(), []

    def slow() -> None:
        ran.append(threading.current_thread().name)
        entered.set()
        assert leave.wait(20)

    _register("test.slow", slow)

    def elsewhere() -> None:
        ticks.run("test.slow")
        connection.close()

    rival = threading.Thread(target=elsewhere, name="rival")
    try:
        rival.start()
        assert entered.wait(20)
        assert ticks.run("test.slow") is False
        leave.set()
        rival.join(20)
        assert ran == ["rival"]
        assert ticks.run("test.slow") is True
    finally:
        del ticks._ticks["test.slow"]
        leave.set()
        rival.join(20)


def test_failing_tick_is_repeated_and_stops_no_other(transactional_db: None) -> None:
    stop, failures, others = threading.Event(), [], []

    def failing() -> None:
        failures.append(1)
        raise ZeroDivisionError

    def other() -> None:
        others.append(1)
        if len(others) == 3:
            stop.set()

    own = dict(ticks._ticks)
    ticks._ticks.clear()
    _register("test.failing", failing)
    _register("test.other", other)
    try:
        thread = threading.Thread(target=ticks.run_forever, args=[stop])
        thread.start()
        thread.join(30)
    finally:
        stop.set()
        ticks._ticks.clear()
        ticks._ticks.update(own)

    assert not thread.is_alive()
    assert (len(failures), len(others)) == (3, 3)


def test_tick_that_calls_out_delays_only_its_kind(transactional_db: None) -> None:
    stop, leave, entered, others = threading.Event(), threading.Event(), threading.Event(), []

    def waiting() -> None:
        entered.set()
        assert leave.wait(30)

    def other() -> None:
        # Nothing that this one does waits for the other's end.
        assert entered.wait(30)
        others.append(1)
        if len(others) == 3:
            stop.set()
            leave.set()

    own = dict(ticks._ticks)
    ticks._ticks.clear()
    ticks._ticks["test.waiting"] = Tick("test.waiting", timedelta(0), waiting, calls_out=True)
    _register("test.other", other)
    try:
        threads = [
            threading.Thread(target=ticks.run_forever, args=[stop], kwargs={"calls_out": calls_out})
            for calls_out in (True, False)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
    finally:
        stop.set()
        leave.set()
        ticks._ticks.clear()
        ticks._ticks.update(own)

    assert not any(thread.is_alive() for thread in threads)
    assert len(others) == 3


def test_schedules_are_written_from_code_and_follow_it(db: None) -> None:
    PeriodicTask.objects.filter(name__startswith="tick: ").delete()
    _register("test.gone", lambda: None)
    try:
        call_command("sync_schedules")
        assert PeriodicTask.objects.get(name="tick: test.gone").args == '["test.gone"]'
    finally:
        del ticks._ticks["test.gone"]
    call_command("sync_schedules")
    call_command("sync_schedules")

    names = set(PeriodicTask.objects.filter(name__startswith="tick: ").values_list("name", flat=True))
    assert names == {f"tick: {tick.name}" for tick in ticks.all_ticks() if not tick.calls_out}
