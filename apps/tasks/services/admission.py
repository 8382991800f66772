"""Concurrency keys: of the tasks with one key, one at a time is ready or leased; the others wait."""

from collections.abc import Collection
from datetime import datetime

from apps.core.notifications import send_on_commit
from apps.core.sql import hot_cursor
from apps.tasks import sql
from apps.tasks.signals import task_queued

Key = tuple[int, str]
"""A tenant and its concurrency key."""


def hold(keys: Collection[Key]) -> None:
    """Hold these keys until the transaction ends: which of their tasks is ready is decided here alone meanwhile."""
    if keys:
        with hot_cursor() as cursor:
            cursor.execute(sql.HOLD_KEYS, _columns(keys))


def busy(keys: Collection[Key]) -> tuple[datetime, set[str]]:
    """After :func:`hold`: those keys of the acting tenant that a ready or leased task has, at which moment."""
    with hot_cursor() as cursor:
        cursor.execute(sql.BUSY_KEYS, {"keys": [key for _, key in keys]})
        now, found = cursor.fetchone()
    return now, set(found)


def admit(keys: Collection[Key]) -> None:
    """Make the most urgent waiting task of each of these keys ready, unless one of the key is.

    To be called by whatever ends a task with a key, makes it wait, or lets it wait for nothing but its key: after
    tasks are locked and before inboxes are.
    """
    if not keys:
        return
    hold(keys)
    with hot_cursor() as cursor:
        cursor.execute(sql.ADMIT, _columns(keys))
        for tenant_id, queue, task_type in cursor.fetchall():
            send_on_commit(task_queued, tenant_id=tenant_id, queue=queue, task_type=task_type)


def _columns(keys: Collection[Key]) -> dict[str, list[int] | list[str]]:
    return {"tenants": [tenant_id for tenant_id, _ in keys], "keys": [key for _, key in keys]}
