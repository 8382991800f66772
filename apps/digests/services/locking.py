"""The one mutex per inbox. Whatever changes an inbox locks its row first, in a statement of its own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connection

from apps.core.notifications import send_on_commit
from apps.core.sql import hot_cursor
from apps.digests import sql
from apps.digests.models import Inbox
from apps.digests.policy import Policy
from apps.digests.signals import inbox_changed


@dataclass(frozen=True, slots=True)
class LockedInbox:
    """Proof that this transaction holds the inbox. What it carries can't change while it does."""

    id: int
    tenant_id: int
    principal_id: int
    enabled: bool
    window: timedelta
    max_items: int
    max_thread_age: timedelta
    has_source_policies: bool

    @property
    def policy(self) -> Policy:
        return Policy(
            enabled=self.enabled,
            window=self.window,
            max_items=self.max_items,
            max_thread_age=self.max_thread_age,
        )

    def notify(self) -> None:
        """Notify on commit that a reader would now see another inbox."""
        notify(tenant_id=self.tenant_id, principal_id=self.principal_id)


def notify(*, tenant_id: int, principal_id: int) -> None:
    """As :meth:`LockedInbox.notify`, for an inbox that the statement of a post has changed."""
    send_on_commit(inbox_changed, principal_id=principal_id, tenant_id=tenant_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """How many sequences an inbox takes, and how far its unread counters go."""

    sequences: int = 0
    visible: int = 0
    pending: int = 0


def advance(moves: Mapping[int, Move]) -> dict[int, int]:
    """Take sequences and move the unread counters of locked inboxes; returns the last sequence of each."""
    columns = [[getattr(move, name) for move in moves.values()] for name in ("sequences", "visible", "pending")]
    with connection.cursor() as cursor:
        cursor.execute(sql.ADVANCE, [list(moves), *columns])
        return dict(cursor.fetchall())


def lock(*, principal_id: int) -> LockedInbox | None:
    """The principal's inbox, held until the transaction ends; None if it has none yet."""
    return _first(sql.LOCK, [principal_id])


def lock_or_create(*, tenant_id: int, principal_id: int) -> LockedInbox:
    """As :func:`lock`; the first receipt makes the inbox."""
    found = lock(principal_id=principal_id)
    while found is None:
        Inbox.objects.bulk_create([Inbox(tenant_id=tenant_id, principal_id=principal_id)], ignore_conflicts=True)
        found = lock(principal_id=principal_id)
    return found


def lock_several(*, tenant_id: int, principal_ids: Collection[int]) -> dict[int, LockedInbox]:
    """Several inboxes in the order of their ids, by principal; missing ones are made."""
    wanted = sorted(set(principal_ids))
    if len(wanted) == 1:
        return {wanted[0]: lock_or_create(tenant_id=tenant_id, principal_id=wanted[0])}
    missing = set(wanted) - set(Inbox.objects.filter(principal_id__in=wanted).values_list("principal_id", flat=True))
    Inbox.objects.bulk_create(
        [Inbox(tenant_id=tenant_id, principal_id=principal) for principal in sorted(missing)], ignore_conflicts=True
    )
    with connection.cursor() as cursor:
        cursor.execute(sql.LOCK_SEVERAL, [wanted])
        held = [LockedInbox(*row) for row in cursor.fetchall()]
    return {inbox.principal_id: inbox for inbox in held}


def lock_by_id(inbox_id: int, *, wait: bool) -> LockedInbox | None:
    """One inbox; None if it is gone, or if somebody holds it and we don't wait."""
    return _first(sql.LOCK_BY_ID if wait else sql.LOCK_BY_ID_UNLESS_BUSY, [inbox_id])


def _first(statement: str, parameters: list[Any]) -> LockedInbox | None:
    with hot_cursor() as cursor:
        cursor.execute(statement, parameters)
        row = cursor.fetchone()
    return LockedInbox(*row) if row else None
