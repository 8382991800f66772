"""Retention of facts. Called by the app that owns inboxes, which judges what has had its time."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db import connection, transaction

from apps.receipts import sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What retention has made of facts."""

    deleted: int
    stripped: int
    """Those with links, of which a tombstone stays in the chain."""


@transaction.atomic
def hold_for_pruning(*, receipt_pks: Collection[int]) -> list[int]:
    """Those of these receipts that nobody is linking to at this moment; they are held."""
    with connection.cursor() as cursor:
        cursor.execute(sql.HOLD_PRUNED, [list(receipt_pks)])
        return [pk for (pk,) in cursor.fetchall()]


@transaction.atomic
def prune(*, receipt_pks: Collection[int]) -> Pruned:
    """Remove facts that have had their time, which the caller holds and has judged; their keys stay.

    Runs as the system, in a transaction that has allowed pruning.
    """
    if not receipt_pks:
        return Pruned(deleted=0, stripped=0)
    with connection.cursor() as cursor:
        cursor.execute(sql.STRIP, {"receipts": list(receipt_pks)})
        stripped = {pk for (pk,) in cursor.fetchall()}
        _drop(cursor, [pk for pk in receipt_pks if pk not in stripped])
    return Pruned(deleted=len(receipt_pks) - len(stripped), stripped=len(stripped))


@transaction.atomic
def prune_tombstones(*, receipt_pks: Collection[int], traces: timedelta, kept: timedelta) -> int:
    """Remove those of these tombstones that have stood their time; answers how many.

    They go from the old end of a chain: those that hang, over whatever many links, from what stays do stay. What hangs
    from one that goes keeps the words of its poster and loses the link; of a tombstone from which very much hangs, a
    part at each call, and it goes with the last part.
    """
    given: dict[str, Any] = {"receipts": list(receipt_pks), "traces": traces, "kept": kept}
    with connection.cursor() as cursor:
        cursor.execute(sql.SPENT_TOMBSTONES, given)
        causes: dict[int, list[int]] = dict(cursor.fetchall())
        consequences = defaultdict[int, list[int]](list)
        for pk, its_causes in causes.items():
            for cause in its_causes:
                consequences[cause].append(pk)
        staying = _reached(consequences.keys() - causes.keys(), consequences)
        going = causes.keys() - staying
        if not going:
            return 0
        cursor.execute(sql.HOLD_HANGING, {"going": list(going), "limit": _CUT_AT_ONCE})
        hanging = [pk for (pk,) in cursor.fetchall()]
        if hanging:
            cursor.execute(sql.CUT_OFF, {"going": list(going), "hanging": hanging})
        cursor.execute(sql.STILL_HANGING, {"going": list(going)})
        going -= _reached([pk for (pk,) in cursor.fetchall()], causes)
        _drop(cursor, sorted(going))
    return len(going)


_CUT_AT_ONCE: Final = 1_000


def _reached(start: Iterable[int], steps: Mapping[int, Collection[int]]) -> set[int]:
    """These, and whatever the steps lead to."""
    front = list(start)
    reached = set(front)
    while front:
        following = set(steps.get(front.pop(), ())) - reached
        reached |= following
        front.extend(following)
    return reached


def _drop(cursor: Any, receipt_pks: Sequence[int]) -> None:
    if receipt_pks:
        for statement in (
            sql.FORGET_CLOSERS,
            sql.DROP_OBLIGATIONS,
            sql.DROP_ARRIVALS,
            sql.DROP_UNMATCHED,
            sql.DROP_LETTERS,
            sql.DROP,
        ):
            cursor.execute(statement, [list(receipt_pks)])


@transaction.atomic
def prune_keys(*, after: int, limit: int, traces: timedelta, kept: timedelta) -> tuple[int | None, int]:
    """Remove spent keys among the next ones; answers where these end, None at the end of the old ones, and how many."""
    given: dict[str, Any] = {"after": after, "limit": limit, "traces": traces, "kept": kept}
    with connection.cursor() as cursor:
        cursor.execute(sql.NEXT_KEYS, given)
        row = cursor.fetchone()
        if row is None or row[0] is None:
            return None, 0
        cursor.execute(sql.DROP_KEYS, given | {"upto": row[0]})
        return row[0], cursor.rowcount
