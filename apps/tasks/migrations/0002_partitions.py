from typing import Final

from django.db import migrations

# Partitions take this many ids, or a multiple: a fifth of all that is kept. Every partition costs each statement that
# looks into the history a little, whether it is asked or not: there must be few, however much is kept.
_WIDTH: Final = 4_000_000
_SHARES: Final = 5

# Each table with its key, by how many bits that is wider than a task's id, its primary key, the columns that count up by
# themselves, its other indexes, and how its pages are filled.
_TABLES: Final[dict[str, tuple[str, int, str, dict[str, str], str]]] = {
    "tasks_run": ("id", 16, "id", {}, "fillfactor = 70"),
    "tasks_spend": ("task_id", 0, "task_id, id", {}, ""),
    "tasks_task": ("id", 0, "id", {}, ""),
    "tasks_terminalrecord": (
        "task_id",
        0,
        "task_id",
        {
            "tasks_terminalrecord_by_end": "(finished_at)",
            "tasks_terminalrecord_dead": "(tenant_id, task_id) where status = 'failed'",
        },
        "",
    ),
}
_COUNTED: Final = ("tasks_spend", "tasks_task")
_IMMUTABLE: Final = ("tasks_spend", "tasks_task", "tasks_terminalrecord")
_ROLES: Final = "gatehouse_app, gatehouse_operator, gatehouse_system"

# The ranges of ids that have partitions, all tables the same; what lies outside of them is in the default ones.
_RANGES: Final = r"""
create view tasks_partition as
select bounds[1]::bigint as lower, bounds[2]::bigint as upper
from pg_catalog.pg_inherits
join pg_catalog.pg_class on pg_class.oid = inhrelid
cross join lateral regexp_match(
    pg_get_expr(relpartbound, pg_class.oid), 'FROM \(''(\d+)''\) TO \(''(\d+)''\)') as bounds
where inhparent = 'tasks_task'::regclass and bounds is not null;
"""

# A partition is reached through its parent, by nobody directly; behind that right stands the same wall as before the
# parent. Of its tenants the planner knows what `migrate` says of new tables.
_WALL: Final = f"""
create function tasks_wall_partition(part text) returns void language plpgsql set search_path = public, pg_temp as $$
begin
    execute format('alter table %I enable row level security', part);
    execute format('create policy tenant on %I to gatehouse_app
        using (tenant_id = gatehouse_tenant()) with check (tenant_id = gatehouse_tenant())', part);
    execute format('create policy operator on %I to gatehouse_operator
        using (tenant_id = any(gatehouse_tenants())) with check (tenant_id = any(gatehouse_tenants()))', part);
    execute format('create policy system on %I to gatehouse_system using (true) with check (true)', part);
    execute format('revoke all on %I from {_ROLES}', part);
    perform pg_restore_attribute_stats(
        'schemaname', 'public', 'relname', part, 'attname', 'tenant_id', 'inherited', false,
        'null_frac', 0::real, 'avg_width', 8, 'n_distinct', 1::real);
end $$;
revoke all on function tasks_wall_partition(text) from public;
"""


def _made(table: str) -> str:
    """Makes and attaches a partition of a table, named by the number of its range."""
    _, bits, _, _, filled = _TABLES[table]
    return f"""
        part := '{table}_p' || first / {_WIDTH};
        execute format('create table %I (like {table} including defaults including constraints including storage)
            {f"with ({filled})" if filled else ""}', part);
        perform tasks_wall_partition(part);
        execute format('alter table {table} attach partition %I for values from (%s) to (%s)',
                       part, first << {bits}, (first + wide) << {bits});
    """


