"""The statements that run often. Each locks, decides and writes; its rows are the proof.

They run in an acting transaction, so row-level security adds the tenant. `gatehouse_now()` is the clock. A
run's key is `(task_id << 16) + fencing_token`, see models.run_key. Each statement computes it in a materialized
step before it looks for the run. `<<` and `+` are not leakproof: row-level security keeps them out of index
conditions.
"""

from typing import Final

from apps.tasks.states import (
    BUDGET_SPENT,
    CANCEL_REQUESTED,
    CHECKPOINT_WANTED,
    DRAINING,
    MOST_RUNS,
    REVOKES_STUCK,
    STRICT,
)

# What a call that ended a run is answered, as it is kept with the run.
_ANSWER: Final = """jsonb_build_object(
            'task_id', 'task_' || {end}.task_id, 'status', {end}.status, 'receipt_id', {end}.receipt, 'will_retry', false)"""
# The last day that can be told everywhere, whatever the zone.
_LATEST: Final = "timestamptz '9999-12-30T00:00:00Z'"
# Takes tasks in, each by itself: records the key unless it is there, and the task only if its key was recorded. A rival
# with the same key is waited for, then its task answers no row. Keys are taken in their order, which is everybody's. So
# does a task of a type, queue or recipient that is not any more as it was seen. Each task that is taken in makes the
# receipt that obliges the gate. The limits keep the order of what is asked for, and so that of the ids.
ENQUEUE: Final = f"""
given as materialized (
    select t.*, nextval('tasks_task_id_seq') as id, gatehouse_now() as at,
           case when coalesce(t.is_later, t.run_at > gatehouse_now(), false) then 'scheduled'
                when t.waits or t.open_dependencies > 0 then 'waiting' else 'queued' end as status,
           coalesce(t.recipient_id, p.id) as recipient, q.name as queue_name, k.*
    from jsonb_to_recordset(%(given)s::jsonb) as t(
        nth int, requester bigint, requested_by text, key text, digest text, queue bigint, task_type bigint, version text, recipient_id bigint,
        recipient_ai text, fair_requester bigint, priority smallint, params jsonb, run_at timestamptz, is_later bool, waits bool, concurrency_key text,
        retry_of bigint, "group" jsonb, caused_by text, cause bigint, receipt text, open_dependencies smallint,
        has_budget bool, told jsonb)
    cross join lateral (
        select name as type_name, title, lease_seconds, max_attempts, max_expiries, stuck_after, deadline_seconds, xmin as seen,
               case when strict then {STRICT} else 0 end | case when revokes_stuck then {REVOKES_STUCK} else 0 end as flags
        from tasks_tasktype where id = t.task_type limit 1) k
    cross join lateral (select name, xmin from tasks_queue where id = t.queue limit 1) q
    left join lateral (select id from principals_principal where tenant_id = %(tenant)s::bigint
                       and name = t.recipient_ai and disabled_at is null limit 1) p on true
    where (t.version is null or t.version = k.seen || ':' || q.xmin) and (t.recipient_ai is null or p.id is not null)
), keyed as (
    insert into tasks_idempotencykey (tenant_id, principal_id, key, task_id, request_digest, answer, created_at)
    select %(tenant)s::bigint, requester, key, id, decode(digest, 'hex'),
           jsonb_build_object('task_id', 'task_' || id, 'receipt_id', receipt, 'status', status), at
    from given where key is not null order by requester, key
    on conflict (tenant_id, principal_id, key) do nothing
    returning task_id
), made as (
    select id as nth, nth as asked, at, status as task_status, queue, task_type, requester, fair_requester, priority, params, run_at,
           concurrency_key, retry_of, "group", open_dependencies, has_budget, lease_seconds, max_attempts, max_expiries,
           stuck_after, deadline_seconds, flags, receipt as receipt_id, recipient,
           'asyncgate' as source_system, 'task_queued' as event_type,
           'asyncgate:task_queued:task_' || id || ':v1' as dedupe_key,
           left(coalesce(nullif(title, ''), type_name) || ' queued', 200) as title,
           'task_' || id || ' of type ' || type_name || ' waits in ' || queue_name || '.' as summary,
           jsonb_build_object('task_id', 'task_' || id, 'task_type', type_name, 'status', status, 'queue', queue_name,
                              'requested_by', requested_by, 'created_at', at) || coalesce(told, '{{}}') as metadata,
           null::text as artifact_pointer, true as requires_action, caused_by as caused_by_ref,
           null::text as pairs_with_ref, cause as caused_by, null::bigint as pairs_with, 'ledger' as surface,
           %(poster)s::bigint as debtor, recipient as creditor, null::bool as groupable, null::text as resource_ref,
           null::text as event_family, 'normal' as flush_class, null::text as summary_hint, false as break_thread
    from given where key is null or id in (select task_id from keyed)
)
"""
# The tasks themselves, of which the receipts are `stored`.
TAKE_IN: Final = f""", asked_for as (
    insert into tasks_task (id, tenant_id, queue_id, task_type_id, requester_id, recipient_id, priority, params,
                            run_at, concurrency_key, retry_of, "group", caused_by, receipt_id, created_at)
    select nth, %(tenant)s::bigint, queue, task_type, requester, recipient, priority, params,
           run_at, concurrency_key, retry_of, "group", caused_by_ref, receipt_id, at
    from stored
), live as (
    insert into task_live (task_id, tenant_id, queue_id, task_type_id, ready_at, due_at, fencing_token, lease_seconds,
                               priority_rank, failures, max_attempts, expiries, max_expiries, flags,
                               open_dependencies, stuck_after, requester_id, has_budget, deadline_at, concurrency_key)
    select nth, %(tenant)s::bigint, queue, task_type, case task_status when 'queued' then at end,
           case task_status when 'scheduled' then run_at end,
           0, lease_seconds, 10 - priority, 0, max_attempts, 0, max_expiries, flags,
           open_dependencies, stuck_after, fair_requester, has_budget,
           case when deadline_seconds is not null
                then least(greatest(at, run_at) + make_interval(secs => deadline_seconds), {_LATEST}) end,
           concurrency_key
    from stored
)"""

# Whoever changes which task of a concurrency key is ready holds the key until it commits, so that a task that comes to
# wait and one that gives the key up never miss each other. In one order, after tasks and before inboxes.
HOLD_KEYS: Final = """
select pg_advisory_xact_lock(hashtextextended(held.tenant_id || ':' || held.key, 4))
from (
    select distinct k.tenant_id, k.key from unnest(%(tenants)s::bigint[], %(keys)s::text[]) as k(tenant_id, key)
    order by 1, 2
) as held
"""
# After HOLD_KEYS: which of the keys a task has already. Index: task_live_key_admitted_once.
BUSY_KEYS: Final = """
select gatehouse_now(), array(
    select h.concurrency_key from task_live h
    where h.tenant_id = gatehouse_tenant() and h.concurrency_key = any(%(keys)s::text[]) and h.ready_at is not null)
"""
_NEXT_KEY: Final = """
    select h.tenant_id, h.concurrency_key from task_live h
    where h.ready_at is null and h.due_at is null and h.open_dependencies = 0 and h.concurrency_key is not null
      and {after}
    order by h.tenant_id, h.concurrency_key limit 1"""
