"""`migrate` leaves statistics of tenants, so that the planner expects few rows of one."""

from django.db import connection

from apps.principals.tenancy import acting_as_system


def test_no_table_of_tenants_is_left_unknown(db: None) -> None:
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute("set local role none")
        cursor.execute(
            # All that hold rows: of a partitioned table its partitions.
            "select relname from pg_class join pg_attribute on attrelid = pg_class.oid"
            " where attname = 'tenant_id' and relnamespace = current_schema()::regnamespace and relkind = 'r'"
            " and relname not in (select tablename from pg_stats where attname = 'tenant_id')"
        )
        assert cursor.fetchall() == []
