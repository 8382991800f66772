"""Targets and what is sent to them: take a target, claim a delivery, call, settle. Nothing is locked during the call.

Calls of this module open their own transactions where they say so. The target's row is locked before a delivery's.
A worker process that dies after its call leaves a claim, which runs out; the delivery is then sent once more.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import random
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from django.db import IntegrityError, transaction

from apps.core import outbound
from apps.core.errors import Conflict, FieldError, Invalid, NotFound
from apps.core.outbound import Answer, CallFailed, fault_of
from apps.core.sealing import SealBroken, seal, unseal
from apps.core.sql import database_now, execute, fetch, violated_constraint
from apps.delivery import selectors
from apps.delivery.models import Delivery, Endpoint, Kind, RemoteRoute, State, Target
from apps.delivery.notifications import notify_on_commit
from apps.delivery.senders import Delivered, Later, Payload, Refused, Verdict, sender_of
from apps.principals.models import Principal
from apps.principals.tenancy import Caller, acting_as_system, acting_in

logger = logging.getLogger(__name__)

FAILURES_TO_OPEN: Final = 5
COOL_DOWN: Final = timedelta(seconds=30)
SLOW: Final = timedelta(seconds=10)
"""A longer call counts as a failure of the target, whatever is answered."""
SHARE_OF_TENANT: Final = 12
"""So many targets of one tenant are called at once: slow targets leave places to others."""
SHARE_OF_PRINCIPAL: Final = 4
PATIENCE: Final = timedelta(seconds=5)
"""A worker process begins no call to a target after it has worked for this time."""
REPLAYED_AT_ONCE: Final = 1000
_FIRST_PAUSE: Final = timedelta(seconds=5)
_NOTING: Final = timedelta(seconds=25)
"""Beside the timeout of the call: after this, a claim counts as lost."""
_WHY: Final = "send deliveries"
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # a prefix, no secret

# Index: delivery_delivery_due, once per target.
_CALLABLE: Final = """
from delivery_target t left join principals_principal p on p.id = t.principal_id
where t.stopped_at is null and p.disabled_at is null
      and (t.retry_at is null or t.retry_at <= gatehouse_now())
      and (t.busy_until is null or t.busy_until <= gatehouse_now())
      and exists (
          select from delivery_delivery d
          where d.target_id = t.id and d.state = 'pending' and d.due_at <= gatehouse_now()
      )
"""
# How many targets could be called now.
COUNT_CALLABLE: Final = f"select count(*) from (select t.id {_CALLABLE} limit %(limit)s) callable"  # noqa: S608
# Targets are taken one after the other, so that no share is exceeded.
LOCK_SHARES: Final = "select pg_advisory_xact_lock(hashtextextended('deliveries', 7))"
# The next target to be called: first of the tenant, then of the principal with the fewest calls under way, then the one
# that was called the longest ago. Index: delivery_target_busy.
TAKE_TARGET: Final = f"""
with busy as materialized (
    select tenant_id, principal_id from delivery_target where busy_until > gatehouse_now()
), candidate as (
    select t.id, t.busy_until,
           (select count(*) from busy b where b.tenant_id = t.tenant_id) as of_tenant,
           (select count(*) from busy b where b.principal_id = t.principal_id) as of_principal
    {_CALLABLE}
)
update delivery_target
set busy_until = gatehouse_now() + %(patience)s::interval + make_interval(secs => timeout_seconds)
where id = (
    select t.id from candidate c join delivery_target t on t.id = c.id
    where c.of_tenant < %(of_tenant)s and c.of_principal < %(of_principal)s
    order by c.of_tenant, c.of_principal, c.busy_until nulls first, t.id limit 1 for no key update of t skip locked
)
returning tenant_id, id, busy_until
"""  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to send one delivery once, and what is sent."""

    target: Target
    delivery: Delivery
    """As claimed: its `due_at` identifies the claim."""
    payload: Payload


