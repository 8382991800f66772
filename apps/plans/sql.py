"""The statements that the ORM cannot write."""

from django.db import connection


def wait_for_turn(tenant_id: int) -> None:
    """Let one transaction at a time number a tenant's models; the turn ends with the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_xact_lock(hashtextextended('plans.models', %s))", [tenant_id])
