"""Questions about who acts."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from django.db import connection, transaction

from apps.core.errors import Conflict, NotFound
from apps.core.notifications import notified_together
from apps.core.sql import begin_asking, fetch
from apps.principals.models import Membership, Operator, Principal, Secret, Tenant, Token
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller

_USED_EVERY: Final = timedelta(minutes=1)


class UnknownPrincipal(NotFound):
    """No principal of this name is visible to the caller."""

    code = "unknown_principal"


class NameTaken(Conflict):
    """The tenant has a principal of this name."""

    code = "name_taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A valid token's caller, and whether its use should be noted (at most once a minute)."""

    caller: Caller
    unnoted: bool


def credential(digest: bytes, *, now: datetime | None) -> Credential | None:
    """Who a token of this digest stands for; None if it is unknown, revoked, expired, or its principal disabled.

    The look-up runs before any tenant is set, through a function that answers one row.

    :param now: left out, an expired one counts too.
    """
    found = fetch(f"select {_FOUND} from gatehouse_token(%s)", [digest], hot=True)  # noqa: S608  # columns
    return _credential(found[0], now) if found else None


@contextmanager
def acting_by(
    secrets: Sequence[Secret], *, now: datetime, lock_timeout: str | None
) -> Iterator[Mapping[Secret, Credential]]:
    """A transaction of whoever tokens stand for, as :func:`credential` finds them, by the exchange that begins it.

    Valid tokens of another tenant than the last one's are left out.
    """
    if connection.in_atomic_block:
        (secret,) = secrets
        alone = credential(secret.digest, now=now)
        with alone.caller.acting(lock_timeout=lock_timeout) if alone else nullcontext():
            yield {secret: alone} if alone else {}
        return
    by_digest = {secret.digest.hex(): secret for secret in secrets}
    digests = "{" + ",".join(f"\\\\x{digest}" for digest in by_digest) + "}"
    with notified_together(), transaction.atomic():
        rows = begin_asking(_BEGINNING[len(secrets) == 1], [digests], lock_timeout=lock_timeout)
        found: dict[Secret, Credential] = {}
        acting_in = rows[-1][1] if rows else None
        for answer, tenant, *_ in rows:
            digest, *row = answer
            one = _credential(row, now) if tenant == acting_in else None
            if one is not None:
                found[by_digest[digest]] = one
        if len(_tenants) >= _MOST_TENANTS:
            _tenants.clear()
        _tenants.update({secret.digest: one.caller.tenant_id for secret, one in found.items()})
        yield found


_MOST_TENANTS: Final = 10_000
_tenants: Final[dict[bytes, int]] = {}
"""Of tokens that were valid before, by their digests."""


def presumed_tenant(secret: Secret) -> int | None:
    """The tenant of a token that this process has seen valid, whatever became of it since; None if it has not."""
    return _tenants.get(secret.digest)


_FOUND: Final = """token_id, tenant_id, tenant_slug, principal_id, principal_name, kind, scopes, source_systems,
    expires_at, revoked_at, disabled_at, last_used_at"""
# By whether one token is asked for, whose principal acts then.
_BEGINNING: Final = {
    alone: f"""
select json_build_array(encode(digest, 'hex'), {_FOUND}), set_config('gatehouse.tenant', tenant_id::text, true),
    set_config('role', 'gatehouse_app', true), set_config('gatehouse.principal', {principal}, true),
    set_config('gatehouse.reason', '', true), set_config('enable_seqscan', 'off', true)
from unnest($1::bytea[]) digest cross join lateral gatehouse_token(digest)
"""  # noqa: S608  # nothing of a request
    for alone, principal in ((True, "principal_id::text"), (False, "''"))
}


