"""Plain functions that make what tests need, through the product's own services."""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.db.models import Q
from django.test import Client

from apps.core.errors import DomainError
from apps.core.sql import database_now, execute
from apps.principals import selectors, services
from apps.principals.models import Membership, Operator, Principal, Tenant
from apps.principals.scopes import Kind, Scope
from apps.principals.tenancy import Caller, acting_as_system, on_behalf_of

T0 = datetime(2026, 1, 3, 20, 15, tzinfo=UTC)


def make_tenant(slug: str = "acme") -> Tenant:
    with acting_as_system("test"):
        return services.create_tenant(slug=slug, name=slug, now=T0)


def make_principal(tenant: Tenant, name: str, kind: Kind = Kind.AI) -> Principal:
    with acting_as_system("test"):
        found = Principal.objects.filter(tenant=tenant).named(name).select_related("tenant").first()
        return found or services.add_principal(tenant_id=tenant.pk, name=name, kind=kind, now=T0)


def make_caller(tenant: Tenant, name: str = "Kee", kind: Kind = Kind.AI) -> Caller:
    """A principal acting by itself, with every scope that its kind may hold."""
    return on_behalf_of(make_principal(tenant, name, kind))


def make_token(
    tenant: Tenant,
    name: str = "Kee",
    kind: Kind = Kind.AI,
    *,
    scopes: Collection[Scope] | None = None,
    source_systems: Collection[str] = (),
    expires_at: datetime | None = None,
) -> str:
    """The text of a fresh token."""
    principal = make_principal(tenant, name, kind)
    granted = on_behalf_of(principal).scopes if scopes is None else scopes
    with acting_as_system("test"):
        issued = services.issue_token(
            principal=principal, scopes=granted, source_systems=source_systems, expires_at=expires_at, now=T0
        )
    return issued.secret.text


def credential_of(text: str) -> Caller | None:
    """Who a token's text stands for now."""
    from apps.principals.models import read_secret  # noqa: PLC0415

    secret = read_secret(text)
    found = selectors.credential(secret.digest, now=T0) if secret else None
    return found.caller if found else None


def operator(*permissions: str, tenant: Tenant, role: str = "operator", name: str = "olga") -> Client:
    """The browser of somebody who may do this where they are of this role; an empty name stands for everything."""
    olga = Operator.objects.create_user(username=name, password="x", is_staff=True)
    named = Q() if "" in permissions else Q(codename__in=permissions)
    olga.user_permissions.set(Permission.objects.filter(named))
    with acting_as_system("test"):
        Membership.objects.create(operator=olga, tenant=tenant, role=role)
    client = Client()
    client.force_login(olga, backend="django.contrib.auth.backends.ModelBackend")
    return client


@contextmanager
def as_owner() -> Iterator[CursorWrapper]:
    """The owner of the tables, whom the wall does not bind, for a moment of the transaction that is open."""
    with connection.cursor() as cursor:
        cursor.execute("select current_user")
        (role,) = cursor.fetchone()
        cursor.execute("set constraints all immediate; set local role none")
        cursor.execute(_WALL, ["no force"])
        yield cursor
        cursor.execute("set constraints all immediate")
        cursor.execute(_WALL, ["force"])
        cursor.execute(f"set local role {role}")


_WALL = """
do $$ declare part regclass; begin
    for part in select oid from pg_class where relrowsecurity loop
        execute format('alter table %%s %%s row level security', part, %s);
    end loop;
end $$
"""


def at(moment: datetime) -> None:
    """Stop the database's clock at a moment within this transaction."""
    execute("select set_config('gatehouse.now', %s, true)", [moment.isoformat()])


def pass_time(by: timedelta | float = 0.0) -> None:
    """Move the database's clock within this transaction, and stop it there."""
    at(database_now() + (by if isinstance(by, timedelta) else timedelta(seconds=by)))


@contextmanager
def refused(code: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[Any]]:
    """What the block does is refused with this code."""
    with pytest.raises(DomainError, match=match) as refusal:
        yield refusal
    assert refusal.value.code == code


def ask(method: str, path: str, token: str, body: Any = None) -> tuple[int, Any]:
    """The status and the document of an answer; a path without a slash at its beginning is one of `/api/v1/`."""
    answer = Client().generic(
        method,
        path if path.startswith("/") else f"/api/v1/{path}",
        "" if body is None else json.dumps(body),
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )
    return answer.status_code, answer.json() if answer.content else None
