"""Statements of the calls' hot path: renew a claim, charge another call of a task, and read the step of a task."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Final

from django.db import connection

from apps.core.sql import execute, fetch

# A primary key look-up. The fencing token makes it a no-op for a process that has lost the claim.
_RENEW: Final = """
    update executions_executionstep set call_expires_at = gatehouse_now() + make_interval(secs => %s)
    where id = %s and attempts = %s and status = 'calling'
"""


def renew_claim(*, step_id: int, fencing_token: int, period: timedelta) -> bool:
    """Postpone the moment from which another process may take the call over; False if one already has."""
    return bool(execute(_RENEW, [period.total_seconds(), step_id, fencing_token]))


# By the index of open tasks, then two primary keys. The execution is locked before its step, as everywhere.
_CHARGE_AGAIN: Final = """
    with step as (
        select id, execution_id, cost as spent,
            round(greatest((definition ->> 'estimated_cost')::numeric, %s), 6) as asked
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
    """Charge the step of a task for one more call; False if its execution's budget does not cover the call.

    A task without a step costs nothing here.
    """
    return not fetch(_CHARGE_AGAIN, [cost, task_id])[0][0]


# By the index of open tasks, then a primary key.
_STEP_OF: Final = """
    select coalesce(greatest(step.cost, (definition ->> 'estimated_cost')::numeric), 0) > 0, halted_as is not null,
        definition ->> 'tool_uid'
    from executions_executionstep step join executions_execution execution on execution.id = execution_id
    where task_id = %s and step.status = 'queued'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOfTask:
    """What a run needs to know of the step that its task carries out."""

    exists: bool = False
    """The task carries out a step."""
    costs: bool = False
    """Its calls are charged."""
    is_halted: bool = False
    """The end of its execution is certain, so nothing is called any more."""
    tool_uid: str | None = None
    """The version of the tool that the step was planned for."""


def step_of_task(*, task_id: int) -> StepOfTask:
    """The step that a task carries out, if there is one."""
    with connection.cursor() as cursor:
        cursor.execute(_STEP_OF, [task_id])
        found = cursor.fetchone()
    if found is None:
        return StepOfTask()
    return StepOfTask(exists=True, costs=found[0], is_halted=found[1], tool_uid=found[2])
