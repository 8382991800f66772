"""Who a receipt is for."""

from datetime import datetime

from django.db import transaction

from apps.core.ids import fits_an_address
from apps.principals import selectors as principals
from apps.principals import services as principals_services
from apps.principals.errors import NameTaken, UnknownPrincipal
from apps.principals.models import Tenant
from apps.principals.scopes import Kind
from apps.receipts.errors import UnknownRecipient


def recipient_named(*, tenant_id: int, name: str, now: datetime) -> int:
    """The key of the one principal of this name; made where the tenant lets receipts make recipients.

    :raises UnknownRecipient: if there is none.
    """
    try:
        return principals.principal_id_named(name, tenant_id=tenant_id)
    except UnknownPrincipal:
        return _made(tenant_id, name, now)


@transaction.atomic
def _made(tenant_id: int, name: str, now: datetime) -> int:
    refusal = UnknownRecipient(f"There is no recipient {name[:50]!r}.")
    if not fits_an_address(name) or not Tenant.objects.filter(pk=tenant_id, creates_recipients=True).exists():
        raise refusal
    try:
        return principals_services.add_principal(tenant_id=tenant_id, name=name, kind=Kind.AI, now=now).pk
    except NameTaken:
        pass
    # Somebody else has just made it, or it is disabled.
    try:
        return principals.principal_id_named(name, tenant_id=tenant_id)
    except UnknownPrincipal:
        raise refusal from None
