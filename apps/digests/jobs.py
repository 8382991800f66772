"""Scheduled work on inboxes, and the Celery message that says which inboxes have changed."""

import time
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from celery import shared_task
from django.dispatch import receiver

from apps.core.notifications import Publisher
from apps.core.ticks import tick
from apps.delivery.notifications import FRESH_SECONDS
from apps.digests import services
from apps.digests.services import inbox_changed

_COLLECTED_FOR: Final = 0.1
"""A burst of changes is one message, however many inboxes and changes it was."""
_MOST_COLLECTED: Final = 1000

_changed: Final[set[int]] = set()


# Acked early: the tick replaces a message that dies with its worker process.
@shared_task(name="digests.queue_wakes", ignore_result=True, acks_late=False)
def queue_wakes(principals: list[int]) -> None:
    """Queue wakes for principals whose inbox has changed."""
    services.queue_wakes(principals=principals)


def _publish() -> None:
    time.sleep(_COLLECTED_FOR)
    principals = []
    while _changed:
        principals.append(_changed.pop())
    queue_wakes.apply_async(args=(sorted(principals),), expires=FRESH_SECONDS, retry=False)


_publisher: Final = Publisher(_publish)


@receiver(inbox_changed, dispatch_uid="digests_queue_wakes")
def note_change(principal_ids: Collection[int], **_: Any) -> None:
    """Have a worker process look for wakes; returns at once."""
    if len(_changed) < _MOST_COLLECTED:
        _changed.update(principal_ids)
        _publisher.publish()


@tick(every=timedelta(seconds=1))
def queue_all_wakes() -> None:
    """Queue the wakes that no message asked for."""
    services.queue_wakes()


@tick(every=timedelta(seconds=0.5))
def flush_due() -> None:
    """Flush the buffers that are due."""
    services.flush_due()


@tick(every=timedelta(seconds=15))
def retain() -> None:
    """Delete for a second what has been kept long enough."""
    services.retain()
