"""Celery's way to the ticks: beat sends a message per tick, a worker runs it."""

import threading
from typing import Any

from celery import shared_task, signals
from django.core.management import call_command
from django.db import close_old_connections

from apps.core import notifications, ticks


@shared_task(name="core.tick", ignore_result=True)
def tick(name: str) -> None:
    """Safe to lose, repeat or overlap: the database holds the truth."""
    notifications.heartbeat("beat")
    ticks.run(name)


@signals.beat_init.connect
def declare_schedules(**_: Any) -> None:
    """A new release's ticks are scheduled by its first beat, whoever migrated."""
    call_command("sync_schedules")


_stop = threading.Event()


@signals.task_prerun.connect
def let_go_of_lost_connections(**_: Any) -> None:
    """A connection that the server has ended costs no job: each thread's own is looked at before it is used."""
    close_old_connections()


@signals.worker_process_init.connect
def start_ticking(**_: Any) -> None:
    """Every process of a worker ticks by itself, so that nothing depends on beat; one that works in threads does not."""
    for name, calls_out in (("ticks", False), ("ticks that call out", True)):
        given = {"calls_out": calls_out}
        threading.Thread(target=ticks.run_forever, args=[_stop], kwargs=given, name=name, daemon=True).start()


@signals.worker_process_shutdown.connect
def stop_ticking(**_: Any) -> None:
    _stop.set()
