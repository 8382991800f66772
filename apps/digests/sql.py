"""The statements of the inbox. Whatever writes here runs under the lock of the inbox row."""

from typing import Final

# "window" is a word of SQL, hence the quotes.
_INBOX: Final = 'id, tenant_id, principal_id, source_policies, enabled, "window", max_items, max_thread_age'

# The mutex: taken first, alone in its statement, so that everything after it reads what is committed.
# Index: digests_inbox_once.
LOCK: Final = f"select {_INBOX} from digests_inbox where principal_id = %s for no key update"
LOCK_SEVERAL: Final = f"""
select {_INBOX} from digests_inbox where principal_id = any(%s) order by id for no key update
"""
LOCK_BY_ID: Final = f"select {_INBOX} from digests_inbox where id = %s for no key update"
LOCK_BY_ID_UNLESS_BUSY: Final = f"{LOCK_BY_ID} skip locked"


# Whether a buffer of this inbox is due, by one probe of an index; the planner may hash an `exists` over all inboxes. The
# order begins with the inbox, given as an array, so that digests_thread_due, which has the threads of all inboxes, does not
# serve. The clock is a subquery: under row-level security a comparison with the function itself is no index condition.
# Index: digests_thread_pending.
_IS_DUE: Final = """
    (
        select true from digests_thread
        where inbox_id = any(array[{inbox}]) and flush_due_at <= (select gatehouse_now())
        order by inbox_id, flush_due_at limit 1
    ) as is_due"""

# Receipts as entries of their own: sequences, entries and states, as parts of a statement that has `stored` the receipts.
# In the statement that writes the facts, inboxes are locked after the dedupe keys, in the order of their ids; the update
# follows to the newest version of the row. If one of the inboxes does not exist yet, none gets an entry here.
# Index: digests_inbox_once.
_PLACE: Final = """
{inbox}, entry as (
    insert into digests_entry
        (tenant_id, inbox_id, kind, sequence, source_system, receipt_ids, count, first_at, last_at,
         delivery_handle, visible_at)
    select %(tenant)s::bigint, inbox.id, 'item', {sequence}, source_system, array[stored.id], 1, %(now)s::timestamptz,
           %(now)s::timestamptz, delivery_handle, %(now)s::timestamptz
    from stored join inbox on inbox.principal_id = stored.recipient {shown}
    returning id, inbox_id, receipt_ids[1] as receipt
), state as (
    insert into digests_receiptstate (receipt_id, tenant_id, inbox_id, entry_id, pending)
    select receipt, %(tenant)s::bigint, inbox_id, id, false from entry
)
"""
PLACE_ONE: Final = _PLACE.format(
    inbox=f"""
inbox as (
    update digests_inbox i set last_seq = last_seq + 1, visible_unread = visible_unread + 1
    where principal_id = (select recipient from stored where shown = 'inbox')
    returning id, principal_id, last_seq, {_IS_DUE.format(inbox="i.id")}
)""",
    sequence="inbox.last_seq",
    shown="",
)
PLACE_SEVERAL: Final = _PLACE.format(
    inbox=f"""
recipient as materialized (
    select array_agg(distinct recipient) as ids from stored where shown = 'inbox'
), held as materialized (
    select id, principal_id from digests_inbox
    where principal_id = any((select ids from recipient)::bigint[])
          and (select count(*) from digests_inbox where principal_id = any((select ids from recipient)::bigint[]))
              = (select cardinality(ids) from recipient)
    order by id for no key update
), inbox as (
    update digests_inbox i set last_seq = i.last_seq + added.number, visible_unread = i.visible_unread + added.number
    from (
        select held.id, count(*) as number from held join stored on stored.recipient = held.principal_id
        where shown = 'inbox' group by held.id
    ) added
    where i.id = added.id
    returning i.id, i.principal_id, i.last_seq - added.number as before, {_IS_DUE.format(inbox="i.id")}
)""",
    sequence="inbox.before + row_number() over (partition by inbox.id order by stored.id)",
    shown="where shown = 'inbox' order by stored.id",
)

# Of receipts that a statement makes: those that have no group whatever the rules are. The others are placed after it.
SINGLE: Final = "shown = 'inbox' and resource_ref is null and event_family is null and not %(grouped)s::boolean"

