"""Letters to other deployments: written, claimed, settled, replayed. The call itself is made between transactions."""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction

from apps.core.notifications import send_on_commit
from apps.principals.tenancy import acting_as_system, acting_in
from apps.receipts import letters, sql
from apps.receipts.letters import Delivered, Later, Refused, Resting, Sent, Verdict
from apps.receipts.models import RemoteTarget
from apps.receipts.selectors import content_of
from apps.receipts.signals import letters_due
from apps.receipts.states import (
    COOL_DOWN,
    FAILURES_TO_OPEN,
    FRESH,
    LONGEST_TURN,
    MAX_ATTEMPTS,
    SHARE_OF_TENANT,
    Breaker,
    Door,
    claimed_for,
    jittered,
    pause,
)

logger = logging.getLogger(__name__)

REPLAYED_AT_ONCE: Final = 1000
_WHY: Final = "delivering letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to make one call until it counts as lost, and all that the call needs."""

    tenant_id: int
    target_id: int
    letter_id: int
    fence: int
    attempts: int
    url: str
    door: Door
    sealed_token: str
    timeout: timedelta
    sent: Sent
    body: bytes
    is_first: bool
    """No call before it can have left the letter there under the name that it is sent under."""
    delegate: str | None
    """The DeleGate that posted it, if one did."""


@transaction.atomic
def claim(*, tenant_id: int, target_id: int) -> Claim | None:
    """Claim the letter of a target that has been due the longest; None if none is, or the target is not called now.

    Commit before calling. A target whose breaker has cooled down gets one letter, as a probe.
    """
    turn = _run(sql.HOLD_TARGET, target=target_id)
    if turn is None:
        return None
    base_url, door, known_as, sealed_token, timeout_seconds, breaker = turn
    patience = claimed_for(timeout_seconds)
    row = _run(sql.CLAIM_LETTER, target=target_id, patience=patience, known_as=known_as or "")
    if row is None:
        return None
    if breaker != Breaker.CLOSED:
        _run(sql.PROBE, target=target_id, patience=patience)
    letter_id, fence, attempts, receipt_pk, recipient_name, sent_as, is_first = row
    content, delegate, uuid = content_of(receipt_pk, recipient_name=recipient_name)
    return Claim(
        tenant_id=tenant_id,
        target_id=target_id,
        letter_id=letter_id,
        fence=fence,
        attempts=attempts,
        url=letters.address(base_url, Door(door)),
        door=Door(door),
        sealed_token=sealed_token,
        timeout=timedelta(seconds=timeout_seconds),
        sent=Sent(receipt_id=content.receipt_id, uuid=uuid),
        body=letters.body(content, door=Door(door), known_as=sent_as or None),
        is_first=is_first,
        delegate=delegate,
    )


@transaction.atomic
def settle(*, claim: Claim, verdict: Verdict, slow: bool = False) -> None:
    """Note what became of a call. Of a claim that was lost meanwhile, only the success still counts.

    :param slow: the answer was so long in coming that it speaks against the target, whatever it says.
    """
    match verdict:
        case Delivered():
            _delivered(claim, verdict, slow=slow)
        case Refused():
            buried = _bury(claim, verdict.code, verdict.said, verdict)
            _target_answered(claim, failed=1, dead=buried, slow=slow)
        case Later():
            _defer(claim, verdict, slow=slow)
        case Resting():
            _rest(claim, verdict)


def _delivered(claim: Claim, verdict: Delivered, *, slow: bool) -> None:
    row = _run(sql.DELIVERED, letter=claim.letter_id, receipt_id=verdict.receipt_id, uuid=verdict.uuid)
    if row is not None:
        _target_answered(claim, delivered=1, seconds=row[0], slow=slow)


def _defer(claim: Claim, verdict: Later, *, slow: bool) -> None:
    dead = 0
    if claim.attempts >= MAX_ATTEMPTS:
        dead = _bury(claim, "attempts", f"Given up after {claim.attempts} attempts. {verdict.said}", verdict)
    else:
        _run(
            sql.DEFERRED,
            letter=claim.letter_id,
            fence=claim.fence,
            pause=pause(claim.attempts),
            failure=verdict.code,
            said=verdict.said,
            nowhere=claim.is_first and verdict.turned_away,
        )
    if verdict.unwell:
        _run(sql.TARGET_FAILED, target=claim.target_id, dead=dead, limit=FAILURES_TO_OPEN, cool_down=COOL_DOWN)
    else:
        _target_answered(claim, failed=1, dead=dead, slow=slow)


