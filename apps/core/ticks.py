"""The table of ticks: what must happen by itself, each function idempotent and safe to overlap.

Two drivers call them and either alone suffices: beat's messages, and one thread in each worker process.
What one process has run within half the period, another does not run again; an advisory try-lock keeps two from
running it at once. Both are a courtesy, not a guard.

A tick that calls other servers waits as long as they let it. It has a thread of such ticks alone, in each worker
process, and no messages: nobody's lease runs out late because somebody else's server hangs. Ticks that go on until
the process stops have another thread.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from celery import shared_task, signals
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, DatabaseError, close_old_connections, connections

from apps.core import notifications
from apps.core.sql import SYSTEM

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tick:
    """A function that brings the world up to date, and how often it wants to run."""

    name: str
    every: timedelta
    run: Callable[[], object]
    calls_out: bool = False
    lasts: bool = False
    """It calls out, and goes on until :func:`is_stopping`."""


_ticks: Final[dict[str, Tick]] = {}


def tick(
    *, every: timedelta, calls_out: bool = False, lasts: bool = False
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Register a tick function of an app's `ticks.py`; its name is `<app>.<function>`."""

    def register(function: Callable[[], object]) -> Callable[[], object]:
        name = f"{function.__module__.split('.')[1]}.{function.__name__}"
        _ticks[name] = Tick(name, every, function, calls_out or lasts, lasts)
        return function

    return register


def all_ticks() -> list[Tick]:
    """Every registered tick, by name."""
    return [_ticks[name] for name in sorted(_ticks)]


def run(name: str) -> bool:
    """Run a tick unless another process is running it just now; says whether it ran.

    :raises KeyError: if there is no such tick.
    """
    with _alone(name) as alone:
        if alone:
            _ticks[name].run()
    return alone


def _run_if_due(name: str) -> None:
    # Without Redis it is due each time.
    if notifications.is_first(f"tick:{name}", _ticks[name].every / 2):
        run(name)


@contextmanager
def _alone(name: str) -> Iterator[bool]:
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)
    # By the login that may not be pooled by transaction: the lock is the session's.
    login = connections[SYSTEM if SYSTEM in connections.settings else DEFAULT_DB_ALIAS]
    with login.cursor() as cursor:
        cursor.execute("select pg_try_advisory_lock(%s)", [key])
        alone: bool = cursor.fetchone()[0]
    try:
        yield alone
    finally:
        # A connection that broke has dropped the lock with its session.
        if alone and login.is_usable():
            with login.cursor() as cursor:
                cursor.execute("select pg_advisory_unlock(%s)", [key])


def run_forever(stop: threading.Event, *, calls_out: bool = False, lasts: bool = False) -> None:
    """Run every tick of a kind at its pace until told to stop.

    Of the ticks that are due, the one with the earliest deadline runs next: when it was due, plus its period. So a slow
    tick delays those that run each second once, and not once for each slow tick. A failing tick is logged and tried
    again next time.
    """
    due = {tick: time.monotonic() for tick in all_ticks() if (tick.calls_out, tick.lasts) == (calls_out, lasts)}
    while not stop.is_set():
        now = time.monotonic()
        ready = [tick for tick, moment in due.items() if moment <= now]
        if not ready:
            close_old_connections()
            stop.wait(min(due.values(), default=now + 1.0) - now)
            continue
        tick = min(ready, key=lambda tick: due[tick] + tick.every.total_seconds())
        due[tick] = now + tick.every.total_seconds()
        try:
            _run_if_due(tick.name)
        except DatabaseError:
            logger.exception("tick %s failed", tick.name)
            connections.close_all()
        except Exception:  # one tick's defect must not stop the others; it is logged
            logger.exception("tick %s failed", tick.name)
    connections.close_all()


@shared_task(name="core.tick", ignore_result=True)
def run_tick(name: str) -> None:
    """Safe to lose, repeat or overlap: the database holds the truth."""
    notifications.heartbeat("beat")
    _run_if_due(name)


@signals.beat_init.connect
def declare_schedules(**_: Any) -> None:
    """A new release's ticks are scheduled by its first beat, whoever migrated."""
    call_command("sync_schedules")


@signals.task_prerun.connect
def close_lost_connections(**_: Any) -> None:
    """A connection that the server has ended costs no job: each thread checks its own before it is used."""
    close_old_connections()


_stop = threading.Event()


def is_stopping() -> bool:
    """Whether this process has been told to stop."""
    return _stop.is_set()


@signals.worker_process_init.connect
def start_ticking(**_: Any) -> None:
    """Every process of a worker ticks by itself, so that nothing depends on beat; one that works in threads does not."""
    kinds = (("ticks", False, False), ("ticks that call out", True, False), ("ticks that last", True, True))
    for name, calls_out, lasts in kinds:
        given = {"calls_out": calls_out, "lasts": lasts}
        threading.Thread(target=run_forever, args=[_stop], kwargs=given, name=name, daemon=True).start()


@signals.worker_process_shutdown.connect
def stop_ticking(**_: Any) -> None:
    _stop.set()


@signals.heartbeat_sent.connect
def show_life(sender: Any, **_: Any) -> None:
    """Every worker, each two seconds, whatever its processes do."""
    notifications.heartbeat(f"worker {sender.eventer.hostname}")


@signals.worker_shutdown.connect
def say_farewell(sender: Any, **_: Any) -> None:
    notifications.retire(f"worker {sender.hostname}")