def _credential(row: Sequence[Any], now: datetime | None) -> Credential | None:
    *identity, scopes, sources, expires_at, revoked_at, disabled_at, last_used_at = row
    if revoked_at or disabled_at or (now and expires_at and _moment(expires_at) <= now):
        return None
    unnoted = last_used_at is None or now is None or now - _moment(last_used_at) >= _USED_EVERY
    return Credential(caller=_caller(tuple(identity), tuple(scopes), tuple(sources)), unnoted=unnoted)


@lru_cache(maxsize=1024)
def _caller(identity: tuple[Any, ...], scopes: tuple[str, ...], sources: tuple[str, ...]) -> Caller:
    token_id, tenant_id, slug, principal_id, name, kind = identity
    return Caller(
        tenant_id=tenant_id,
        tenant_slug=slug,
        principal_id=principal_id,
        name=name,
        kind=Kind(kind),
        scopes=frozenset(map(Scope, scopes)),
        source_systems=frozenset(sources),
        token_id=token_id,
    )


def _moment(told: datetime | str) -> datetime:
    return datetime.fromisoformat(told) if isinstance(told, str) else told


def principal_named(name: str) -> Principal:
    """The enabled principal of this name in the current tenant.

    :raises UnknownPrincipal: if there is none.
    """
    principal = Principal.objects.enabled().named(name).select_related("tenant").first()
    if principal is None:
        raise UnknownPrincipal(f"There is no principal {name[:50]!r}.")
    return principal


def principal_id_named(name: str, *, tenant_id: int) -> int:
    """The key alone of a tenant's enabled principal of this name: what every post asks.

    :raises UnknownPrincipal: if there is none.
    """
    found = principal_ids_named([name], tenant_id=tenant_id)
    if name not in found:
        raise UnknownPrincipal(f"There is no principal {name[:50]!r}.")
    return found[name]


def principal_ids_named(names: Collection[str], *, tenant_id: int) -> dict[str, int]:
    """The keys of those of these names that a tenant's enabled principals have."""
    return dict(
        fetch(
            "select name, id from principals_principal where tenant_id = %s and name = any(%s) and disabled_at is null",
            [tenant_id, list(names)],
            hot=True,
        )
    )


def any_principal_named(name: str) -> Principal:
    """The principal of this name in the current tenant, disabled or not.

    :raises UnknownPrincipal: if there is none.
    """
    principal = Principal.objects.named(name).first()
    if principal is None:
        raise UnknownPrincipal(f"There is no principal {name[:50]!r}.")
    return principal


def refuse_unknown(names: Collection[str], *, tenant_id: int) -> None:
    """
    :raises UnknownPrincipal: if a tenant has no principal of one of these names, disabled or not.
    """
    known = set(Principal.objects.filter(tenant_id=tenant_id, name__in=names).values_list("name", flat=True))
    for name in names:
        if name not in known:
            raise UnknownPrincipal(f"There is no principal {name[:50]!r}.")


def token_of(principal_id: int, token_id: int) -> Token:
    """:raises NotFound: if the principal has none of this key."""
    token = Token.objects.filter(principal_id=principal_id, pk=token_id).first()
    if token is None:
        raise NotFound("There is no such token.", code="unknown_token")
    return token


def caller_or_named(caller: Caller, name: str | None) -> int:
    """The id of the principal an identity argument names; left out, it is the caller.

    :raises UnknownPrincipal: for anybody else, as if there were none.
    """
    if name is None or name == caller.name:
        return caller.principal_id
    raise UnknownPrincipal(f"There is no principal {name[:50]!r}.")


def tenant_named(slug: str) -> Tenant:
    """:raises NotFound: if there is none."""
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        raise NotFound(f"There is no tenant {slug[:50]!r}.", code="unknown_tenant")
    return tenant


def operated_tenants(operator: Operator) -> set[int]:
    """The tenants in which a person may act, not only look."""
    if operator.is_superuser:
        return set(Tenant.objects.values_list("pk", flat=True))
    roles = [Membership.Role.OPERATOR, Membership.Role.OWNER]
    return set(Membership.objects.filter(operator=operator, role__in=roles).values_list("tenant_id", flat=True))
