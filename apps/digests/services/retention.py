"""Retention: delete what was acked long enough ago. What is unacked is never deleted.

Three sweeps read the tables from the oldest row on, a range at a time, and store how far they have come. Rows are
deleted inbox by inbox, under the lock of the inbox, in short transactions of the system. A busy inbox is left to the
next sweep.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

import psycopg
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models import Exists, OuterRef, Q

from apps.core.sql import database_now
from apps.digests import sql
from apps.digests.models import NIL, Entry, ReceiptState, Sweep, Thread
from apps.digests.services import locking
from apps.principals.tenancy import acting_as_system
from apps.receipts import services as receipts

logger = logging.getLogger(__name__)

_WHY: Final = "retention"
_RANGE: Final = 2_000
# Rows of one transaction: whoever posts to the inbox, or refers to one of the receipts, waits for its end.
_AT_ONCE: Final = 250
_LOCK_TIMEOUT: Final = "500ms"
_REST: Final = timedelta(minutes=10)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a sweep has come: a key, or a tenant and a uuid within it."""

    key: int = 0
    within: UUID = NIL


_Step = Callable[[Position], tuple[Position | None, Counter[str]]]


def retain(*, patience: timedelta | None = timedelta(seconds=1)) -> dict[str, int]:
    """Delete what has been kept long enough, in all tenants; returns the number of rows by kind.

    These are superseded snapshots whose receipts are all acked; acked receipts with their entries and threads;
    receipts of the ledger without an open obligation; and later tombstones and dedupe keys. Each sweep stops when
    `patience` is over, and the next call continues it. Without a patience the call makes one whole sweep of each.
    Idempotent; two calls at once are harmless.
    """
    found: Counter[str] = Counter()
    steps: tuple[tuple[str, _Step], ...] = (
        ("retention.entries", _superseded),
        ("retention.receipts", _receipts),
        ("retention.keys", _keys),
    )
    for name, step in steps:
        found.update(_sweep(name, step, patience))
    return dict(found)


def _sweep(name: str, step: _Step, patience: timedelta | None) -> Counter[str]:
    """Continue a sweep, or begin one if the last began long enough ago. Each step opens its own transactions."""
    found: Counter[str] = Counter()
    with acting_as_system(_WHY):
        now = database_now()
        sweep, _ = Sweep.objects.get_or_create(name=name, defaults={"begun_at": now})
        is_over = sweep.ended_at is not None and sweep.ended_at >= sweep.begun_at
        if patience is not None and is_over and sweep.begun_at + _REST > now:
            return found
        if patience is None or is_over:
            sweep.begun_at, sweep.position, sweep.within = now, 0, NIL
            sweep.save()
    deadline = None if patience is None else time.monotonic() + patience.total_seconds()
    position: Position | None = Position(sweep.position, sweep.within)
    while position is not None:
        position, deleted = step(position)
        found += deleted
        with acting_as_system(_WHY):
            sweep.position, sweep.within = (0, NIL) if position is None else (position.key, position.within)
            sweep.ended_at = database_now() if position is None else sweep.ended_at
            sweep.save(update_fields=["position", "within", "ended_at"])
        if deadline is not None and time.monotonic() > deadline:
            break
    return found