# After HOLD_KEYS: of each key that is free the most urgent task gets ready. Index: task_live_waiting_for_key.
ADMIT: Final = """
with next as materialized (
    select chosen.task_id
    from (select distinct k.tenant_id, k.key from unnest(%(tenants)s::bigint[], %(keys)s::text[]) as k(tenant_id, key))
        as freed
    cross join lateral (
        select w.task_id from task_live w
        where w.tenant_id = freed.tenant_id and w.concurrency_key = freed.key
          and w.ready_at is null and w.due_at is null and w.open_dependencies = 0
        order by w.priority_rank, w.task_id limit 1 for update of w skip locked
    ) as chosen
    where not exists (
        select from task_live a
        where a.tenant_id = freed.tenant_id and a.concurrency_key = freed.key and a.ready_at is not null)
), admitted as (
    update task_live h set ready_at = gatehouse_now() from next where h.task_id = next.task_id
    returning h.tenant_id, h.queue_id, h.task_type_id
)
select distinct a.tenant_id, q.name, k.name
from admitted a
join lateral (select name from tasks_queue where id = a.queue_id) q on true
join lateral (select name from tasks_tasktype where id = a.task_type_id) k on true
"""

# Keys that nobody has and that somebody waits for: ADMIT skips a locked task. From
# key to key by task_live_waiting_for_key, one probe of task_live_key_admitted_once each.
FREE_KEYS: Final = f"""
with recursive waited_for as (
    ({_NEXT_KEY.format(after="true")})
    union all
    select following.* from waited_for before cross join lateral (
        {_NEXT_KEY.format(after="(h.tenant_id, h.concurrency_key) > (before.tenant_id, before.concurrency_key)")}
    ) as following
)
select w.tenant_id, w.concurrency_key from waited_for w
where not exists (
    select from task_live a
    where a.tenant_id = w.tenant_id and a.concurrency_key = w.concurrency_key and a.ready_at is not null)
limit %(limit)s
"""

# What is past its deadline is given to nobody: DOOMED finds it.
_IN_TIME: Final = "({row}.deadline_at is null or {row}.deadline_at > gatehouse_now())"
# Whose task is not to run again once nobody holds it.
_DOOMED: Final = CANCEL_REQUESTED | BUDGET_SPENT
_RECLAIM: Final = """
with expired as materialized (
    select spot.task_id, spot.run_id
    from ({queues}) as line,
    lateral (
        select h.task_id, (h.task_id << 16) + h.fencing_token as run_id from task_live h
        where h.queue_id = any(array[line.id]) and h.holder_id is not null and h.lease_expires_at <= gatehouse_now()
          and h.expiries + 1 < h.max_expiries and h.fencing_token < {most_runs} and h.flags & {doomed} = 0 and {in_time}
        order by h.queue_id, h.task_id limit 100 for update of h skip locked
    ) as spot
    limit 100
), freed as (
    update task_live h set holder_id = null, lease_expires_at = null, expiries = h.expiries + 1
    from expired where h.task_id = expired.task_id returning h.tenant_id, h.queue_id, h.task_type_id
), over as (
    update tasks_run r set ended_at = gatehouse_now(), outcome = 'expired'
    from expired where r.id = expired.run_id and r.ended_at is null
), due as materialized (
    select spot.task_id
    from ({queues}) as line,
    lateral (
        select h.task_id from task_live h
        where h.queue_id = line.id and h.ready_at is null and h.due_at <= gatehouse_now()
        order by h.due_at limit 100 for update of h skip locked
    ) as spot
    limit 100
), readied as (
    -- One with a key, or that waits for others too, is due but not ready yet.
    update task_live h
    set ready_at = case when h.concurrency_key is null and h.open_dependencies = 0 then h.due_at end, due_at = null
    from due where h.task_id = due.task_id
    returning h.tenant_id, h.queue_id, h.task_type_id, h.ready_at, h.concurrency_key
), wanted as materialized (
    select distinct tenant_id, concurrency_key from readied where concurrency_key is not null
)
select (select count(*) from freed), (select count(*) from readied),
       array(select tenant_id from wanted order by tenant_id, concurrency_key),
       array(select concurrency_key from wanted order by tenant_id, concurrency_key),
       (select coalesce(jsonb_agg(jsonb_build_array(f.tenant_id, q.name, k.name)), '[]')
        from (
            select tenant_id, queue_id, task_type_id from freed
            union
            select tenant_id, queue_id, task_type_id from readied where ready_at is not null
        ) as f
        join lateral (select name from tasks_queue where id = f.queue_id) q on true
        join lateral (select name from tasks_tasktype where id = f.task_type_id) k on true)
"""
# The queues named, in their order; if none is, those of the types.
_NAMED_LINES: Final = "select name, place from unnest(%(queues)s::text[]) with ordinality as given(name, place)"
_OWN_LINES: Final = """select name, row_number() over (order by name) as place from (
        select distinct q.name from tasks_tasktype k join tasks_queue q on q.id = k.queue_id
        where cardinality(%(queues)s::text[]) = 0 and k.tenant_id = gatehouse_tenant()
              and k.name = any(%(types)s::text[])
    ) as own"""
_LINES: Final = f"{_NAMED_LINES} union all {_OWN_LINES}"
_NAMED: Final = f"""
    select q.id from ({_LINES}) as named
    join tasks_queue q on q.tenant_id = gatehouse_tenant() and q.name = named.name"""
# Before each claim: what has expired or become due in these queues. Plan: task_live_leased and task_live_due
# queue by queue, so that nobody walks the tasks of others; in the order of the queue too, which is named by an array lest
# that be void, since the primary key has the order of the tasks as well.
RECLAIM: Final = _RECLAIM.format(queues=_NAMED, doomed=_DOOMED, most_runs=MOST_RUNS, in_time=_IN_TIME.format(row="h"))
# The same over all queues that the role sees.
RECLAIM_ALL: Final = _RECLAIM.format(
    queues="select id from tasks_queue", doomed=_DOOMED, most_runs=MOST_RUNS, in_time=_IN_TIME.format(row="h")
)

# Tasks that must end, a bounded number: expired leases whose task must not run again, because its expiries or its runs are
# used up or it was to be stopped, and open tasks past their deadline, whoever holds them. They alternate between recipients
# and come in random order, so that a task that can't be ended now does not block others. The limits keep the planner from
# reading tasks_task whole, too. Indexes: task_live_leased, task_live_by_deadline.
DOOMED: Final = f"""
select h.tenant_id, h.task_id, asked_for.recipient_id
from (
    (select o.tenant_id, o.task_id from task_live o
     where o.holder_id is not null and o.lease_expires_at <= gatehouse_now()
       and (o.expiries + 1 >= o.max_expiries or o.fencing_token >= {MOST_RUNS} or o.flags & {_DOOMED} <> 0)
       and {_IN_TIME.format(row="o")} limit 1000)
    union all
    (select o.tenant_id, o.task_id from task_live o where o.deadline_at <= gatehouse_now() order by o.deadline_at limit 1000)
) as h
cross join lateral (select recipient_id from tasks_task where id = h.task_id limit 1) asked_for
order by row_number() over (partition by asked_for.recipient_id order by random()) limit 100
"""

