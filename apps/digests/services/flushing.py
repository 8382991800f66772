"""Flushing: what waits in burst buffers becomes visible when it is due."""

import logging
from collections.abc import Collection
from datetime import datetime
from itertools import groupby

from django.db import DatabaseError, connection, transaction

from apps.core.sql import database_now
from apps.digests import selectors, sql
from apps.digests.models import Entry
from apps.digests.selectors import DueThread
from apps.digests.services import locking
from apps.digests.services.locking import LockedInbox
from apps.digests.services.publishing import publish_pending
from apps.digests.states import FlushReason
from apps.principals.tenancy import acting_as_system, acting_in

logger = logging.getLogger(__name__)

_WHY = "flush due threads"


@transaction.atomic
def flush(*, inbox_id: int, thread_ids: Collection[int], reason: FlushReason, wait: bool = True) -> list[Entry]:
    """Publish what is pending in these threads of one inbox; nothing pending, nothing done.

    Due means due on the database's clock when the inbox is held. Where `wait` is false, an inbox that somebody
    holds is left for later.
    """
    inbox = locking.lock_by_id(inbox_id, wait=wait)
    if inbox is None:
        return []
    now = database_now()
    due = selectors.still_due(inbox_id, thread_ids) if reason == FlushReason.WINDOW else thread_ids
    return publish_pending(inbox, due, reason=reason, now=now)


def flush_due(*, limit: int = 500) -> int:
    """Publish whatever is due, in all tenants, each inbox in a transaction of its own; answers how many snapshots.

    An inbox that somebody holds is passed over, unless its threads are overdue: then it is waited for. Running it
    twice, or twice at once, is harmless.
    """
    with acting_as_system(_WHY):
        due = selectors.due_threads(limit=limit)
    published = 0
    for inbox_id, threads in groupby(sorted(due, key=lambda one: one.inbox_id), key=lambda one: one.inbox_id):
        try:
            published += _flush_inbox(inbox_id, list(threads))
        except DatabaseError:
            # One inbox's trouble must not keep the others from their readers; it stays due.
            logger.exception("inbox %s could not be flushed", inbox_id)
    return published


def _flush_inbox(inbox_id: int, threads: list[DueThread]) -> int:
    overdue = any(one.overdue for one in threads)
    with acting_in(threads[0].tenant_id, _WHY):
        ids = [one.thread_id for one in threads]
        return len(flush(inbox_id=inbox_id, thread_ids=ids, reason=FlushReason.WINDOW, wait=overdue))


def flush_everything(inbox: LockedInbox, *, reason: FlushReason, now: datetime) -> None:
    """Publish all that is pending in an inbox that is held."""
    with connection.cursor() as cursor:
        cursor.execute(sql.PENDING_THREADS, [inbox.id])
        pending = [thread_id for (thread_id,) in cursor.fetchall()]
    publish_pending(inbox, pending, reason=reason, now=now)
