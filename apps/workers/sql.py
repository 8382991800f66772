"""The statements of the registry that the ORM cannot write."""

from datetime import timedelta
from typing import Final

from django.db import connection

from apps.core.sql import hot_cursor


def advance_epoch(tenant_id: int) -> None:
    """Move a tenant's registry epoch on by one; the first time makes the row."""
    with connection.cursor() as cursor:
        cursor.execute(
            """insert into workers_registry (tenant_id, epoch, history_epoch) values (%s, 1, 0)
               on conflict (tenant_id) do update set epoch = workers_registry.epoch + 1""",
            [tenant_id],
        )


# One row by its unique key, locked until the call is sure to be made. A worker that is allowed less than one call an
# hour gets one in as long as that takes.
_TAKE: Final = """
    with asked as (
        select gatehouse_now() as now, make_interval(secs => %(share)s) as share,
               greatest(make_interval(secs => %(share)s), interval '1 hour') as ahead
    ), taken as (
        insert into workers_allowance as row (tenant_id, worker_id, taken_until)
        select %(tenant)s::bigint, %(worker)s::bigint, now + share from asked
        on conflict (tenant_id, worker_id) do update
        set taken_until = greatest(row.taken_until, gatehouse_now()) + make_interval(secs => %(share)s)
        where greatest(row.taken_until, gatehouse_now()) + make_interval(secs => %(share)s)
              <= gatehouse_now() + greatest(make_interval(secs => %(share)s), interval '1 hour')
        returning 1
    )
    select case when not exists (select from taken) then greatest(1, ceil(extract(epoch from coalesce(
        (select taken_until - now + share - ahead from workers_allowance, asked where tenant_id = %(tenant)s and worker_id = %(worker)s),
        interval '1 second'
    )))) end
"""


def take_call(*, tenant_id: int, worker_id: int, share: timedelta) -> int | None:
    """Take one call's share of a worker's hour; answers None, or the seconds until there is room for it again."""
    with hot_cursor() as cursor:
        cursor.execute(_TAKE, {"tenant": tenant_id, "worker": worker_id, "share": share.total_seconds()})
        (seconds,) = cursor.fetchone()
    return None if seconds is None else int(seconds)