_LIMITED: Final = "({row}.concurrency is not null or {row}.rate is not null)"
# What a claim may look at: types that the task worker can do, and queues in the order named, which the limit keeps.
_ABLE: Final = f"""
able as materialized (
    select k.id, k.name, k.lease_seconds, k.max_lease_seconds, k.heartbeat_seconds, k.concurrency, k.rate, k.rate_seconds,
           {_LIMITED.format(row="k")} as limited
    from tasks_tasktype k
    where k.tenant_id = gatehouse_tenant() and k.paused_at is null and k.requires <@ %(capabilities)s::varchar[]
      and (%(types)s::text[] is null or k.name = any(%(types)s::text[]))
), open as materialized (
    select q.*, named.place
    from ({{lines}}) as named
    cross join lateral (
        select q.id, q.name, q.concurrency, q.rate, q.rate_seconds, q.fair, {_LIMITED.format(row="q")} or q.fair as limited
        from tasks_queue q where q.tenant_id = gatehouse_tenant() and q.name = named.name and q.paused_at is null limit 1
    ) as q
)"""
# The orders to one holder are not for the next.
_KEPT: Final = ~(CHECKPOINT_WANTED | DRAINING)
# How long a lease is good without a sign of life.
_LENGTH: Final = """least(
            coalesce(%(seconds)s::int, t.lease_seconds), t.max_lease_seconds, t.heartbeat_seconds,
            ceil(extract(epoch from h.deadline_at - gatehouse_now()))::int)"""
_GRANT: Final = """
claimed as (
    update task_live h
    set fencing_token = h.fencing_token + 1,
        holder_id = %(holder)s::bigint,
        flags = h.flags & {kept},
        silent_beats = 0,
        lease_seconds = {length},
        lease_expires_at = least(gatehouse_now() + make_interval(secs => {length}), h.deadline_at)
    from able t
    where t.id = h.task_type_id and h.ctid = any(array({spots}))
    returning h.task_id, h.tenant_id, h.queue_id, h.task_type_id, h.requester_id, h.fencing_token,
              ceil(extract(epoch from h.lease_expires_at - gatehouse_now()) * 1000)::int as lease_ms, h.priority_rank,
              h.ready_at, t.name, h.task_id << 16 as runs_after, (h.task_id << 16) + h.fencing_token as run_id
), runs as (
    insert into tasks_run (id, tenant_id, holder_id, started_at, message, host)
    select run_id, tenant_id, %(holder)s::bigint, gatehouse_now(), '', %(host)s::text from claimed
)"""
# What the last run saved that saved something.
_BEFORE: Final = """left join lateral (
    select r.checkpoint from tasks_run r
    where r.id > c.runs_after and r.id < c.run_id and r.checkpoint is not null
    order by r.id desc limit 1
) before on true
"""
_GRANTED: Final = f"""
select c.task_id, c.fencing_token, c.name, asked_for.params, c.lease_ms, before.checkpoint, c.ready_at
from claimed c
join lateral (select params from tasks_task where id = c.task_id) asked_for on true
{_BEFORE}"""

# Queues are tried in the order named; within one, the most urgent first. The array of ctids makes the planner
# find rows one by one and lock exactly those it takes: the outer limit stops the probes. Plan: Tid Scan over an
# Index Scan of task_live_claimable, which begins at the floor in each rank: what was claimed before leaves entries
# that nobody can clean up while a snapshot is held elsewhere. Where a limit bites, nothing is claimed and the one row answered has no task:
# CLAIM_WITHIN_LIMITS is to be asked.
_CLAIM: Final = f"""
with {_ABLE}, {
    _GRANT.format(
        kept=_KEPT,
        length=_LENGTH,
        spots=f'''
        select spot.ctid
        from (
            select id from open
            where not exists (select from able where limited) and not exists (select from open where limited)
        ) as line,
        lateral (
            select c.ctid from task_live c
            where c.queue_id = line.id and c.holder_id is null and c.ready_at <= gatehouse_now()
              and c.ready_at >= %(floor)s::timestamptz
              and c.task_type_id = any(array(select id from able)) and {_IN_TIME.format(row="c")}
            order by c.priority_rank, c.ready_at, c.task_id
            limit %(capacity)s::int for update skip locked
        ) as spot
        limit %(capacity)s::int''',
    )
}
select * from (
    {_GRANTED}
    order by c.priority_rank, c.ready_at, c.task_id
) as granted
union all
select null, null, null, null, null, null, null
where exists (select from able where limited) or exists (select from open where limited)
"""
CLAIM: Final = {is_named: _CLAIM.format(lines=_NAMED_LINES if is_named else _OWN_LINES) for is_named in (True, False)}