# Makes partitions until there is room for as many ids as the narrowest takes; says how many it has made, or nothing where
# a lock is not to be had at once. Where ids have run beyond the last one, the default partitions hold them, and the next
# begins well after them: a range of which a row is elsewhere can't have a partition. If ids were faster even so, the next
# call begins after those.
_MAKE: Final = f"""
create function tasks_make_partitions() returns integer language plpgsql security definer
    set search_path = public, pg_temp set lock_timeout = '50ms' as $$
declare
    used bigint;
    kept_from bigint;
    first bigint;
    wide bigint;
    part text;
    made integer := 0;
begin
    if not pg_try_advisory_xact_lock(hashtextextended('tasks.partitions', 0)) then
        return null;
    end if;
    loop
        select last_value into used from tasks_task_id_seq;
        select coalesce(max(upper), 0) into first from tasks_partition;
        exit when first >= used + {_WIDTH};
        if first <= used then
            first := (used + {_WIDTH // 10}) / {_WIDTH} * {_WIDTH} + {_WIDTH};
        end if;
        select coalesce(min(id), first) into kept_from from tasks_task;
        wide := greatest(1, (first - kept_from) / {_SHARES * _WIDTH}) * {_WIDTH};
        {"".join(_made(table) for table in _TABLES)}
        made := made + 1;
    end loop;
    return made;
exception when lock_not_available or deadlock_detected or check_violation then
    return null;
end $$;
revoke all on function tasks_make_partitions() from public;
grant execute on function tasks_make_partitions() to gatehouse_system;
"""

# Drops the partitions of a range, unless a lock is not to be had at once. Whether what ended in it has been kept its
# time its caller knows; that nothing is open in it, is waited for or drawn from, and that nothing has ended in it since
# a moment, is looked at under the lock.
_DROP: Final = f"""
create function tasks_drop_partition(first bigint, since timestamptz) returns boolean language plpgsql security definer
    set search_path = public, pg_temp set lock_timeout = '50ms' as $$
declare
    past bigint;
    bare bigint := first / {_WIDTH};
    part text;
begin
    if not pg_try_advisory_xact_lock(hashtextextended('tasks.partitions', 0)) then
        return null;
    end if;
    select upper into past from tasks_partition where lower = first;
    if past is null or past > (select last_value from tasks_task_id_seq) then
        return false;
    end if;
    lock table only {", only ".join(_TABLES)} in access exclusive mode;
    if exists (select from tasks_hottask where task_id >= first and task_id < past)
       or exists (select from tasks_hottask where budget_id >= first and budget_id < past)
       or exists (select from tasks_dependency where on_task_id >= first and on_task_id < past)
       or exists (select from tasks_budget where parent_id >= first and parent_id < past and task_id >= past)
       or since <= (
            select finished_at from tasks_terminalrecord
            where task_id >= first and task_id < past order by finished_at desc limit 1) then
        return false;
    end if;
    foreach part in array array[{", ".join(f"'{table}_p'" for table in _TABLES)}] loop
        execute format('drop table %I', part || bare);
    end loop;
    return true;
exception when lock_not_available or deadlock_detected then
    return null;
end $$;
revoke all on function tasks_drop_partition(bigint, timestamptz) from public;
grant execute on function tasks_drop_partition(bigint, timestamptz) to gatehouse_system;
"""


def _walled(table: str) -> str:
    return f"""
        alter table {table} enable row level security;
        create policy tenant on {table} to gatehouse_app
            using (tenant_id = gatehouse_tenant()) with check (tenant_id = gatehouse_tenant());
        create policy operator on {table} to gatehouse_operator
            using (tenant_id = any(gatehouse_tenants())) with check (tenant_id = any(gatehouse_tenants()));
        create policy system on {table} to gatehouse_system using (true) with check (true);
    """


def _fenced(table: str) -> str:
    if table not in _IMMUTABLE:
        return ""
    return f"""
        create trigger {table}_is_immutable before update on {table}
            for each row execute function {table}_is_immutable();
    """


def _counting(table: str) -> str:
    """The ids go on where they were."""
    if table not in _COUNTED:
        return ""
    return f"""
        execute format('alter table {table} alter column id add generated by default as identity
            (sequence name {table}_id_seq start with %s)', counted + 1);
        if counted > 0 then
            perform setval('{table}_id_seq', counted);
        end if;
    """


