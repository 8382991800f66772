"""The statements that the ORM cannot write, and the database's clock in those that it can."""

from typing import Final

from django.db import connection
from django.db.models import DateTimeField, Func

GATEHOUSE_NOW: Final = Func(function="gatehouse_now", output_field=DateTimeField())


def wait_for_turn(tenant_id: int) -> None:
    """Let one transaction at a time number a tenant's models; the turn ends with the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_xact_lock(hashtextextended('plans.models', %s))", [tenant_id])


_NEW_OUTCOMES: Final = """
    select t.id, fresh.number, coalesce(latest.learned_from, 0)
    from principals_tenant t
    left join lateral (
        select m.learned_from, m.last_outcome from plans_learnedmodel m
        where m.tenant_id = t.id order by m.number desc limit 1
    ) latest on true
    cross join lateral (
        select count(*) as number from (
            select from plans_outcome o where o.tenant_id = t.id and o.id > coalesce(latest.last_outcome, 0) limit %s
        ) counted
    ) fresh
    order by t.id
"""


def new_outcomes(*, most: int) -> list[tuple[int, int, int]]:
    """Of each tenant how many outcomes came after the last that was learned from, counted up to `most`, and how many were
    learned from then. What is old is not read.
    """
    with connection.cursor() as cursor:
        cursor.execute(_NEW_OUTCOMES, [most])
        found: list[tuple[int, int, int]] = cursor.fetchall()
    return found
