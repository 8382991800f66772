"""How an inbox gathers receipts, and those of single sources."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction

from apps.digests import sql
from apps.digests.errors import TooManyPolicies, UnknownPolicy
from apps.digests.gathering import Policy
from apps.digests.models import Inbox, SourcePolicy
from apps.digests.services import locking
from apps.digests.services.flushing import flush_sources
from apps.digests.services.locking import LockedInbox
from apps.digests.states import FlushReason

MOST_SOURCE_POLICIES: Final = 100
_PARTS: Final = ("enabled", "window", "max_items", "max_thread_age")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """What to change; None leaves it as it is."""

    enabled: bool | None = None
    window: timedelta | None = None
    max_items: int | None = None
    max_thread_age: timedelta | None = None

    def as_changes(self) -> dict[str, Any]:
        return {part: value for part in _PARTS if (value := getattr(self, part)) is not None}


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies that hold in inboxes which are held, as they are under their locks."""

    _own: Mapping[tuple[int, str], tuple[Any, ...]]

    def of(self, inbox: LockedInbox, source_system: str) -> Policy:
        default = inbox.policy
        own = self._own.get((inbox.id, source_system))
        return default if own is None else default.overridden(*own)


def policies_of(inboxes: Iterable[LockedInbox], source_systems: Collection[str]) -> Policies:
    """The policies of these inboxes for these sources; no statement where no source has one of its own."""
    asked = [inbox for inbox in inboxes if inbox.has_source_policies]
    if not asked or not source_systems:
        return Policies({})
    with connection.cursor() as cursor:
        cursor.execute(sql.SOURCE_POLICIES, [asked[0].tenant_id, [inbox.id for inbox in asked], sorted(source_systems)])
        return Policies({(inbox_id, source): tuple(own) for inbox_id, source, *own in cursor.fetchall()})


@transaction.atomic
def set_policy(
    *, tenant_id: int, principal_id: int, change: PolicyChange, source_system: str | None = None, now: datetime
) -> Policy:
    """Change how an inbox gathers, or how it gathers the receipts of one source; answers what holds then.

    Due times that are set stay. What waits of sources that are not gathered any more is flushed.

    :raises TooManyPolicies: if a hundred other sources have policies of their own here.
    """
    inbox = locking.lock_or_create(tenant_id=tenant_id, principal_id=principal_id)
    if source_system is None:
        changed = replace(inbox, **change.as_changes())
        Inbox.objects.filter(pk=inbox.id).update(**{part: getattr(changed, part) for part in _PARTS})
    else:
        changed = _override(inbox, source_system, change)
    _flush_what_is_not_gathered(changed, now)
    return policies_of([changed], [source_system or ""]).of(changed, source_system or "")


@transaction.atomic
def remove_source_policy(*, principal_id: int, source_system: str, now: datetime) -> None:
    """Have a source gathered as the inbox's own policy says; what waits of it is flushed.

    :raises UnknownPolicy: if the source has no policy of its own here.
    """
    inbox = locking.lock(principal_id=principal_id)
    removed = 0
    if inbox is not None:
        removed, _ = SourcePolicy.objects.filter(inbox_id=inbox.id, source_system=source_system).delete()
    if inbox is None or not removed:
        raise UnknownPolicy(f"There is no policy of its own for {source_system!r} in this inbox.")
    left = SourcePolicy.objects.filter(inbox_id=inbox.id).exists()
    Inbox.objects.filter(pk=inbox.id).update(has_source_policies=left)
    flush_sources(inbox, [source_system], reason=FlushReason.LIFECYCLE, now=now)


def _override(inbox: LockedInbox, source_system: str, change: PolicyChange) -> LockedInbox:
    own = SourcePolicy.objects.filter(inbox_id=inbox.id)
    others = own.exclude(source_system=source_system).count()
    if others >= MOST_SOURCE_POLICIES:
        raise TooManyPolicies(f"An inbox has room for policies of {MOST_SOURCE_POLICIES} sources.")
    SourcePolicy.objects.update_or_create(
        tenant_id=inbox.tenant_id, inbox_id=inbox.id, source_system=source_system, defaults=change.as_changes()
    )
    Inbox.objects.filter(pk=inbox.id).update(has_source_policies=True)
    return replace(inbox, has_source_policies=True)


def _flush_what_is_not_gathered(inbox: LockedInbox, now: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql.PENDING_SOURCES, [inbox.id])
        waiting = [source for (source,) in cursor.fetchall()]
    policies = policies_of([inbox], waiting)
    over = [source for source in waiting if not policies.of(inbox, source).enabled]
    flush_sources(inbox, over, reason=FlushReason.LIFECYCLE, now=now)
