"""Row-level security, which each `migrate` sees to, and triggers as migration operations.

Every tenant table has three policies. The application's role sees the rows of the tenant that the transaction has
set, and none if it has set none. The operator's role sees the rows of a set of tenants. The system role sees all rows.
The owner, who runs migrations, reads all rows and changes none.
"""

from typing import Final

from django.db import migrations

# Every statement asks for the rows of a tenant as well. Of a table that nobody has counted yet the planner takes that
# for a rare thing to ask, and goes by whatever index begins with the tenant: through all that is there. It is told that
# a table has one tenant, until it is counted.
EXPECT_ONE_TENANT: Final = """
select pg_restore_attribute_stats(
    'schemaname', relnamespace::regnamespace::text, 'relname', relname::text, 'attname', attname::text,
    'inherited', false, 'null_frac', 0::real, 'avg_width', 8, 'n_distinct', 1::real)
from pg_class join pg_attribute on attrelid = pg_class.oid
where relkind = 'r' and attname = 'tenant_id' and relnamespace = current_schema()::regnamespace and reltuples < 0
"""


# Foreign keys that don't carry the tenant, for an index more on their table would cost each insertion. One statement
# writes row and reference, from the row that it refers to.
WITHOUT_TENANT: Final = ("memory_searchterm.place", "memory_vector.place")

# Has each foreign key between tables of tenants carry the tenant, so that no row can refer to another tenant's. Rows that
# are there already are looked at afterwards (TO_VALIDATE), under a lock that hinders no writer.
CARRY_TENANT: Final = f"""
do $$
declare
    key record;
begin
    for key in
        select conname as name, conrelid::regclass as child, held.attname as held_by,
               confrelid::regclass as parent, named.attname as named, relname || '_of_tenant' as anchor
        from pg_constraint
        join pg_attribute held on held.attrelid = conrelid and held.attnum = conkey[1]
        join pg_attribute named on named.attrelid = confrelid and named.attnum = confkey[1]
        join pg_class parent on parent.oid = confrelid
        where contype = 'f' and cardinality(conkey) = 1 and connamespace = current_schema()::regnamespace
            and conrelid::regclass || '.' || held.attname <> all(array{list(WITHOUT_TENANT)})
            and exists (select from pg_attribute where attrelid = conrelid and attname = 'tenant_id')
            and exists (select from pg_attribute where attrelid = confrelid and attname = 'tenant_id')
    loop
        if not exists (select from pg_constraint where conrelid = key.parent and conname = key.anchor) then
            execute format('alter table %s add constraint %I unique (tenant_id, %I)', key.parent, key.anchor, key.named);
        end if;
        execute format('alter table %s drop constraint %I, add constraint %I foreign key (tenant_id, %I)
                        references %s (tenant_id, %I) deferrable initially deferred not valid',
                       key.child, key.name, key.name, key.held_by, key.parent, key.named);
    end loop;
end $$
"""  # noqa: S608  # names of columns


TO_VALIDATE: Final = """
select format('alter table %s validate constraint %I', conrelid::regclass, conname) from pg_constraint
where contype = 'f' and not convalidated and connamespace = current_schema()::regnamespace order by 1
"""


# Tables of operators, their sessions, and what they have let in.
OF_OPERATORS: Final = "^(auth|axes|oauth2_provider|django_(admin|session)|principals_(operator|membership))"

# How many tables of tenants are not behind the wall: `migrate` was ended before it came to them.
OPEN_TABLES: Final = f"""
select count(*) from pg_class join pg_attribute on attrelid = pg_class.oid
where relnamespace = current_schema()::regnamespace and relkind = 'r' and attname = 'tenant_id'
    and not relforcerowsecurity and relname !~ '{OF_OPERATORS}'
"""  # noqa: S608  # names of tables

