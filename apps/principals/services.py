"""Commands about who acts."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import IntegrityError, transaction

from apps.core.sql import violated_constraint
from apps.principals.errors import NameTaken, ScopeNotForKind, UnknownToken
from apps.principals.models import Principal, Tenant, Token
from apps.principals.scopes import Kind, Scope, forbidden_to
from apps.principals.secrets import Secret, new_secret

# The gates themselves act under these names in every tenant.
ASYNCGATE: Final = "asyncgate"
DELEGATE: Final = "delegate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new token; the secret exists nowhere else."""

    token: Token
    secret: Secret


@transaction.atomic
def create_tenant(*, slug: str, name: str, now: datetime) -> Tenant:
    """Open a tenant with the principals that the gates act under. Runs as the system."""
    tenant, created = Tenant.objects.get_or_create(slug=slug, defaults={"name": name, "created_at": now})
    if created:
        Principal.objects.create(tenant=tenant, name=ASYNCGATE, kind=Kind.SERVICE, created_at=now)
        Principal.objects.create(tenant=tenant, name=DELEGATE, kind=Kind.DELEGATE, created_at=now)
    return tenant


@transaction.atomic
def add_principal(
    *, tenant_id: int, name: str, kind: Kind, now: datetime, parent: Principal | None = None
) -> Principal:
    """Add a principal to a tenant.

    :raises NameTaken: if the tenant has one of that name.
    """
    try:
        with transaction.atomic():
            return Principal.objects.create(
                tenant=Tenant.objects.get(pk=tenant_id), name=name, kind=kind, parent=parent, created_at=now
            )
    except IntegrityError as exc:
        if violated_constraint(exc) != "principals_principal_name_once":
            raise
        raise NameTaken(f"There is a principal {name!r} already.") from exc


@transaction.atomic
def issue_token(
    *,
    principal: Principal,
    scopes: Collection[Scope],
    now: datetime,
    source_systems: Collection[str] = (),
    label: str = "",
    expires_at: datetime | None = None,
) -> Issued:
    """Issue a token to a principal. Its text is in the answer and nowhere else.

    :raises ScopeNotForKind: if the principal's kind can't hold one of the scopes.
    """
    if refused := forbidden_to(Kind(principal.kind), frozenset(scopes)):
        raise ScopeNotForKind(f"A {principal.kind} can't hold {', '.join(sorted(refused))}.")
    secret = new_secret()
    token = Token.objects.create(
        tenant_id=principal.tenant_id,
        principal=principal,
        label=label,
        prefix=secret.prefix,
        digest=secret.digest,
        scopes=sorted(set(scopes)),
        source_systems=sorted(set(source_systems)),
        created_at=now,
        expires_at=expires_at,
    )
    return Issued(token=token, secret=secret)


@transaction.atomic
def revoke_token(*, token_id: int, now: datetime) -> None:
    """End a token at once; doing it twice keeps the first time.

    :raises UnknownToken: if the tenant has no such token.
    """
    if not Token.objects.filter(pk=token_id).exists():
        raise UnknownToken("There is no such token.")
    Token.objects.filter(pk=token_id, revoked_at=None).update(revoked_at=now)


@transaction.atomic
def disable_principal(*, principal_id: int, now: datetime) -> None:
    """Stop a principal from acting; its tokens are refused from now on, its inbox stays."""
    Principal.objects.filter(pk=principal_id, disabled_at=None).update(disabled_at=now)


@transaction.atomic
def note_use(*, token_id: int, now: datetime) -> None:
    """Remember that a token was used."""
    Token.objects.filter(pk=token_id).update(last_used_at=now)
