"""Adding, changing and stopping targets, and routing a principal's receipts to one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from django.db import IntegrityError, transaction

from apps.core.errors import Conflict, FieldError, Invalid, NotFound
from apps.core.outbound import fault_of
from apps.core.sealing import seal
from apps.core.sql import database_now, violated_constraint
from apps.delivery import selectors
from apps.delivery.models import Delivery, Endpoint, Kind, RemoteRoute, State, Target
from apps.delivery.notifications import notify_on_commit
from apps.delivery.services.sending import new_webhook_secret
from apps.principals.models import Principal
from apps.principals.tenancy import Caller

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
