"""The hot statements. Each locks, decides and writes by itself; what it answers is proof.

All of them run in an acting transaction, so row-level security adds the tenant. `gatehouse_now()` is the clock.
A run's key is `(task_id << 16) + fence`, see models.run_key. Each statement computes it in a materialized step
before it looks for the run: `<<` and `+` are not leakproof, so row-level security keeps an expression of them out
of index conditions, and every run of every tenant would be read.
"""

from typing import Final

from apps.tasks.states import CANCEL_REQUESTED, STRICT

# Records the key unless it is there, and the task only if the key was recorded. A rival with the same key is
# waited for, then this answers no row.
ENQUEUE: Final = """
with named as materialized (
    select nextval('tasks_task_id_seq') as id
), keyed as (
    insert into tasks_idempotencykey (tenant_id, principal_id, key, task_id, request_digest, answer, created_at)
    select %(tenant)s::bigint, %(requester)s::bigint, %(key)s::text, named.id, %(digest)s::bytea,
           jsonb_build_object('task_id', 'task_' || named.id, 'receipt_id', %(receipt)s::text,
                              'status', case when %(run_at)s::timestamptz > gatehouse_now()
                                             then 'scheduled' else 'queued' end),
           gatehouse_now()
    from named where %(key)s::text is not null
    on conflict (tenant_id, principal_id, key) do nothing
    returning task_id
), cold as (
    insert into tasks_task (id, tenant_id, queue_id, task_type_id, requester_id, recipient_id, priority, params,
                            run_at, "group", caused_by, receipt_id, created_at)
    select named.id, %(tenant)s::bigint, %(queue)s::bigint, %(task_type)s::bigint, %(requester)s::bigint,
           %(recipient)s::bigint, %(priority)s::smallint, %(params)s::jsonb, %(run_at)s::timestamptz,
           %(group)s::jsonb, %(caused_by)s::text, %(receipt)s::text, gatehouse_now()
    from named where %(key)s::text is null or exists (select from keyed)
    returning id, created_at, run_at
), hot as (
    insert into tasks_hottask (task_id, tenant_id, queue_id, task_type_id, ready_at, due_at, fence, lease_seconds,
                               priority_rank, failures, max_attempts, expiries, max_expiries, flags)
    select id, %(tenant)s::bigint, %(queue)s::bigint, %(task_type)s::bigint,
           case when run_at > created_at then null else created_at end,
           case when run_at > created_at then run_at end,
           0, %(lease_seconds)s::int, 10 - %(priority)s::smallint,
           0, %(max_attempts)s::smallint, 0, %(max_expiries)s::smallint, %(flags)s::smallint
    from cold
)
select id, created_at, run_at is not null and run_at > created_at from cold
"""

_RECLAIM: Final = """
with expired as materialized (
    select spot.task_id, spot.run_id
    from ({queues}) as line,
    lateral (
        select h.task_id, (h.task_id << 16) + h.fence as run_id from tasks_hottask h
        where h.queue_id = line.id and h.holder_id is not null and h.lease_expires_at <= gatehouse_now()
          and h.expiries + 1 < h.max_expiries and h.flags & {cancel} = 0
        order by h.task_id limit 100 for update of h skip locked
    ) as spot
    limit 100
), freed as (
    update tasks_hottask h set holder_id = null, lease_expires_at = null, expiries = h.expiries + 1
    from expired where h.task_id = expired.task_id returning h.task_id
), over as (
    update tasks_run r set ended_at = gatehouse_now(), outcome = 'expired'
    from expired where r.id = expired.run_id and r.ended_at is null
), due as materialized (
    select spot.task_id
    from ({queues}) as line,
    lateral (
        select h.task_id from tasks_hottask h
        where h.queue_id = line.id and h.ready_at is null and h.due_at <= gatehouse_now()
        order by h.due_at limit 100 for update of h skip locked
    ) as spot
    limit 100
), readied as (
    update tasks_hottask h set ready_at = h.due_at, due_at = null
    from due where h.task_id = due.task_id returning h.task_id
)
select (select count(*) from freed), (select count(*) from readied)
"""
_NAMED: Final = "select id from tasks_queue where tenant_id = gatehouse_tenant() and name = any(%(queues)s::text[])"
# Before each claim: what has expired or become due in these queues. Plan: tasks_hottask_leased and tasks_hottask_due
# queue by queue, so that nobody walks the tasks of others.
RECLAIM: Final = _RECLAIM.format(queues=_NAMED, cancel=CANCEL_REQUESTED)
# The same over all queues that the role sees.
RECLAIM_ALL: Final = _RECLAIM.format(queues="select id from tasks_queue", cancel=CANCEL_REQUESTED)

