"""The wall between tenants, asked of the database itself."""

import re

import psycopg
import pytest
from django.apps import apps
from django.db import connection, transaction
from django.db.utils import IntegrityError, ProgrammingError

from apps.core.rls import WITHOUT_TENANT
from apps.principals.models import Principal, Tenant, TenantModel
from apps.principals.tenancy import acting_as, acting_as_operator, acting_as_system
from tests.console.world import fill
from tests.factories import as_owner, make_caller, make_tenant

TENANT_TABLES = sorted(
    {model._meta.db_table for model in apps.get_models() if issubclass(model, TenantModel)} | {"principals_tenant"}
)


def test_login_role_starts_as_the_application(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("select current_user, rolsuper, rolbypassrls from pg_roles where rolname = session_user")
        assert cursor.fetchone() == ("gatehouse_app", False, False)


def test_every_tenant_table_has_row_level_security(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """select c.relname, p.polname, p.polcmd, p.polpermissive, p.polroles::regrole[]::text[],
                      pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)
               from pg_class c left join pg_policy p on p.polrelid = c.oid where c.relrowsecurity"""
        )
        policies: dict[str, dict[str, tuple[object, ...]]] = {}
        for table, name, *policy in cursor.fetchall():
            policies.setdefault(table, {})[name] = tuple(policy)
        cursor.execute(
            """select relname, relispartition from pg_attribute join pg_class on pg_class.oid = attrelid
               where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and attname = 'tenant_id'
                     and relname <> 'principals_membership'"""
        )
        with_tenant = dict(cursor.fetchall())

    partitions = {name for name, is_partition in with_tenant.items() if is_partition}
    assert len(partitions) >= 4 * 3
    assert sorted(set(policies) - partitions) == TENANT_TABLES
    assert set(with_tenant) <= set(policies)
    for table, found in policies.items():
        column = "id" if table == "principals_tenant" else "tenant_id"
        own, chosen = f"({column} = gatehouse_tenant())", f"({column} = ANY (gatehouse_tenants()))"
        assert found == {
            "tenant": ("*", True, ["gatehouse_app"], own, own),
            "operator": ("*", True, ["gatehouse_operator"], chosen, chosen),
            "system": ("*", True, ["gatehouse_system"], "true", "true"),
        }, table


def test_raw_connection_sees_no_rows_without_a_tenant(transactional_db: None) -> None:
    fill("acme")
    filled = _counts()
    assert sum(1 for count in filled.values() if count) > 20, "the wall is only seen where rows stand behind it"
    parameters = connection.get_connection_params()
    with psycopg.connect(**{k: parameters[k] for k in ("dbname", "user", "host", "port") if k in parameters}) as raw:
        for table in TENANT_TABLES:
            assert raw.execute(f"select count(*) from {table}").fetchone() == (0,), table
        raw.execute("select set_config('gatehouse.tenant', (select ''), true)")
        assert raw.execute("select count(*) from principals_principal").fetchone() == (0,)
        with acting_as_system("test"):
            acme = Tenant.objects.get(slug="acme").pk
        raw.execute("select set_config('gatehouse.tenant', %s, true)", [str(acme)])
        seen = {table: _one(raw.execute(f"select count(*) from {table}").fetchone()) for table in TENANT_TABLES}
        assert seen == filled


def _counts() -> dict[str, int]:
    with acting_as_system("test"), connection.cursor() as cursor:
        counts = {}
        for table in TENANT_TABLES:
            cursor.execute(f"select count(*) from {table}")
            counts[table] = _one(cursor.fetchone())
    return counts


def _one(row: tuple[int, ...] | None) -> int:
    assert row is not None
    return row[0]


def test_row_of_another_tenant_is_neither_seen_nor_written(db: None) -> None:
    kee, stranger = make_caller(make_tenant("acme")), make_caller(make_tenant("globex"))
    with acting_as(kee):
        assert not Principal.objects.filter(pk=stranger.principal_id).exists()
        with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
            Principal.objects.create(
                tenant_id=stranger.tenant_id, name="intruder", kind="ai", created_at="2026-01-01T00:00:00Z"
            )
    with acting_as_system("test"):
        assert not Principal.objects.filter(name="intruder").exists()


def test_no_row_refers_to_another_tenants(db: None) -> None:
    ours, theirs = fill("acme").tenant_id, fill("globex").tenant_id
    tried, plain = 0, set()
    with as_owner() as cursor:
        cursor.execute("select conname, conrelid::regclass::text, pg_get_constraintdef(oid) from pg_constraint")
        for name, child, rule in cursor.fetchall():
            key = re.match(r"FOREIGN KEY \((tenant_id, )?(\w+)\) REFERENCES (\w+)\((?:tenant_id, )?(\w+)\)", rule)
            if key is None or not {child, key[3]} <= {*TENANT_TABLES} - {"principals_tenant"}:
                continue
            if key[1] is None:
                plain.add(f"{child}.{key[2]}")
                continue
            cursor.execute(f"select min(ctid) from {child} where tenant_id = {ours} and {key[2]} is not null")
            (row,) = cursor.fetchone()
            cursor.execute(f"select max({key[4]}) from {key[3]} where tenant_id = {theirs}")
            (foreign,) = cursor.fetchone()
            if row is None or foreign is None:
                continue
            tried += 1
            change = f"""alter table {child} disable trigger user; set constraints all deferred;
                         set constraints {name} immediate; delete from {child} where tenant_id = {theirs};
                         update {child} set {key[2]} = %s where ctid = %s"""
            with pytest.raises(IntegrityError, match=name), transaction.atomic():
                cursor.execute(change, [foreign, row])
    assert (plain, tried > 25) == ({*WITHOUT_TENANT}, True)


def test_tenant_ends_with_the_transaction(transactional_db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    with acting_as(kee):
        assert Principal.objects.count() == 3
    assert Principal.objects.count() == 0


def test_nested_tenant_transaction_restores_the_system_role(db: None) -> None:
    kee = make_caller(make_tenant("acme"))
    make_tenant("globex")
    with acting_as_system("test"):
        everyone = Principal.objects.count()
        with acting_as(kee):
            assert Principal.objects.count() == 3
        assert Principal.objects.count() == everyone == 5


def test_operator_sees_only_the_given_tenants(db: None) -> None:
    acme, globex, initech = (make_tenant(slug) for slug in ("acme", "globex", "initech"))
    with acting_as_operator([acme.pk, globex.pk], "test"):
        assert set(Tenant.objects.all()) == {acme, globex}
        assert set(Principal.objects.values_list("tenant", flat=True)) == {acme.pk, globex.pk}
        assert not Tenant.objects.filter(pk=initech.pk).exists()
    with acting_as_operator([], "test"):
        assert not Tenant.objects.exists()


def test_planner_has_statistics_of_every_tenant_table(db: None) -> None:
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute("set local role none")
        cursor.execute(
            # All that hold rows: of a partitioned table its partitions.
            "select relname from pg_class join pg_attribute on attrelid = pg_class.oid"
            " where attname = 'tenant_id' and relnamespace = current_schema()::regnamespace and relkind = 'r'"
            " and relname not in (select tablename from pg_stats where attname = 'tenant_id')"
        )
        assert cursor.fetchall() == []
