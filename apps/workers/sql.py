"""The statements of the registry that the ORM cannot write, and the database's clock in those that it can."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from django.db import connection
from django.db.models import DateTimeField, Func

from apps.core.sql import hot_cursor
from apps.workers.trust import RENEW_BEFORE

GATEHOUSE_NOW: Final = Func(function="gatehouse_now", output_field=DateTimeField())


def advance_epoch(tenant_id: int) -> None:
    """Move a tenant's registry epoch on by one; the first time makes the row."""
    with connection.cursor() as cursor:
        cursor.execute(
            """insert into workers_registry (tenant_id, epoch, history_epoch) values (%s, 1, 0)
               on conflict (tenant_id) do update set epoch = workers_registry.epoch + 1""",
            [tenant_id],
        )


# Of each worker the principals upwards, from whoever registered it to the first that manages it. One that delegates is
# not managed by whoever is the same: the principal that registered it, or has its name.
_MANAGERS: Final = """
with recursive upwards as (
    select w.id as worker, w.worker_id, p.id, p.name, p.parent_id, p.tenant_id,
           p.kind = 'delegate' and (%(among)s::bigint[] is null or p.id = any(%(among)s::bigint[]))
               and p.name <> w.worker_id and (w.manifest -> 'tools' @> '[{"name": "create_delegation_plan"}]') is not true as manages
    from workers_worker w join principals_principal p on p.id = w.principal_id and p.tenant_id = w.tenant_id
    where w.tenant_id = %(tenant)s and (%(workers)s::bigint[] is null or w.id = any(%(workers)s::bigint[]))
      and (p.kind = 'delegate' or p.parent_id is not null)
    union
    select u.worker, u.worker_id, p.id, p.name, p.parent_id, p.tenant_id,
           p.kind = 'delegate' and (%(among)s::bigint[] is null or p.id = any(%(among)s::bigint[])) and p.name <> u.worker_id
    from upwards u join principals_principal p on p.id = u.parent_id and p.tenant_id = u.tenant_id
    where not u.manages
)
select worker_id, id, name from upwards where manages
"""


def managers(
    *, tenant_id: int, workers: Collection[int] | None = None, among: Collection[int] | None = None
) -> dict[str, tuple[int, str]]:
    """Whose pool each worker is in: key and name of the DeleGate that registered it, or else of the nearest above. A
    DeleGate that registers itself is in the pool of the one above it. Workers that only the root has are left out.

    :param workers: keys of those that are asked for; None: all.
    :param among: keys of the principals that are DeleGates; None: all of that kind.
    """
    named = {
        "tenant": tenant_id,
        "workers": None if workers is None else list(workers),
        "among": None if among is None else list(among),
    }
    with hot_cursor() as cursor:
        cursor.execute(_MANAGERS, named)
        return {worker_id: (principal_id, name) for worker_id, principal_id, name in cursor.fetchall()}


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


def stamp_description(tenant_id: int, worker_pk: int) -> None:
    """Note on a worker the epoch at which its tools changed. The epoch's row is locked by whoever has just moved it."""
    with connection.cursor() as cursor:
        cursor.execute(
            """update workers_worker set described_at_epoch = r.epoch from workers_registry r
               where workers_worker.id = %s and r.tenant_id = %s""",
            [worker_pk, tenant_id],
        )


def stamp_moved(tenant_id: int, principal_ids: Collection[int]) -> None:
    """As :func:`stamp_description`, of the workers that principals registered, or that are named like them."""
    with connection.cursor() as cursor:
        cursor.execute(
            """update workers_worker set described_at_epoch = r.epoch from workers_registry r, principals_principal p
               where workers_worker.tenant_id = %(tenant)s and r.tenant_id = %(tenant)s and p.tenant_id = %(tenant)s
                 and p.id = any(%(principals)s::bigint[])
                 and (workers_worker.principal_id = p.id or workers_worker.worker_id = p.name)""",
            {"tenant": tenant_id, "principals": list(principal_ids)},
        )


