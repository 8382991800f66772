"""Which DeleGates there are, and who is above whom."""

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from apps.core.errors import Conflict, Invalid, NotFound
from apps.plans import selectors
from apps.plans.models import MOST_DELEGATES, Delegate
from apps.principals import services as principals
from apps.principals.scopes import Kind
from apps.principals.selectors import principal_named
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller
from apps.workers.services import registry as workers


def root_delegate(*, tenant_id: int, now: datetime) -> Delegate:
    """The tenant's root, which is made when it is first needed."""
    found, _ = Delegate.objects.get_or_create(
        tenant_id=tenant_id,
        delegate_id=DELEGATE,
        defaults={"principal": principal_named(DELEGATE), "created_at": now},
    )
    return found


def delegate_asked(caller: Caller, delegate_id: str | None, now: datetime) -> Delegate:
    """The DeleGate that is asked; the tenant's root is made when it is first needed.

    :raises NotFound: if it is not here (`unknown_delegate`).
    """
    if delegate_id is not None and delegate_id != DELEGATE:
        return selectors.delegate_named(delegate_id)
    return root_delegate(tenant_id=caller.tenant_id, now=now)


def refuse_detours(delegate: Delegate, path: Sequence[str]) -> None:
    """:raises Invalid: if a request has come through this DeleGate before (`delegation_loop`), or through too many
    (`delegation_too_deep`).
    """
    if str(delegate.key) in path:
        detail = f"{delegate} has been asked for this before, and would plan for itself through others."
        raise Invalid(detail, code="delegation_loop")
    if len(path) >= MOST_DELEGATES:
        detail = f"This has come through {len(path)} DeleGates; {MOST_DELEGATES} are the most."
        raise Invalid(detail, code="delegation_too_deep")


@transaction.atomic
def set_delegate(
    *, tenant_id: int, delegate_id: str, principal: str, parent: str, scope: str, now: datetime
) -> Delegate:
    """Make a DeleGate, or let it be another's, act as another principal, or have another scope.

    Its principal reports to that of the parent from now on.

    :raises NotFound: if there is no such parent (`unknown_delegate`).
    :raises UnknownPrincipal: if there is nobody of this name.
    :raises Invalid: if the principal is of another kind (`principal_is_no_delegate`).
    :raises Conflict: if it is the root (`root_delegate`), the principal is another DeleGate (`principal_plans_already`),
        it would be above itself (`delegate_circle`), or too many would stand above each other (`delegates_too_deep`).
    """
    if delegate_id == DELEGATE:
        raise Conflict(
            f"{DELEGATE} is the gate itself: it has nobody above it and acts under no other name.", code="root_delegate"
        )
    # Whoever changes the tree waits for whoever does so already.
    Delegate.objects.select_for_update(no_key=True).get(pk=root_delegate(tenant_id=tenant_id, now=now).pk)
    known = {one.delegate_id: one for one in Delegate.objects.all()}
    above = known.get(parent)
    if above is None:
        raise NotFound(f"There is no DeleGate {parent[:100]!r}.", code="unknown_delegate")
    actor = principal_named(principal)
    if actor.kind != Kind.DELEGATE:
        detail = f"{actor.name} is of the kind {actor.kind}; a DeleGate acts as one of the kind delegate."
        raise Invalid(detail, code="principal_is_no_delegate")
    found = known.get(delegate_id)
    if found is not None and (found.principal_id, found.parent_id, found.scope) == (actor.pk, above.pk, scope):
        return found
    if any(one.principal_id == actor.pk and one is not found for one in known.values()):
        raise Conflict(f"{actor.name} is another DeleGate.", code="principal_plans_already")
    if found is None:
        found = Delegate(tenant_id=tenant_id, delegate_id=delegate_id, created_at=now)
    _refuse_place(found, above, list(known.values()))
    found.principal, found.parent, found.scope = actor, above, scope
    found.save()
    moved = principals.place_under(parent=above.principal, principals=[actor.pk])
    below = [one.principal_id for one in known.values() if one.parent_id == found.pk]
    moved |= principals.place_under(parent=actor, principals=below)
    workers.rearrange(tenant_id=tenant_id, moved=moved)
    return found


def _refuse_place(delegate: Delegate, above: Delegate, known: Sequence[Delegate]) -> None:
    parents = {one.pk: one.parent_id for one in known}

    def path(pk: int | None) -> list[int]:
        """Those from here up to the root."""
        return [] if pk is None else [pk, *path(parents[pk])]

    way = path(above.pk)
    if delegate.pk in way:
        raise Conflict(f"{delegate} stands above {above}.", code="delegate_circle")
    ways = map(path, parents)
    below = max((way.index(delegate.pk) for way in ways if delegate.pk in way), default=0)
    if len(way) + 1 + below > MOST_DELEGATES:
        raise Conflict(f"More than {MOST_DELEGATES} would stand above each other.", code="delegates_too_deep")