# Expired leases whose task must not run again: its expiries are used up, or it was to be canceled. Recipients take
# turns, and so do the tasks of one: what can't be ended just now stands in nobody's way. Index: tasks_hottask_leased.
DOOMED: Final = f"""
select h.tenant_id, h.task_id, cold.recipient_id
from tasks_hottask h join tasks_task cold on cold.id = h.task_id
where h.holder_id is not null and h.lease_expires_at <= gatehouse_now()
  and (h.expiries + 1 >= h.max_expiries or h.flags & {CANCEL_REQUESTED} <> 0)
order by row_number() over (partition by cold.recipient_id order by random()) limit 100
"""

# Queues are tried in the order named; within one, the most urgent first. The array of ctids makes the planner
# find rows one by one and lock exactly those it takes: the outer limit stops the probes. Plan: Tid Scan over an
# Index Scan of tasks_hottask_claimable.
CLAIM: Final = """
with claimed as (
    update tasks_hottask h
    set fence = h.fence + 1,
        holder_id = %(holder)s::bigint,
        lease_seconds = least(coalesce(%(seconds)s::int, t.lease_seconds), t.max_lease_seconds),
        lease_expires_at = gatehouse_now()
            + make_interval(secs => least(coalesce(%(seconds)s::int, t.lease_seconds), t.max_lease_seconds))
    from tasks_tasktype t
    where t.id = h.task_type_id and h.ctid = any(array(
        select spot.ctid
        from (
            select q.id from unnest(%(queues)s::text[]) with ordinality as named(name, place)
            join tasks_queue q on q.tenant_id = gatehouse_tenant() and q.name = named.name and q.paused_at is null
            order by named.place
        ) as line,
        lateral (
            select c.ctid from tasks_hottask c
            where c.queue_id = line.id and c.holder_id is null and c.ready_at <= gatehouse_now()
              and c.task_type_id = any(array(
                    select k.id from tasks_tasktype k
                    where k.tenant_id = gatehouse_tenant() and k.requires <@ %(capabilities)s::varchar[]
                      and (%(types)s::text[] is null or k.name = any(%(types)s::text[]))))
            order by c.priority_rank, c.ready_at, c.task_id
            limit %(capacity)s::int for update skip locked
        ) as spot
        limit %(capacity)s::int
    ))
    returning h.task_id, h.tenant_id, h.queue_id, h.fence, h.lease_seconds, h.priority_rank, h.ready_at, t.name,
              h.task_id << 16 as runs_after, (h.task_id << 16) + h.fence as run_id
), runs as (
    insert into tasks_run (id, tenant_id, holder_id, started_at, message)
    select run_id, tenant_id, %(holder)s::bigint, gatehouse_now(), '' from claimed
)
select c.task_id, c.fence, c.name, cold.params, c.lease_seconds, cold.requester_id, q.name, before.checkpoint
from claimed c
join lateral (select params, requester_id from tasks_task where id = c.task_id) cold on true
join lateral (select name from tasks_queue where id = c.queue_id) q on true
left join lateral (
    select r.checkpoint from tasks_run r
    where r.id > c.runs_after and r.id < c.run_id and r.checkpoint is not null
    order by r.id desc limit 1
) before on true
order by c.priority_rank, c.ready_at, c.task_id
"""

# Renews what this holder still holds. A row that somebody else has locked is passed over: that is no loss.
# Without a checkpoint or spend in the batch the commit need not wait for the disk.
HEARTBEAT: Final = f"""
with beat as materialized (
    select b.task_id, b.fence,
           case when %(relaxed)s::bool then set_config('synchronous_commit', 'off', true) end
    from unnest(%(tasks)s::bigint[], %(fences)s::int[]) as b(task_id, fence)
), mine as materialized (
    select h.task_id, h.lease_seconds from tasks_hottask h join beat on beat.task_id = h.task_id
    where h.fence = beat.fence and h.holder_id = %(holder)s::bigint
      and (h.flags & {STRICT} = 0 or h.lease_expires_at > gatehouse_now())
    order by h.task_id for update of h skip locked
)
update tasks_hottask h set lease_expires_at = gatehouse_now() + make_interval(secs => mine.lease_seconds)
from mine where h.task_id = mine.task_id
returning h.task_id, h.fence, h.flags, h.lease_seconds
"""