# One row, and the upper end of workers_worker_described.
_STANDING: Final = """
select r.epoch, coalesce((select max(w.described_at_epoch) from workers_worker w where w.tenant_id = r.tenant_id), 0)
from workers_registry r where r.tenant_id = %s
"""


def standing(tenant_id: int) -> tuple[int, int]:
    """A registry's epoch, and the one at which a worker's tools changed last; both 0 where nobody has registered yet."""
    with hot_cursor() as cursor:
        cursor.execute(_STANDING, [tenant_id])
        found: tuple[int, int] | None = cursor.fetchone()
    return found or (0, 0)


def in_state(*, tenant_id: int, worker_ids: Collection[str], states: Collection[str]) -> frozenset[str]:
    """Those of these workers that are registered and in one of these states. By the unique key of tenant and worker_id."""
    with hot_cursor() as cursor:
        cursor.execute(
            """select worker_id from workers_worker
               where tenant_id = %s and worker_id = any(%s::text[]) and unregistered_at is null and state = any(%s::text[])""",
            [tenant_id, list(worker_ids), list(states)],
        )
        return frozenset(worker_id for (worker_id,) in cursor.fetchall())


# By the unique key of tenant and worker_id. What a heartbeat that is lost with the server would have said, the next one says.
_BEAT: Final = """
update workers_worker
set last_heartbeat_at = gatehouse_now(), current_load = %(load)s, available = %(available)s
where tenant_id = %(tenant)s and worker_id = %(worker_id)s and unregistered_at is null
  and (principal_id = %(principal)s or %(any_principal)s) and beats and reported = %(state)s
  and (state = 'quarantined'
       or (state = %(state)s and (state in ('maintenance', 'offline') or (reach <> 'down' and drift is null))))
returning state, coalesce(trust_ends_at - last_heartbeat_at <= %(renew_before)s, false),
          set_config('synchronous_commit', 'off', true)
"""


def beaten(
    *, tenant_id: int, worker_id: str, principal_id: int | None, state: str, load: float, available: bool
) -> tuple[str, bool] | None:
    """Take a heartbeat that says nothing new: the worker's state and whether it is to register again, or None if it is
    not there, not this principal's, or may have to change its state (see Worker.condition).

    :param principal_id: whose worker it must be; None: anybody's.
    """
    named: dict[str, Any] = {
        "tenant": tenant_id,
        "worker_id": worker_id,
        "principal": principal_id,
        "any_principal": principal_id is None,
        "state": state,
        "load": load,
        "available": available,
        "renew_before": RENEW_BEFORE,
    }
    with hot_cursor() as cursor:
        cursor.execute(_BEAT, named)
        found = cursor.fetchone()
    return None if found is None else (found[0], found[1])


# Of the events after one, in the order of their ids, which is nearly that of time, those kept long enough; a worker's last
# one stays. Answers how far to go on from, null where what follows is young, and how many went. Indexes: the primary key,
# workers_workerevent_history.
_FORGET: Final = """
with looked_at as materialized (
    select id, tenant_id, worker_id, at < gatehouse_now() - %(kept)s::interval as is_old
    from workers_workerevent where id > %(after)s::bigint order by id limit %(limit)s
), gone as (
    delete from workers_workerevent where id = any(array(
        select l.id from looked_at l
        where l.is_old and exists (
            select from workers_workerevent w
            where w.tenant_id = l.tenant_id and w.worker_id = l.worker_id and w.id > l.id)))
    returning id
)
select case when count(*) = %(limit)s and bool_and(is_old) then max(id) end, (select count(*) from gone) from looked_at
"""


def forget_events(*, after: int, kept: timedelta, limit: int) -> tuple[int | None, int]:
    """Remove old events; answers after which one there are more to look at, if there are, and how many went."""
    given: dict[str, Any] = {"after": after, "kept": kept, "limit": limit}
    with hot_cursor() as cursor:
        cursor.execute(_FORGET, given)
        last, gone = cursor.fetchone()
    return (None if last is None else int(last)), int(gone)