def deliver_next() -> bool:
    """Send what the next target has due; False if no target may be called now. Opens its own transactions.

    At most a few targets of one principal, and of one tenant, are called at once, and each by one process. Processes
    may call this at the same time.
    """
    shares: dict[str, Any] = {
        "of_tenant": SHARE_OF_TENANT,
        "of_principal": SHARE_OF_PRINCIPAL,
        "patience": PATIENCE + _NOTING,
    }
    with acting_as_system(_WHY):
        execute(LOCK_SHARES)
        taken = fetch(TAKE_TARGET, shares)
    if not taken:
        return False
    tenant_id, target_id, until = taken[0]
    try:
        deliver_to(tenant_id=tenant_id, target_id=target_id)
    finally:
        with acting_in(tenant_id, _WHY):
            Target.objects.filter(pk=target_id, busy_until=until).update(busy_until=database_now())
    return True


def deliver_to(*, tenant_id: int, target_id: int) -> int:
    """Send what a target has due, one after the other; answers how many calls that took. Opens its own transactions.

    A target that fails or is slow is left alone after one call, so that others are called.
    """
    started = time.monotonic()
    calls = 0
    while time.monotonic() - started < PATIENCE.total_seconds():
        with acting_in(tenant_id, _WHY):
            claimed = claim(target_id=target_id)
        if claimed is None:
            break
        calls += 1
        began = time.monotonic()
        verdict, result = send(claimed)
        slow = time.monotonic() - began > SLOW.total_seconds()
        with acting_in(tenant_id, _WHY):
            settle(claim=claimed, verdict=verdict, result=result, slow=slow)
        if slow or (isinstance(verdict, Later) and (verdict.unwell or verdict.wait)):
            break
    return calls


@transaction.atomic
def claim(*, target_id: int) -> Claim | None:
    """Claim the delivery of a target that has been due the longest; None if there is none, or the breaker is open.

    Commit before sending. Deliveries that others hold are passed by.
    """
    now = database_now()
    target = Target.objects.select_for_update(no_key=True).filter(pk=target_id, stopped_at=None).first()
    if target is None or (target.retry_at is not None and target.retry_at > now):
        return None
    due = Delivery.objects.filter(target=target, state=State.PENDING, due_at__lte=now).order_by("due_at", "pk")
    delivery = due.select_for_update(no_key=True, skip_locked=True).first()
    if delivery is None:
        return None
    delivery.target = target
    payload = sender_of(target).prepare(target, delivery, now)
    if payload is None:
        delivery.delete()
        return None
    delivery.attempts += 1
    delivery.due_at = now + timedelta(seconds=target.timeout_seconds) + _NOTING
    delivery.save()
    return Claim(target=target, delivery=delivery, payload=payload)


def send(claim: Claim) -> tuple[Verdict, str]:
    """Make the call of a claim; answers its verdict, and the result in words for the target."""
    now, began = database_now(), time.monotonic()
    try:
        outcome = call(claim.target, claim.payload, now=now)
        seconds = time.monotonic() - began
        verdict = sender_of(claim.target).judge(claim.payload, outcome, seconds=seconds, now=now)
    except Exception:  # every claim must end in a verdict, or the delivery would return forever
        logger.exception("%s could not be sent", claim.delivery)
        verdict = Later(code="defect", said="This deployment could not make the call, or not read the answer.")
        return verdict, f"{verdict.code}: {verdict.said}"
    logger.info("delivery_sent", extra={"delivery": claim.delivery.pk, "verdict": type(verdict).__name__.lower()})
    return verdict, _result_of(outcome)


class SecretUnreadable(CallFailed):
    """The target's secret can't be opened with this deployment's keys; nothing was sent."""

    code = "seal_broken"
    reached = False


def call(target: Target, payload: Payload, *, now: datetime) -> Answer | CallFailed:
    """POST a payload to a target, with the proof of who sends it.

    Blocks; call it outside of transactions.
    """
    sealed = [target.secret]
    if target.former_secret is not None and target.former_secret_until is not None and now < target.former_secret_until:
        sealed.append(target.former_secret)
    try:
        opened = [unseal(one) for one in sealed]
    except SealBroken:
        return SecretUnreadable("The target's secret can't be opened with this deployment's keys; give a new one.")
    headers: Mapping[str, str] = {"X-Service-Token": opened[0], "Content-Type": "application/json"}
    if target.kind == Kind.WEBHOOK:
        headers = _signed(payload, opened)
    try:
        return outbound.send(
            payload.url,
            body=payload.body,
            headers=headers,
            deadline=timedelta(seconds=target.timeout_seconds),
            max_answer_bytes=payload.max_answer_bytes,
        )
    except CallFailed as failure:
        return failure


