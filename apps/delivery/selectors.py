"""Targets, and how their calls went."""

from django.db.models import Aggregate, Count, Min, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from apps.core.errors import NotFound
from apps.delivery.models import Delivery, State, Target


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


def remote_named(name: str) -> Target:
    """The remote target with this name in the current tenant, as in :func:`with_deliveries`.

    :raises NotFound: `unknown_target`, if there is none.
    """
    found = with_deliveries().filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no target {name[:50]!r}.", code="unknown_target")
    return found