def _superseded(after: Position) -> tuple[Position | None, Counter[str]]:
    """Superseded snapshots in the order in which they were superseded; the key is that moment in microseconds."""
    given: dict[str, Any] = {
        "after": _EPOCH + timedelta(microseconds=after.key),
        "kept": settings.SUPERSEDED_ENTRIES_KEPT,
        "limit": _RANGE,
    }
    with acting_as_system(_WHY), connection.cursor() as cursor:
        cursor.execute(sql.NEXT_SUPERSEDED, given)
        groups = cursor.fetchall()
    found: Counter[str] = Counter()
    for inbox_id, entries, _ in groups:
        found += _in_parts(inbox_id, entries or (), partial(_delete_superseded, inbox_id))
    if not groups:
        return None, found
    return Position((max(last for *_, last in groups) - _EPOCH) // timedelta(microseconds=1)), found


def _delete_superseded(inbox_id: int, entries: Sequence[int]) -> Counter[str]:
    with connection.cursor() as cursor:
        cursor.execute(sql.STILL_SUPERSEDED, {"entries": list(entries), "inbox": inbox_id})
        deleted = [pk for (pk,) in cursor.fetchall()]
    _delete_entries(deleted)
    return Counter(entries=len(deleted))


def _receipts(after: Position) -> tuple[Position | None, Counter[str]]:
    """Receipts in the order of their posting, tenant by tenant."""
    given: dict[str, Any] = {
        "tenant": after.key,
        "after": after.within,
        "limit": _RANGE,
        "kept": settings.RECEIPTS_KEPT,
    }
    found: Counter[str] = Counter()
    with acting_as_system(_WHY), connection.cursor() as cursor:
        cursor.execute(sql.NEXT_RECEIPTS, given)
        rows = cursor.fetchall()
        if not rows:
            return None, found
        given["receipts"] = [pk for _, pk, *_ in rows]
        cursor.execute(sql.RECEIPTS_DUE, given)
        due = cursor.fetchall()
    for tenant_id, inbox_id, receipt_pks in due:
        found += _in_parts(inbox_id, receipt_pks, partial(_delete_receipts, tenant_id, inbox_id))
    tombstones = sorted(pk for _, pk, _, is_tombstone in rows if is_tombstone)
    found += _in_parts(None, tombstones, _delete_tombstones)
    last_tenant, _, last, _ = rows[-1]
    return Position(last_tenant, last), found


def _delete_tombstones(receipt_pks: Collection[int]) -> Counter[str]:
    deleted = receipts.prune_tombstones(
        receipt_pks=receipt_pks, traces=settings.RECEIPT_TRACES_KEPT, kept=settings.RECEIPTS_KEPT
    )
    return Counter(tombstones=deleted)


def _delete_receipts(tenant_id: int, inbox_id: int | None, receipt_pks: Collection[int]) -> Counter[str]:
    held = receipts.hold_for_pruning(receipt_pks=receipt_pks)
    found: Counter[str] = Counter()
    if inbox_id is not None:
        held, found = _delete_states(tenant_id, inbox_id, held)
    pruned = receipts.prune(receipt_pks=held)
    return found + Counter(receipts=pruned.deleted, stripped=pruned.stripped)


def _delete_states(tenant_id: int, inbox_id: int, receipt_pks: Collection[int]) -> tuple[list[int], Counter[str]]:
    """Take receipts out of their inbox: their states, their own entries, their part in snapshots."""
    # An item entry is deleted with its receipt, so the entry must be acked too.
    is_free = Q(entry=None) | Q(entry__acked_at__isnull=False)
    acked = ReceiptState.objects.filter(is_free, pk__in=receipt_pks, inbox_id=inbox_id, acked_at__isnull=False)
    states: list[tuple[int, int | None, int | None]] = list(acked.values_list("pk", "entry_id", "thread_id"))
    deleted = [pk for pk, *_ in states]
    ReceiptState.objects.filter(pk__in=deleted).delete()
    emptied = [entry for _, entry, _ in states if entry is not None]
    threads = sorted({thread for *_, thread in states if thread is not None})
    if threads:
        with connection.cursor() as cursor:
            cursor.execute(sql.TRIM, {"tenant": tenant_id, "threads": threads})
            emptied += [pk for (pk,) in cursor.fetchall()]
    _delete_entries(emptied)
    if threads:
        snapshots = Entry.objects.filter(tenant_id=tenant_id, thread=OuterRef("pk"))
        left = ReceiptState.objects.filter(thread=OuterRef("pk"))
        closed = Thread.objects.filter(pk__in=threads, closed_at__isnull=False)
        closed.filter(~Exists(snapshots), ~Exists(left)).delete()
    return deleted, Counter(entries=len(emptied))


def _delete_entries(entry_ids: Collection[int]) -> None:
    if entry_ids:
        Entry.objects.filter(pk__in=entry_ids).delete()


def _keys(after: Position) -> tuple[Position | None, Counter[str]]:
    try:
        with _pruning():
            position, deleted = receipts.prune_keys(
                after=after.key, limit=_RANGE, traces=settings.RECEIPT_TRACES_KEPT, kept=settings.RECEIPTS_KEPT
            )
    except DatabaseError as exc:
        logger.warning("keys after %s are left to the next sweep of retention", after.key, exc_info=exc)
        return None, Counter(left=1)
    return None if position is None else Position(position), Counter(keys=deleted)


def _in_parts(
    inbox_id: int | None, keys: Sequence[int], delete: Callable[[Sequence[int]], Counter[str]]
) -> Counter[str]:
    """Delete part by part, each under the lock of the inbox; stop at an inbox that is busy or fails."""
    found: Counter[str] = Counter()
    for start in range(0, len(keys), _AT_ONCE):
        try:
            with _pruning():
                with connection.cursor() as cursor:
                    cursor.execute("select set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])
                if inbox_id is not None and locking.lock_by_id(inbox_id, wait=True) is None:
                    break
                deleted = delete(keys[start : start + _AT_ONCE])
        except DatabaseError as exc:
            # Ledger receipts and tombstones have no inbox.
            busy = isinstance(exc.__cause__, psycopg.errors.LockNotAvailable)
            logger.warning("inbox %s is left to the next sweep of retention", inbox_id, exc_info=None if busy else exc)
            return found + Counter(left=1)
        found += deleted
    return found


@contextmanager
def _pruning() -> Iterator[None]:
    """A transaction in which the triggers let rows be deleted."""
    with acting_as_system(_WHY):
        with connection.cursor() as cursor:
            cursor.execute("select set_config('gatehouse.pruning', 'on', true)")
        yield
        with connection.cursor() as cursor:
            cursor.execute("select set_config('gatehouse.pruning', '', true)")