_REFERENCES: Final = """
        for reference in
            select conname, pg_get_constraintdef(oid) as rule from pg_constraint
            where conrelid = '{old}'::regclass and contype = 'f' order by conname
        loop
            execute format('alter table {new} add constraint %I %s', reference.conname, reference.rule);
        end loop;
"""
_DECLARE: Final = "counted bigint; used bigint; reference record; bound bigint;"


def _aside(table: str, old: str) -> str:
    """A table under another name, with all that has a name of its own; how far it has counted."""
    _, _, _, indexes, _ = _TABLES[table]
    renamed = "".join(f"alter index {name} rename to {old}{name.removeprefix(table)};" for name in indexes)
    counted = (
        f"""select case when is_called then last_value else 0 end into counted from {table}_id_seq;
            alter table {old} alter column id drop identity;"""
        if table in _COUNTED
        else ""
    )
    return f"""
        alter table {table} rename to {old};
        alter table {old} rename constraint {table}_pkey to {old}_pkey;
        {renamed}
        {f"drop trigger {table}_is_immutable on {old};" if table in _IMMUTABLE else ""}
        {counted}
    """


def _parted(table: str) -> str:
    """The table as it is becomes the first partition of one that takes its place; no row is moved."""
    key, bits, primary, indexes, filled = _TABLES[table]
    old = f"{table}_p0"
    primary_of_old = (
        f"alter table {old} drop constraint {old}_pkey, add constraint {old}_pkey primary key ({primary});"
        if table == "tasks_spend"
        else ""
    )
    return f"""
        {_aside(table, old)}
        {primary_of_old}
        create table {table} (like {old} including defaults including constraints including storage)
            partition by range ({key});
        alter table {table} add constraint {table}_pkey primary key ({primary});
        {"".join(f"create index {name} on {table} {rule};" for name, rule in indexes.items())}
        {_REFERENCES.format(old=old, new=table)}
        {_counting(table)}
        {_fenced(table)}
        {_walled(table)}
        execute format('alter table {table} attach partition {old} for values from (0) to (%s)', bound << {bits});
        revoke all on {old} from {_ROLES};
        create table {table}_default (like {table} including defaults including constraints including storage)
            {f"with ({filled})" if filled else ""};
        perform tasks_wall_partition('{table}_default');
        alter table {table} attach partition {table}_default default;
    """


def _whole(table: str) -> str:
    """One table again, of copied rows."""
    _, _, primary, indexes, filled = _TABLES[table]
    old = f"{table}_parted"
    primary = "id" if table == "tasks_spend" else primary
    return f"""
        {_aside(table, old)}
        create table {table} (like {old} including defaults including constraints including storage)
            {f"with ({filled})" if filled else ""};
        insert into {table} select * from {old};
        alter table {table} add constraint {table}_pkey primary key ({primary});
        {"".join(f"create index {name} on {table} {rule};" for name, rule in indexes.items())}
        {_REFERENCES.format(old=old, new=table)}
        {_counting(table)}
        {_fenced(table)}
        {_walled(table)}
        drop table {old};
    """


_LOCKED: Final = f"lock table {', '.join(_TABLES)} in access exclusive mode;"
_APART: Final = f"""
{_LOCKED}
{_WALL}
do $$
declare {_DECLARE}
begin
    select case when is_called then last_value else 0 end into used from tasks_task_id_seq;
    bound := (used / {_WIDTH} + 1) * {_WIDTH};
    {"".join(_parted(table) for table in _TABLES)}
end $$;
{_RANGES}
{_MAKE}
{_DROP}
select tasks_make_partitions();
"""
_TOGETHER: Final = f"""
{_LOCKED}
drop function tasks_drop_partition(bigint, timestamptz);
drop function tasks_make_partitions();
drop view tasks_partition;
do $$
declare {_DECLARE}
begin
    {"".join(_whole(table) for table in _TABLES)}
end $$;
drop function tasks_wall_partition(text);
"""


class Migration(migrations.Migration):
    dependencies = [("tasks", "0001_initial")]

    operations = [migrations.RunSQL(_APART, _TOGETHER)]