# Why a heartbeat or an ending call found nothing to change.
WHEREABOUTS: Final = f"""
with b as materialized (
    select asked.task_id, asked.fence, (asked.task_id << 16) + asked.fence as run_id
    from unnest(%(tasks)s::bigint[], %(fences)s::int[]) as asked(task_id, fence)
)
select b.task_id, b.fence, h.fence, h.holder_id,
       h.flags & {STRICT} <> 0 and h.lease_expires_at <= gatehouse_now(),
       d.status, r.outcome, r.request_digest, r.answer
from b
left join tasks_hottask h on h.task_id = b.task_id
left join tasks_terminalrecord d on d.task_id = b.task_id
left join tasks_run r on r.id = b.run_id
"""

PROGRESS: Final = """
update tasks_run r
set percent = coalesce(p.percent, r.percent), message = coalesce(p.message, r.message),
    checkpoint = coalesce(p.checkpoint::jsonb, r.checkpoint), progressed_at = gatehouse_now()
from unnest(%(runs)s::bigint[], %(percents)s::float8[], %(messages)s::text[], %(checkpoints)s::text[])
     as p(id, percent, message, checkpoint)
where r.id = p.id
"""

SPEND: Final = """
insert into tasks_spend (tenant_id, task_id, fence, tokens, cost_usd, spent_at)
select %(tenant)s::bigint, s.task_id, s.fence, s.tokens, s.cost_usd, gatehouse_now()
from unnest(%(tasks)s::bigint[], %(fences)s::int[], %(tokens)s::bigint[], %(costs)s::numeric[])
     as s(task_id, fence, tokens, cost_usd)
"""

# The end of a task, guarded by a lease (fence and holder), or by nothing where the row is locked already. Locks by
# deleting; no row: the guard failed, and nothing is written.
END: Final = f"""
with gone as (
    delete from tasks_hottask h
    where h.task_id = %(task)s::bigint
      and (%(fence)s::int is null or (
            h.fence = %(fence)s::int and h.holder_id = %(holder)s::bigint
            and (h.flags & {STRICT} = 0 or h.lease_expires_at > gatehouse_now())))
    returning h.task_id, h.tenant_id, h.queue_id, h.task_type_id, h.fence, (h.task_id << 16) + h.fence as run_id
), run as (
    update tasks_run r
    set ended_at = gatehouse_now(), outcome = %(outcome)s::text, error = %(error)s::jsonb,
        request_digest = %(digest)s::bytea, answer = %(answer)s::jsonb
    from gone where r.id = gone.run_id and r.ended_at is null
), record as (
    insert into tasks_terminalrecord (task_id, tenant_id, status, reason, fence, error, result_channel,
        result_pointer, content, checksum, size, media_type, summary, receipt_id, finished_at)
    select gone.task_id, gone.tenant_id, %(status)s::text, %(reason)s::text, gone.fence, %(error)s::jsonb,
           %(channel)s::text, %(pointer)s::text, %(content)s::jsonb, %(checksum)s::text, %(size)s::bigint,
           %(media_type)s::text, coalesce(%(summary)s::text, k.title || ': ' || %(status)s::text),
           %(receipt)s::text, gatehouse_now()
    from gone join tasks_tasktype k on k.id = gone.task_type_id
    returning finished_at, summary
)
select gone.tenant_id, gone.fence, gone.queue_id, k.name, k.title, cold.recipient_id, cold.receipt_id, cold."group",
       gate.id, record.finished_at, record.summary
from gone cross join record
join lateral (select name, title from tasks_tasktype where id = gone.task_type_id) k on true
join lateral (select recipient_id, receipt_id, "group" from tasks_task where id = gone.task_id) cold on true
join lateral (select id from principals_principal where tenant_id = gone.tenant_id and name = %(gate)s::text)
     gate on true
"""