_LIMITS: Final = f"""
with {_ABLE.format(lines=_LINES)}
select {{lock}}(hashtextextended(named.name, 5)) as held
from (
    select 'queue ' || id as name from open where limited
    union all
    select 'type ' || id from able where limited
    order by 1
) as named
"""
# Claims at the same limit wait for each other until they commit, so that what one counts stands until it has claimed.
HOLD_LIMITS: Final = _LIMITS.format(lock="pg_advisory_xact_lock")
# The same for who must wait for nobody; says whether all of them could be had.
TRY_LIMITS: Final = (
    f"select coalesce(bool_and(held), true) from ({_LIMITS.format(lock='pg_try_advisory_xact_lock')}) as tried"
)
# After HOLD_LIMITS. Looks first, at no more rows of a kind than may be taken of it, and locks what it has chosen. A kind
# is a limited type by itself, and all other types together; in a fair queue each requester has a look of its own, and
# they alternate: whoever was served longest ago comes first. Index: task_live_claimable, or _claimable_fairly; what
# is chosen is fetched by its place, which `is true` keeps the partial indexes out of.
CLAIM_WITHIN_LIMITS: Final = f"""
with recursive {_ABLE.format(lines=_LINES)}, kind as materialized (
    select array[a.id] as types, least(
        a.concurrency - (
            select count(*) from tasks_queue q join task_live h on h.queue_id = q.id
            where q.tenant_id = gatehouse_tenant() and h.holder_id is not null and h.task_type_id = a.id),
        a.rate - (
            select coalesce(sum(g.leases), 0) from tasks_ratewindow g
            where g.task_type_id = a.id and g.queue_id is null
              and g.granted_at > gatehouse_now() - make_interval(secs => a.rate_seconds)),
        %(capacity)s::int) as room
    from able a where a.limited
    union all
    select array(select id from able where not limited), %(capacity)s::int
), line as materialized (
    select q.id, q.place, q.fair, least(
        q.concurrency - (select count(*) from task_live h where h.queue_id = q.id and h.holder_id is not null),
        q.rate - (
            select coalesce(sum(g.leases), 0) from tasks_ratewindow g
            where g.queue_id = q.id and g.task_type_id is null
              and g.granted_at > gatehouse_now() - make_interval(secs => q.rate_seconds)),
        %(capacity)s::int) as room
    from open q
), asking as (
    select line.id as queue_id, first.requester_id
    from line cross join lateral (
        select c.requester_id from task_live c
        where line.fair and c.queue_id = line.id and c.holder_id is null and c.ready_at is not null
          and c.requester_id is not null
        order by c.requester_id limit 1
    ) as first
    union all
    select asking.queue_id, following.requester_id
    from asking cross join lateral (
        select c.requester_id from task_live c
        where c.queue_id = asking.queue_id and c.holder_id is null and c.ready_at is not null
          and c.requester_id > asking.requester_id
        order by c.requester_id limit 1
    ) as following
), seen as materialized (
    select spot.*, line.id as queue_id, line.place, line.room, kind.types, kind.room as type_room, 1::bigint as nth,
           null::bigint as served
    from line cross join kind cross join lateral (
        select c.ctid as spot, c.task_id, c.priority_rank, c.ready_at
        from task_live c
        where c.queue_id = line.id and c.holder_id is null and c.ready_at <= gatehouse_now()
          and c.task_type_id = any(kind.types) and {_IN_TIME.format(row="c")}
        order by c.priority_rank, c.ready_at, c.task_id limit greatest(least(line.room, kind.room), 0)
    ) as spot
    where not line.fair and line.room > 0 and kind.room > 0
    union all
    select spot.*, line.id, line.place, line.room, kind.types, kind.room,
           row_number() over (partition by line.id, asking.requester_id
                              order by spot.priority_rank, spot.ready_at, spot.task_id),
           (select t.served from tasks_fairshare t
            where t.tenant_id = gatehouse_tenant() and t.queue_id = line.id and t.requester_id = asking.requester_id)
    from line join asking on asking.queue_id = line.id cross join kind cross join lateral (
        select c.ctid as spot, c.task_id, c.priority_rank, c.ready_at
        from task_live c
        where c.queue_id = line.id and c.requester_id = asking.requester_id and c.holder_id is null
          and c.ready_at <= gatehouse_now() and c.task_type_id = any(kind.types) and {_IN_TIME.format(row="c")}
        order by c.priority_rank, c.ready_at, c.task_id limit greatest(least(line.room, kind.room), 0)
    ) as spot
    where line.fair and line.room > 0 and kind.room > 0
), typed as (
    select *, row_number() over (partition by types
                                 order by place, nth, served nulls first, priority_rank, ready_at, task_id) as of_type
    from seen
), lined as (
    select *, row_number() over (partition by queue_id
                                 order by nth, served nulls first, priority_rank, ready_at, task_id) as of_queue
    from typed where of_type <= type_room
), chosen as materialized (
    select spot, task_id,
           row_number() over (order by place, nth, served nulls first, priority_rank, ready_at, task_id) as position
    from lined where of_queue <= room
    order by position limit %(capacity)s::int
), {
    _GRANT.format(
        kept=_KEPT,
        length=_LENGTH,
        spots='''
        select c.ctid from task_live c
        where c.ctid = any(array(select spot from chosen)) and (c.holder_id is null and c.ready_at is not null) is true
        for update skip locked''',
    )
}, shares as (
    insert into tasks_fairshare (tenant_id, queue_id, requester_id, served)
    select c.tenant_id, c.queue_id, c.requester_id, nextval('tasks_fairshare_id_seq')
    from (
        select claimed.tenant_id, claimed.queue_id, claimed.requester_id, max(chosen.position) as last
        from claimed join chosen on chosen.task_id = claimed.task_id
        join open on open.id = claimed.queue_id and open.fair
        where claimed.requester_id is not null
        group by 1, 2, 3 order by last
    ) as c
    on conflict (tenant_id, queue_id, requester_id) do update set served = excluded.served
), counted as (
    insert into tasks_ratewindow (tenant_id, queue_id, task_type_id, granted_at, leases)
    select c.tenant_id, c.queue_id, null, gatehouse_now(), count(*)
    from claimed c join open on open.id = c.queue_id and open.rate is not null group by 1, 2
    union all
    select c.tenant_id, null, c.task_type_id, gatehouse_now(), count(*)
    from claimed c join able on able.id = c.task_type_id and able.rate is not null group by 1, 3
), forgotten as (
    delete from tasks_ratewindow g using open
    where g.queue_id = open.id and g.task_type_id is null
      and g.granted_at <= gatehouse_now() - make_interval(secs => open.rate_seconds)
), forgotten_of_types as (
    delete from tasks_ratewindow g using able
    where g.task_type_id = able.id and g.queue_id is null
      and g.granted_at <= gatehouse_now() - make_interval(secs => able.rate_seconds)
)
{_GRANTED}
join chosen on chosen.task_id = c.task_id
order by chosen.position
"""
# In queues that have become fair: the requesters of a bounded number of tasks.
SETTLE_FAIR_SHARES: Final = """
update task_live h set requester_id = asked_for.requester_id
from tasks_task asked_for
where asked_for.id = h.task_id and h.task_id = any(array(
    select c.task_id from tasks_queue q join task_live c on c.queue_id = q.id and c.requester_id is null
    where q.fair limit %(limit)s for update of c skip locked))
"""

# Renews what this holder still holds, up to the task's deadline. A row that somebody else has locked is passed over:
# that is no loss. A run that was told that its budget is spent keeps what it has of its lease.
# Without a checkpoint or spend in the batch the commit need not wait for the disk.
HEARTBEAT: Final = f"""
with beat as materialized (
    select b.task_id, b.fencing_token,
           case when %(relaxed)s::bool then set_config('synchronous_commit', 'off', true) end
    from unnest(%(tasks)s::bigint[], %(fencing_tokens)s::int[]) as b(task_id, fencing_token)
), mine as materialized (
    select h.task_id, h.lease_seconds from task_live h join beat on beat.task_id = h.task_id
    where h.fencing_token = beat.fencing_token and h.holder_id = %(holder)s::bigint
      and (h.flags & {STRICT} = 0 or h.lease_expires_at > gatehouse_now())
    order by h.task_id for update of h skip locked
)
update task_live h
set lease_expires_at = case when h.flags & {BUDGET_SPENT} = 0
        then least(gatehouse_now() + make_interval(secs => mine.lease_seconds), h.deadline_at)
        else h.lease_expires_at end,
    lease_seconds = greatest(1, least(
        mine.lease_seconds, ceil(extract(epoch from h.deadline_at - gatehouse_now()))::int)),
    silent_beats = case when h.stuck_after is null then 0 else least(h.silent_beats + 1, 32767) end
from mine where h.task_id = mine.task_id
returning h.task_id, h.fencing_token, h.flags,
          greatest(0, ceil(extract(epoch from h.lease_expires_at - gatehouse_now()) * 1000))::int,
          h.silent_beats >= h.stuck_after, h.has_budget
"""

# Why a heartbeat or an ending call found nothing to change.
WHEREABOUTS: Final = f"""
with b as materialized (
    select asked.task_id, asked.fencing_token, (asked.task_id << 16) + asked.fencing_token as run_id
    from unnest(%(tasks)s::bigint[], %(fencing_tokens)s::int[]) as asked(task_id, fencing_token)
)
select b.task_id, b.fencing_token, h.fencing_token, h.holder_id,
       h.flags & {STRICT} <> 0 and h.lease_expires_at <= gatehouse_now(),
       d.status, r.outcome, r.request_digest, r.answer
from b
left join task_live h on h.task_id = b.task_id
left join task_history d on d.task_id = b.task_id
left join tasks_run r on r.id = b.run_id
"""

# After HEARTBEAT, which holds the tasks. What says nothing new is no progress. Progress gives way to newer progress, and a
# checkpoint to a newer checkpoint: not to each other, or an acknowledged one would be lost to a heartbeat that had none.
_NEWER: Final = "(p.sequence > r.{what}_sequence) is not false"
PROGRESS: Final = f"""
with told as (
    update tasks_run r
    set percent = case when {_NEWER.format(what="progress")} then coalesce(p.percent, r.percent) else r.percent end,
        message = case when {_NEWER.format(what="progress")} then coalesce(p.message, r.message) else r.message end,
        progress_sequence = case when p.percent is null and p.message is null then r.progress_sequence
            else greatest(p.sequence, r.progress_sequence) end,
        checkpoint = case when {_NEWER.format(what="checkpoint")}
            then coalesce(p.checkpoint::jsonb, r.checkpoint) else r.checkpoint end,
        checkpoint_sequence = case when p.checkpoint is null then r.checkpoint_sequence
            else greatest(p.sequence, r.checkpoint_sequence) end,
        progressed_at = gatehouse_now()
    from unnest(%(runs)s::bigint[], %(percents)s::float8[], %(messages)s::text[], %(checkpoints)s::text[],
                %(sequences)s::bigint[]) as p(id, percent, message, checkpoint, sequence)
    where r.id = p.id and (
        p.checkpoint is not null and {_NEWER.format(what="checkpoint")}
        or {_NEWER.format(what="progress")} and (
            r.percent is distinct from coalesce(p.percent, r.percent)
            or r.message is distinct from coalesce(p.message, r.message)))
    returning r.id, r.id >> 16 as task_id,
              p.checkpoint is not null and (p.sequence > old.checkpoint_sequence) is not false as saved
), moving as (
    update task_live h
    set silent_beats = 0, flags = case when told.saved then h.flags & ~{CHECKPOINT_WANTED} else h.flags end
    from told where h.task_id = told.task_id
      and (h.stuck_after is not null or told.saved and h.flags & {CHECKPOINT_WANTED} <> 0)
)
select id, saved from told
"""
# What the holders of leases are told at their next heartbeat.
DRAIN_QUEUE: Final = f"""
update task_live set flags = flags | {DRAINING} where task_id = any(array(
    select h.task_id from task_live h
    where h.queue_id = %(queue)s::bigint and h.holder_id is not null order by h.task_id for update))
"""
# Where a transaction that began with heartbeats has done more.
LASTING: Final = "select set_config('synchronous_commit', 'on', true)"

