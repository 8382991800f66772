"""The one statement of the registry that the ORM cannot write."""

from django.db import connection


def advance_epoch(tenant_id: int) -> None:
    """Move a tenant's registry epoch on by one; the first time makes the row."""
    with connection.cursor() as cursor:
        cursor.execute(
            """insert into workers_registry (tenant_id, epoch, history_epoch) values (%s, 1, 0)
               on conflict (tenant_id) do update set epoch = workers_registry.epoch + 1""",
            [tenant_id],
        )
