"""Operations about the caller itself, its tokens, and the life of principals."""

from datetime import datetime, timedelta
from typing import Annotated

from django.utils import timezone
from pydantic import Field

from apps.core.errors import NotFound
from apps.core.operations import Route, operation
from apps.core.schemas import Empty, Input, Name, Output, Paged
from apps.principals import selectors, services
from apps.principals.models import Token
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller

MAX_OVERLAP = 7 * 24 * 3600


class CallerOutput(Output):
    """Who the presented token stands for."""

    principal: str
    kind: str
    tenant: str
    scopes: list[str]
    source_systems: list[str]


@operation(
    title="Who am I",
    keywords="permissions identity principal",
    routes=[Route("GET", "/api/v1/whoami")],
    read_only=True,
    example={},
)
def whoami(caller: Caller, given: Empty) -> CallerOutput:
    """Say which principal, tenant and scopes this token stands for."""
    return CallerOutput(
        principal=caller.name,
        kind=caller.kind,
        tenant=caller.tenant_slug,
        scopes=sorted(caller.scopes),
        source_systems=sorted(caller.source_systems),
    )


class TokenOutput(Output):
    """A token of yours; its text is stored nowhere."""

    token_id: Annotated[int, Field(validation_alias="pk")]
    label: str
    prefix: str
    scopes: list[str]
    source_systems: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class TokensOutput(Output):
    tokens: list[TokenOutput]
    """The newest first."""
    next: str | None
    """Hand it back as `cursor` for the next page; null at the end."""


@operation(title="Your tokens", routes=[Route("GET", "/api/v1/tokens")], read_only=True, tool=False)
def list_tokens(caller: Caller, given: Paged) -> TokensOutput:
    """List the tokens of the caller's principal, revoked and expired ones too."""
    page, following = given.of(Token.objects.filter(principal_id=caller.principal_id), newest_first=True)
    return TokensOutput(tokens=[TokenOutput.model_validate(token) for token in page], next=following)


class OfToken(Input):
    token_id: Annotated[int, Field(ge=1, lt=2**63)]


class Revoked(Output):
    revoked: int
    """How many tokens were valid until now."""


@operation(
    title="Revoke a token of yours",
    routes=[Route("DELETE", "/api/v1/tokens/{token_id}")],
    destructive=True,
    idempotent=True,
    tool=False,
)
def revoke_token(caller: Caller, given: OfToken) -> TokenOutput:
    """End one of the caller's tokens at once."""
    token = selectors.token_of(caller.principal_id, given.token_id)
    services.revoke_token(token_id=token.pk, now=timezone.now())
    token.refresh_from_db()
    return TokenOutput.model_validate(token)


@operation(
    title="Revoke all your tokens",
    routes=[Route("POST", "/api/v1/tokens/revoke-all")],
    destructive=True,
    idempotent=True,
    tool=False,
)
def revoke_own_tokens(caller: Caller, given: Empty) -> Revoked:
    """End every token of the caller's principal at once, this one too: what to do when one has leaked."""
    return Revoked(revoked=services.revoke_tokens(principal_id=caller.principal_id, now=timezone.now()))


class RotateToken(Input):
    overlap_seconds: Annotated[int, Field(ge=0, le=MAX_OVERLAP)] = 3600
    """How long the presented token stays valid beside its successor."""


class RotatedOutput(Output):
    token: str
    """The new token; it is shown here and nowhere else."""
    expires_at: datetime | None
    old_token_expires_at: datetime


@operation(title="Rotate your token", routes=[Route("POST", "/api/v1/tokens/rotate", status=201)], tool=False)
def rotate_token(caller: Caller, given: RotateToken) -> RotatedOutput:
    """Issue a successor of the presented token that may do the same; the presented one ends after the overlap."""
    if caller.token_id is None:
        raise NotFound("There is no such token.", code="unknown_token")
    overlap = timedelta(seconds=given.overlap_seconds)
    issued = services.rotate_token(token_id=caller.token_id, overlap=overlap, now=timezone.now())
    old = selectors.token_of(caller.principal_id, caller.token_id)
    return RotatedOutput(
        token=issued.secret.text,
        expires_at=issued.token.expires_at,
        old_token_expires_at=old.expires_at or issued.token.created_at,
    )


class PrincipalOutput(Output):
    name: str
    kind: str
    created_at: datetime
    disabled_at: datetime | None


class OfPrincipal(Input):
    name: Name


@operation(
    title="Disable a principal",
    scope=Scope.ADMIN,
    routes=[Route("POST", "/api/v1/principals/{name}/disable")],
    destructive=True,
    idempotent=True,
    tool=False,
)
def disable_principal(caller: Caller, given: OfPrincipal) -> PrincipalOutput:
    """Stop a principal from acting: its tokens are refused and receipts to it too; its inbox stays."""
    principal = selectors.any_principal_named(given.name)
    changed = services.disable_principal(principal_id=principal.pk, now=timezone.now())
    return PrincipalOutput.model_validate(changed)


@operation(
    title="Enable a principal",
    scope=Scope.ADMIN,
    routes=[Route("POST", "/api/v1/principals/{name}/enable")],
    idempotent=True,
    tool=False,
)
def enable_principal(caller: Caller, given: OfPrincipal) -> PrincipalOutput:
    """Let a disabled principal act again."""
    principal = selectors.any_principal_named(given.name)
    return PrincipalOutput.model_validate(services.enable_principal(principal_id=principal.pk))


@operation(
    title="Revoke a principal's tokens",
    scope=Scope.ADMIN,
    routes=[Route("POST", "/api/v1/principals/{name}/revoke-tokens")],
    destructive=True,
    idempotent=True,
    tool=False,
)
def revoke_principal_tokens(caller: Caller, given: OfPrincipal) -> Revoked:
    """End every token of a principal at once."""
    principal = selectors.any_principal_named(given.name)
    return Revoked(revoked=services.revoke_tokens(principal_id=principal.pk, now=timezone.now()))
