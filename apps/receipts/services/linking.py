"""Linking what has waited for a receipt that has arrived: so much in its post, the rest by and by."""

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, connection, transaction

from apps.core.sql import database_now, hot_cursor
from apps.principals.tenancy import acting_as_system, acting_in
from apps.receipts import sql
from apps.receipts.models import Arrival

logger = logging.getLogger(__name__)

AT_ONCE: Final = 1_000
"""So many waiting receipts are linked in one transaction."""

_TURNS: Final = 100
_WHY: Final = "link what waits"
_PATIENCE: Final = "500ms"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Receipts that have named others before their arrival, as many of them as are linked at once."""

    receipts: Sequence[int] = ()
    closers: Sequence[int] = ()
    """Those of them that are paired, the first of each reference."""
    awaited: frozenset[str] = frozenset()
    """What they have named."""
    crowded: frozenset[str] = frozenset()
    """What more have named."""


@transaction.atomic(savepoint=False)
def look(tenant_id: int, references: Collection[str]) -> tuple[dict[str, UUID], Waiting]:
    """Which of these ids a receipt has, with its uuid, and what has named them; the latter is held from here on."""
    if not references:
        return {}, Waiting()
    limit = max(1, AT_ONCE // len(references))
    standing: dict[str, UUID] = {}
    naming = defaultdict[tuple[str, bool], list[int]](list)
    with connection.cursor() as cursor:
        # One more than is linked, to tell whether any is left.
        cursor.execute(sql.ARRIVING, {"tenant": tenant_id, "references": sorted(references), "limit": limit + 1})
        for pk, reference, uuid, pairs in cursor.fetchall():
            if uuid is None:
                naming[reference, pairs].append(pk)
            else:
                standing[reference] = uuid
        linked = {named: sorted(pks)[:limit] for named, pks in naming.items()}
        receipts = sorted({pk for pks in linked.values() for pk in pks})
        waiting = Waiting(
            receipts=receipts,
            closers=[pk for (_, pairs), pks in linked.items() if pairs for pk in pks],
            awaited=frozenset(reference for reference, _ in naming),
            crowded=frozenset(reference for (reference, _), pks in naming.items() if len(pks) > limit),
        )
        if receipts:
            cursor.execute(sql.HOLD_WAITING, [receipts])
    return standing, waiting


@transaction.atomic(savepoint=False)
def link(tenant_id: int, arrived: Mapping[str, int], waiting: Waiting) -> list[tuple[int, int]]:
    """Link these receipts, by reference, to those that they wait for; answers roots and closers."""
    if not arrived or not waiting.receipts:
        return []
    given: dict[str, Any] = {
        "tenant": tenant_id,
        "references": sorted(arrived),
        "receipts": [arrived[reference] for reference in sorted(arrived)],
        "waiting": waiting.receipts,
        "closers": waiting.closers,
    }
    with connection.cursor() as cursor:
        cursor.execute(sql.LINK_CONSEQUENCES, given)
        if not waiting.closers:
            return []
        cursor.execute(sql.MATCH, given)
        pairs = [(root, closer) for root, closer in cursor.fetchall()]
        if pairs:
            roots, closers = zip(*pairs, strict=True)
            cursor.execute(sql.LINK_PAIRS, {"roots": list(roots), "closers": list(closers)})
    return pairs


@transaction.atomic(savepoint=False)
def close(pairs: Sequence[tuple[int, int]], now: datetime) -> None:
    """Close of these roots what these closers may close; the first of several closes."""
    if not pairs:
        return
    roots = sorted({root for root, _ in pairs})
    with hot_cursor() as cursor:
        if len(roots) > 1:
            cursor.execute(sql.HOLD_OBLIGATIONS, [roots])
        cursor.execute(
            sql.CLOSE, {"roots": [root for root, _ in pairs], "closers": [closer for _, closer in pairs], "now": now}
        )


def link_waiting(*, patience: timedelta = timedelta(milliseconds=500)) -> int:
    """Go on where posts have left receipts waiting, for as long as there is patience; answers how many were linked.

    Each tenant's oldest arrival has a turn before anybody's second has one. What somebody holds is left to the next
    call. Runs in transactions of its own; idempotent, and safe to overlap.
    """
    deadline = time.monotonic() + patience.total_seconds()
    linked = 0
    passed_by: set[int] = set()
    while turns := _turns(passed_by):
        for tenant_id, receipt_pk in turns:
            some = _try_to_link(tenant_id, receipt_pk)
            if some is None:
                passed_by.add(receipt_pk)
            linked += some or 0
            if time.monotonic() >= deadline:
                return linked
    return linked


def _turns(passed_by: Collection[int]) -> list[tuple[int, int]]:
    """Tenants and arrivals whose turn it is."""
    with acting_as_system(_WHY), connection.cursor() as cursor:
        cursor.execute(sql.ARRIVALS, {"passed_by": list(passed_by), "limit": _TURNS})
        return [(tenant_id, receipt_pk) for tenant_id, receipt_pk in cursor.fetchall()]


def _try_to_link(tenant_id: int, receipt_pk: int) -> int | None:
    """How many were linked; None if it can't be done just now."""
    try:
        with acting_in(tenant_id, _WHY):
            return _link_some(tenant_id, receipt_pk)
    except DatabaseError:
        # One's trouble must not keep back the others.
        logger.exception("what waits for receipt %s could not be linked", receipt_pk)
        return None


def _link_some(tenant_id: int, receipt_pk: int) -> int | None:
    arrivals = Arrival.objects.select_for_update(of=("self",), skip_locked=True).select_related("receipt")
    arrival = arrivals.filter(pk=receipt_pk).first()
    if arrival is None:
        return None
    with connection.cursor() as cursor:
        cursor.execute("select set_config('lock_timeout', %s, true)", [_PATIENCE])
    reference = arrival.receipt.receipt_id
    _, waiting = look(tenant_id, [reference])
    close(link(tenant_id, {reference: receipt_pk}, waiting), database_now())
    if not waiting.crowded:
        arrival.delete()
    return len(waiting.receipts)