# The same for receipts that were stored before, in inboxes that are locked. Returns which of these have something due.
POST_ITEMS: Final = f"""
with stored as materialized (
    select *, 'inbox' as shown from jsonb_to_recordset(%(items)s::jsonb) as given(
        id bigint, recipient bigint, source_system text, delivery_handle text
    )
), {PLACE_SEVERAL}
select entry.receipt, entry.id, inbox.id, inbox.is_due from entry join inbox on inbox.id = entry.inbox_id
"""

# Some threads of each of these inboxes, the longest due first; as above. Index: digests_thread_pending.
_DUE: Final = """
from unnest(%(inboxes)s::bigint[]) held(inbox)
cross join lateral (
    select id from digests_thread
    where inbox_id = any(array[held.inbox]) and flush_due_at <= (select gatehouse_now())
    order by inbox_id, flush_due_at limit %(due)s
) t
"""
DUE_THREADS: Final = f"select t.id {_DUE}"

# The open threads of groups, and without a number what is due. Index: digests_thread_one_open_per_key.
OPEN_THREADS: Final = f"""
select asked.nth, t.id, t.receipt_count, gatehouse_now() - t.opened_at >= make_interval(secs => asked.max_age)
from jsonb_to_recordset(%(asked)s::jsonb) as asked(
    nth int, inbox bigint, source_system text, resource_ref text, event_family text, max_age double precision
)
cross join lateral (
    select id, receipt_count, opened_at from digests_thread
    where tenant_id = %(tenant)s and inbox_id = asked.inbox and source_system = asked.source_system
          and resource_ref = asked.resource_ref and event_family = asked.event_family and closed_at is null
    limit 1
) t
union all
select null, t.id, null, null {_DUE}
"""

# Puts receipts into the buffers of threads. The first receipt of a buffer sets its due time. A thread that rolls over
# closes here with an empty count: its pending receipts are in the snapshot that the same transaction makes.
_FILL: Final = """
with run as materialized (
    select given.*, cardinality(receipts) as number, make_interval(secs => given.window) as patience, {id} as id
    from jsonb_to_recordset(%(runs)s::jsonb) as given(
        nth int, thread bigint, inbox bigint, source_system text, resource_ref text, event_family text,
        receipts bigint[], rolls_over boolean, "window" double precision
    )
), thread as (
    {thread}
), counted as (
    update digests_inbox i set pending_unread = i.pending_unread + added.number
    from (select inbox, sum(number) as number from run group by inbox) added where i.id = added.inbox
), placed as (
    insert into digests_receiptstate (receipt_id, tenant_id, inbox_id, thread_id, pending)
    select unnest(run.receipts), %(tenant)s::bigint, run.inbox, run.id, true from run
)
select run.nth, thread.id, thread.pending_count from thread join run using (id)
"""
APPEND: Final = _FILL.format(
    id="given.thread",
    thread="""
    update digests_thread t
    set receipt_count = t.receipt_count + run.number,
        pending_count = case when run.rolls_over then 0 else t.pending_count + run.number end,
        flush_due_at = case when not run.rolls_over then coalesce(t.flush_due_at, gatehouse_now() + run.patience) end,
        closed_at = case when run.rolls_over then %(now)s::timestamptz end
    from run where t.id = run.id returning t.id, t.pending_count
""",
)
OPEN: Final = _FILL.format(
    id="nextval('digests_thread_id_seq')",
    thread="""
    insert into digests_thread
        (id, tenant_id, inbox_id, source_system, resource_ref, event_family, receipt_count, pending_count,
         flush_due_at, revision, opened_at, closed_at)
    select id, %(tenant)s::bigint, inbox, source_system, resource_ref, event_family, number,
           case when rolls_over then 0 else number end, case when not rolls_over then gatehouse_now() + patience end,
           0, gatehouse_now(), case when rolls_over then %(now)s::timestamptz end
    from run returning id, pending_count
""",
)

