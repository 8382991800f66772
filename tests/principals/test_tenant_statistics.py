"""What the planner expects of a tenant in a table that nobody has counted."""

import pytest
from django.db import connection

from apps.principals.models import Tenant
from apps.principals.tenancy import acting_as_system
from tests import ground


@pytest.mark.parametrize("counted", [False, True])
def test_uncounted_table_is_planned_for_one_tenant(tenant: Tenant, counted: bool) -> None:
    with acting_as_system("test"), connection.cursor() as cursor:
        cursor.execute(
            "with t as (insert into principals_tenant (slug, name, created_at, creates_recipients)"
            " select 't' || n, '', now(), true from generate_series(1, 20) n returning id)"
            " insert into principals_principal (tenant_id, name, kind, created_at)"
            " select id, 'p' || n, 'ai', now() from t, generate_series(1, 20) n"
        )
        ground.unanalyzed("principals_principal")
        if counted:
            ground.analyzed("principals_principal")
        cursor.execute("explain (format json) select from principals_principal where tenant_id = %s", [tenant.pk])
        of_one = cursor.fetchone()[0][0]["Plan"]["Plan Rows"]
        cursor.execute("explain (format json) select from principals_principal")
        of_all = cursor.fetchone()[0][0]["Plan"]["Plan Rows"]
    assert (of_one == of_all) is not counted


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
