"""The statements that the ORM cannot write, and the database's clock in those that it can."""

from typing import Final

from django.db import connection
from django.db.models import DateTimeField, Func

GATEHOUSE_NOW: Final = Func(function="gatehouse_now", output_field=DateTimeField())


def wait_for_turn(tenant_id: int) -> None:
    """Let one transaction at a time change what a tenant's planner has learned; the turn ends with the transaction."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_xact_lock(hashtextextended('plans.models', %s))", [tenant_id])


_WITH_LESSONS: Final = """
    select t.id from principals_tenant t
    left join plans_learnedmodel m on m.tenant_id = t.id
    cross join lateral (
        select count(*) as number from (
            select from plans_outcome o where o.tenant_id = t.id and o.id > coalesce(m.last_outcome, 0) limit 50
        ) counted
    ) fresh
    where fresh.number >= least(greatest(5, coalesce(m.learned_from, 1000) / 20), 50)
    order by t.id
"""


def tenants_with_lessons() -> list[int]:
    """The tenants with a twentieth more outcomes than were learned from, with fifty more, or with the first fifty."""
    with connection.cursor() as cursor:
        cursor.execute(_WITH_LESSONS)
        return [tenant_id for (tenant_id,) in cursor.fetchall()]
