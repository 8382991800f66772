"""Commands about who acts."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Never

from django.db import IntegrityError, transaction
from django.db.models import Q

from apps.core.errors import Conflict, Invalid, NotFound
from apps.core.ids import fits_an_address
from apps.core.sql import violated_constraint
from apps.principals.errors import NameTaken, UnknownPrincipal
from apps.principals.models import Principal, Secret, Tenant, Token, given_secret, new_secret
from apps.principals.scopes import Kind, Scope, forbidden_to

# The gates themselves act under these names in every tenant.
ASYNCGATE: Final = "asyncgate"
DELEGATE: Final = "delegate"
BUILT_IN: Final = frozenset({ASYNCGATE, DELEGATE})


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
def keep_receipts(*, slug: str, period: timedelta | None) -> None:
    """Let a tenant's receipts be kept for a time of its own once they are acked; None: as all others. Runs as the system.

    :raises NotFound: if there is no such tenant.
    :raises Invalid: if that is no length of time.
    """
    if period is not None and period <= timedelta(0):
        raise Invalid("Receipts are kept for some time, at least a moment.", code="impossible_period")
    if not Tenant.objects.filter(slug=slug).update(keep_receipts=period):
        raise NotFound(f"There is no tenant {slug!r}.", code="unknown_tenant")


@transaction.atomic
def add_principal(
    *, tenant_id: int, name: str, kind: Kind, now: datetime, parent: Principal | None = None
) -> Principal:
    """Add a principal to a tenant.

    :raises Invalid: if no route could name it.
    :raises NameTaken: if the tenant has one of that name.
    """
    if not fits_an_address(name):
        raise Invalid(f"{name[:50]!r} can't stand in an address: no slash, not . or ..", code="unusable_name")
    try:
        with transaction.atomic():
            return Principal.objects.create(
                tenant=Tenant.objects.get(pk=tenant_id), name=name, kind=kind, parent=parent, created_at=now
            )
    except IntegrityError as exc:
        _refuse_taken(exc, name)


@transaction.atomic
def place_under(*, parent: Principal, principals: Collection[int]) -> frozenset[int]:
    """Let these principals, named by their keys, report to another; tells which of them did not before."""
    moved = Principal.objects.filter(pk__in=principals).exclude(parent=parent)
    keys = frozenset(moved.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
    Principal.objects.filter(pk__in=keys).update(parent=parent)
    return keys


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

    :raises Invalid: if the principal's kind can't hold one of the scopes.
    """
    if refused := forbidden_to(Kind(principal.kind), frozenset(scopes)):
        raise Invalid(f"A {principal.kind} can't hold {', '.join(sorted(refused))}.", code="scope_not_for_kind")
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
def accept_token(*, tenant_id: int, source_system: str, text: str, label: str, now: datetime) -> Token:
    """Let a text from elsewhere be the token with which a source posts; the one before it of this label ends.

    It is a token of the service principal that has the source's name, which is made where there is none. A text that
    was accepted before, and revoked since, stays revoked. Runs as the system.

    :raises Invalid: if the text has fewer than 32 characters, or few different ones, or is a token otherwise.
    :raises NameTaken: if the principal of that name is an agent or a worker.
    """
    secret = given_secret(text)
    if secret is None:
        raise Invalid(
            f"{label} is not a text of 32 to 200 visible characters, of which enough are different.", code="weak_secret"
        )
    principal = Principal.objects.filter(tenant_id=tenant_id).named(source_system).first()
    if principal is None:
        principal = add_principal(tenant_id=tenant_id, name=source_system, kind=Kind.SERVICE, now=now)
    if principal.kind not in {Kind.SERVICE, Kind.DELEGATE}:
        raise NameTaken(f"{principal.name} is of the kind {principal.kind}; {label} needs a service of that name.")
    known = Token.objects.filter(digest=secret.digest).first()
    if known is not None:
        if (known.principal_id, known.label) != (principal.pk, label):
            raise Invalid(f"{label} is a token that stands for something else already.", code="weak_secret")
        return known
    own = Token.objects.filter(principal=principal, label=label, revoked_at=None)
    own.update(revoked_at=now)
    return Token.objects.create(
        tenant_id=tenant_id,
        principal=principal,
        label=label,
        prefix=secret.prefix,
        digest=secret.digest,
        scopes=[Scope.RECEIPTS_WRITE],
        source_systems=[source_system],
        created_at=now,
    )


