"""Self-check, and the mending of what it finds: nothing acked is shown again, nothing unacked stays lost."""

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import psycopg
from django.db import connection

from apps.core.sql import database_now
from apps.digests import selectors, soundness, sql
from apps.digests.services import locking
from apps.digests.services.locking import LockedInbox
from apps.digests.services.policies import policies_of
from apps.digests.services.publishing import members, publish_narrowed, publish_pending
from apps.digests.services.retention import pruning
from apps.digests.services.rounds import Place, Step, walk
from apps.digests.soundness import Damage
from apps.digests.states import FlushReason
from apps.principals.tenancy import acting_as_system
from apps.receipts.models import Receipt

logger = logging.getLogger(__name__)

_WHY: Final = "self-check"
_REST: Final = timedelta(hours=1)


def self_check(*, patience: timedelta | None = timedelta(milliseconds=500), repair: bool = True) -> dict[str, int]:
    """Look for what the rules of the inbox forbid, in all tenants, and mend it; answers how much of each kind.

    Goes on for as long as it has patience for each part, from where it stopped, and rests an hour after each round;
    without a patience, once over everything. Each repair is logged with what was wrong. Leaves what is sound untouched.
    """
    found: Counter[str] = Counter()
    for part in soundness.PARTS:
        step = partial(_step, part, repair)
        found.update(walk(f"check.{part}", step=step, rest=_REST, patience=patience))
    return dict(found)


def _step(part: str, repair: bool, after: Place) -> Step:  # noqa: FBT001  # bound by name above
    with acting_as_system(_WHY):
        position, damages = soundness.look(part, after=after.position)
    found = Counter(damage.kind for damage in damages)
    if repair:
        found[soundness.REPAIRED] = _repair_all(damages)
    return Step(place=None if position is None else Place(position), found=found)


def _repair_all(damages: Sequence[Damage]) -> int:
    repaired = 0
    for tenant_id, principal_id in sorted({(one.tenant_id, one.principal_id) for one in damages}):
        own = [one for one in damages if one.principal_id == principal_id]
        try:
            with pruning(_WHY):
                inbox = locking.lock_or_create(tenant_id=tenant_id, principal_id=principal_id)
                _repair(inbox, own)
        except Exception as exc:  # one inbox's trouble must not keep the others from being mended
            busy = isinstance(exc.__cause__, psycopg.errors.LockNotAvailable)
            logger.warning(
                "the inbox of principal %s could not be mended", principal_id, exc_info=None if busy else exc
            )
        else:
            # What mended itself before the lock was there is mended too.
            repaired += len(own)
    return repaired


def _repair(inbox: LockedInbox, damages: Sequence[Damage]) -> None:
    """Bring one inbox in line with its receipts: places first, then what shows them, then what counts them."""
    now = database_now()
    wrong = {kind: [one.id for one in damages if one.kind == kind] for kind in {one.kind for one in damages}}
    lost = _again(inbox, "lost_receipts", wrong)
    stray = _again(inbox, "stray_states", wrong)
    threads = {pk for kind in ("missing_heads", "overdue_threads") for pk in _again(inbox, kind, wrong)}
    entries = _again(inbox, "untrue_entries", wrong)
    _again(inbox, "miscounted_inboxes", wrong)
    with connection.cursor() as cursor:
        if stray:
            cursor.execute(sql.ACK_STRAY, {"receipts": stray, "now": now})
            cursor.execute(sql.DROP_STRAY, {"receipts": stray})
            threads |= {thread for (thread,) in cursor.fetchall() if thread is not None}
    threads |= _reattach(inbox, lost, now)
    _mend_threads(inbox, sorted(threads), now)
    with connection.cursor() as cursor:
        if entries:
            cursor.execute(sql.MEND_ENTRIES, {"entries": entries, "now": now})
        cursor.execute(sql.RECOUNT, {"inbox": inbox.id, "tenant": inbox.tenant_id})
    inbox.announce()


def _again(inbox: LockedInbox, kind: str, wrong: dict[str, list[int]]) -> list[int]:
    """Those that are still wrong now that nobody else can change the inbox; each is logged."""
    found = soundness.still(kind, wrong[kind]) if kind in wrong else []
    for pk in found:
        logger.warning("self-check: %s %s in inbox %s is being mended", kind, pk, inbox.id)
    return found


def _reattach(inbox: LockedInbox, lost: Sequence[int], now: datetime) -> set[int]:
    """Give lost receipts a place: grouped ones as pending in their thread, single ones as entries; names the threads."""
    threads: set[int] = set()
    facts = Receipt.objects.select_related("state").in_bulk(list(lost))
    policies = policies_of([inbox], {fact.source_system for fact in facts.values()})
    for pk in lost:
        fact = facts[pk]
        state = getattr(fact, "state", None)
        given: dict[str, Any] = {
            "tenant": inbox.tenant_id,
            "inbox": inbox.id,
            "receipt": pk,
            "source_system": fact.source_system,
            "delivery_handle": fact.delivery_handle,
            "created_at": fact.created_at,
            "now": now,
        }
        gathered = state is None and policies.of(inbox, fact.source_system).enabled
        key = selectors.key_of_stored(fact) if gathered else None
        with connection.cursor() as cursor:
            if state is not None and state.thread_id is not None:
                cursor.execute(sql.THREAD_LIKE, {"thread": state.thread_id})
            elif key is not None:
                cursor.execute(
                    sql.THREAD_FOR, given | {"resource_ref": key.resource_ref, "event_family": key.event_family}
                )
            else:
                cursor.execute(sql.REPOST_ITEM, given)
                continue
            (thread,) = cursor.fetchone()
            cursor.execute(sql.REBUFFER, given | {"thread": thread})
        threads |= {thread} | ({state.thread_id} if state is not None else set())
    return threads


def _mend_threads(inbox: LockedInbox, threads: Sequence[int], now: datetime) -> None:
    """Count buffers again, publish those that are due, and let each live snapshot hold what is published and unacked."""
    if not threads:
        return
    with connection.cursor() as cursor:
        cursor.execute(sql.RECOUNT_THREADS, {"threads": list(threads)})
        cursor.execute(sql.RECOUNT, {"inbox": inbox.id, "tenant": inbox.tenant_id})
    publish_pending(inbox, threads, reason=FlushReason.WINDOW, now=now)
    wrong = soundness.still("missing_heads", list(threads))
    remainders = members(wrong, with_pending=False) if wrong else []
    empty = sorted(set(wrong) - {one.thread_id for one in remainders})
    with connection.cursor() as cursor:
        cursor.execute(sql.HEADS_ACKED, {"threads": empty, "tenant": inbox.tenant_id, "now": now})
        cursor.execute(sql.CLOSE_FINISHED, [now, empty])
    last = inbox.advance(sequences=len(remainders))
    publish_narrowed(inbox, remainders, last=last, now=now)