# The members of a snapshot of each thread: its unacked receipts, with the pending ones or without.
# Index: digests_receiptstate_by_thread.
MEMBERS: Final = """
select t.id, t.tenant_id, t.inbox_id, t.source_system, t.resource_ref, t.event_family, t.revision,
       array_agg(s.receipt_id order by s.receipt_id), min(r.created_at), max(r.created_at),
       (array_agg(coalesce(r.title, left(r.summary, 120)) order by s.receipt_id desc))[1:3],
       (array_agg(r.summary_hint order by s.receipt_id desc) filter (where r.summary_hint is not null))[1],
       (array_agg(r.delivery_handle order by s.receipt_id desc) filter (where r.delivery_handle is not null))[1],
       count(*) filter (where s.pending)
from digests_thread t
join digests_receiptstate s on s.thread_id = t.id and s.acked_at is null and (%(with_pending)s or not s.pending)
join receipts_receipt r on r.id = s.receipt_id
where t.id = any(%(threads)s)
group by t.id order by t.id
"""

# Receipts as the hook of a source sees them. `offset 0` unpacks the metadata once for all of its paths.
# Index: the primary key.
FACTS: Final = """
select r.id, r.event_type, r.dedupe_key, r.title, left(r.summary, %(length)s::int), coalesce(found.texts, '{}')
from receipts_receipt r
cross join lateral (select r.metadata || '{}' as whole offset 0) metadata
cross join lateral (
    select jsonb_object_agg(path, left(at.value #>> '{}', %(length)s::int)) as texts
    from unnest(%(paths)s::text[]) path
    cross join lateral (select metadata.whole #> string_to_array(path, '.') as value offset 0) at
    where jsonb_typeof(at.value) in ('string', 'number', 'boolean')
) found
where r.id = any(%(receipts)s::bigint[])
"""

# The newest receipts of an inbox, before one of them. The order begins with the inbox, given as an array, so that the
# planner does not walk the primary key, whose end may hold the receipts of other inboxes only.
_LISTED: Final = """
    select receipt_id from digests_receiptstate
    where inbox_id = any(array[%(inbox)s::bigint]) and acked_at is {acked} and receipt_id < %(before)s::bigint
    order by inbox_id desc, receipt_id desc limit %(limit)s
"""
# Index: digests_receiptstate_unread.
UNREAD: Final = _LISTED.format(acked="null")
# Indexes: digests_receiptstate_unread and digests_receiptstate_acked.
LISTED: Final = f"""
select receipt_id from (
    ({_LISTED.format(acked="null")}) union all ({_LISTED.format(acked="not null")})
) either order by receipt_id desc limit %(limit)s
"""
# The keys of the newest receipts of one source, before one of them; as above. Index: receipts_receipt_of_source.
LISTED_OF_SOURCE: Final = """
select id from receipts_receipt r
where recipient_id = any(array[%(recipient)s::bigint]) and source_system = %(source)s and surface = 'inbox'
      and pruned_at is null and id < %(before)s::bigint
order by recipient_id desc, id desc limit %(limit)s
"""
# The unread ones among them, from all that is visible or buffered of the source, which is as much as is unread of it: a thread
# is open while it holds an unread receipt. Inbox and source of the entries are given as arrays and begin the order, and
# `offset 0` puts the threads first, so that the planner does not walk the entries and receipts of other sources.
# Indexes: digests_entry_live_by_source, digests_thread_one_open_per_key, digests_receiptstate_by_thread.
UNREAD_OF_SOURCE: Final = """
with inbox as materialized (
    select id, tenant_id from digests_inbox where principal_id = %(recipient)s
)
select unread.id from inbox cross join lateral (
    (
        select unnest(receipt_ids) as id from digests_entry
        where inbox_id = any(array[inbox.id]) and source_system = any(array[%(source)s::text])
              and acked_at is null and superseded_by_seq is null
        order by inbox_id, source_system, sequence
    )
    union all
    select s.receipt_id from digests_thread t
    cross join lateral (
        select receipt_id from digests_receiptstate
        where thread_id = t.id and acked_at is null and pending offset 0
    ) s
    where t.tenant_id = inbox.tenant_id and t.inbox_id = inbox.id and t.source_system = %(source)s
          and t.closed_at is null and t.pending_count > 0
) unread where unread.id < %(before)s::bigint
order by unread.id desc limit %(limit)s
"""

# Moves the counters of inboxes, and answers for each the last sequence of those taken.
ADVANCE: Final = """
update digests_inbox i
set last_seq = i.last_seq + move.sequences, visible_unread = i.visible_unread + move.visible,
    pending_unread = i.pending_unread + move.pending
from unnest(%s::bigint[], %s::int[], %s::int[], %s::int[]) move(inbox, sequences, visible, pending)
where i.id = move.inbox returning i.id, i.last_seq
"""