@transaction.atomic
def revoke_token(*, token_id: int, now: datetime) -> None:
    """End a token at once; doing it twice keeps the first time.

    :raises NotFound: if the tenant has no such token.
    """
    if not Token.objects.filter(pk=token_id).exists():
        raise NotFound("There is no such token.", code="unknown_token")
    Token.objects.filter(pk=token_id, revoked_at=None).update(revoked_at=now)


@transaction.atomic
def revoke_tokens(*, principal_id: int, now: datetime) -> int:
    """End every token of a principal at once; answers how many were still valid."""
    valid = Token.objects.filter(principal_id=principal_id, revoked_at=None)
    return valid.filter(Q(expires_at=None) | Q(expires_at__gt=now)).update(revoked_at=now)


@transaction.atomic
def rotate_token(*, token_id: int, overlap: timedelta, now: datetime) -> Issued:
    """Issue a successor that may do the same; the old token is valid for the overlap, at most as long as before.

    :raises NotFound: if the tenant has no such valid token.
    """
    old = Token.objects.select_for_update().filter(pk=token_id, revoked_at=None).select_related("principal").first()
    if old is None:
        raise NotFound("There is no such token.", code="unknown_token")
    issued = issue_token(
        principal=old.principal,
        scopes=[Scope(scope) for scope in old.scopes],
        source_systems=old.source_systems,
        label=old.label,
        expires_at=old.expires_at,
        now=now,
    )
    ends = now + overlap
    if old.expires_at is None or ends < old.expires_at:
        Token.objects.filter(pk=old.pk).update(expires_at=ends)
    return issued


@transaction.atomic
def disable_principal(*, principal_id: int, now: datetime) -> Principal:
    """Stop a principal from acting; its tokens are refused from now on, its inbox stays.

    :raises UnknownPrincipal: if the tenant has none of this key.
    :raises Conflict: for the gates' own principals.
    """
    principal = _changeable(principal_id)
    principal.disabled_at = principal.disabled_at or now
    principal.save(update_fields=["disabled_at"])
    return principal


@transaction.atomic
def enable_principal(*, principal_id: int) -> Principal:
    """Let a disabled principal act again, with those of its tokens that are still valid.

    :raises UnknownPrincipal: if the tenant has none of this key.
    :raises Conflict: for the gates' own principals.
    """
    principal = _changeable(principal_id)
    principal.disabled_at = None
    principal.save(update_fields=["disabled_at"])
    return principal


@transaction.atomic
def rename_principal(*, principal_id: int, name: str) -> Principal:
    """Give a principal another name. Inbox, tokens and history stay; the old name leads nowhere and is free.

    :raises UnknownPrincipal: if the tenant has none of this key.
    :raises Conflict: for the gates' own principals.
    :raises NameTaken: if the tenant has another one of that name.
    """
    principal = _changeable(principal_id)
    principal.name = name
    try:
        with transaction.atomic():
            principal.save(update_fields=["name"])
    except IntegrityError as exc:
        _refuse_taken(exc, name)
    return principal


def _changeable(principal_id: int) -> Principal:
    principal = Principal.objects.select_for_update(no_key=True).filter(pk=principal_id).first()
    if principal is None:
        raise UnknownPrincipal("There is no such principal.")
    if principal.name in BUILT_IN:
        raise Conflict(f"{principal.name} is a gate's own principal.", code="built_in_principal")
    return principal


def _refuse_taken(exc: IntegrityError, name: str) -> Never:
    if violated_constraint(exc) != "principals_principal_name_once":
        raise exc
    raise NameTaken(f"There is a principal {name!r} already.") from exc


@transaction.atomic
def note_use(*, token_id: int, now: datetime) -> None:
    """Remember that a token was used."""
    Token.objects.filter(pk=token_id).update(last_used_at=now)