_LOCK: Final = """
select h.fence, h.holder_id, h.flags, h.failures, h.max_attempts, h.expiries, h.max_expiries,
       h.lease_expires_at <= gatehouse_now(), k.backoff_seconds, k.backoff_cap_seconds
from tasks_hottask h join tasks_tasktype k on k.id = h.task_type_id
where h.task_id = %(task)s::bigint {guard}
for update of h
"""
LOCK: Final = _LOCK.format(guard="")
# Passes over a row that somebody else has at hand.
LOCK_UNLESS_BUSY: Final = f"{LOCK.rstrip()} skip locked"
# Several at once, by id: the order in which everybody locks tasks.
LOCK_SEVERAL: Final = """
select h.fence, h.holder_id, h.flags, h.failures, h.max_attempts, h.expiries, h.max_expiries,
       h.lease_expires_at <= gatehouse_now(), k.backoff_seconds, k.backoff_cap_seconds, h.task_id
from tasks_hottask h join tasks_tasktype k on k.id = h.task_type_id
where h.task_id = any(%(tasks)s::bigint[])
order by h.task_id for update of h
"""
# As END's guard: the caller's run is the current one.
LOCK_LEASE: Final = _LOCK.format(
    guard=f"""and h.fence = %(fence)s::int and h.holder_id = %(holder)s::bigint
      and (h.flags & {STRICT} = 0 or h.lease_expires_at > gatehouse_now())"""
)

# After LOCK_LEASE: back into the line, after a delay or where it stood. The answer is kept with the run.
PUT_BACK: Final = """
with back as (
    update tasks_hottask h
    set holder_id = null, lease_expires_at = null, failures = h.failures + %(failures)s::smallint,
        ready_at = case when %(delay)s::float8 > 0 then null else h.ready_at end,
        due_at = case when %(delay)s::float8 > 0 then gatehouse_now() + make_interval(secs => %(delay)s::float8) end
    where h.task_id = %(task)s::bigint
    returning h.tenant_id, h.queue_id, h.task_type_id, h.due_at, (h.task_id << 16) + h.fence as run_id
), run as (
    update tasks_run r
    set ended_at = gatehouse_now(), outcome = %(outcome)s::text, error = %(error)s::jsonb,
        request_digest = %(digest)s::bytea,
        answer = %(answer)s::jsonb || jsonb_build_object('retry_at', coalesce(back.due_at, gatehouse_now()))
    from back where r.id = back.run_id
    returning r.answer
)
select run.answer, back.tenant_id, q.name, k.name
from run cross join back
join lateral (select name from tasks_queue where id = back.queue_id) q on true
join lateral (select name from tasks_tasktype where id = back.task_type_id) k on true
"""

# Queues with ready work of these types that has lain for a second: its announcement was lost, or all hands were
# busy. One probe of tasks_hottask_claimable for each queue.
UNANNOUNCED: Final = """
with line as materialized (
    select q.id, q.tenant_id, q.name, array(
        select k.id from tasks_tasktype k
        where k.tenant_id = q.tenant_id and k.in_code and k.name = any(%(types)s::text[])) as types
    from tasks_queue q where q.paused_at is null
)
select line.tenant_id, line.name, k.name
from line
cross join lateral (
    select h.task_type_id from tasks_hottask h
    where h.queue_id = line.id and h.holder_id is null and h.ready_at <= gatehouse_now() - interval '1 second'
      and h.task_type_id = any(line.types)
    order by h.priority_rank, h.ready_at, h.task_id limit 1
) as spot
join lateral (select name from tasks_tasktype where id = spot.task_type_id) k on true
where line.types <> '{}'
order by line.tenant_id, line.name
limit 1000
"""

# Counts of each queue, each on an index that begins with the queue: tasks_hottask_claimable, _due, _leased.
QUEUE_HEALTH: Final = """
select q.name, q.paused_at is not null, ready.tasks, waiting.tasks, leased.tasks, leased.expired,
       coalesce(extract(epoch from gatehouse_now() - ready.since), 0)::float8
from tasks_queue q
cross join lateral (
    select count(*) as tasks, min(h.ready_at) as since from tasks_hottask h
    where h.queue_id = q.id and h.holder_id is null and h.ready_at is not null
) as ready
cross join lateral (
    select count(*) as tasks from tasks_hottask h where h.queue_id = q.id and h.ready_at is null
) as waiting
cross join lateral (
    select count(*) as tasks, count(*) filter (where h.lease_expires_at <= gatehouse_now()) as expired
    from tasks_hottask h where h.queue_id = q.id and h.holder_id is not null
) as leased
where q.tenant_id = %(tenant)s::bigint
order by q.name
"""