# Supersedes the live snapshot of each thread by the one with the given sequence.
# Index: digests_entry_one_live_per_thread.
SUPERSEDE: Final = """
update digests_entry e set superseded_by_seq = next.sequence, superseded_at = %(now)s
from unnest(%(threads)s::bigint[], %(sequences)s::bigint[]) next(thread, sequence)
where e.thread_id = next.thread and e.tenant_id = %(tenant)s and e.acked_at is null and e.superseded_by_seq is null
"""

# Index: digests_receiptstate_by_thread.
SURFACE: Final = """
with surfaced as (
    update digests_receiptstate set pending = false
    where thread_id = any(%(threads)s) and acked_at is null and pending
)
update digests_thread set pending_count = 0, flush_due_at = null, revision = revision + 1 where id = any(%(threads)s)
"""


# One page of the inbox, with `as_of` from the same statement; no row if there is no inbox yet.
# Index: digests_entry_live, or digests_entry_live_by_source; digests_entry_revision_once.
READ: Final = """
select i.last_seq, i.visible_unread, i.pending_unread,
       e.id, e.kind, e.thread_id, e.revision, e.sequence, e.count, e.source_system, e.first_at, e.last_at,
       e.flush_reason, e.delivery_handle, (
           select id from digests_entry before
           where before.tenant_id = e.tenant_id and before.thread_id = e.thread_id
                 and before.revision = e.revision - 1 and before.superseded_by_seq = e.sequence
       ), coalesce(e.title, r.title), coalesce(e.summary, r.summary),
       e.receipt_ids, t.resource_ref, t.event_family, array(
           select named.receipt_id from unnest(e.receipt_ids) with ordinality member(id, nth)
           join receipts_receipt named on named.id = member.id where named.pruned_at is null order by member.nth
       )
from digests_inbox i
left join lateral (
    select * from (
        select * from digests_entry
        where inbox_id = i.id and acked_at is null and superseded_by_seq is null and sequence > %(after)s {source}
        order by sequence {direction} limit {most}
    ) shown limit %(limit)s
) e on true
left join lateral (select resource_ref, event_family from digests_thread where id = e.thread_id limit 1) t on true
left join lateral (
    select title, summary from receipts_receipt where e.kind = 'item' and id = e.receipt_ids[1] limit 1
) r on true
where i.principal_id = %(principal)s
order by e.sequence {direction}
"""
OF_SOURCE: Final = "and source_system = %(source)s"

# The unacked entries that a reader was shown as of a sequence, up to an entry: still live, or superseded since.
# Indexes: digests_entry_live and digests_entry_superseded.
BOUNDARY: Final = """
select id, receipt_ids from (
    select id, sequence, source_system, receipt_ids from digests_entry
    where inbox_id = %(inbox)s and acked_at is null and superseded_by_seq is null
          and sequence > %(after)s and sequence <= %(upto)s
    union all
    select id, sequence, source_system, receipt_ids from digests_entry
    where inbox_id = %(inbox)s and acked_at is null and superseded_by_seq > %(as_of)s
          and sequence > %(after)s and sequence <= %(upto)s
) shown
where (%(source)s::text is null or source_system = %(source)s) and (%(ids)s::bigint[] is null or id = any(%(ids)s::bigint[]))
union all
select id, receipt_ids from digests_entry where id = %(anchor)s and acked_at is null
"""

