"""Waking: claim, look once more, call, note. Nothing is held during the call.

A process that dies after its call and before its note leaves a claim that runs out; the target is then called once
more, as the same message if nothing has come since. A second deliverer finds the claim and does nothing.
"""

import json
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction

from apps.activation import selectors, sql, webhooks
from apps.activation.models import Target
from apps.activation.services.targets import stop
from apps.activation.signals import target_due
from apps.activation.states import FRESH, SHARE_OF_PRINCIPAL, SHARE_OF_TENANT, STOPPING, pause_after
from apps.core import outbound
from apps.core.ids import random_id
from apps.core.outbound import CallFailed
from apps.core.sealing import SealBroken, unseal
from apps.core.sql import database_now
from apps.digests import selectors as inboxes
from apps.digests.selectors import Mark
from apps.digests.shapes import EntryOutput, InboxOutput
from apps.principals.tenancy import Caller, acting_as_system, acting_in

logger = logging.getLogger(__name__)

_WHY: Final = "wake a target"
_DEADLINE: Final = timedelta(seconds=10)
# Longer than any call takes, so that only the claim of a dead process is taken over.
_TAKEN_OVER_AFTER: Final = timedelta(seconds=30)
_NAMED: Final = 5
_RESULT: Final = 200


def announce_due(*, principals: Collection[tuple[int, int]] | None = None) -> int:
    """Hint at every target that is to be woken now, of these principals (tenant and id) or of all.

    What was announced and waits to be taken is not announced again before its message has grown old.
    """
    with acting_as_system(_WHY):
        due = selectors.due(principals)
    if not due:
        return 0
    given: dict[str, Any] = {"targets": [target_id for _, target_id in due], "fresh": FRESH}
    with acting_as_system(_WHY), connection.cursor() as cursor:
        cursor.execute(sql.ANNOUNCE, given)
        announced = cursor.fetchall()
    for tenant_id, target_id in announced:
        target_due.send_robust(sender=None, tenant_id=tenant_id, target_id=target_id)
    return len(announced)


def wake_next() -> bool:
    """Call the target whose turn it is among those announced; says whether there was one that may be called now.

    Of one principal, and of one tenant, only a few are called at once. Runs in transactions of its own.
    """
    given: dict[str, Any] = {
        "of_principal": SHARE_OF_PRINCIPAL,
        "of_tenant": SHARE_OF_TENANT,
        "taken_over_after": _TAKEN_OVER_AFTER,
    }
    with acting_as_system(_WHY), connection.cursor() as cursor:
        cursor.execute(sql.TURN)
        cursor.execute(sql.TAKE, given)
        place = cursor.fetchone()
    if place is None:
        return False
    tenant_id, target_id, until = place
    try:
        wake(tenant_id=tenant_id, target_id=target_id)
    finally:
        with acting_in(tenant_id, _WHY), connection.cursor() as cursor:
            cursor.execute(sql.GIVE_BACK, {"target": target_id, "until": until})
    return True


def wake(*, tenant_id: int, target_id: int) -> bool:
    """Call a target if, at this very moment, something is waiting that it has not been told of; says whether it was.

    Runs in transactions of its own. Twice, or twice at once, is harmless.
    """
    with acting_in(tenant_id, _WHY):
        claim = _claim(target_id)
    if claim is None:
        return False
    verdict = _call(claim.call)
    with acting_in(tenant_id, _WHY):
        _note(claim, verdict)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinged:
    """How a target took a test."""

    delivered: bool
    result: str


