"""Celery's way to waking. A message only nudges: losing, repeating or overlapping it does no harm."""

import threading
import time
from typing import Any, Final

from celery import shared_task
from django.dispatch import receiver

from apps.activation import services
from apps.activation.signals import target_due
from apps.core.nudges import Nudger
from apps.digests.signals import inbox_changed

# A nudge older than this is dropped unread: the tick will have sent another.
_FRESH_SECONDS: Final = 10
# A burst of changes is one message, however many inboxes and changes it was.
_GATHERED_FOR: Final = 0.1
_MOST_GATHERED: Final = 1000


# Acked early, both: a nudge that dies with its worker is replaced by the tick.
@shared_task(name="activation.look", ignore_result=True, acks_late=False)
def look(changed: list[list[int]]) -> None:
    """Find the targets of principals (tenant and id) whose inbox has changed, and have them called."""
    services.announce_due(principals=[(tenant_id, principal_id) for tenant_id, principal_id in changed])


@shared_task(name="activation.wake", ignore_result=True, acks_late=False)
def wake(tenant_id: int, target_id: int) -> None:
    """Call a target if something is waiting for it."""
    services.wake(tenant_id=tenant_id, target_id=target_id)


def _publish_wake(tenant_id: int, target_id: int) -> None:
    wake.apply_async(args=(tenant_id, target_id), expires=_FRESH_SECONDS, retry=False)


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


_wakes: Final = Nudger(_publish_wake)
_looks: Final = Nudger(_publish_look)


@receiver(inbox_changed, dispatch_uid="activation.inbox_changed")
def note_change(tenant_id: int, principal_id: int, **_: Any) -> None:
    """Leave a look for a worker process; whoever changed the inbox neither waits nor knows."""
    _changed.add(tenant_id, principal_id)
    _looks.nudge()


@receiver(target_due, dispatch_uid="activation.target_due")
def nudge(tenant_id: int, target_id: int, **_: Any) -> None:
    """Have a worker process call a target."""
    _wakes.nudge(tenant_id, target_id)
