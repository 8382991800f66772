"""How a principal's inbox passes to another."""

from django.utils import timezone

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Name, Output
from apps.digests import services
from apps.principals import selectors as principals
from apps.principals import services as principals_services
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller


class RetirePrincipal(Input):
    name: Name
    successor: Name
    """Who gets what the inbox holds and what still arrives."""


class Retired(Output):
    forwarded: int
    """How many receipts have gone on as new ones, each caused by the first."""
    remaining: int
    """How many the inbox still holds; they follow by themselves."""


@operation(
    title="Retire a principal",
    scope=Scope.ADMIN,
    routes=[Route("POST", "/api/v1/principals/{name}/retire")],
    destructive=True,
    idempotent=True,
    own_transactions=True,
    tool=False,
)
def retire_principal(caller: Caller, given: RetirePrincipal) -> Retired:
    """Disable a principal and forward what it has not acked to a successor, as new receipts chained to the first.

    What still arrives for it, from work under way, is forwarded too. Enabling it again ends that.
    """
    now = timezone.now()
    with caller.acting():
        retired = principals.any_principal_named(given.name)
        successor = principals.principal_named(given.successor)
        principals_services.retire_principal(principal_id=retired.pk, successor_id=successor.pk, now=now)
    done = services.forward(tenant_id=caller.tenant_id, principal_id=retired.pk, now=now)
    return Retired(forwarded=done.forwarded, remaining=done.remaining)