# After HEARTBEAT, which holds the tasks: notes what runs have used in all, and takes what is new from the tasks' budgets. Of
# a run that knows that its budget is spent, nothing more is taken: it is answered.
SPEND: Final = """
with said as materialized (
    select u.run, u.knows, u.tokens, round(u.cost_usd, 6) as cost_usd
    from unnest(%(runs)s::bigint[], %(knowing)s::bool[], %(tokens)s::bigint[], %(costs)s::numeric[])
        as u(run, knows, tokens, cost_usd)
), grown as (
    update tasks_run r
    set spent_tokens = greatest(r.spent_tokens, said.tokens),
        spent_cost_usd = greatest(r.spent_cost_usd, said.cost_usd),
        progressed_at = gatehouse_now()
    from said
    where r.id = said.run and not said.knows
      and (said.tokens > r.spent_tokens or said.cost_usd > r.spent_cost_usd)
    returning r.id >> 16 as task_id, new.spent_tokens - old.spent_tokens as tokens,
              new.spent_cost_usd - old.spent_cost_usd as cost_usd
), taken as (
    update tasks_budget b
    set spent_tokens = b.spent_tokens + o.tokens, spent_cost_usd = b.spent_cost_usd + o.cost_usd,
        spent_at = case when b.spent_at is null and (
                b.spent_tokens + o.tokens >= b.max_tokens or b.spent_cost_usd + o.cost_usd >= b.max_cost_usd)
            then gatehouse_now() else b.spent_at end
    from grown o where b.task_id = o.task_id
)
select said.run from said join tasks_run r on r.id = said.run
where said.knows and (said.tokens > r.spent_tokens or said.cost_usd > r.spent_cost_usd)
"""
# What is left of these tasks' budgets, and whether they are spent: such tasks, whose holders hear it now, are marked.
LEFT: Final = f"""
with found as materialized (
    select b.task_id, case when b.max_tokens is not null then greatest(b.max_tokens - b.spent_tokens, 0) end as tokens,
           case when b.max_cost_usd is not null then greatest(b.max_cost_usd - b.spent_cost_usd, 0) end as cost_usd,
           b.spent_at is not null as is_spent
    from tasks_budget b where b.task_id = any(%(tasks)s::bigint[])
), marked as (
    update task_live h
    set flags = h.flags | {BUDGET_SPENT}
    from found where h.task_id = found.task_id and found.is_spent and h.flags & {BUDGET_SPENT} = 0
)
select task_id, tokens, cost_usd, is_spent from found
"""

# The ends of tasks, each guarded by a lease (fencing_token, and holder if given), or by nothing where the row is locked already. Locks by
# id, then the concurrency keys that get free; what fails its guard answers no row, and nothing is written of it. Each end
# makes its receipt. Given are the ends in the order of their tasks.
END: Final = f"""
ending as materialized (
    select h.*, g.status, g.outcome, g.reason,
           g.error, g.summary, g.channel, g.pointer, g.content::jsonb as content, g.checksum, g.size, g.media_type,
           decode(g.digest, 'hex') as digest, g.receipt
    from jsonb_to_recordset(%(given)s::jsonb) as g(
        task_id bigint, fencing_token int, holder bigint, status text, outcome text, reason text, error jsonb, summary text, channel text,
        pointer text, content text, checksum text, size bigint, media_type text, digest text, receipt text)
    cross join lateral (
        select h.task_id, h.tenant_id, h.queue_id, h.task_type_id, h.fencing_token,
               (h.task_id << 16) + h.fencing_token as run_id, case when h.ready_at is not null then h.concurrency_key end as key
        from task_live h
        where h.task_id = g.task_id and (g.fencing_token is null or (
            h.fencing_token = g.fencing_token and h.holder_id = coalesce(g.holder, h.holder_id)
            and (h.flags & {STRICT} = 0 or h.lease_expires_at > gatehouse_now())))
        for update
    ) h
), gone as (
    -- Not by its ctid: a row that others changed while it was waited for stands elsewhere.
    delete from task_live where task_id = any(array(select task_id from ending))
), runs as (
    update tasks_run r
    set ended_at = gatehouse_now(), outcome = ending.outcome, error = ending.error, request_digest = ending.digest,
        answer = {_ANSWER.format(end="ending")}
    from ending where r.id = ending.run_id and r.ended_at is null
), ended as materialized (
    select e.*, gatehouse_now() as at, q.name as queue, k.name as task_type, k.title, k.requires, asked_for.*,
           coalesce(e.summary, k.title || ': ' || e.status) as told,
           case e.status when 'succeeded' then 'complete' else e.status end as event, root.id as root,
           q.concurrency is not null or k.concurrency is not null as makes_room,
           (select true from tasks_dependency d where d.on_task_id = e.task_id limit 1) is true as is_waited_for
    from ending e
    cross join lateral (select name, concurrency from tasks_queue where id = e.queue_id limit 1) q
    cross join lateral (select name, title, requires, concurrency from tasks_tasktype where id = e.task_type_id limit 1) k
    cross join lateral (select recipient_id, receipt_id, "group" from tasks_task where id = e.task_id limit 1) asked_for
    left join lateral (
        select id from receipts_receipt
        where tenant_id = e.tenant_id and receipt_id = asked_for.receipt_id for key share
    ) root on true
    -- The keys that get free are locked here.
    where cardinality(array(
        select pg_advisory_xact_lock(hashtextextended(k.tenant_id || ':' || k.key, 4)) is null
        from (select tenant_id, key from ending where key is not null order by 1, 2) as k)) >= 0
), record as (
    insert into task_history (task_id, tenant_id, status, reason, fencing_token, error, result_channel,
        result_pointer, content, checksum, size, media_type, summary, receipt_id, finished_at)
    select task_id, tenant_id, status, reason, fencing_token, error, channel, pointer, content, checksum, size, media_type,
           told, receipt, at
    from ended
), made as not materialized (
    select task_id as nth, at, tenant_id, fencing_token, status, queue, task_type, requires, key, makes_room, is_waited_for,
           receipt as receipt_id, recipient_id as recipient, 'asyncgate' as source_system,
           'task_' || event as event_type,
           'asyncgate:task_' || event || ':task_' || task_id || ':run_' || fencing_token as dedupe_key,
           left(coalesce(nullif(title, ''), task_type) || ' ' || event, 200) as title, told as summary,
           jsonb_build_object('task_id', 'task_' || task_id, 'task_type', task_type, 'status', event,
                              'result_channel', channel, 'result_pointer', pointer, 'created_at', at,
                              'run_id', fencing_token, 'checksum', checksum, 'size', size)
               || case when reason is null then '{{}}' else jsonb_build_object('reason', reason) end
               || case when error is null then '{{}}' else jsonb_build_object('error', error) end as metadata,
           pointer as artifact_pointer, false as requires_action, receipt_id as caused_by_ref,
           receipt_id as pairs_with_ref, root as caused_by, root as pairs_with, 'inbox' as surface,
           null::bigint as debtor, null::bigint as creditor, ("group" ->> 'groupable')::bool as groupable,
           "group" ->> 'resource_ref' as resource_ref, "group" ->> 'event_family' as event_family,
           coalesce("group" ->> 'flush_class', 'normal') as flush_class, "group" ->> 'summary_hint' as summary_hint,
           coalesce(("group" ->> 'break_thread')::bool, false) as break_thread
    from ended
)
"""