# Acks the receipts of entries, or the named ones. Returns one row per thread, and one without a thread for the items. The
# keys are an array, so that they are looked up by primary key whatever the planner expects.
_ACK: Final = """
with acked as (
    update digests_receiptstate s
    set acked_at = coalesce(s.acked_at, %(now)s), delivered_at = coalesce(s.delivered_at, %(now)s), pending = false,
        archived_at = case when %(archive)s then coalesce(s.archived_at, %(now)s) else s.archived_at end
    where s.inbox_id = %(inbox)s and s.receipt_id = any({which})
          and (s.acked_at is null or (%(archive)s and s.archived_at is null))
    returning s.thread_id, s.entry_id, old.pending as was_pending, old.acked_at is null as newly
)
select thread_id, count(*) filter (where was_pending), count(*) filter (where not was_pending),
       {items}
from acked where newly group by thread_id order by thread_id
"""
_ITEMS: Final = "coalesce(array_agg(entry_id) filter (where entry_id is not null), '{}')"
ACK_ENTRIES: Final = _ACK.format(
    which="array(select unnest(receipt_ids) from digests_entry where id = any(%(entries)s))", items=_ITEMS
)
ACK_RECEIPTS: Final = _ACK.format(which="%(receipts)s::bigint[]", items=_ITEMS)
# The boundary may be large, and does not leave the database.
ACK_THROUGH: Final = _ACK.format(
    which=f"array(select unnest(boundary.receipt_ids) from ({BOUNDARY}) boundary)", items="'{}'::bigint[]"
)

ENTRIES_ACKED_THROUGH: Final = f"""
update digests_entry set acked_at = %(now)s
where id = any(array(select boundary.id from ({BOUNDARY}) boundary)) and acked_at is null
"""


THREADS_DRAINED: Final = """
update digests_thread t
set pending_count = t.pending_count - drained.count,
    flush_due_at = case when t.pending_count = drained.count then null else t.flush_due_at end
from unnest(%s::bigint[], %s::int[]) drained(thread, count) where t.id = drained.thread
"""


# Runs without the lock of the inbox: rows that somebody else has locked are skipped.
DELIVERED: Final = """
with shown as (
    update digests_receiptstate set delivered_at = %(now)s
    where receipt_id in (
        select receipt_id from digests_receiptstate
        where receipt_id = any(%(receipts)s) and delivered_at is null
        order by receipt_id for no key update skip locked
    )
    returning receipt_id
)
select greatest(%(now)s - r.created_at, interval '0') from receipts_receipt r join shown on shown.receipt_id = r.id
"""

# Which of these inboxes show a receipt that they did not show at a mark, how many are unacked, and whether any shown then
# is still unacked. A snapshot is news if it holds a receipt that its thread did not show at the mark. The limits keep the
# planner to one look into each inbox.
# Indexes: digests_inbox_once, digests_entry_live, digests_entry_revision_once; for what is left also
# digests_entry_superseded and digests_entry_one_live_per_thread.
_LEFT: Final = """
    exists (
        select from digests_entry e
        where e.tenant_id = i.tenant_id and e.inbox_id = i.id and e.acked_at is null and e.superseded_by_seq is null
              and e.sequence <= mark.seq
    ) or exists (
        select from digests_entry shown
        join digests_entry head on head.tenant_id = shown.tenant_id and head.thread_id = shown.thread_id
             and head.acked_at is null and head.superseded_by_seq is null and head.receipt_ids && shown.receipt_ids
        where shown.inbox_id = i.id and shown.acked_at is null and shown.superseded_by_seq > mark.seq
              and shown.sequence <= mark.seq
    )
"""
# Whether an entry `e` holds a receipt that its thread did not show up to a sequence. Index: digests_entry_revision_once.
_IS_NEWS: Final = """
    (e.thread_id is null or not e.receipt_ids <@ coalesce((
        select shown.receipt_ids from digests_entry shown
        where shown.tenant_id = {tenant} and shown.thread_id = e.thread_id and shown.sequence <= {mark}
        order by shown.revision desc limit 1
    ), '{{}}'))
"""
NEWS: Final = f"""
select mark.place, i.visible_unread, {_LEFT}
from unnest(%(tenants)s::bigint[], %(principals)s::bigint[], %(marks)s::bigint[])
     with ordinality mark(tenant, principal, seq, place)
cross join lateral (
    select id, tenant_id, visible_unread from digests_inbox
    where tenant_id = mark.tenant and principal_id = mark.principal and last_seq > mark.seq and visible_unread > 0
    limit 1
) i
cross join lateral (
    select from digests_entry e
    where e.tenant_id = i.tenant_id and e.inbox_id = i.id and e.acked_at is null and e.superseded_by_seq is null
          and e.sequence > mark.seq and {_IS_NEWS.format(tenant="mark.tenant", mark="mark.seq")}
    limit 1
) news
order by mark.place
"""
# The same for the given entries, by primary key.
ANY_NEWS: Final = f"""
select exists (
    select from digests_entry e
    where e.id = any(%(entries)s) and {_IS_NEWS.format(tenant="%(tenant)s", mark="%(mark)s")}
)
"""
LEFT: Final = f"""
select {_LEFT} from digests_inbox i cross join (select %(mark)s::bigint as seq) mark
where i.tenant_id = %(tenant)s and i.principal_id = %(principal)s
"""

