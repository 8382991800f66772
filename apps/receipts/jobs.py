"""Delivering letters: a message says that a target has some due; which, the database says."""

import logging
import time
from typing import Any, Final

from celery import shared_task
from django.utils import timezone

from apps.core import outbound
from apps.core.notifications import Publisher
from apps.core.outbound import Answer, CallFailed
from apps.core.sealing import SealBroken, unseal
from apps.principals.tenancy import acting_in
from apps.receipts import letters, metrics, services
from apps.receipts.letters import Delivered, Later, Resting, Verdict
from apps.receipts.services import Claim
from apps.receipts.signals import letters_due
from apps.receipts.states import FRESH, PATIENCE, SLOW

logger = logging.getLogger(__name__)

_MAX_ANSWER_BYTES: Final = 64 * 1024


def work(tenant_id: int, target_id: int) -> bool:
    """Deliver what a target has due, one letter after the other; says whether there is nothing more to do just now.

    A target in trouble, or slow, is left alone after one call: the tick comes back to it, and others get their turn.
    """
    started = time.monotonic()
    while time.monotonic() - started < PATIENCE.total_seconds():
        with acting_in(tenant_id, "delivering letters"):
            claim = services.claim(tenant_id=tenant_id, target_id=target_id)
        if claim is None:
            return True
        began = time.monotonic()
        verdict = _send(claim)
        slow = time.monotonic() - began > SLOW.total_seconds()
        with acting_in(tenant_id, "delivering letters"):
            services.settle(claim=claim, verdict=verdict, slow=slow)
        if slow or isinstance(verdict, Resting) or (isinstance(verdict, Later) and verdict.unwell):
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
    """Deliver to this target and to others that wait, whoever's turn it is. Safe to lose, repeat or overlap."""
    services.await_turn(tenant_id=tenant_id, target_id=target_id)
    started = time.monotonic()
    while time.monotonic() - started < PATIENCE.total_seconds():
        turn = services.take_turn()
        if turn is None:
            return
        done = True
        try:
            done = work(turn.tenant_id, turn.target_id)
        finally:
            services.end_turn(turn=turn, again=not done)
    _publisher.publish(tenant_id, target_id)


def _publish(tenant_id: int, target_id: int) -> None:
    deliver.apply_async(args=(tenant_id, target_id), expires=FRESH.total_seconds(), retry=False)


_publisher = Publisher(_publish)


def listen() -> None:
    """Turn announcements of letters into messages from now on."""
    letters_due.connect(_announced, dispatch_uid="receipts.deliver")


def _announced(*, tenant_id: int, target_id: int, **_: Any) -> None:
    _publisher.publish(tenant_id, target_id)
