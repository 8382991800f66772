"""Who lives elsewhere, and where that is."""

from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.core.errors import FieldError
from apps.core.notifications import send_on_commit
from apps.core.sealing import seal
from apps.core.sql import database_now
from apps.receipts import letters
from apps.receipts.errors import LivesHere, UnusableTarget
from apps.receipts.models import Letter, RemoteTarget, Residence
from apps.receipts.selectors import target_named
from apps.receipts.signals import letters_due
from apps.receipts.states import Breaker, Door, LetterState

DEFAULT_TARGET: Final = "memorygate"
"""The target that the environment names, by MEMORYGATE_URL and MEMORYGATE_SERVICE_TOKEN."""


@transaction.atomic
def put_target(
    *,
    tenant_id: int,
    name: str,
    base_url: str,
    door: Door,
    token: str | None,
    known_as: str | None = None,
    timeout_seconds: int = 5,
    now: datetime,
) -> RemoteTarget:
    """Add a target, or change one: what waits for it is then tried again at once, but for what is just being sent.

    What it has been called with keeps the source system that it was sent under, so that it is known again.

    :param token: sealed here, and shown to nobody again; left out, the one that is there stays.
    :raises UnusableTarget: if the address has not the form of one, or a new target has no token.
    """
    if (fault := letters.fault_of(base_url)) is not None:
        raise UnusableTarget(f"base_url {fault}.", errors=[FieldError("/base_url", fault)])
    given: dict[str, Any] = {
        "base_url": base_url,
        "door": door,
        "known_as": known_as,
        "timeout_seconds": timeout_seconds,
        "breaker": Breaker.CLOSED,
        "failures_in_a_row": 0,
        "retry_at": None,
        # Whoever works for it just now calls where it was.
        "busy_until": None,
    }
    if token is not None:
        given["sealed_token"] = seal(token)
    elif not RemoteTarget.objects.filter(tenant_id=tenant_id, name=name).exists():
        raise UnusableTarget("A new target needs a token.", errors=[FieldError("/token", "is missing")])
    target, _ = RemoteTarget.objects.update_or_create(
        tenant_id=tenant_id, name=name, defaults=given, create_defaults={**given, "created_at": now}
    )
    at = database_now()
    waiting = Letter.objects.filter(target=target, state=LetterState.PENDING)
    waiting.exclude(claimed=True, due_at__gt=at).update(due_at=at)
    send_on_commit(letters_due, tenant_id=tenant_id, target_id=target.pk)
    return target


@transaction.atomic
def send_elsewhere(*, tenant_id: int, principal_id: int, target: str, name_there: str) -> Residence:
    """From the commit on, what is posted to this principal goes to the target. Its inbox here stays as it is.

    :raises UnknownTarget: if there is none of that name.
    """
    residence, _ = Residence.objects.update_or_create(
        principal_id=principal_id,
        defaults={"tenant_id": tenant_id, "target": target_named(target), "name_there": name_there},
    )
    return residence


@transaction.atomic
def keep_here(*, principal_id: int) -> None:
    """From the commit on, what is posted to this principal is placed in its inbox here. What is on its way goes on.

    :raises LivesHere: if that is so already.
    """
    gone, _ = Residence.objects.filter(principal_id=principal_id).delete()
    if not gone:
        raise LivesHere("This principal's inbox is here already.")