# The next receipts in the order of posting, which of them are tombstones, and which some tenant may have kept long enough.
NEXT_RECEIPTS: Final = """
select id, pruned_at is not null, created_at <= gatehouse_now() - (
    select least(%(kept)s::interval, min(keep_receipts)) from principals_tenant
)
from receipts_receipt where id > %(after)s order by id limit %(limit)s
"""

# Which of these receipts are to be deleted, by inbox: acked, or in no inbox here; without an open obligation; not
# waiting for another deployment. Primary keys, delivery_delivery_by_object.
RECEIPTS_DUE: Final = """
select r.tenant_id, s.inbox_id, array_agg(r.id order by r.id)
from receipts_receipt r
join lateral (
    select gatehouse_now() - coalesce(t.keep_receipts, %(kept)s::interval) as cut
    from principals_tenant t where t.id = r.tenant_id
) tenant on true
left join digests_receiptstate s on s.receipt_id = r.id and s.receipt_id = any(%(receipts)s)
left join receipts_obligation o on o.receipt_id = r.id and o.receipt_id = any(%(receipts)s)
where r.id = any(%(receipts)s) and r.pruned_at is null and r.created_at <= cut
      and case when s.receipt_id is null then r.surface <> 'inbox' else s.acked_at <= cut end
      and (o.receipt_id is null or o.closed_at <= cut)
      and not exists (select from delivery_delivery d where d.object_id = r.id and d.state = 'pending')
group by r.tenant_id, s.inbox_id order by s.inbox_id
"""

# Counts what the snapshots of these threads have lost; returns those that have lost everything.
# Indexes: digests_entry_revision_once, then primary keys.
TRIM: Final = """
with snapshot as (
    select e.id, e.count - count(s.receipt_id) as gone, count(s.receipt_id) as left_over
    from digests_entry e cross join lateral unnest(e.receipt_ids) m(id)
    left join digests_receiptstate s on s.receipt_id = m.id
    where e.tenant_id = %(tenant)s and e.thread_id = any(%(threads)s)
    group by e.id
), trimmed as (
    update digests_entry e set pruned = gone from snapshot
    where e.id = snapshot.id and left_over > 0 and e.pruned <> gone
)
select id from snapshot where left_over = 0
"""
# Removes the next superseded snapshots that are old enough, in the order in which they were superseded. Those that still
# hold something unacked are left. What is acked stays acked, so this needs no lock of the inbox.
# Indexes: digests_entry_superseded_since, digests_receiptstate_by_thread.
DROP_SUPERSEDED: Final = """
with next as materialized (
    select id, thread_id, receipt_ids, superseded_at from digests_entry
    where superseded_at > %(after)s and superseded_at <= gatehouse_now() - %(kept)s::interval
    order by superseded_at fetch first %(limit)s rows with ties
), held as materialized (
    select e.id from digests_entry e join next using (id)
    where not exists (
        select from digests_receiptstate s
        where s.thread_id = next.thread_id and s.acked_at is null and s.receipt_id = any(next.receipt_ids)
    )
    for update of e skip locked
), gone as (
    delete from digests_entry where id = any(array(select id from held)) returning 1
)
select max(superseded_at), (select count(*) from gone) from next
"""

# Counts the posts of sources, in the order of their names, which is that of the locks. A late hour counts for the one
# that has begun. Index: digests_sourcehour_name_once.
COUNT_POSTS: Final = """
insert into digests_sourcehour as kept (tenant_id, name, hour, posted)
select %(tenant)s::bigint, name, %(hour)s::timestamptz, number
from unnest(%(names)s::text[], %(numbers)s::int[]) as added(name, number) order by name
on conflict (tenant_id, name) do update set
    posted = case when kept.hour < excluded.hour then 0 else kept.posted end + excluded.posted,
    hour = greatest(kept.hour, excluded.hour)
returning name, hour, posted
"""
