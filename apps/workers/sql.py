"""Hot or recursive statements of the registry."""

from collections.abc import Collection
from datetime import timedelta
from typing import Final

from apps.core.sql import execute, fetch


def advance_epoch(tenant_id: int) -> None:
    """Increase a tenant's registry epoch by one; creates the row."""
    execute(
        """insert into workers_registry (tenant_id, epoch, history_epoch) values (%s, 1, 0)
               on conflict (tenant_id) do update set epoch = workers_registry.epoch + 1""",
        [tenant_id],
    )


# For each worker the principals upwards, from the one that registered it to the first DeleGate. A worker that is a DeleGate
# itself is not managed by its own principal, nor by a principal of its name.
_MANAGERS: Final = """
with recursive upwards as (
    select w.worker_id, p.id, p.name, p.parent_id, p.tenant_id,
           p.kind = 'delegate' and p.name <> w.worker_id and (w.manifest -> 'tools' @> '[{"name": "create_delegation_plan"}]') is not true as manages
    from workers_worker w join principals_principal p on p.id = w.principal_id and p.tenant_id = w.tenant_id
    where w.tenant_id = %(tenant)s and (%(workers)s::text[] is null or w.worker_id = any(%(workers)s::text[]))
      and (p.kind = 'delegate' or p.parent_id is not null)
    union
    select u.worker_id, p.id, p.name, p.parent_id, p.tenant_id, p.kind = 'delegate' and p.name <> u.worker_id
    from upwards u join principals_principal p on p.id = u.parent_id and p.tenant_id = u.tenant_id
    where not u.manages
)
select worker_id, id, name from upwards where manages and name <> 'delegate'
"""


def managers(*, tenant_id: int, worker_ids: Collection[str] | None) -> dict[str, tuple[int, str]]:
    named = {"tenant": tenant_id, "workers": None if worker_ids is None else list(worker_ids)}
    return {worker_id: (pk, name) for worker_id, pk, name in fetch(_MANAGERS, named, hot=True)}


# One row by its unique key, which stays locked. A worker with less than one call an hour gets one in the time of its share.
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
    """Take one call's share of a worker's hour; returns None, or the seconds until there is room."""
    (seconds,) = fetch(_TAKE, {"tenant": tenant_id, "worker": worker_id, "share": share.total_seconds()}, hot=True)[0]
    return None if seconds is None else int(seconds)