_LOCK: Final = """
select h.task_id, h.fencing_token, h.holder_id, h.flags, h.failures, h.max_attempts, h.expiries, h.max_expiries,
       h.lease_expires_at <= gatehouse_now(), k.backoff_seconds, k.backoff_cap_seconds, h.tenant_id, h.concurrency_key,
       coalesce(h.deadline_at <= gatehouse_now(), false)
from unnest(%(tasks)s::bigint[]{more}) as asked(task_id{named})
join task_live h on h.task_id = asked.task_id {guard}
join tasks_tasktype k on k.id = h.task_type_id
order by h.task_id for update of h
"""
# Open tasks by id: the order in which everybody locks them.
LOCK: Final = _LOCK.format(more="", named="", guard="")
# Skips locked rows.
LOCK_UNLESS_BUSY: Final = f"{LOCK.rstrip()} skip locked"
# As END's guard: the caller's runs are the current ones.
LOCK_LEASES: Final = _LOCK.format(
    more=", %(fencing_tokens)s::int[]",
    named=", fencing_token",
    guard=f"""and h.fencing_token = asked.fencing_token and h.holder_id = %(holder)s::bigint
      and (h.flags & {STRICT} = 0 or h.lease_expires_at > gatehouse_now())""",
)

# After LOCK_LEASES: back into the line, after a delay or where they stood. The answers are kept with the runs. One that
# has to wait gives its concurrency key up.
PUT_BACK: Final = """
with given as materialized (
    select g.*, (g.task_id << 16) + g.fencing_token as run_id
    from jsonb_to_recordset(%(backs)s::jsonb) as g(
        task_id bigint, fencing_token int, failures smallint, expiries smallint, delay float8, outcome text, error text,
        digest text, answer text)
), back as (
    update task_live h
    set holder_id = null, lease_expires_at = null, failures = h.failures + g.failures,
        expiries = h.expiries + g.expiries, silent_beats = 0,
        ready_at = case when g.delay > 0 then null else h.ready_at end,
        due_at = case when g.delay > 0 then gatehouse_now() + make_interval(secs => g.delay) end
    from given g
    where h.task_id = g.task_id and h.task_id = any(array(select task_id from given))
    returning h.task_id, h.tenant_id, h.queue_id, h.task_type_id, h.due_at,
              case when g.delay > 0 then h.concurrency_key end as key
), runs as (
    update tasks_run r
    set ended_at = gatehouse_now(), outcome = g.outcome, error = g.error::jsonb, request_digest = decode(g.digest, 'hex'),
        answer = g.answer::jsonb || jsonb_build_object('retry_at', coalesce(back.due_at, gatehouse_now()))
    from given g join back on back.task_id = g.task_id
    where r.id = g.run_id
    returning g.task_id, r.answer
)
select back.task_id, runs.answer, back.tenant_id, q.name, k.name, back.key
from back join runs on runs.task_id = back.task_id
join lateral (select name from tasks_queue where id = back.queue_id) q on true
join lateral (select name from tasks_tasktype where id = back.task_type_id) k on true
order by back.task_id
"""

# What a call that ended a run was given besides: kept with its answer.
KEEP_NEXT: Final = """
update tasks_run set answer = answer || jsonb_build_object('next', %(next)s::jsonb) where id = %(run)s::bigint
"""
# Leases once more, as far as they stand: their time runs from when they were granted.
GRANTED: Final = f"""
with given as materialized (
    select g.nth, g.task_id, g.fencing_token, g.task_id << 16 as runs_after, (g.task_id << 16) + g.fencing_token as run_id
    from unnest(%(tasks)s::bigint[], %(fencing_tokens)s::int[]) with ordinality as g(task_id, fencing_token, nth)
)
select c.task_id, c.fencing_token, k.name, asked_for.params, live.lease_ms, before.checkpoint
from given c
join lateral (
    select ceil(extract(epoch from h.lease_expires_at - gatehouse_now()) * 1000)::int as lease_ms
    from task_live h
    where h.task_id = c.task_id and h.fencing_token = c.fencing_token and h.holder_id is not null
      and h.lease_expires_at > gatehouse_now()
) live on true
join lateral (select params, task_type_id from tasks_task where id = c.task_id) asked_for on true
join lateral (select name from tasks_tasktype where id = asked_for.task_type_id) k on true
{_BEFORE}order by c.nth
"""

# Queues with ready work that was announced before: one probe of task_live_claimable for each.
_READY_OF: Final = """
with line as materialized (
    select q.id, q.tenant_id, q.name, {limited} as limited, array(
        select k.id from tasks_tasktype k
        where k.tenant_id = q.tenant_id and k.paused_at is null and {types}) as types
    from tasks_queue q where q.paused_at is null
)
select line.tenant_id, line.name, k.name
from line
cross join lateral (
    select h.task_type_id from task_live h
    where h.queue_id = line.id and h.holder_id is null and h.ready_at <= gatehouse_now() - interval '{lain}'
      and ({or_any}h.task_type_id = any(line.types))
    order by h.priority_rank, h.ready_at, h.task_id limit 1
) as spot
join lateral (select name from tasks_tasktype where id = spot.task_type_id) k on true
where line.limited or line.types <> '{{}}'
order by line.tenant_id, line.name
limit 1000
"""
# Of these types, which has lain for a second: its announcement was lost, or all hands were busy.
UNANNOUNCED: Final = _READY_OF.format(
    limited="false", types="k.in_code and k.name = any(%(types)s::text[])", lain="1 second", or_any=""
)
# What a limit, of the queue or of a type, may have kept back: room comes with time and with others' ends.
KEPT_BACK: Final = _READY_OF.format(
    limited=_LIMITED.format(row="q"), types=_LIMITED.format(row="k"), lain="0", or_any="line.limited or "
)

# What a claim finds again in a queue that is resumed or has other limits, or of a type that is: pairs of names, by the
# thousand tasks of each queue that come first. One probe of task_live_claimable for each queue.
AVAILABLE_AGAIN: Final = """
select distinct q.name, k.name
from tasks_queue q
cross join lateral (
    select h.task_type_id from task_live h
    where h.queue_id = q.id and h.holder_id is null and h.ready_at <= gatehouse_now()
    order by h.priority_rank, h.ready_at, h.task_id limit 1000
) as ready
join tasks_tasktype k on k.id = ready.task_type_id and k.paused_at is null
where q.tenant_id = gatehouse_tenant() and q.paused_at is null
  and (%(queue)s::bigint is null or q.id = %(queue)s::bigint)
  and (%(task_type)s::bigint is null or k.id = %(task_type)s::bigint)
"""

