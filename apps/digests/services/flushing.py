"""Flushing: what waits in burst buffers becomes visible when it is due."""

import logging
import random
from collections.abc import Collection
from datetime import datetime
from typing import Final

from django.db import connection

from apps.core.sql import database_now
from apps.digests import selectors, sql
from apps.digests.models import Entry
from apps.digests.selectors import DueInbox
from apps.digests.services import locking
from apps.digests.services.locking import LockedInbox
from apps.digests.services.publishing import publish_pending
from apps.digests.states import FlushReason
from apps.principals.tenancy import acting_as_system, acting_in

logger = logging.getLogger(__name__)

_WHY = "flush due threads"


def flush_due(*, limit: int = 500) -> int:
    """Publish whatever is due, in all tenants, each inbox in a transaction of its own; answers how many snapshots.

    Inboxes that somebody holds are passed over. Once all others are done, a few of those that are overdue are waited
    for, briefly. At most `limit` threads are published at a time, then it is the next inbox's turn. Running it twice,
    or twice at once, is harmless.
    """
    with acting_as_system(_WHY):
        due = selectors.due_inboxes()
    published = 0
    held: list[DueInbox] = []
    while due:
        unfinished = []
        for inbox in due:
            flushed = _try_to_flush(inbox, limit=limit, wait=False)
            published += flushed or 0
            if flushed is None:
                held.append(inbox)
            elif flushed == limit:
                unfinished.append(inbox)
        due = unfinished
    overdue = [inbox for inbox in held if inbox.overdue]
    # Drawn by lot, so that inboxes held for long don't keep the tick from the others.
    for inbox in random.sample(overdue, min(len(overdue), _MOST_WAITED_FOR)):
        published += _try_to_flush(inbox, limit=limit, wait=True) or 0
    return published


_MOST_WAITED_FOR: Final = 4
_PATIENCE: Final = "500ms"


def _try_to_flush(inbox: DueInbox, *, limit: int, wait: bool) -> int | None:
    """How many snapshots became visible; None if somebody else holds the inbox."""
    try:
        with acting_in(inbox.tenant_id, _WHY):
            return _flush_due_of(inbox, limit=limit, wait=wait)
    except Exception:
        # One inbox's trouble must not keep the others from their readers; it stays due.
        logger.exception("inbox %s could not be flushed", inbox.inbox_id)
        return 0


def _flush_due_of(inbox: DueInbox, *, limit: int, wait: bool) -> int | None:
    if wait:
        with connection.cursor() as cursor:
            cursor.execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
    held = locking.lock_by_id(inbox.inbox_id, wait=wait)
    if held is None:
        return None
    # Asked again now that nobody else can publish them.
    due = selectors.due_threads(held.id, limit=limit)
    return len(publish_pending(held, due, reason=FlushReason.WINDOW, now=database_now()))


def flush_sources(
    inbox: LockedInbox, source_systems: Collection[str], *, reason: FlushReason, now: datetime
) -> list[Entry]:
    """Publish all that is pending of these sources in an inbox that is held."""
    if not source_systems:
        return []
    with connection.cursor() as cursor:
        cursor.execute(sql.PENDING_THREADS, [inbox.id, list(source_systems)])
        pending = [thread_id for (thread_id,) in cursor.fetchall()]
    return publish_pending(inbox, pending, reason=reason, now=now)
