"""How an inbox buffers receipts, how it buffers those of single sources, and what operators set for a source."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.db import transaction

from apps.core.errors import Conflict, NotFound
from apps.core.sql import database_now
from apps.digests.models import FlushReason, Inbox, Source, SourcePolicy, Thread
from apps.digests.policy import Policy
from apps.digests.selectors import forget_source_rules
from apps.digests.services import locking
from apps.digests.services.flushing import flush_sources
from apps.digests.services.locking import LockedInbox

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
class LockedPolicies:
    """The policies of locked inboxes."""

    _own: Mapping[tuple[int, str], tuple[Any, ...]]

    def of(self, inbox: LockedInbox, source_system: str) -> Policy:
        own = self._own.get((inbox.id, source_system))
        return inbox.policy if own is None else inbox.policy.overridden(*own)


def policies_of(inboxes: Iterable[LockedInbox], source_systems: Collection[str]) -> LockedPolicies:
    """The policies of these inboxes for these sources; no statement where no source has one of its own."""
    asked = [inbox for inbox in inboxes if inbox.has_source_policies]
    if not asked or not source_systems:
        return LockedPolicies({})
    held = SourcePolicy.objects.filter(tenant_id=asked[0].tenant_id, inbox_id__in=[inbox.id for inbox in asked])
    rows = held.filter(source_system__in=source_systems).values_list("inbox_id", "source_system", *_PARTS)
    return LockedPolicies({(inbox_id, source): tuple(own) for inbox_id, source, *own in rows})


@transaction.atomic
def set_policy(
    *, tenant_id: int, principal_id: int, change: PolicyChange, source_system: str | None = None, now: datetime
) -> Policy:
    """Change the policy of an inbox, or of one source in it; returns the policy that holds then.

    Due times that are set stay. What is pending of sources that are not buffered any more is flushed.

    :raises Conflict: `too_many_policies`, if a hundred other sources have policies of their own here.
    """
    inbox = locking.lock_or_create(tenant_id=tenant_id, principal_id=principal_id)
    if source_system is None:
        inbox = replace(inbox, **change.as_changes())
        Inbox.objects.filter(pk=inbox.id).update(**{part: getattr(inbox, part) for part in _PARTS})
    else:
        own = SourcePolicy.objects.filter(inbox_id=inbox.id)
        if own.exclude(source_system=source_system).count() >= MOST_SOURCE_POLICIES:
            raise Conflict(
                f"An inbox has room for policies of {MOST_SOURCE_POLICIES} sources.", code="too_many_policies"
            )
        SourcePolicy.objects.update_or_create(
            tenant_id=tenant_id, inbox_id=inbox.id, source_system=source_system, defaults=change.as_changes()
        )
        Inbox.objects.filter(pk=inbox.id).update(has_source_policies=True)
        inbox = replace(inbox, has_source_policies=True)
    pending = Thread.objects.filter(inbox_id=inbox.id, flush_due_at__isnull=False)
    sources = sorted(set(pending.values_list("source_system", flat=True)))
    policies = policies_of([inbox], {*sources, source_system or ""})
    disabled = [source for source in sources if not policies.of(inbox, source).enabled]
    flush_sources(inbox, disabled, reason=FlushReason.LIFECYCLE, now=now)
    return policies.of(inbox, source_system or "")


@transaction.atomic
def remove_source_policy(*, principal_id: int, source_system: str, now: datetime) -> None:
    """Return a source to the inbox's own policy; what is pending of it is flushed.

    :raises NotFound: `unknown_policy`, if the source has no policy of its own here.
    """
    inbox = locking.lock(principal_id=principal_id)
    removed = 0
    if inbox is not None:
        removed, _ = SourcePolicy.objects.filter(inbox_id=inbox.id, source_system=source_system).delete()
    if inbox is None or not removed:
        raise NotFound(f"There is no policy of its own for {source_system!r} in this inbox.", code="unknown_policy")
    left = SourcePolicy.objects.filter(inbox_id=inbox.id).exists()
    Inbox.objects.filter(pk=inbox.id).update(has_source_policies=left)
    flush_sources(inbox, [source_system], reason=FlushReason.LIFECYCLE, now=now)


@transaction.atomic
def set_source(*, tenant_id: int, name: str, rate_per_hour: int | None, groups_by_dedupe_key: bool) -> Source:
    """Set all that holds for the receipts of a source.

    If its receipts are not to be grouped by their keys any more, its buffers are flushed. Other processes follow
    within half a minute; what they still buffer surfaces after its window.
    """
    before = Source.objects.select_for_update().filter(tenant_id=tenant_id, name=name).first()
    source, _ = Source.objects.update_or_create(
        tenant_id=tenant_id,
        name=name,
        defaults={"rate_per_hour": rate_per_hour, "groups_by_dedupe_key": groups_by_dedupe_key},
    )
    if before is not None and before.groups_by_dedupe_key and not groups_by_dedupe_key:
        pending = Thread.objects.filter(tenant_id=tenant_id, source_system=name, flush_due_at__isnull=False)
        for inbox_id in sorted(set(pending.values_list("inbox_id", flat=True))):
            inbox = locking.lock_by_id(inbox_id, wait=True)
            if inbox is not None:
                flush_sources(inbox, [name], reason=FlushReason.LIFECYCLE, now=database_now())
    forget_source_rules(tenant_id)
    transaction.on_commit(partial(forget_source_rules, tenant_id), robust=True)
    return source
