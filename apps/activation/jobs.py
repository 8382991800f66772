"""Celery's way to waking. A message only nudges: losing, repeating or overlapping it does no harm."""

import threading
import time
from typing import Any, Final

from celery import shared_task
from django.dispatch import receiver

from apps.activation import services
from apps.activation.signals import target_due
from apps.activation.states import FRESH
from apps.core.notifications import Publisher
from apps.digests.signals import inbox_changed

_FRESH_SECONDS: Final = FRESH.total_seconds()
# A message begins no call after this.
_PATIENCE_SECONDS: Final = 5.0
# More hands than this are not called at once; each works until nobody waits whom it may call.
_MOST_AT_ONCE: Final = 16
# A burst of changes is one message, however many inboxes and changes it was.
_GATHERED_FOR: Final = 0.1
_MOST_GATHERED: Final = 1000


# Acked early, both: a nudge that dies with its worker is replaced by the tick.
@shared_task(name="activation.look", ignore_result=True, acks_late=False)
def look(changed: list[list[int]]) -> None:
    """Find the targets of principals (tenant and id) whose inbox has changed, and have them called."""
    services.announce_due(principals=[(tenant_id, principal_id) for tenant_id, principal_id in changed])


@shared_task(name="activation.wake", ignore_result=True, acks_late=False)
def wake() -> None:
    """Call targets that were announced, one after the other, whoever's turn it is."""
    started = time.monotonic()
    while time.monotonic() - started < _PATIENCE_SECONDS:
        if not services.wake_next():
            return
    _wakes.publish()


def _publish_wake() -> None:
    wake.apply_async(expires=_FRESH_SECONDS, retry=False)


class _Changed:
    """The inboxes that have changed since the last look was published."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed: set[tuple[int, int]] = set()

    def add(self, tenant_id: int, principal_id: int) -> None:
        with self._lock:
            # The tick finds what does not fit.
            if len(self._changed) < _MOST_GATHERED:
                self._changed.add((tenant_id, principal_id))

    def take(self) -> list[tuple[int, int]]:
        with self._lock:
            taken, self._changed = sorted(self._changed), set()
        return taken


_changed: Final = _Changed()


def _publish_look() -> None:
    time.sleep(_GATHERED_FOR)
    look.apply_async(args=(_changed.take(),), expires=_FRESH_SECONDS, retry=False)


_wakes: Final = Publisher(_publish_wake, most_at_once=_MOST_AT_ONCE)
_looks: Final = Publisher(_publish_look)


@receiver(inbox_changed, dispatch_uid="activation.inbox_changed")
def note_change(tenant_id: int, principal_id: int, **_: Any) -> None:
    """Leave a look for a worker process; whoever changed the inbox neither waits nor knows."""
    _changed.add(tenant_id, principal_id)
    _looks.publish()


@receiver(target_due, dispatch_uid="activation.target_due")
def nudge(**_: Any) -> None:
    """Have a worker process call the target when its turn comes."""
    _wakes.publish()
