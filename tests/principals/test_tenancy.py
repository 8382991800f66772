"""The wall between tenants, asked of the database itself."""

import re

import psycopg
import pytest
from django.apps import apps
from django.db import connection, transaction
from django.db.models import ForeignKey
from django.db.utils import IntegrityError, ProgrammingError

from apps.core.rls import OF_OPERATORS, WITHOUT_TENANT
from apps.core.sql import Logins
from apps.principals.models import Principal, Tenant, TenantModel
from apps.principals.tenancy import Caller, acting_as, acting_as_operator, acting_as_system
from config.stack.servers import LOGINS
from tests.commands import with_database
from tests.console.world import fill
from tests.factories import as_owner, make_caller, make_tenant

TENANT_TABLES = sorted(
    {model._meta.db_table for model in apps.get_models() if issubclass(model, TenantModel)} | {"principals_tenant"}
)


def test_each_login_stays_what_it_is(transactional_db: None) -> None:
    logins = with_database()
    with (
        psycopg.connect(logins["DATABASE_URL"], autocommit=True) as app,
        psycopg.connect(logins["DATABASE_URL_SYSTEM"], autocommit=True) as system,
    ):
        roles = {*LOGINS.values(), "gatehouse_operator", "postgres", "pg_read_all_data", "pg_write_all_data"}
        for login, itself in ((app, {"gatehouse_app"}), (system, {"gatehouse_system", "gatehouse_operator"})):
            refused = [f"set role {role}" for role in roles - itself]
            refused += [f"set session authorization {role}" for role in roles - {login.info.user}]
            for table in TENANT_TABLES:
                changes = ("no force row level security", "disable trigger user", "add column more int")
                refused += [f"alter table {table} {change}" for change in changes]
                refused += [f"drop policy tenant on {table}", f"drop table {table}", f"truncate {table}"]
            for statement in (*refused, "create table more ()", "create temporary table more ()", "create role more"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    login.execute(statement)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute("insert into django_migrations (app, name, applied) values ('tasks', '0099_later', now())")
        operators = [table for table in connection.introspection.table_names() if re.match(OF_OPERATORS, table)]
        assert {"principals_operator", "django_session", "oauth2_provider_accesstoken"} <= {*operators}
        for table in operators:
            system.execute(f"select from {table}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute(f"select from {table}")
    assert {model._meta.db_table for model in apps.get_models() if Logins.is_of_operators(model)} <= {*operators}


def test_every_tenant_table_has_row_level_security(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """select c.relname, p.polname, p.polcmd, p.polpermissive, p.polroles::regrole[]::text[],
                      pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid),
                      c.relforcerowsecurity
               from pg_class c left join pg_policy p on p.polrelid = c.oid where c.relrowsecurity"""
        )
        policies: dict[str, dict[str, tuple[object, ...]]] = {}
        forced = {}
        for table, name, *policy, forced[table] in cursor.fetchall():
            policies.setdefault(table, {})[name] = tuple(policy)
        cursor.execute(
            """select relname from pg_attribute join pg_class on pg_class.oid = attrelid
               where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and attname = 'tenant_id'
                     and relname <> 'principals_membership'"""
        )
        with_tenant = {name for (name,) in cursor.fetchall()}

    assert sorted(policies) == TENANT_TABLES
    assert with_tenant <= set(policies)
    for table, found in policies.items():
        column = "id" if table == "principals_tenant" else "tenant_id"
        own, chosen = f"({column} = gatehouse_tenant())", f"({column} = ANY (gatehouse_tenants()))"
        assert found == {
            "tenant": ("*", True, ["gatehouse_app"], own, own),
            "operator": ("*", True, ["gatehouse_operator"], chosen, chosen),
            "system": ("*", True, ["gatehouse_system"], "true", "true"),
            "owner": ("r", True, ["gatehouse"], "true", None),
        }, table
        assert forced[table], table


def test_raw_connection_sees_no_rows_without_a_tenant(transactional_db: None) -> None:
    fill("acme")
    filled = _counts()
    assert sum(1 for count in filled.values() if count) > 20, "the wall is only seen where rows stand behind it"
    with psycopg.connect(with_database()["DATABASE_URL"]) as raw:
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


# Foreign keys of which `fill` makes no row. PostgreSQL says of them too that they carry the tenant.
UNTRIED = """
executions_execution.halted_by_id executions_execution.owner_id executions_execution.requested_by_id
executions_executionstep.execution_id memory_memory.session_id memory_promotionpolicy.author_id
memory_promotionpolicy.delegate_id memory_revision.author_id memory_revision.memory_id plans_plan.replaces_id
principals_principal.parent_id tasks_schedule.queue_id workers_allowance.worker_id workers_call.offer_id
workers_sourceentry.source_id workers_sourceentry.worker_id workers_workersource.principal_id
"""


def test_no_row_refers_to_another_tenants(db: None) -> None:
    ours, theirs = fill("acme").tenant_id, fill("globex").tenant_id
    untried, plain = set(), set()
    with as_owner() as cursor:
        cursor.execute("""select conname, conrelid::regclass::text, pg_get_constraintdef(oid), convalidated
                          from pg_constraint""")
        for name, child, rule, is_validated in cursor.fetchall():
            assert is_validated, name
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
                untried.add(f"{child}.{key[2]}")
                continue
            change = f"""alter table {child} disable trigger user; set constraints all deferred;
                         set constraints {name} immediate; delete from {child} where tenant_id = {theirs};
                         update {child} set {key[2]} = %s where ctid = %s"""
            with pytest.raises(IntegrityError, match=name), transaction.atomic():
                cursor.execute(change, [foreign, row])
    assert (plain, untried) == ({*WITHOUT_TENANT}, {*UNTRIED.split()})


# By these indexes foreign keys carry the tenant; `migrate` makes those that lack. A further one on a table that may be long
# is built before, concurrently, by a migration of its own: "alter table … add constraint … unique using index …".
ANCHORED = """
delivery_target digests_thread executions_execution memory_memory memory_session memory_subject plans_plan
principals_principal tasks_queue tasks_tasktype workers_offer workers_signingkey workers_toolversion workers_worker
workers_workersource
"""


def test_tables_that_are_referred_to_by_tenant_are_known(db: None) -> None:
    with as_owner() as cursor:
        cursor.execute("select conrelid::regclass::text from pg_constraint where conname like '%of_tenant'")
        assert {table for (table,) in cursor.fetchall()} == {*ANCHORED.split()}


# References without a constraint: on the ways of tasks and receipts each would cost every row. One statement writes row and
# reference, from rows of the tenant that it reads, and tests/interfaces/test_isolation.py asks for those of others.
UNCONSTRAINED = """
digests_entry.inbox_id digests_receiptstate.entry_id digests_receiptstate.inbox_id digests_receiptstate.receipt_id
digests_thread.inbox_id receipts_obligation.closed_by_id receipts_obligation.creditor_id receipts_obligation.debtor_id
receipts_obligation.receipt_id receipts_receipt.caused_by_id receipts_receipt.pairs_with_id receipts_receipt.poster_id
receipts_receipt.recipient_id task_live.holder_id task_live.queue_id task_live.requester_id task_live.task_type_id
tasks_fairshare.queue_id tasks_fairshare.requester_id tasks_idempotencykey.principal_id tasks_queuehistory.queue_id
tasks_ratewindow.queue_id tasks_ratewindow.task_type_id tasks_run.holder_id tasks_task.queue_id
tasks_task.recipient_id tasks_task.requester_id tasks_task.task_type_id
"""


def test_every_other_reference_has_a_constraint() -> None:
    without = {
        f"{model._meta.db_table}.{field.column}"
        for model in apps.get_models()
        if issubclass(model, TenantModel)
        for field in model._meta.fields
        if isinstance(field, ForeignKey) and not field.db_constraint and field.name != "tenant"  # type: ignore[attr-defined]  # no stub has it
    }
    assert without == {*UNCONSTRAINED.split()}


def test_tenant_ends_with_the_transaction(transactional_db: None, kee: Caller) -> None:
    with acting_as(kee):
        assert Principal.objects.count() == 3
    assert Principal.objects.count() == 0


def test_nested_tenant_transaction_restores_the_system_role(kee: Caller) -> None:
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
    with as_owner() as cursor:
        cursor.execute(
            "select relname from pg_class join pg_attribute on attrelid = pg_class.oid"
            " where attname = 'tenant_id' and relnamespace = current_schema()::regnamespace and relkind = 'r'"
            " and relname not in (select tablename from pg_stats where attname = 'tenant_id')"
        )
        assert cursor.fetchall() == []
