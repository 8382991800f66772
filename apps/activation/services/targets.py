"""Making, changing and ending targets."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.db import IntegrityError, connection, transaction

from apps.activation import selectors, sql, webhooks
from apps.activation.errors import TargetExists, TooManyTargets, UnknownTarget
from apps.activation.models import Dispatch, Target
from apps.activation.states import State
from apps.core.sealing import seal
from apps.core.sql import database_now, violated_constraint
from apps.principals.models import Principal
from apps.principals.tenancy import Caller

MOST: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWithSecret:
    """A new target, or a new secret of one; the text of the secret exists nowhere else."""

    target: Target
    secret: str = field(repr=False)


@transaction.atomic
def add(
    *, caller: Caller, url: str, notify_lease: timedelta, min_unacked: int, with_titles: bool, now: datetime
) -> TargetWithSecret:
    """Have the caller woken at an address from now on, for what is unacked already too.

    The address is checked by whoever asks, outside of the transaction, and again at each call.

    :raises TargetExists: if the caller has a target of this address.
    :raises TooManyTargets: if it has as many as a principal may have.
    """
    # Rivals of one principal are counted one after another.
    Principal.objects.select_for_update(no_key=True).get(pk=caller.principal_id)
    if Target.objects.filter(principal_id=caller.principal_id).count() >= MOST:
        raise TooManyTargets(f"A principal has at most {MOST} targets; delete one first.")
    secret = webhooks.new_secret()
    target = Target(
        tenant_id=caller.tenant_id,
        principal_id=caller.principal_id,
        url=url,
        notify_lease=notify_lease,
        min_unacked=min_unacked,
        with_titles=with_titles,
        secret=seal(secret),
        created_at=now,
    )
    _save(target)
    Dispatch.objects.create(target=target, tenant_id=caller.tenant_id, next_at=database_now())
    return TargetWithSecret(target=target, secret=secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChange:
    """What to change; None leaves it as it is."""

    url: str | None = None
    notify_lease: timedelta | None = None
    min_unacked: int | None = None
    with_titles: bool | None = None
    enabled: bool | None = None


@transaction.atomic
def change(*, principal_id: int, target_id: int, change: TargetChange, now: datetime) -> Target:
    """Change a target. Another address, and being enabled again, end the pause after failures.

    :raises UnknownTarget: if the principal has no such target.
    :raises TargetExists: if it has another one of the new address.
    """
    target = _hold(target_id, principal_id=principal_id)
    moved = change.url is not None and change.url != target.url
    for name in ("url", "notify_lease", "min_unacked", "with_titles"):
        if (value := getattr(change, name)) is not None:
            setattr(target, name, value)
    if change.enabled is not None:
        _switch(target, enabled=change.enabled, reason="Stopped by its owner.", now=now)
    _save(target)
    if moved or change.enabled:
        _try_afresh(target_id)
    return target


@transaction.atomic
def stop(*, target_id: int, reason: str, now: datetime) -> bool:
    """Call a target no more until it is resumed; one that is stopped keeps its reason. Says whether it was not yet.

    :raises UnknownTarget: if there is no such target.
    """
    target = _hold(target_id)
    was_enabled = target.state == State.ENABLED
    _switch(target, enabled=False, reason=reason, now=now)
    target.save()
    return was_enabled


@transaction.atomic
def resume(*, target_id: int, now: datetime) -> None:
    """Call a target again, at once if something is waiting.

    :raises UnknownTarget: if there is no such target.
    """
    target = _hold(target_id)
    _switch(target, enabled=True, reason="", now=now)
    target.save()
    _try_afresh(target_id)


@transaction.atomic
def rotate_secret(*, principal_id: int, target_id: int, overlap: timedelta) -> TargetWithSecret:
    """Give a target a new secret. For the overlap its calls carry a signature with the former one as well.

    Of two rotations within one overlap, the first secret ends at the second.

    :raises UnknownTarget: if the principal has no such target.
    """
    target = _hold(target_id, principal_id=principal_id)
    secret = webhooks.new_secret()
    target.former_secret, target.former_secret_until = target.secret, database_now() + overlap
    target.secret = seal(secret)
    target.save()
    return TargetWithSecret(target=target, secret=secret)


@transaction.atomic
def delete(*, principal_id: int, target_id: int) -> None:
    """Forget a target. A call that is under way still ends.

    :raises UnknownTarget: if the principal has no such target.
    """
    _hold(target_id, principal_id=principal_id).delete()


def _hold(target_id: int, *, principal_id: int | None = None) -> Target:
    """A target with its dispatch, locked in the order in which the end of a call locks them."""
    if principal_id is not None:
        selectors.target(principal_id, target_id)
    Dispatch.objects.select_for_update(no_key=True).filter(pk=target_id).first()
    target = Target.objects.select_for_update(no_key=True).filter(pk=target_id).first()
    if target is None:
        raise UnknownTarget(f"There is no target tgt_{target_id}.")
    return target


def _switch(target: Target, *, enabled: bool, reason: str, now: datetime) -> None:
    if enabled:
        target.state, target.stopped_reason, target.stopped_at = State.ENABLED, None, None
    elif target.state == State.ENABLED:
        target.state, target.stopped_reason, target.stopped_at = State.STOPPED, reason, now


def _save(target: Target) -> None:
    try:
        with transaction.atomic():
            target.save()
    except IntegrityError as exc:
        if violated_constraint(exc) != "activation_target_url_once":
            raise
        raise TargetExists("You have a target of this address already.") from exc


def _try_afresh(target_id: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql.AFRESH, {"target": target_id})
