"""How an inbox gathers receipts."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from apps.digests.models import Inbox
from apps.digests.selectors import Policy
from apps.digests.services import locking
from apps.digests.services.flushing import flush_everything
from apps.digests.states import FlushReason


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """What to change; None leaves it as it is."""

    enabled: bool | None = None
    window: timedelta | None = None
    max_items: int | None = None
    max_thread_age: timedelta | None = None


@transaction.atomic
def set_policy(*, tenant_id: int, principal_id: int, change: PolicyChange, now: datetime) -> Policy:
    """Change how an inbox gathers. Due times that are set stay; switching it off flushes what waits."""
    inbox = locking.lock_or_create(tenant_id=tenant_id, principal_id=principal_id)
    policy = Policy(
        enabled=inbox.enabled if change.enabled is None else change.enabled,
        window=inbox.window if change.window is None else change.window,
        max_items=inbox.max_items if change.max_items is None else change.max_items,
        max_thread_age=inbox.max_thread_age if change.max_thread_age is None else change.max_thread_age,
    )
    Inbox.objects.filter(pk=inbox.id).update(
        enabled=policy.enabled,
        window=policy.window,
        max_items=policy.max_items,
        max_thread_age=policy.max_thread_age,
    )
    if inbox.enabled and not policy.enabled:
        flush_everything(inbox, reason=FlushReason.LIFECYCLE, now=now)
    return policy
