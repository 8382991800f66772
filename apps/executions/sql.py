"""The database's clock in queries of the ORM, and the one statement that keeps a call's claim alive."""

from datetime import timedelta
from typing import Final

from django.db import connection
from django.db.models import DateTimeField, Func

GATEHOUSE_NOW: Final = Func(function="gatehouse_now", output_field=DateTimeField())

# A primary key look-up; the fence makes it a no-op for whoever has lost the claim.
_RENEW: Final = """
    update executions_executionstep set call_expires_at = gatehouse_now() + make_interval(secs => %s)
    where id = %s and attempts = %s and status = 'calling'
"""


def renew_claim(*, step_id: int, fence: int, period: timedelta) -> bool:
    """Put off the moment from which another process may take the call over; False if one already has."""
    with connection.cursor() as cursor:
        cursor.execute(_RENEW, [period.total_seconds(), step_id, fence])
        return bool(cursor.rowcount)
