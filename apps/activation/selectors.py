"""Questions about targets: whose there are, and who is to be woken now."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection
from django.db.models import Count, Q, Sum

from apps.activation import sql
from apps.activation.errors import UnknownTarget
from apps.activation.models import Target
from apps.activation.states import Kind, State
from apps.digests import selectors as inboxes
from apps.digests.selectors import Mark


def target(principal_id: int, target_id: int) -> Target:
    """A principal's target, with its dispatch.

    :raises UnknownTarget: if it has none of this number.
    """
    found = Target.objects.filter(principal_id=principal_id, pk=target_id).select_related("dispatch").first()
    if found is None:
        raise UnknownTarget(f"You have no target tgt_{target_id}.")
    return found


def targets(principal_id: int, *, after: int = 0, limit: int = 50) -> list[Target]:
    """A principal's targets with their dispatches, oldest first, after the one with this number."""
    rows = Target.objects.filter(principal_id=principal_id, pk__gt=after)
    return list(rows.select_related("dispatch").order_by("pk")[:limit])


@dataclass(frozen=True, slots=True)
class Ready:
    """A target that may be called, if there is something to call for."""

    target_id: int
    mark: Mark
    """What it has been told of."""
    min_unacked: int
    leased: bool
    """It was woken not long ago."""


def ready(row: tuple[Any, ...]) -> Ready:
    """A row of one of the statements that find what may be called."""
    target_id, tenant_id, principal_id, covered, min_unacked, leased = row
    return Ready(target_id, Mark(tenant_id=tenant_id, principal_id=principal_id, sequence=covered), min_unacked, leased)


# So many inboxes are asked about in one statement.
_AT_ONCE: Final = 1000


def due(principals: Collection[tuple[int, int]] | None = None) -> list[tuple[int, int]]:
    """Tenants and targets to be woken now, of these principals (tenant and id) or of all; asked by the system."""
    with connection.cursor() as cursor:
        if principals is None:
            cursor.execute(sql.READY)
        else:
            tenants, ids = [tenant for tenant, _ in principals], [principal for _, principal in principals]
            cursor.execute(sql.READY_OF, {"tenants": tenants, "principals": ids})
        candidates = [ready(row) for row in cursor.fetchall()]
    return [
        (one.mark.tenant_id, one.target_id)
        for start in range(0, len(candidates), _AT_ONCE)
        for one in worth_a_wake(candidates[start : start + _AT_ONCE])
    ]


def worth_a_wake(candidates: list[Ready]) -> list[Ready]:
    """Those for which something new is waiting.

    A target that was woken not long ago is left alone as long as anything that it was woken for is unacked.
    """
    marks = [one.mark for one in candidates]
    found = {news.mark: news for news in inboxes.news(list(dict.fromkeys(marks)))}
    return [
        one
        for one in candidates
        if (news := found.get(one.mark)) and news.visible >= one.min_unacked and not (one.leased and news.leftover)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Targets of one kind and what became of their wakes, for as long as the targets exist."""

    kind: Kind
    enabled: int
    stopped: int
    sent: int
    failed: int
    wasted: int


def figures() -> list[Figures]:
    """Of each kind, in everything that the caller may see."""
    counted = Target.objects.values("kind").annotate(
        enabled=Count("pk", filter=Q(state=State.ENABLED)),
        stopped=Count("pk", filter=Q(state=State.STOPPED)),
        **{name: Sum(f"dispatch__{name}") for name in ("sent", "failed", "wasted")},
    )
    names = ("enabled", "stopped", "sent", "failed", "wasted")
    by_kind = {kind: numbers for kind, *numbers in counted.values_list("kind", *names)}
    return [Figures(kind=kind, **dict(zip(names, by_kind.get(kind, [0] * 5), strict=True))) for kind in Kind]
