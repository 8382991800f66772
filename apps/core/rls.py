"""Row-level security as migration operations.

Every tenant table has three policies: the application's role sees the rows of the tenant that the transaction
has set and none when it has set none; the operator's role sees those of a set of tenants; the system role sees
all. The owner, who runs migrations, is exempt.
"""

from django.db import migrations


def protect(table: str, *, column: str = "tenant_id") -> migrations.RunSQL:
    """Put a table behind the tenant wall. Belongs into the migration that creates the table."""
    return migrations.RunSQL(
        sql=f"""
            alter table {table} enable row level security;
            create policy tenant on {table} to gatehouse_app
                using ({column} = gatehouse_tenant()) with check ({column} = gatehouse_tenant());
            create policy operator on {table} to gatehouse_operator
                using ({column} = any(gatehouse_tenants())) with check ({column} = any(gatehouse_tenants()));
            create policy system on {table} to gatehouse_system using (true) with check (true);
        """,
        reverse_sql=f"""
            drop policy system on {table};
            drop policy operator on {table};
            drop policy tenant on {table};
            alter table {table} disable row level security;
        """,
    )


def immutable(
    table: str, *, except_columns: tuple[str, ...] = (), redactable: tuple[str, ...] = ()
) -> migrations.RunSQL:
    """Refuse changes to a table's rows once they are written.

    `except_columns` may change freely (a link that is resolved later); `redactable` columns only for
    the system role, inside a transaction that has set `gatehouse.redacting`, which erasure alone does.
    """
    fixed = f"array[{', '.join(repr(name) for name in except_columns)}]::text[]"
    open_to_redaction = f"array[{', '.join(repr(name) for name in redactable)}]::text[]"
    return migrations.RunSQL(
        sql=f"""
            create function {table}_is_immutable() returns trigger language plpgsql as $$
            declare
                free text[] := {fixed};
            begin
                if current_user = 'gatehouse_system' and current_setting('gatehouse.redacting', true) = 'on' then
                    free := free || {open_to_redaction};
                end if;
                if (to_jsonb(new) - free) is distinct from (to_jsonb(old) - free) then
                    raise exception 'rows of {table} are immutable' using errcode = 'integrity_constraint_violation',
                        constraint = '{table}_is_immutable';
                end if;
                return new;
            end $$;
            create trigger {table}_is_immutable before update on {table}
                for each row execute function {table}_is_immutable();
        """,
        reverse_sql=f"drop trigger {table}_is_immutable on {table}; drop function {table}_is_immutable();",
    )