# Counts of each queue, each on an index that begins with the queue: task_live_claimable, _due, _leased. The longest wait
# is the longest of each priority's, so that a bounded count finds it too.
QUEUE_HEALTH: Final = """
select q.id, q.name, q.paused_at is not null, ready.tasks, waiting.tasks, leased.tasks, leased.expired,
       coalesce(extract(epoch from gatehouse_now() - ready.since), 0)::float8, q.concurrency,
       case when q.rate > 0 then jsonb_build_object('leases', q.rate, 'per_seconds', q.rate_seconds) end, q.fair
from tasks_queue q
cross join lateral (
    select count(*) as tasks, (
        select min(first.ready_at) from generate_series(0, 9) as rank
        cross join lateral (
            select h.ready_at from task_live h
            where h.queue_id = q.id and h.priority_rank = rank and h.holder_id is null and h.ready_at is not null
            order by h.ready_at limit 1
        ) as first
    ) as since
    from (
        select from task_live h where h.queue_id = q.id and h.holder_id is null and h.ready_at is not null
        limit %(up_to)s::bigint
    ) as counted
) as ready
cross join lateral (
    select count(*) as tasks from (
        select from task_live h where h.queue_id = q.id and h.ready_at is null limit %(up_to)s::bigint) as counted
) as waiting
cross join lateral (
    select count(*) as tasks, count(*) filter (where h.lease_expires_at <= gatehouse_now()) as expired
    from task_live h where h.queue_id = q.id and h.holder_id is not null
) as leased
where %(tenant)s::bigint is null or q.tenant_id = %(tenant)s::bigint
order by q.tenant_id, q.name
"""

# The minutes that are over and not yet in the history, ten minutes back at most, of the queues in which most happens. What
# waits now is told of the last one alone. Index: task_history_by_end, tasks_queuehistory_by_time.
KEEP_HISTORY: Final = """
with since as materialized (
    select date_trunc('minute', gatehouse_now() - %(settled)s::interval) as until,
           greatest(coalesce((select max(minute_at) + interval '1 minute' from tasks_queuehistory), '-infinity'),
                    date_trunc('minute', gatehouse_now()) - interval '10 minutes') as first
), ended as (
    select d.tenant_id, t.queue_id, date_trunc('minute', d.finished_at) as minute_at, count(*) as ended,
           count(*) filter (where d.status = 'failed') as failed
    from since
    cross join lateral (
        select tenant_id, task_id, status, finished_at from task_history
        where finished_at >= since.first and finished_at < since.until
    ) as d
    cross join lateral (select queue_id from tasks_task where id = d.task_id limit 1) as t
    group by 1, 2, 3
), waiting as (
    select h.tenant_id, h.queue_id, since.until - interval '1 minute' as minute_at, count(*) as queued
    from task_live h, since
    where h.holder_id is null and h.ready_at is not null and since.first < since.until
    group by h.tenant_id, h.queue_id, since.until
), of_minutes as (
    select tenant_id, queue_id, minute_at, coalesce(e.ended, 0) as ended, coalesce(e.failed, 0) as failed,
           coalesce(w.queued, 0) as queued,
           row_number() over (partition by minute_at order by coalesce(e.ended, 0) + coalesce(w.queued, 0) desc) as place
    from ended e full join waiting w using (tenant_id, queue_id, minute_at)
), gone as (
    delete from tasks_queuehistory where minute_at < gatehouse_now() - %(history)s::interval
)
insert into tasks_queuehistory (tenant_id, queue_id, minute_at, ended, failed, queued)
select tenant_id, queue_id, minute_at, ended, failed, queued from of_minutes where place <= %(queues)s
on conflict do nothing
"""
# The history in steps, by queue. Index: tasks_queuehistory_by_time, or _once for one queue.
HISTORY: Final = """
select date_bin(%(step)s::interval, h.minute_at, %(since)s::timestamptz) as at, q.name,
       sum(h.ended)::bigint, sum(h.failed)::bigint, max(h.queued)
from tasks_queuehistory h
join tasks_queue q on q.id = h.queue_id
where h.minute_at >= %(since)s::timestamptz
  and (%(queue)s::bigint is null or h.tenant_id = q.tenant_id and h.queue_id = %(queue)s::bigint)
group by at, q.id, q.name
"""
# Of the newest ends in all queues, by queue: how many in a minute, the share of failures, the time from when a task might
# have begun to its end, and the leases that expired. Index: task_history_by_end, from a moment that is given: row-level
# security keeps gatehouse_now() out of index conditions. Of a hot statement the planner expects so many ends that it takes
# them in their order.
PACE: Final = """
with ended as materialized (
    select d.task_id, d.status, d.finished_at, d.fencing_token, d.task_id << 16 as runs_after,
           (d.task_id << 16) + d.fencing_token as last_run
    from task_history d
    where d.finished_at > %(since)s::timestamptz and (%(tenant)s::bigint is null or d.tenant_id = %(tenant)s::bigint)
    order by d.finished_at desc limit %(limit)s::bigint
), spanned as (
    select gatehouse_now() - case when count(*) < %(limit)s::bigint then %(since)s::timestamptz else min(finished_at) end as span
    from ended
), told as (
    select t.queue_id, count(*) as ended, count(*) filter (where e.status = 'failed')::float8 as failed,
           nullif(count(*) filter (where e.status <> 'canceled'), 0) as decided, sum(lost.leases)::bigint as expiries,
           percentile_cont(array[0.5, 0.95, 0.99]) within group (
               order by extract(epoch from greatest(e.finished_at - t.begun, interval '0'))::float8) as latencies
    from ended e
    cross join lateral (
        select queue_id, greatest(created_at, run_at) as begun from tasks_task where id = e.task_id limit 1
    ) as t
    cross join lateral (
        select count(*) as leases from tasks_run r
        where e.fencing_token > 1 and r.id > e.runs_after and r.id <= e.last_run and r.outcome = 'expired'
    ) as lost
    group by t.queue_id
)
select queue_id, ended * 60 / greatest(extract(epoch from span), 1)::float8, coalesce(failed / decided, 0),
       latencies[1], latencies[2], latencies[3], expiries
from told, spanned
"""

# The newest dead letters by queue. Index: task_history_dead.
DEAD_LETTERS: Final = """
select t.queue_id, count(*)
from (
    select d.task_id from task_history d
    where (%(tenant)s::bigint is null or d.tenant_id = %(tenant)s::bigint) and d.status = 'failed'
    order by d.task_id desc limit %(limit)s
) as dead
cross join lateral (select queue_id from tasks_task where id = dead.task_id limit 1) t
group by t.queue_id
"""

