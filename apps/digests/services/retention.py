"""Retention: what has been acked long enough goes; what has not, never does.

Walks from the oldest on, a range at a time; what it finds goes inbox by inbox, each under its lock in short
transactions of the system's. After the inbox it waits for no other lock: what somebody holds is left to the next round.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import DatabaseError, connection

from apps.digests import sql
from apps.digests.services import locking
from apps.digests.services.rounds import Place, Step, walk
from apps.principals.tenancy import acting_as_system
from apps.receipts import services as receipts

logger = logging.getLogger(__name__)

_WHY: Final = "retention"
_RANGE: Final = 2_000
# So many go in one transaction: who posts to their inbox, or refers to one of them, waits for its end.
_AT_ONCE: Final = 250
# How long a busy inbox is waited for; the next round comes soon.
_PATIENCE: Final = "500ms"
_REST: Final = timedelta(minutes=10)


def retain(*, patience: timedelta | None = timedelta(seconds=1)) -> dict[str, int]:
    """Remove what has been kept its time, in all tenants; answers how much of each kind.

    Superseded snapshots of which all is acked; acked receipts with their entries and threads, and those of the
    ledger, once nothing is open because of them; then, later, tombstones and keys. Goes on for as long as it has
    patience for each kind, from where it stopped; without one, once over everything. Idempotent, safe to overlap.
    """
    found: Counter[str] = Counter()
    for name, step in (
        ("retention.entries", _superseded),
        ("retention.receipts", _receipts),
        ("retention.keys", _keys),
    ):
        found.update(walk(name, step=step, rest=_REST, patience=patience))
    return dict(found)


def _superseded(after: Place) -> Step:
    given: dict[str, Any] = {
        "after": _moment(after.position),
        "kept": settings.SUPERSEDED_ENTRIES_KEPT,
        "limit": _RANGE,
    }
    with acting_as_system(_WHY), connection.cursor() as cursor:
        cursor.execute(sql.NEXT_SUPERSEDED, given)
        groups = cursor.fetchall()
    found: Counter[str] = Counter()
    for inbox_id, entries, _ in groups:
        found.update(_in_parts(inbox_id, entries or (), partial(_drop_superseded, inbox_id)))
    place = Place(_microseconds(max(last for *_, last in groups))) if groups else None
    return Step(place=place, found=found)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _drop_superseded(inbox_id: int, entries: Sequence[int]) -> Counter[str]:
    with connection.cursor() as cursor:
        cursor.execute(sql.STILL_SUPERSEDED, {"entries": list(entries), "inbox": inbox_id})
        dropped = [pk for (pk,) in cursor.fetchall()]
    _drop_entries(dropped)
    return Counter(entries=len(dropped))


def _receipts(after: Place) -> Step:
    given: dict[str, Any] = {"tenant": after.position, "after": after.within, "limit": _RANGE}
    given["kept"] = settings.RECEIPTS_KEPT
    with acting_as_system(_WHY), connection.cursor() as cursor:
        cursor.execute(sql.NEXT_RECEIPTS, given)
        rows = cursor.fetchall()
        if not rows:
            return Step(place=None, found=Counter())
        given["receipts"] = [pk for _, pk, *_ in rows]
        cursor.execute(sql.RECEIPTS_DUE, given)
        due = cursor.fetchall()
    found: Counter[str] = Counter()
    for tenant_id, inbox_id, receipt_pks in due:
        found.update(_in_parts(inbox_id, receipt_pks, partial(_drop_receipts, tenant_id, inbox_id)))
    tombstones = sorted(pk for _, pk, _, is_tombstone in rows if is_tombstone)
    found.update(_in_parts(None, tombstones, _drop_tombstones))
    last_tenant, _, last, _ = rows[-1]
    return Step(place=Place(last_tenant, last), found=found)


def _drop_tombstones(receipt_pks: Collection[int]) -> Counter[str]:
    dropped = receipts.prune_tombstones(
        receipt_pks=receipt_pks, traces=settings.RECEIPT_TRACES_KEPT, kept=settings.RECEIPTS_KEPT
    )
    return Counter(tombstones=dropped)


def _drop_receipts(tenant_id: int, inbox_id: int | None, receipt_pks: Collection[int]) -> Counter[str]:
    held = receipts.hold_for_pruning(receipt_pks=receipt_pks)
    found: Counter[str] = Counter()
    if inbox_id is not None:
        held, found = _drop_places(tenant_id, inbox_id, held)
    pruned = receipts.prune(receipt_pks=held)
    return found + Counter(receipts=pruned.deleted, stripped=pruned.stripped)


def _drop_places(tenant_id: int, inbox_id: int, receipt_pks: Sequence[int]) -> tuple[list[int], Counter[str]]:
    """Take receipts out of their inbox: their states, their own entries, their part in snapshots."""
    with connection.cursor() as cursor:
        cursor.execute(sql.DROP_STATES, {"receipts": list(receipt_pks), "inbox": inbox_id})
        states = cursor.fetchall()
        emptied = [entry for _, entry, _ in states if entry is not None]
        threads = sorted({thread for *_, thread in states if thread is not None})
        if threads:
            cursor.execute(sql.TRIM, {"tenant": tenant_id, "threads": threads})
            emptied += [pk for (pk,) in cursor.fetchall()]
        _drop_entries(emptied)
        if threads:
            cursor.execute(sql.DROP_THREADS, {"tenant": tenant_id, "threads": threads})
    return [pk for pk, *_ in states], Counter(entries=len(emptied))


def _drop_entries(entry_ids: Sequence[int]) -> None:
    if entry_ids:
        with connection.cursor() as cursor:
            cursor.execute(sql.FORGET_SUPERSEDED, [list(entry_ids)])
            cursor.execute(sql.DROP_ENTRIES, [list(entry_ids)])


def _keys(after: Place) -> Step:
    try:
        with pruning(_WHY):
            position, dropped = receipts.prune_keys(
                after=after.position, limit=_RANGE, traces=settings.RECEIPT_TRACES_KEPT, kept=settings.RECEIPTS_KEPT
            )
    except DatabaseError as exc:
        logger.warning("keys after %s are left to the next round of retention", after.position, exc_info=exc)
        return Step(place=None, found=Counter(left=1))
    return Step(place=None if position is None else Place(position), found=Counter(keys=dropped))


def _in_parts(inbox_id: int | None, keys: Sequence[int], drop: Callable[[Sequence[int]], Counter[str]]) -> Counter[str]:
    """Part by part; what is left of an inbox once a part of it had to be left, too."""
    found: Counter[str] = Counter()
    for start in range(0, len(keys), _AT_ONCE):
        found.update(_within(inbox_id, partial(drop, keys[start : start + _AT_ONCE])))
        if found["left"]:
            break
    return found


def _within(inbox_id: int | None, drop: partial[Counter[str]]) -> Counter[str]:
    """Under the inbox's lock, if it is to be had; one inbox's trouble keeps back no other."""
    try:
        with pruning(_WHY):
            with connection.cursor() as cursor:
                cursor.execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
            if inbox_id is not None and locking.lock_by_id(inbox_id, wait=True) is None:
                return Counter()
            return drop()
    except DatabaseError as exc:
        busy = isinstance(exc.__cause__, psycopg.errors.LockNotAvailable)
        # The ledger and tombstones have no inbox.
        logger.warning("inbox %s is left to the next round of retention", inbox_id, exc_info=None if busy else exc)
        return Counter(left=1)


@contextmanager
def pruning(why: str) -> Iterator[None]:
    """A transaction in which the database lets rows go."""
    with acting_as_system(why):
        with connection.cursor() as cursor:
            cursor.execute("select set_config('gatehouse.pruning', 'on', true)")
        yield
        with connection.cursor() as cursor:
            cursor.execute("select set_config('gatehouse.pruning', '', true)")
