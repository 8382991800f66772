"""Commands about who acts."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction
from django.db.models import Q
from oauth2_provider.models import Application, clear_expired

from apps.core.errors import Conflict, Invalid, NotFound
from apps.core.ids import fits_an_address
from apps.core.sql import violated_constraint
from apps.principals.models import (
    Membership,
    Operator,
    Principal,
    Secret,
    Tenant,
    Token,
    given_secret,
    new_secret,
)
from apps.principals.scopes import Kind, Scope, forbidden_to
from apps.principals.selectors import NameTaken, UnknownPrincipal

# The gates themselves act under these names in every tenant.
ASYNCGATE: Final = "asyncgate"
DELEGATE: Final = "delegate"
BUILT_IN: Final = frozenset({ASYNCGATE, DELEGATE})
# A client that registered itself, and that nobody has let in.
_UNUSED_KEPT: Final = timedelta(days=1)
# For longer than a client may refresh a token after its end.
_LAPSED_KEPT: Final = timedelta(days=31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new token; the secret exists nowhere else."""

    token: Token
    secret: Secret


def set_password(*, operator: Operator, password: str) -> None:
    """Let an operator sign in to the console with this password; other sessions end."""
    operator.set_password(password)
    operator.save(update_fields=["password"])


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
        if violated_constraint(exc) != "principals_principal_name_once":
            raise
        raise NameTaken(f"There is a principal {name!r} already.") from exc


@transaction.atomic
def place_under(*, parent: Principal, principal: Principal) -> bool:
    """Let a principal report to another; False if it does."""
    return Principal.objects.filter(pk=principal.pk).exclude(parent=parent).update(parent=parent) > 0


@transaction.atomic
def issue_token(
    *,
    principal: Principal,
    scopes: Collection[Scope],
    now: datetime,
    source_systems: Collection[str] = (),
    label: str = "",
    expires_at: datetime | None = None,
    secret: Secret | None = None,
    client: str = "",
) -> Issued:
    """Issue a token to a principal. Its text is in the answer and nowhere else.

    :raises Invalid: if the principal's kind can't hold one of the scopes.
    """
    if refused := forbidden_to(Kind(principal.kind), frozenset(scopes)):
        raise Invalid(f"A {principal.kind} can't hold {', '.join(sorted(refused))}.", code="scope_not_for_kind")
    secret = secret or new_secret()
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
        client=client,
    )
    return Issued(token=token, secret=secret)


@transaction.atomic
def renew_token(*, token_id: int, former: bytes, secret: Secret, scopes: Collection[str], expires_at: datetime) -> None:
    """Let an OAuth client's token go on under another text, with those of its scopes that are named.

    :param former: the digest that it has until now.
    :raises NotFound: if it has ended, or was renewed meanwhile.
    """
    token = Token.objects.select_for_update().filter(pk=token_id, digest=former, revoked_at=None).first()
    if token is None:
        raise NotFound("There is no such token.", code="unknown_token")
    token.prefix, token.digest, token.expires_at = secret.prefix, secret.digest, expires_at
    token.scopes = [scope for scope in token.scopes if scope in scopes]
    token.save(update_fields=["prefix", "digest", "expires_at", "scopes"])


@transaction.atomic
def end_client(*, client: Application, now: datetime) -> None:
    """Remove an OAuth client; whatever it holds ends at once. Runs as the system."""
    Token.objects.filter(client=client.client_id, revoked_at=None).update(revoked_at=now)
    client.delete()


@transaction.atomic
def forget_lapsed(*, now: datetime) -> None:
    """Remove what OAuth clients no longer use: lapsed tokens, and clients that nobody let in. Runs as the system."""
    clear_expired()
    Token.objects.exclude(client="").filter(expires_at__lte=now - _LAPSED_KEPT).delete()
    by_themselves = Application.objects.exclude(registration_source=Application.RegistrationSource.MANUAL)
    by_themselves.filter(created__lte=now - _UNUSED_KEPT, refreshtoken=None).delete()


@transaction.atomic
def admit_operator(
    *, username: str, email: str, is_superuser: bool, roles: Mapping[str, Membership.Role], groups: Collection[str]
) -> Operator | None:
    """The account of a person for whom an identity provider vouches, with these rights and no others.

    Whoever has none gets None, and an account of before is closed. Runs as the system.

    :param roles: by the tenant's slug.
    """
    if not is_superuser and not roles:
        Operator.objects.filter(username=username).update(is_active=False)
        return None
    operator, created = Operator.objects.get_or_create(username=username)
    if created:
        operator.set_unusable_password()
    operator.email, operator.is_superuser = email, is_superuser
    operator.is_staff = operator.is_active = True
    operator.save()
    operator.groups.set(Group.objects.filter(name__in=groups))
    Membership.objects.filter(operator=operator).exclude(tenant__slug__in=roles).delete()
    for tenant in Tenant.objects.filter(slug__in=roles):
        Membership.objects.update_or_create(operator=operator, tenant=tenant, defaults={"role": roles[tenant.slug]})
    return operator


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
    known = Token.objects.filter(digest=secret.digest).first()
    if known is not None:
        if (known.tenant_id, known.source_systems, known.label) != (tenant_id, [source_system], label):
            raise Invalid(f"{label} is a token that stands for something else already.", code="weak_secret")
        return known
    principal = Principal.objects.filter(tenant_id=tenant_id).named(source_system).first()
    if principal is None:
        principal = add_principal(tenant_id=tenant_id, name=source_system, kind=Kind.SERVICE, now=now)
    if principal.kind not in {Kind.SERVICE, Kind.DELEGATE}:
        raise NameTaken(f"{principal.name} is of the kind {principal.kind}; {label} needs a service of that name.")
    own = Token.objects.filter(tenant_id=tenant_id, source_systems=[source_system], label=label, revoked_at=None)
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
    """End a token at once; the first time is kept.

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
    :raises Conflict: for an OAuth client's, which has another way to renew it.
    """
    old = Token.objects.select_for_update().filter(pk=token_id, revoked_at=None).select_related("principal").first()
    if old is not None and old.client:
        raise Conflict("An OAuth client renews its token by its refresh token.", code="oauth_token")
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


def _changeable(principal_id: int) -> Principal:
    principal = Principal.objects.select_for_update(no_key=True).filter(pk=principal_id).first()
    if principal is None:
        raise UnknownPrincipal("There is no such principal.")
    if principal.name in BUILT_IN:
        raise Conflict(f"{principal.name} is a gate's own principal.", code="built_in_principal")
    return principal


@transaction.atomic
def note_use(*, token_id: int, now: datetime) -> None:
    """Remember that a token was used."""
    Token.objects.filter(pk=token_id).update(last_used_at=now)
