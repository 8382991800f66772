"""The statements that the ORM cannot write, and the database's clock in those that it can."""

from typing import Final

from django.db import connection
from django.db.models import DateTimeField, Func

GATEHOUSE_NOW: Final = Func(function="gatehouse_now", output_field=DateTimeField())


def wait_for_turn(tenant_id: int) -> None:
    """Let one transaction at a time number a tenant's models; the turn ends with the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_xact_lock(hashtextextended('plans.models', %s))", [tenant_id])