# Tenants in which something waits for a task that is over. How many wait the planner does not know of a table that is
# empty as a rule: here and below the limits keep it to one look for each, and from reading the history whole.
WAITED_ENOUGH: Final = """
select distinct d.tenant_id from tasks_dependency d
cross join lateral (select from task_history where task_id = d.on_task_id limit 1) r
limit %(limit)s
"""
# Takes what has succeeded off the tasks that wait for it; what waits for nothing else is ready, unless it waits for a
# moment or for its concurrency key. A locked row keeps its dependencies. What is over waits for
# nothing: its dependencies go.
RELEASE: Final = """
with over as materialized (
    select d.id, d.task_id, h.task_id is null as is_stale
    from tasks_dependency d
    cross join lateral (select status from task_history where task_id = d.on_task_id limit 1) r
    left join lateral (select task_id from task_live where task_id = d.task_id limit 1) h on true
    where r.status = 'succeeded' or h.task_id is null
    order by d.task_id, d.on_task_id limit %(limit)s
), spot as materialized (
    select h.task_id from task_live h where h.task_id in (select task_id from over)
    order by h.task_id for update skip locked
), met as (
    delete from tasks_dependency d using over
    where d.id = over.id and (over.is_stale or over.task_id in (select task_id from spot))
    returning d.task_id, over.is_stale
), counted as (
    select task_id, count(*)::smallint as dependencies from met where not is_stale group by task_id
), released as (
    update task_live h
    set open_dependencies = h.open_dependencies - c.dependencies,
        ready_at = case when h.open_dependencies = c.dependencies and h.due_at is null and h.concurrency_key is null
                        then gatehouse_now() end
    from counted c where h.task_id = c.task_id
    returning h.queue_id, h.task_type_id, h.ready_at is not null as is_ready, h.concurrency_key as key,
              h.concurrency_key is not null and h.due_at is null and h.open_dependencies = 0 as waits_for_key
)
select q.name, k.name, released.is_ready, released.key, released.waits_for_key
from released
join lateral (select name from tasks_queue where id = released.queue_id) q on true
join lateral (select name from tasks_tasktype where id = released.task_type_id) k on true
"""
# Tasks that wait for one that has not succeeded and never will, locked by id.
LOST: Final = """
with lost as materialized (
    select distinct on (d.task_id) d.task_id, d.on_task_id, r.status, d.if_it_fails
    from tasks_dependency d
    cross join lateral (select status from task_history where task_id = d.on_task_id limit 1) r
    where r.status <> 'succeeded' and (%(task)s::bigint is null or d.task_id = %(task)s::bigint)
    order by d.task_id, d.on_task_id
)
select lost.task_id, lost.on_task_id, lost.status, lost.if_it_fails
from lost join task_live h on h.task_id = lost.task_id
order by h.task_id limit %(limit)s for update of h skip locked
"""
# The newest tasks of the tenant before one: all, those that failed, and the open ones. Indexes: tasks_task_newest,
# task_history_dead, and the key of task_live, which grows with what is open only.
NEWEST: Final = {
    "all": """
select id as task_id from tasks_task
where tenant_id = gatehouse_tenant() and id < %(before)s::bigint order by id desc limit %(looked_at)s""",
    "failed": """
select task_id from task_history
where tenant_id = gatehouse_tenant() and status = 'failed' and task_id < %(before)s::bigint
order by task_id desc limit %(looked_at)s""",
    "open": """
select task_id from task_live
where tenant_id = gatehouse_tenant() and task_id < %(before)s::bigint order by task_id desc limit %(looked_at)s""",
}
# Until the transaction ends, the planner takes rows from an index in their order: what it knows of tenants lets it
# expect few rows, and sort them all.
IN_ORDER: Final = """
select set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true)
"""
# Those of them that a principal is a party to and that fit; each is looked up by its key.
LISTED: Final = {
    kind: f"""
select t.id, s.status, k.name as task_type, q.name as queue, asked.name as requested_by, told.name as recipient_ai,
       t.created_at, h.finished_at, h.reason, h.summary
from ({newest}) as d
cross join lateral (select * from tasks_task where id = d.task_id limit 1) t
left join lateral (select * from task_history where task_id = d.task_id limit 1) h on true
left join lateral (select * from task_live where task_id = d.task_id limit 1) o on true
cross join lateral (select * from tasks_tasktype where id = t.task_type_id limit 1) k
cross join lateral (select * from tasks_queue where id = t.queue_id limit 1) q
cross join lateral (select name from principals_principal where id = t.requester_id limit 1) asked
cross join lateral (select name from principals_principal where id = t.recipient_id limit 1) told
cross join lateral (select case
    when h.task_id is not null then h.status
    when o.holder_id is not null and o.flags & {CANCEL_REQUESTED | BUDGET_SPENT} = 0 then 'leased'
    when o.holder_id is not null then 'canceling'
    when o.ready_at is not null then 'queued'
    when o.due_at is not null then 'scheduled'
    else 'waiting' end as status) s
where %(principal)s in (t.requester_id, t.recipient_id)
  and (%(status)s::text is null or s.status = %(status)s::text or (%(status)s::text = 'open' and h.task_id is null))
  and (%(task_type)s::text is null or k.name = %(task_type)s::text)
  and (%(queue)s::text is null or q.name = %(queue)s::text)
  and (%(requested_by)s::text is null or asked.name = %(requested_by)s::text)
  and (%(since)s::timestamptz is null or t.created_at >= %(since)s::timestamptz)
  and (%(until)s::timestamptz is null or t.created_at < %(until)s::timestamptz)
  and (%(text)s::text is null
       or position(lower(%(text)s::text) in lower(concat_ws(' ', k.name, t.params, h.summary, h.error))) > 0)
order by d.task_id desc limit %(limit)s
"""
    for kind, newest in NEWEST.items()
}
# How many were looked at, and when the last of them was asked for.
LOOKED_AT: Final = {
    kind: f"""
select count(*), min(d.task_id), (select t.created_at from tasks_task t where t.id = min(d.task_id))
from ({newest}) as d"""
    for kind, newest in NEWEST.items()
}
_KEPT_AS_LONG: Final = (
    "greatest(%(least)s::interval, coalesce(make_interval(secs => k.retention_seconds), %(kept)s::interval))"
)
# Of the ends after one moment, in their order, those kept long enough, with all that is known of their tasks. What every
# type keeps is not looked at. One that something still waits for stays. Index: task_history_by_end. The limit, which no
# task's runs reach, keeps the planner to one look for the runs of each.
FORGET: Final = f"""
with looked_at as materialized (
    select d.task_id, d.finished_at, d.fencing_token
    from task_history d
    where d.finished_at > %(after)s::timestamptz
      and d.finished_at < gatehouse_now() - (
          select greatest(%(least)s::interval, least(%(kept)s::interval, make_interval(secs => min(retention_seconds))))
          from tasks_tasktype)
    order by d.finished_at
    fetch first %(limit)s rows with ties
), doomed as materialized (
    select l.task_id, l.task_id << 16 as runs_after, (l.task_id << 16) + l.fencing_token as last_run
    from looked_at l
    join tasks_task t on t.id = l.task_id
    join tasks_tasktype k on k.id = t.task_type_id
    where l.finished_at < gatehouse_now() - {_KEPT_AS_LONG}
      and not exists (select from tasks_dependency w where w.on_task_id = l.task_id)
), runs as (
    delete from tasks_run r where r.id = any(array(
        select run.id from doomed cross join lateral (
            select id from tasks_run where id > doomed.runs_after and id <= doomed.last_run order by id limit 65536
        ) run))
), budgets as (
    delete from tasks_budget b using doomed where b.task_id = doomed.task_id
), records as (
    delete from task_history d using doomed where d.task_id = doomed.task_id
), asked_for as (
    delete from tasks_task t using doomed where t.id = doomed.task_id
)
select (select max(finished_at) from looked_at), (select count(*) from doomed)
"""
# Of the keys after one, by their order of use, those kept long enough; one whose task is still known stays. It ends at the
# first thousand of which none is old enough.
FORGET_KEYS: Final = """
with looked_at as materialized (
    select k.id, k.task_id, k.created_at from tasks_idempotencykey k
    where k.id > %(after)s::bigint order by k.id limit %(limit)s
), gone as (
    delete from tasks_idempotencykey k using looked_at l
    where k.id = l.id and l.created_at < gatehouse_now() - %(kept)s::interval
      and not exists (select from tasks_task t where t.id = l.task_id)
    returning k.id
)
select (select max(id) from looked_at where created_at < gatehouse_now() - %(kept)s::interval),
       (select count(*) from gone)
"""