def _result_of(outcome: Answer | CallFailed) -> str:
    """The result of a call in words, as a target stores it."""
    return f"HTTP {outcome.status}" if isinstance(outcome, Answer) else f"{outcome.code}: {outcome}"[:200]


def new_webhook_secret() -> str:
    """A new signing secret (Standard Webhooks 1.0): `whsec_` and 256 random bits in base64."""
    return _SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def _signed(payload: Payload, signing: Collection[str]) -> Mapping[str, str]:
    """The headers of Standard Webhooks 1.0, with one signature for each secret."""
    timestamp = str(int(time.time()))
    signed = b".".join((payload.message_id.encode(), timestamp.encode(), payload.body))
    keys = [binascii.a2b_base64(secret.removeprefix(_SECRET_PREFIX)) for secret in signing]
    signatures = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    return {
        "content-type": "application/json",
        "user-agent": "Gatehouse",
        "webhook-id": payload.message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


@transaction.atomic
def settle(*, claim: Claim, verdict: Verdict, result: str, slow: bool = False) -> None:
    """Note what became of a call.

    Of a claim that was lost meanwhile only one thing still counts: that the target has what a delivery carries.

    :param slow: the call took so long that it counts as a failure of the target.
    """
    now = database_now()
    target = Target.objects.select_for_update(no_key=True).filter(pk=claim.target.pk).first()
    delivery = Delivery.objects.select_for_update(no_key=True).filter(pk=claim.delivery.pk).first()
    if target is None or delivery is None:
        return
    delivery.target = target
    ours = delivery.state == State.PENDING and delivery.due_at == claim.delivery.due_at
    proven = isinstance(verdict, Delivered) and delivery.object_id is not None and delivery.state != State.DELIVERED
    if not ours and not proven:
        logger.info("the call for %s is not noted: its claim was lost", delivery)
        return
    sender = sender_of(target)
    target.result = result
    match verdict:
        case Delivered():
            delivery.state, delivery.remote_id = State.DELIVERED, verdict.remote_id
            delivery.failure = delivery.said = None
            target.sent += 1
            target.delivery_seconds += (now - delivery.created_at).total_seconds()
        case Refused():
            _bury(target, delivery, verdict.code, verdict.said)
            target.failed += 1
        case Later():
            delivery.failure, delivery.said = verdict.code, verdict.said
            delivery.due_at = now + max(verdict.wait, _pause(delivery.attempts, sender.longest_pause))
            target.failed += 1
            if sender.max_attempts is not None and delivery.attempts >= sender.max_attempts:
                _bury(target, delivery, "attempts", f"Given up after {delivery.attempts} attempts. {verdict.said}")
    if delivery.state != State.PENDING:
        delivery.due_at, delivery.settled_at = None, now
    _note_health(target, verdict, slow=slow, now=now)
    sender.settled(target, delivery, claim.payload, verdict, now)
    target.save()
    if delivery.object_id is None and delivery.state != State.PENDING:
        delivery.delete()
    else:
        delivery.save()


def _bury(target: Target, delivery: Delivery, failure: str, said: str) -> None:
    delivery.state, delivery.failure, delivery.said = State.DEAD, failure, said
    target.dead += 1
    logger.warning("delivery_dead", extra={"delivery": delivery.pk, "target": target.pk, "failure": failure})


def _note_health(target: Target, verdict: Verdict, *, slow: bool, now: datetime) -> None:
    """Open or close the breaker. An answer in time closes it; it opens at the limit, and again after a bad probe."""
    if isinstance(verdict, Later) and verdict.wait:
        target.retry_at = now + verdict.wait * (1 + 0.1 * random.random())  # noqa: S311  # jitter, no secret
    elif slow or (isinstance(verdict, Later) and verdict.unwell):
        target.failures_in_a_row += 1
        if target.retry_at is not None or target.failures_in_a_row >= FAILURES_TO_OPEN:
            target.retry_at = now + COOL_DOWN
    else:
        target.failures_in_a_row, target.retry_at = 0, None


def _pause(attempts: int, longest: timedelta) -> timedelta:
    """After so many failed attempts: at most 5, 10, 20 … seconds, up to a fifth less by chance."""
    pause: timedelta = min(longest, _FIRST_PAUSE * 2 ** min(attempts - 1, 20))
    return pause * (1 - 0.2 * random.random())  # noqa: S311  # jitter, no secret


@transaction.atomic
def replay(*, target: Target, delivery_ids: Collection[int] | None = None) -> int:
    """Send dead deliveries again, all of a target or those with these keys; answers how many, at most a thousand."""
    dead = Delivery.objects.filter(target=target, state=State.DEAD).order_by("pk")
    if delivery_ids is not None:
        dead = dead.filter(pk__in=delivery_ids)
    chosen = list(dead.select_for_update(no_key=True, skip_locked=True).values_list("pk", flat=True)[:REPLAYED_AT_ONCE])
    Delivery.objects.filter(pk__in=chosen).update(
        state=State.PENDING, due_at=database_now(), settled_at=None, attempts=0
    )
    if chosen:
        notify_on_commit()
    return len(chosen)


def count_callable(*, limit: int) -> int:
    """How many targets could be called now, at most the limit. Opens its own transaction."""
    with acting_as_system(_WHY):
        count: int = fetch(COUNT_CALLABLE, {"limit": limit})[0][0]
    return count


# Adding, changing and stopping targets, and routing a principal's receipts to one.

MOST: Final = 20
"""Webhooks that a principal may have."""
DEFAULT_TARGET: Final = "memorygate"
"""The remote target that the environment names, by MEMORYGATE_URL and MEMORYGATE_SERVICE_TOKEN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWithSecret:
    """A webhook and its new secret; the text of the secret is stored nowhere else."""

    target: Target
    secret: str = field(repr=False)


@transaction.atomic
def add(*, caller: Caller, url: str, notify_lease: timedelta, min_unacked: int, now: datetime) -> TargetWithSecret:
    """Have the caller woken at an address from now on, also for what is unacked already.

    The caller checks the address outside of the transaction; it is checked again at each call.

    :raises Conflict: `target_exists`, if the caller has a target with this address; `too_many_targets`, if it has as
        many as a principal may have.
    """
    # Concurrent calls of one principal are counted one after another.
    Principal.objects.select_for_update(no_key=True).get(pk=caller.principal_id)
    if Target.objects.filter(principal_id=caller.principal_id).count() >= MOST:
        raise Conflict(f"A principal has at most {MOST} targets; delete one first.", code="too_many_targets")
    secret = new_webhook_secret()
    target = Target(
        kind=Kind.WEBHOOK,
        tenant_id=caller.tenant_id,
        principal_id=caller.principal_id,
        url=url,
        notify_lease=notify_lease,
        min_unacked=min_unacked,
        secret=seal(secret),
        created_at=now,
    )
    _save(target)
    return TargetWithSecret(target=target, secret=secret)


@transaction.atomic
def change(
    *,
    principal_id: int | None = None,
    target_id: int,
    changes: Mapping[str, object] = MappingProxyType({}),
    enabled: bool | None,
    reason: str = "Stopped by its owner.",
    now: datetime,
) -> Target:
    """Change a target. A new address, and enabling it again, end the pause after failures.

    :param principal_id: the owner that a webhook must have; None where an operator changes it.
    :param changes: new values of `url`, `notify_lease` and `min_unacked`.
    :param enabled: False stops the target, unless it is stopped; True resumes it, and sends at once what waits.
    :raises NotFound: `unknown_target`, if there is no such target.
    :raises Conflict: `target_exists`, if it has another one with the new address.
    """
    target = _hold(target_id, principal_id=principal_id)
    moved = changes.get("url", target.url) != target.url
    for name, value in changes.items():
        setattr(target, name, value)
    if enabled is False and target.stopped_at is None:
        target.stopped_at, target.stopped_reason = now, reason
    if enabled:
        target.stopped_at = target.stopped_reason = None
    if moved or enabled:
        _try_again(target)
    _save(target)
    return target


@transaction.atomic
def rotate_secret(*, principal_id: int, target_id: int, overlap: timedelta) -> TargetWithSecret:
    """Give a webhook a new secret. During the overlap its calls carry a signature with the former one as well.

    Of two rotations within one overlap, the first secret ends at the second.

    :raises NotFound: `unknown_target`, if the principal has no such target.
    """
    target = _hold(target_id, principal_id=principal_id)
    secret = new_webhook_secret()
    target.former_secret, target.former_secret_until = target.secret, database_now() + overlap
    target.secret = seal(secret)
    target.save()
    return TargetWithSecret(target=target, secret=secret)


@transaction.atomic
def delete(*, principal_id: int, target_id: int) -> None:
    """Delete a webhook. A call that is under way still ends.

    :raises NotFound: `unknown_target`, if the principal has no such target.
    """
    _hold(target_id, principal_id=principal_id).delete()


def _hold(target_id: int, *, principal_id: int | None = None) -> Target:
    held = Target.objects.select_for_update(no_key=True).filter(pk=target_id)
    if principal_id is not None:
        held = held.filter(principal_id=principal_id)
    target = held.first()
    if target is None:
        raise NotFound(f"There is no target tgt_{target_id}.", code="unknown_target")
    return target


def _save(target: Target) -> None:
    try:
        with transaction.atomic():
            target.save()
    except IntegrityError as exc:
        if violated_constraint(exc) != "delivery_target_url_once":
            raise
        raise Conflict("You have a target with this address already.", code="target_exists") from exc


def _try_again(target: Target) -> None:
    """Have everything that waits sent at once. A call that is under way loses its claim."""
    target.failures_in_a_row, target.retry_at, target.busy_until = 0, None, None
    Delivery.objects.filter(target=target, state=State.PENDING).update(due_at=database_now())
    notify_on_commit()


@transaction.atomic
def put_remote(
    *,
    tenant_id: int,
    name: str,
    url: str,
    endpoint: Endpoint,
    token: str | None,
    known_as: str | None = None,
    timeout_seconds: int = 5,
    now: datetime,
) -> Target:
    """Add a remote target, or change one: what waits for it is then sent at once.

    A delivery that may have reached the target keeps the source system that it was sent under, so that the target
    recognizes it.

    :param token: sealed here and never shown again; None keeps the present one.
    :raises Invalid: `unusable_target`, if the address is malformed, or a new target has no token.
    """
    if (fault := fault_of(url) or ("holds a query" if "?" in url else None)) is not None:
        raise Invalid(f"url {fault}.", code="unusable_target", errors=[FieldError("/url", fault)])
    target = Target.objects.select_for_update(no_key=True).filter(tenant_id=tenant_id, name=name).first()
    if target is None:
        if token is None:
            raise Invalid(
                "A new target needs a token.", code="unusable_target", errors=[FieldError("/token", "is missing")]
            )
        given: dict[str, Any] = {"url": url, "endpoint": endpoint, "secret": "", "created_at": now}
        target, _ = Target.objects.get_or_create(
            tenant_id=tenant_id, name=name, defaults={"kind": Kind.REMOTE, **given}
        )
    target.url, target.endpoint, target.known_as, target.timeout_seconds = url, endpoint, known_as, timeout_seconds
    if token is not None:
        target.secret = seal(token)
    _try_again(target)
    target.save()
    return target


@transaction.atomic
def set_route(*, tenant_id: int, principal_id: int, target: str, remote_name: str) -> RemoteRoute:
    """From the commit on, send what is posted to this principal to the target. Its inbox here stays as it is.

    :raises NotFound: `unknown_target`, if there is no remote target with that name.
    """
    route, _ = RemoteRoute.objects.update_or_create(
        principal_id=principal_id,
        defaults={"tenant_id": tenant_id, "target": selectors.remote_named(target), "remote_name": remote_name},
    )
    return route


@transaction.atomic
def remove_route(*, principal_id: int) -> None:
    """From the commit on, place what is posted to this principal in its inbox here. Pending deliveries are still sent.

    :raises NotFound: `lives_here`, if it has no route.
    """
    if not RemoteRoute.objects.filter(principal_id=principal_id).delete()[0]:
        raise NotFound("This principal's inbox is here already.", code="lives_here")
