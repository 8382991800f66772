"""The wall between tenants: a transaction shows one tenant's rows, all of them to the system role, or none.

Requests log in as `gatehouse_app`, which row-level security binds. What acts as system or operator logs in as
`gatehouse_system`, which requests can't become. Settings are always local to the transaction, so that a pooled
connection carries nothing over. In development one login may act in all roles.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final

from django.db import connection, transaction

from apps.core.notifications import notified_together
from apps.core.sql import SYSTEM, beginning_with, execute, fetch, logged_in_as
from apps.principals.models import Principal
from apps.principals.scopes import FORBIDDEN, Kind, Scope

_SETTINGS: Final = (
    "role",
    "gatehouse.tenant",
    "gatehouse.tenants",
    "gatehouse.principal",
    "gatehouse.reason",
    "lock_timeout",
    "enable_seqscan",
)
# What a tenant asks goes by an index. A plan from a time when its tables were small would read them whole until it is
# made anew.
_BY_INDEX: Final = {"enable_seqscan": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A principal in the act: what a valid token, or a job on a principal's behalf, stands for."""

    tenant_id: int
    tenant_slug: str
    principal_id: int
    name: str
    kind: Kind
    scopes: frozenset[Scope]
    source_systems: frozenset[str] = frozenset()
    token_id: int | None = None

    # DRF and Django ask this of whoever stands in request.user.
    is_authenticated: bool = True
    is_active: bool = True

    def acting(self, *, lock_timeout: str | None = None) -> AbstractContextManager[None]:
        return acting_as(self, lock_timeout=lock_timeout)

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes


def on_behalf_of(principal: Principal) -> Caller:
    """The product itself acting for a principal, with every scope that its kind may hold."""
    kind = Kind(principal.kind)
    return Caller(
        tenant_id=principal.tenant_id,
        tenant_slug=principal.tenant.slug,
        principal_id=principal.pk,
        name=principal.name,
        kind=kind,
        scopes=frozenset(Scope) - {Scope.ADMIN} - FORBIDDEN[kind],
    )


def acting_as(caller: Caller, *, lock_timeout: str | None = None) -> AbstractContextManager[None]:
    """A transaction in which the database shows the caller's tenant and nothing else.

    :param lock_timeout: how long it waits for a lock, as PostgreSQL reads it; left out, as long as every connection.
    """
    settings = {
        "role": "gatehouse_app",
        "gatehouse.tenant": str(caller.tenant_id),
        "gatehouse.principal": str(caller.principal_id),
        "gatehouse.reason": "",
        **_BY_INDEX,
    }
    return _within(settings if lock_timeout is None else {**settings, "lock_timeout": lock_timeout})


def acting_in(tenant_id: int, why: str) -> AbstractContextManager[None]:
    """A transaction of the product itself within one tenant: executors, deliveries."""
    return _within(
        {
            "role": "gatehouse_app",
            "gatehouse.tenant": str(tenant_id),
            "gatehouse.principal": "",
            "gatehouse.reason": why,
            **_BY_INDEX,
        }
    )


@contextmanager
def acting_as_system(why: str) -> Iterator[None]:
    """A transaction that sees every tenant: ticks, claims of executors, superusers, metrics, readiness."""
    settings = {"role": "gatehouse_system", "gatehouse.tenant": "", "gatehouse.principal": "", "gatehouse.reason": why}
    with logged_in_as(SYSTEM), _within(settings):
        yield


@contextmanager
def acting_as_operator(tenant_ids: Collection[int], why: str) -> Iterator[None]:
    """A transaction that sees these tenants and no other: a person at the console."""
    settings = {
        "role": "gatehouse_operator",
        "gatehouse.tenant": "",
        "gatehouse.tenants": ",".join(map(str, sorted(tenant_ids))),
        "gatehouse.principal": "",
        "gatehouse.reason": why,
    }
    with logged_in_as(SYSTEM), _within(settings):
        yield


@contextmanager
def _within(settings: Mapping[str, str]) -> Iterator[None]:
    if connection.alias == SYSTEM:
        settings = _narrowed(settings)
    if not connection.in_atomic_block:
        with notified_together(), transaction.atomic(), beginning_with(settings):
            yield
        return
    before = _read()
    is_of_system = before["role"] != "gatehouse_app" and before["gatehouse.reason"]
    with transaction.atomic():
        _set(_narrowed(settings) if is_of_system else settings)
        yield
    # A savepoint that is kept keeps its settings; one that is rolled back has restored them.
    _set(before)


def _narrowed(settings: Mapping[str, str]) -> Mapping[str, str]:
    """The same for the system's login: it can't become the application's, so it acts as an operator of that tenant."""
    if settings["role"] != "gatehouse_app":
        return settings
    return {**settings, "role": "gatehouse_operator", "gatehouse.tenants": settings["gatehouse.tenant"]}


def _set(settings: Mapping[str, str]) -> None:
    calls = ", ".join(["set_config(%s, %s, true)"] * len(settings))
    execute(f"select {calls}", [part for pair in settings.items() for part in pair], hot=True)


def _read() -> dict[str, str]:
    calls = ", ".join(["coalesce(current_setting(%s, true), '')"] * len(_SETTINGS))
    (row,) = fetch(f"select {calls}", list(_SETTINGS))  # only placeholders
    return dict(zip(_SETTINGS, row, strict=True))