# Puts each table of tenants behind the wall, and takes from the application's role what is of operators.
BUILD_WALL: Final = f"""
do $$
declare
    part regclass;
    tenant name;
begin
    for part, tenant in
        select pg_class.oid, attname from pg_class join pg_attribute on attrelid = pg_class.oid
        where relnamespace = current_schema()::regnamespace and relkind = 'r' and not relrowsecurity
            and relname !~ '{OF_OPERATORS}'
            and attname = case relname when 'principals_tenant' then 'id' else 'tenant_id' end
    loop
        execute format('alter table %s enable row level security, force row level security', part);
        execute format('create policy owner on %s for select to current_user using (true)', part);
        execute format('create policy system on %s to gatehouse_system using (true) with check (true)', part);
        execute format('create policy tenant on %1$s to gatehouse_app
                        using (%2$I = gatehouse_tenant()) with check (%2$I = gatehouse_tenant())', part, tenant);
        execute format('create policy operator on %1$s to gatehouse_operator
                        using (%2$I = any(gatehouse_tenants())) with check (%2$I = any(gatehouse_tenants()))',
                       part, tenant);
    end loop;
    for part in select oid from pg_class where relnamespace = current_schema()::regnamespace
        and relkind in ('r', 'S') and relname ~ '{OF_OPERATORS}'
    loop
        execute format('revoke all on %s from gatehouse_app', part);
    end loop;
    revoke insert, update, delete on django_migrations, django_content_type from gatehouse_app;
    -- A temporary table hides the real one from whoever has the connection next.
    execute format('revoke temporary on database %I from public', current_database());
end $$
"""  # noqa: S608  # names of tables


def immutable(
    table: str,
    *,
    except_columns: tuple[str, ...] = (),
    redactable: tuple[str, ...] = (),
    prunable: tuple[str, ...] = (),
    when: str = "true",
) -> migrations.RunSQL:
    """Refuse changes to a table's rows once they are written, or to those that this SQL is true for.

    `except_columns` may change freely (a link that is resolved later). The others change for the system role only,
    inside a transaction that has set a switch: `redactable` ones under `gatehouse.redacting`, which erasure alone
    sets, `prunable` ones under `gatehouse.pruning`, which retention and repair set.
    """

    def names(columns: tuple[str, ...]) -> str:
        return f"array[{', '.join(repr(name) for name in columns)}]::text[]"

    return migrations.RunSQL(
        sql=f"""
            create function {table}_is_immutable() returns trigger language plpgsql as $$
            declare
                free text[] := {names(except_columns)};
            begin
                if current_user = 'gatehouse_system' and current_setting('gatehouse.redacting', true) = 'on' then
                    free := free || {names(redactable)};
                end if;
                if current_user = 'gatehouse_system' and current_setting('gatehouse.pruning', true) = 'on' then
                    free := free || {names(prunable)};
                end if;
                if (to_jsonb(new) - free) is distinct from (to_jsonb(old) - free) then
                    raise exception 'rows of {table} are immutable' using errcode = 'integrity_constraint_violation',
                        constraint = '{table}_is_immutable';
                end if;
                return new;
            end $$;
            create trigger {table}_is_immutable before update on {table}
                for each row when ({when}) execute function {table}_is_immutable();
        """,
        reverse_sql=f"drop trigger {table}_is_immutable on {table}; drop function {table}_is_immutable();",
    )


def kept(table: str) -> migrations.RunSQL:
    """Refuse to delete a table's rows but by the system role, inside a transaction that has set `gatehouse.pruning`."""
    return migrations.RunSQL(
        sql=f"""
            create function {table}_is_kept() returns trigger language plpgsql as $$
            begin
                raise exception 'rows of {table} are removed by retention alone'
                    using errcode = 'integrity_constraint_violation', constraint = '{table}_is_kept';
            end $$;
            create trigger {table}_is_kept before delete on {table} for each row
                when (current_user <> 'gatehouse_system'
                      or coalesce(current_setting('gatehouse.pruning', true), '') <> 'on')
                execute function {table}_is_kept();
        """,
    )


def held_by(table: str, reference: str) -> migrations.RunSQL:
    """Refuse to delete a table's rows to which a column (`other_table.column`) still refers.

    Takes the place of a foreign key that would be checked, and lock a row, at each insertion. Whoever inserts must have
    locked or made the row referred to in the same transaction.
    """
    by, column = reference.split(".")
    name = f"{table}_held_by_{by}_{column}"
    return migrations.RunSQL(
        sql=f"""
            create function {name}() returns trigger language plpgsql as $$
            begin
                if exists (
                    select from gone cross join lateral (select from {by} where {column} = gone.id limit 1) as holder
                ) then
                    raise exception 'rows of {by} refer to this row of {table}'
                        using errcode = 'integrity_constraint_violation', constraint = '{name}';
                end if;
                return null;
            end $$;
            create trigger {name} after delete on {table} referencing old table as gone
                for each statement execute function {name}();
        """,  # noqa: S608  # names of tables
    )
