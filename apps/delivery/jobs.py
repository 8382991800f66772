"""Celery runs deliveries. A message may be lost, repeated or run twice at once: the database says what is due."""

import time
from datetime import timedelta

from celery import shared_task

from apps.core.ticks import tick
from apps.delivery import services
from apps.delivery.notifications import MOST_AT_ONCE, notify


# Acked early: the tick replaces a message that dies with its worker process.
@shared_task(name="delivery.deliver", ignore_result=True, acks_late=False)
def deliver() -> None:
    """Call targets that have something due, until there is none or some seconds have passed."""
    started = time.monotonic()
    while time.monotonic() - started < services.PATIENCE.total_seconds():
        if not services.deliver_next():
            return
    notify()


@tick(every=timedelta(seconds=1))
def notify_due() -> None:
    """Notify worker processes of what is due: a pause is over, or a message was lost."""
    for _ in range(services.count_callable(limit=MOST_AT_ONCE)):
        notify()
