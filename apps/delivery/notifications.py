"""Telling worker processes that something is due. A lost notification costs at most a second."""

from typing import Final

from django.db import transaction

from apps.core.notifications import Publisher

MOST_AT_ONCE: Final = 16
"""Worker processes that are told at once; each works until nothing is due."""

_publisher: Final = Publisher("delivery.deliver", expires=5, most_at_once=MOST_AT_ONCE)


def notify() -> None:
    """Have a worker process send what is due; returns at once."""
    _publisher.publish()


def notify_on_commit() -> None:
    """Notify once the transaction has committed."""
    transaction.on_commit(notify, robust=True)
