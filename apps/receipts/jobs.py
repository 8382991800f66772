"""Delivering letters: a message says that a target has some due; which, the database says."""

import logging
import time
from typing import Any, Final

from celery import shared_task
from django.utils import timezone

from apps.core import outbound
from apps.core.nudges import Nudger
from apps.core.outbound import Answer, CallFailed
from apps.core.sealing import SealBroken, unseal
from apps.principals.tenancy import acting_in
from apps.receipts import letters, metrics, services
from apps.receipts.letters import Delivered, Later, Resting, Verdict
from apps.receipts.services import Claim
from apps.receipts.signals import letters_due

logger = logging.getLogger(__name__)

# A nudge older than this is dropped unread: the tick will have sent another.
_FRESH_SECONDS: Final = 10
# A message works for one target at most this long before others have their turn.
_PATIENCE_SECONDS: Final = 20.0
_MAX_ANSWER_BYTES: Final = 64 * 1024


def work(tenant_id: int, target_id: int) -> bool:
    """Deliver what a target has due, one letter after the other; says whether there is nothing more to do just now.

    A target in trouble is left alone after one call: the tick comes back to it, and others get their turn.
    """
    started = time.monotonic()
    while time.monotonic() - started < _PATIENCE_SECONDS:
        with acting_in(tenant_id, "delivering letters"):
            claim = services.claim(tenant_id=tenant_id, target_id=target_id)
        if claim is None:
            return True
        verdict = _send(claim)
        with acting_in(tenant_id, "delivering letters"):
            services.settle(claim=claim, verdict=verdict)
        if isinstance(verdict, Resting) or (isinstance(verdict, Later) and verdict.unwell):
            return True
    return False


def _send(claim: Claim) -> Verdict:
    began = time.monotonic()
    try:
        token = unseal(claim.sealed_token)
    except SealBroken:
        return Later(code="seal_broken", said="The target's token can't be opened with this deployment's keys.")
    try:
        verdict = letters.judge(_call(claim, token), door=claim.door, sent=claim.sent, now=timezone.now())
    except Exception:
        # Only what is settled counts, and ends: a claim without an end would come back for ever.
        logger.exception("letter %s could not be sent", claim.letter_id)
        return Later(code="defect", said="This deployment could not make the call, or not read the answer.")
    if claim.delegate is not None:
        metrics.EMISSIONS.labels(claim.delegate, str(isinstance(verdict, Delivered)).lower()).inc()
        metrics.EMISSION.observe(time.monotonic() - began)
    logger.info("letter_sent", extra={"letter": claim.letter_id, "verdict": type(verdict).__name__.lower()})
    return verdict


def _call(claim: Claim, token: str) -> Answer | CallFailed:
    try:
        return outbound.post(
            claim.url,
            body=claim.body,
            headers={"X-Service-Token": token, "Content-Type": "application/json"},
            deadline=claim.timeout,
            max_answer_bytes=_MAX_ANSWER_BYTES,
        )
    except CallFailed as failure:
        return failure


# Acked early: a message that dies with its worker is replaced by the tick.
@shared_task(name="receipts.deliver", ignore_result=True, acks_late=False)
def deliver(tenant_id: int, target_id: int) -> None:
    """Deliver to a target. Safe to lose, repeat or overlap."""
    if not work(tenant_id, target_id):
        _nudger.nudge(tenant_id, target_id)


def _publish(tenant_id: int, target_id: int) -> None:
    deliver.apply_async(args=(tenant_id, target_id), expires=_FRESH_SECONDS, retry=False)


_nudger = Nudger(_publish)


def listen() -> None:
    """Turn announcements of letters into messages from now on."""
    letters_due.connect(_announced, dispatch_uid="receipts.deliver")


def _announced(*, tenant_id: int, target_id: int, **_: Any) -> None:
    _nudger.nudge(tenant_id, target_id)
