"""The end of what is told of workers."""

from typing import Final

from django.conf import settings

from apps.principals.tenancy import acting_as_system
from apps.workers import sql

FORGET_BATCH: Final = 1000


def forget_events(*, batch: int = FORGET_BATCH) -> int:
    """Remove what became of workers long ago, but for each one's last event; says how many went.

    :param batch: how many events are looked at in one transaction; it opens its own.
    """
    after: int | None = 0
    gone = 0
    while after is not None:
        with acting_as_system("forgetting what became of workers long ago"):
            after, some = sql.forget_events(after=after, kept=settings.WORKER_EVENTS_KEPT, limit=batch)
        gone += some
    return gone
