"""The database's clock in queries of the ORM, and the statements that keep a call's claim alive, pay for a task's further runs
and keep jobs that workers can cancel.
"""

from dataclasses import dataclass
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
    """Charge the step that a task carries out for one more call; False if its execution's budget does not cover it.

    A task that carries out no step costs nothing here.
    """
    with connection.cursor() as cursor:
        cursor.execute(_CHARGE_AGAIN, [cost, task_id])
        return not cursor.fetchone()[0]


# By the index of open tasks, then a primary key.
_STEP_OF: Final = """
    select coalesce(greatest(step.cost, (definition ->> 'estimated_cost')::numeric), 0) > 0, halted_as is not null,
        definition ->> 'tool_uid'
    from executions_executionstep step join executions_execution execution on execution.id = execution_id
    where task_id = %s and step.status = 'queued'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOfTask:
    """What a run must know of the step that its task carries out."""

    is_there: bool = False
    """Does the task carry out a step at all?"""
    costs: bool = False
    """Is anything charged for its calls?"""
    is_halted: bool = False
    """Is the end of its execution certain, so that nothing is called any more?"""
    tool_uid: str | None = None
    """The version of the tool that it was planned for."""


def step_of_task(*, task_id: int) -> StepOfTask:
    """What is known of the step that a task carries out; nothing of a task that carries out none."""
    with connection.cursor() as cursor:
        cursor.execute(_STEP_OF, [task_id])
        found = cursor.fetchone()
    if found is None:
        return StepOfTask()
    return StepOfTask(is_there=True, costs=found[0], is_halted=found[1], tool_uid=found[2])


_BEGIN_JOB: Final = """
    insert into executions_begunjob (tenant_id, task_id, worker_id, cancel_tool, job_id, began_at, next_at)
    values (gatehouse_tenant(), %s, %s, %s, %s, gatehouse_now(), gatehouse_now()) returning id
"""
_DISOWN_JOB: Final = "update executions_begunjob set task_id = null where id = %s"
# By the index of the jobs' ids.
_END_JOB: Final = "delete from executions_begunjob where worker_id = %s and job_id = %s"


def begin_job(*, task_id: int | None, worker_id: str, cancel_tool: str, job_id: str) -> int:
    """Keep a job that a call has begun, for as long as its worker may have to be told to cancel it; answers its row.

    :param task_id: the task that follows it; None: nobody does.
    """
    with connection.cursor() as cursor:
        cursor.execute(_BEGIN_JOB, [task_id, worker_id, cancel_tool, job_id])
        (row,) = cursor.fetchone()
    return int(row)


def disown_job(*, row: int) -> None:
    """Note that the call which kept this row has begun what no run of its task will follow, unless another call began it too."""
    with connection.cursor() as cursor:
        cursor.execute(_DISOWN_JOB, [row])


def end_job(*, worker_id: str, job_id: str) -> None:
    """Note that a job is over, however it went: there is nothing to be canceled."""
    with connection.cursor() as cursor:
        cursor.execute(_END_JOB, [worker_id, job_id])