def ping(*, caller: Caller, target_id: int) -> Pinged:
    """Send a message of type `ping` to one of the caller's targets and wait for its answer. It counts for nothing.

    Runs in a transaction of its own, which has ended before the call.

    :raises UnknownTarget: if the caller has no such target.
    """
    with caller.acting():
        target = selectors.target(caller.principal_id, target_id)
        at = database_now()
    content = _message("ping", at, target=str(target), principal=caller.name)
    verdict = _call(_outgoing(target, random_id("ping"), content, at))
    return Pinged(delivered=verdict.woken, result=verdict.says)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outgoing:
    url: str
    message_id: str
    body: bytes
    sealed_secrets: list[str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """The right to call a target once and to write down how it went."""

    target_id: int
    fence: int
    attempts: int
    claimed_at: datetime
    told: Mark
    """What the call tells of."""
    receipt_pks: list[int]
    """Of the entries that it names."""
    call: _Outgoing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    woken: bool
    says: str
    final: bool = False
    """Calling again is of no use."""


def _claim(target_id: int) -> _Claim | None:
    """None if somebody else has it, its time has not come, or there is nothing to wake for."""
    with connection.cursor() as cursor:
        cursor.execute(sql.HOLD, {"target": target_id})
        row = cursor.fetchone()
    worth = selectors.worth_a_wake([selectors.ready(row)]) if row else []
    if not worth:
        return None
    candidate = worth[0]
    principal_id = candidate.mark.principal_id
    page = inboxes.newest_entries(principal_id, limit=_NAMED)
    if page.visible < candidate.min_unacked:
        return None
    with connection.cursor() as cursor:
        given: dict[str, Any] = {"target": target_id, "taken_over_after": _TAKEN_OVER_AFTER}
        cursor.execute(sql.CLAIM, given)
        fence, claimed_at, attempts = cursor.fetchone()
    target = Target.objects.select_related("principal").get(pk=target_id)
    return _Claim(
        target_id=target_id,
        fence=fence,
        attempts=attempts,
        claimed_at=claimed_at,
        told=Mark(tenant_id=target.tenant_id, principal_id=principal_id, sequence=page.as_of),
        receipt_pks=[pk for entry in page.entries for pk in entry.receipt_pks],
        # The same until there is something new to tell of, so that a receiver can drop the repetition.
        call=_outgoing(target, f"wake_{target_id}_{page.as_of}", _news(target, page, claimed_at), claimed_at),
    )


def _news(target: Target, page: InboxOutput, at: datetime) -> bytes:
    return _message(
        "inbox.changed",
        at,
        target=str(target),
        principal=target.principal.name,
        as_of=page.as_of,
        unread=page.unread,
        visible=page.visible,
        pending=page.pending,
        newest=[_named(entry, with_titles=target.with_titles) for entry in page.entries],
    )


def _named(entry: EntryOutput, *, with_titles: bool) -> dict[str, Any]:
    named = {"ref": entry.ref, "kind": entry.kind, "sequence": entry.sequence, "count": entry.count}
    return named | {"title": entry.title, "source_systems": entry.source_systems} if with_titles else named


def _message(kind: str, at: datetime, **content: Any) -> bytes:
    return json.dumps({"type": kind, "timestamp": at.isoformat(), "data": content}, separators=(",", ":")).encode()


def _outgoing(target: Target, message_id: str, body: bytes, at: datetime) -> _Outgoing:
    sealed = [target.secret]
    if target.former_secret is not None and target.former_secret_until is not None and at < target.former_secret_until:
        sealed.append(target.former_secret)
    return _Outgoing(url=target.url, message_id=message_id, body=body, sealed_secrets=sealed)


def _call(call: _Outgoing) -> _Verdict:
    try:
        secrets = [unseal(sealed) for sealed in call.sealed_secrets]
    except SealBroken:
        return _Verdict(woken=False, says="Its secret can't be read; rotate it.", final=True)
    headers = webhooks.headers(
        message_id=call.message_id, timestamp=int(time.time()), body=call.body, signed_with=secrets
    )
    try:
        # The status says all; an agent may add to it what it likes.
        answer = outbound.post(call.url, body=call.body, headers=headers, deadline=_DEADLINE, max_answer_bytes=0)
    except CallFailed as failure:
        return _Verdict(woken=False, says=f"{failure.code}: {failure}")
    except Exception:
        # A claim without an end would come back for ever, at the shortest pause.
        logger.exception("the call as %s could not be made", call.message_id)
        return _Verdict(woken=False, says="defect: this deployment could not make the call.")
    return _Verdict(
        woken=200 <= answer.status < 300,  # noqa: PLR2004  # what HTTP calls success
        says=f"HTTP {answer.status}",
        final=answer.status in STOPPING,
    )


@transaction.atomic
def _note(claim: _Claim, verdict: _Verdict) -> None:
    """Write down how a call went, unless somebody else has taken over since."""
    given: dict[str, Any] = {
        "target": claim.target_id,
        "fence": claim.fence,
        "result": verdict.says[:_RESULT],
        "as_of": claim.told.sequence,
        "wasted": verdict.woken and _was_wasted(claim),
        "pause": pause_after(claim.attempts + 1),
    }
    with connection.cursor() as cursor:
        cursor.execute(sql.NOTE_WOKEN if verdict.woken else sql.NOTE_FAILED, given)
        ours = cursor.fetchone() is not None
    if not ours:
        logger.info("the call of tgt_%s under claim %s is not noted: it is another's now", claim.target_id, claim.fence)
    elif verdict.final:
        stop(target_id=claim.target_id, reason=given["result"], now=database_now())


def _was_wasted(claim: _Claim) -> bool:
    """Whether all that the call told of had been acked by requests that began before it.

    An agent that acks while it is being called was not woken in vain.
    """
    return inboxes.all_acked_by(claim.receipt_pks, claim.claimed_at) and not inboxes.anything_left(claim.told)
