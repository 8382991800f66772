"""Targets and how their calls went, deliveries, and routes."""

from dataclasses import dataclass

from django.db.models import Aggregate, Count, Min, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from apps.core.errors import NotFound
from apps.delivery.models import Delivery, Kind, RemoteRoute, State, Target


def with_deliveries() -> QuerySet[Target]:
    """Targets with `pending`, `dead_now`, `oldest_pending_at` and `next_at`, counted within one statement."""
    return Target.objects.annotate(
        pending=Coalesce(_of_deliveries(State.PENDING, Count("pk")), 0),
        dead_now=Coalesce(_of_deliveries(State.DEAD, Count("pk")), 0),
        oldest_pending_at=_of_deliveries(State.PENDING, Min("created_at")),
        next_at=_of_deliveries(State.PENDING, Min("due_at")),
    )


def _of_deliveries(state: State, figure: Aggregate) -> Subquery:
    """A figure over a target's deliveries in one state; those delivered, which are many, are not read."""
    found = Delivery.objects.filter(target=OuterRef("pk"), state=state).order_by()
    return Subquery(found.values("target").annotate(figure=figure).values("figure"))


def target_of(principal_id: int, target_id: int) -> Target:
    """A principal's webhook, as in :func:`with_deliveries`.

    :raises NotFound: `unknown_target`, if it has none with this number.
    """
    found = with_deliveries().filter(principal_id=principal_id, pk=target_id).first()
    if found is None:
        raise NotFound(f"You have no target tgt_{target_id}.", code="unknown_target")
    return found


def targets_of(principal_id: int, *, after: int = 0, limit: int = 50) -> list[Target]:
    """A principal's webhooks, oldest first."""
    return list(with_deliveries().filter(principal_id=principal_id, pk__gt=after).order_by("pk")[:limit])


def remotes(*, after: int = 0, limit: int = 50) -> list[Target]:
    """The remote targets of the current tenant, oldest first."""
    return list(with_deliveries().filter(kind=Kind.REMOTE, pk__gt=after).order_by("pk")[:limit])


def remote_named(name: str) -> Target:
    """The remote target with this name in the current tenant, as in :func:`with_deliveries`.

    :raises NotFound: `unknown_target`, if there is none.
    """
    found = with_deliveries().filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no target {name[:50]!r}.", code="unknown_target")
    return found


def deliveries(*, target: Target, state: State | None = None, after: int = 0, limit: int = 50) -> list[Delivery]:
    """Deliveries to a target, oldest first."""
    found = Delivery.objects.filter(target=target, pk__gt=after)
    return list((found if state is None else found.filter(state=state)).order_by("pk")[:limit])


def routes(*, after: int = 0, limit: int = 50) -> list[RemoteRoute]:
    """The principals that have moved, with their targets."""
    found = RemoteRoute.objects.filter(pk__gt=after).select_related("principal", "target")
    return list(found.order_by("pk")[:limit])


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Targets of one kind, and the counters of their calls, for as long as the targets exist."""

    kind: Kind
    enabled: int
    stopped: int
    sent: int
    failed: int
    wasted: int


def figures() -> list[Figures]:
    """The figures of each kind, over everything that the caller may see."""
    counted = Target.objects.values("kind").annotate(
        enabled=Count("pk", filter=Q(stopped_at=None)),
        stopped=Count("pk", filter=~Q(stopped_at=None)),
        **{f"sum_{name}": Sum(name) for name in ("sent", "failed", "wasted")},
    )
    by_kind = {
        kind: numbers
        for kind, *numbers in counted.values_list("kind", "enabled", "stopped", "sum_sent", "sum_failed", "sum_wasted")
    }
    names = ("enabled", "stopped", "sent", "failed", "wasted")
    return [Figures(kind=kind, **dict(zip(names, by_kind.get(kind, [0] * 5), strict=True))) for kind in Kind]