def _rest(claim: Claim, verdict: Resting) -> None:
    _run(sql.UNTRIED, letter=claim.letter_id, fence=claim.fence, failure=verdict.code, said=verdict.said)
    _run(sql.TARGET_RESTS, target=claim.target_id, wait=jittered(verdict.wait))


def _bury(claim: Claim, failure: str, said: str, verdict: Refused | Later) -> int:
    """How many this has buried: none, if the claim was lost."""
    given: dict[str, Any] = {"failure": failure, "said": said, "nowhere": claim.is_first and verdict.turned_away}
    if _run(sql.BURIED, letter=claim.letter_id, fence=claim.fence, **given) is None:
        return 0
    logger.warning("letter_dead", extra={"letter": claim.letter_id, "target": claim.target_id, "failure": failure})
    return 1


def _target_answered(
    claim: Claim, *, slow: bool, delivered: int = 0, seconds: float = 0.0, failed: int = 0, dead: int = 0
) -> None:
    given: dict[str, Any] = {"slow": slow, "limit": FAILURES_TO_OPEN, "cool_down": COOL_DOWN}
    counted: dict[str, Any] = {"delivered": delivered, "seconds": seconds, "failed": failed, "dead": dead}
    _run(sql.TARGET_ANSWERED, target=claim.target_id, **given, **counted)


def _run(statement: str, **given: Any) -> tuple[Any, ...] | None:
    """The one row that a statement answers, if it does."""
    with connection.cursor() as cursor:
        cursor.execute(statement, given)
        return cursor.fetchone() if cursor.description else None


@transaction.atomic
def replay(*, target: RemoteTarget, letter_ids: Collection[int] | None = None) -> int:
    """Send dead letters again, all of a target or those of these keys; answers how many, at most a thousand at once."""
    chosen = None if letter_ids is None else list(letter_ids)
    row = _run(sql.REPLAY, target=target.pk, letters=chosen, limit=REPLAYED_AT_ONCE)
    revived: int = row[0] if row is not None else 0
    if revived:
        send_on_commit(letters_due, tenant_id=target.tenant_id, target_id=target.pk)
    return revived


def announce_due() -> int:
    """Hint at every target that something waits for and that may be called. Opens its own transaction.

    What was announced and waits for its turn is not announced again before its message has grown old.
    """
    given: dict[str, Any] = {"fresh": FRESH}
    with acting_as_system(_WHY), connection.cursor() as cursor:
        cursor.execute(sql.ANNOUNCE, given)
        announced = cursor.fetchall()
    for tenant_id, target_id in announced:
        letters_due.send_robust(sender=None, tenant_id=tenant_id, target_id=target_id)
    return len(announced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The right to work for one target, alone, until it counts as lost."""

    tenant_id: int
    target_id: int
    until: datetime


def await_turn(*, tenant_id: int, target_id: int) -> None:
    """Have a target that is well wait for its turn, if it does not yet. Opens its own transaction."""
    with acting_in(tenant_id, _WHY):
        _run(sql.AWAIT_TURN, target=target_id, fresh=FRESH)


def take_turn() -> Turn | None:
    """The target whose turn it is among those that wait; None if none may be called. Opens its own transaction.

    Of one tenant only a few have theirs at once, and one of them goes to one worker.
    """
    with acting_as_system(_WHY):
        _run(sql.TAKE_IN_TURN)
        row = _run(sql.TAKE_TARGET, patience=LONGEST_TURN, of_tenant=SHARE_OF_TENANT)
    return None if row is None else Turn(tenant_id=row[0], target_id=row[1], until=row[2])


def end_turn(*, turn: Turn, again: bool) -> None:
    """Give a turn back; the target waits for another if there is more to do. Opens its own transaction."""
    with acting_in(turn.tenant_id, _WHY):
        _run(sql.GIVE_BACK, target=turn.target_id, until=turn.until, again=again, fresh=FRESH)
