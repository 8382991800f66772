"""The database's clock in queries of the ORM, and the statements that keep a call's claim alive and pay for a task's further runs."""

from datetime import timedelta
from decimal import Decimal
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


# By the index of open tasks, then two primary keys; the execution is locked before its step, as everywhere.
_CHARGE_AGAIN: Final = """
    with step as (
        select id, execution_id, cost as spent, coalesce((definition ->> 'estimated_cost')::numeric, %s) as asked
        from executions_executionstep where task_id = %s and status = 'queued'
    ), paid as (
        update executions_execution execution set total_cost = total_cost + asked from step
        where execution.id = execution_id
            and (max_total_cost is null or total_cost + asked <= max_total_cost)
            and (max_cost_per_step is null or spent + asked <= max_cost_per_step)
        returning step.id, asked
    ), noted as (
        update executions_executionstep step set cost = cost + asked from paid where step.id = paid.id
    )
    select exists (select from step) and not exists (select from paid)
"""


def charge_again(*, task_id: int, cost: Decimal) -> bool:
    """Charge the step that a task carries out for one more call; False if its execution's budget does not cover it.

    A task that carries out no step costs nothing here.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CHARGE_AGAIN, [cost, task_id])
        return not cursor.fetchone()[0]
