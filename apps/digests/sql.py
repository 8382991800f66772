"""The statements of the inbox. Whatever writes here runs under the lock of the inbox row."""

from typing import Final

# "window" is a word of SQL, hence the quotes.
_INBOX: Final = 'id, tenant_id, principal_id, enabled, "window", max_items, max_thread_age'

# The mutex: taken first, alone in its statement, so that everything after it reads what is committed.
# Index: digests_inbox_once.
LOCK: Final = f"select {_INBOX} from digests_inbox where principal_id = %s for no key update"
LOCK_SEVERAL: Final = f"""
select {_INBOX} from digests_inbox where principal_id = any(%s) order by id for no key update
"""
LOCK_BY_ID: Final = f"select {_INBOX} from digests_inbox where id = %s for no key update"
LOCK_BY_ID_UNLESS_BUSY: Final = f"{LOCK_BY_ID} skip locked"

# A receipt as an entry of its own. Sequence, entry and state in one statement.
POST_ITEM: Final = """
with inbox as (
    update digests_inbox set last_seq = last_seq + 1, visible_unread = visible_unread + 1
    where id = %(inbox)s::bigint returning last_seq
), entry as (
    insert into digests_entry
        (tenant_id, inbox_id, kind, sequence, source_system, receipt_ids, count, first_at, last_at,
         delivery_handle, published_at)
    select %(tenant)s::bigint, %(inbox)s::bigint, 'item', last_seq, %(source_system)s::text,
           array[%(receipt)s::bigint], 1, %(created_at)s::timestamptz, %(created_at)s::timestamptz,
           %(delivery_handle)s::text, %(now)s::timestamptz
    from inbox returning id
)
insert into digests_receiptstate (receipt_id, tenant_id, inbox_id, entry_id, pending)
select %(receipt)s::bigint, %(tenant)s::bigint, %(inbox)s::bigint, entry.id, false from entry
returning entry_id
"""

# Index: digests_thread_one_open_per_key.
OPEN_THREAD: Final = """
select id, receipt_count, pending_count, gatehouse_now() - opened_at >= %s::interval as aged
from digests_thread
where tenant_id = %s and inbox_id = %s and source_system = %s and resource_ref = %s and event_family = %s
      and closed_at is null
"""

# The buffer's due time is set by its first receipt and by no other.
_STATE_IN_THREAD: Final = """
), counted as (
    update digests_inbox set pending_unread = pending_unread + 1 where id = %(inbox)s::bigint
)
insert into digests_receiptstate (receipt_id, tenant_id, inbox_id, thread_id, pending)
select %(receipt)s::bigint, %(tenant)s::bigint, %(inbox)s::bigint, thread.id, true from thread
returning thread_id, (select pending_count from thread)
"""
BUFFER: Final = f"""
with thread as (
    update digests_thread
    set receipt_count = receipt_count + 1, pending_count = pending_count + 1,
        flush_due_at = coalesce(flush_due_at, gatehouse_now() + %(window)s::interval)
    where id = %(thread)s::bigint returning id, pending_count
{_STATE_IN_THREAD}"""
BUFFER_IN_NEW_THREAD: Final = f"""
with thread as (
    insert into digests_thread
        (tenant_id, inbox_id, source_system, resource_ref, event_family, receipt_count, pending_count, flush_due_at,
         revision, opened_at)
    values (%(tenant)s::bigint, %(inbox)s::bigint, %(source_system)s::text, %(resource_ref)s::text,
            %(event_family)s::text, 1, 1, gatehouse_now() + %(window)s::interval, 0, gatehouse_now())
    returning id, pending_count
{_STATE_IN_THREAD}"""

# What a snapshot of each thread would hold now: its unacked receipts, with the pending ones or without.
# Index: digests_receiptstate_in_thread.
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

# Moves the counters of an inbox, and answers the last sequence of those taken.
ADVANCE: Final = """
update digests_inbox set last_seq = last_seq + %(sequences)s, visible_unread = visible_unread + %(visible)s,
                         pending_unread = pending_unread + %(pending)s
where id = %(inbox)s returning last_seq
"""

# The live snapshot of each thread gives way to the one with the sequence beside it.
# Index: digests_entry_one_live_per_thread.
SUPERSEDE: Final = """
update digests_entry e set superseded_by_seq = next.sequence, superseded_at = %(now)s
from unnest(%(threads)s::bigint[], %(sequences)s::bigint[]) next(thread, sequence)
where e.thread_id = next.thread and e.tenant_id = %(tenant)s and e.acked_at is null and e.superseded_by_seq is null
returning e.thread_id, e.id
"""

# Index: digests_receiptstate_in_thread.
SURFACE: Final = """
with surfaced as (
    update digests_receiptstate set pending = false
    where thread_id = any(%(threads)s) and acked_at is null and pending
)
update digests_thread set pending_count = 0, flush_due_at = null, revision = revision + 1 where id = any(%(threads)s)
"""
NARROWED: Final = "update digests_thread set revision = revision + 1 where id = any(%s)"

# Index: digests_thread_pending.
PENDING_THREADS: Final = "select id from digests_thread where inbox_id = %s and flush_due_at is not null order by id"

# What is shown: as_of and entries of the same statement. No inbox yet: no row.
# Index: digests_entry_live, or digests_entry_live_by_source.
READ: Final = """
select i.last_seq, i.visible_unread, i.pending_unread,
       e.id, e.kind, e.thread_id, e.revision, e.sequence, e.count, coalesce(e.title, r.title),
       coalesce(e.summary, r.summary), e.receipt_ids, e.source_system, e.first_at, e.last_at, e.flush_reason,
       e.supersedes_id, e.delivery_handle, t.resource_ref, t.event_family
from digests_inbox i
left join lateral (
    select * from digests_entry
    where inbox_id = i.id and acked_at is null and superseded_by_seq is null and sequence > %(after)s {source}
    order by sequence {direction} limit %(limit)s
) e on true
left join digests_thread t on t.id = e.thread_id
left join receipts_receipt r on e.kind = 'item' and r.id = e.receipt_ids[1]
where i.principal_id = %(principal)s
order by e.sequence {direction}
"""
OF_SOURCE: Final = "and source_system = %(source)s"

# What a reader was shown as of a sequence, up to an entry, less what is acked: still live, or superseded since.
# Indexes: digests_entry_live and digests_entry_superseded.
BOUNDARY: Final = """
select id from (
    select id, sequence, source_system from digests_entry
    where inbox_id = %(inbox)s and acked_at is null and superseded_by_seq is null
          and sequence > %(after)s and sequence <= %(upto)s
    union all
    select id, sequence, source_system from digests_entry
    where inbox_id = %(inbox)s and acked_at is null and superseded_by_seq > %(as_of)s
          and sequence > %(after)s and sequence <= %(upto)s
) shown
where (%(source)s::text is null or source_system = %(source)s) and (%(ids)s::bigint[] is null or id = any(%(ids)s::bigint[]))
"""

# Acks the receipts of entries, or the named ones. One row per place: a thread, or none for the items.
_ACK: Final = """
with acked as (
    update digests_receiptstate s
    set acked_at = coalesce(s.acked_at, %(now)s), read_at = coalesce(s.read_at, %(now)s),
        delivered_at = coalesce(s.delivered_at, %(now)s), pending = false,
        archived_at = case when %(archive)s then coalesce(s.archived_at, %(now)s) else s.archived_at end
    where s.inbox_id = %(inbox)s and s.receipt_id in ({which})
          and (s.acked_at is null or (%(archive)s and s.archived_at is null))
    returning s.thread_id, s.entry_id, old.pending as was_pending, old.acked_at is null as newly
)
select thread_id, count(*) filter (where was_pending), count(*) filter (where not was_pending),
       coalesce(array_agg(entry_id) filter (where entry_id is not null), '{{}}')
from acked where newly group by thread_id order by thread_id
"""
ACK_ENTRIES: Final = _ACK.format(which="select unnest(receipt_ids) from digests_entry where id = any(%(entries)s)")
ACK_RECEIPT: Final = _ACK.format(which="%(receipt)s")

ENTRIES_ACKED: Final = "update digests_entry set acked_at = %s where id = any(%s) and acked_at is null"

# Index: digests_entry_one_live_per_thread.
HEADS_ACKED: Final = """
update digests_entry set acked_at = %(now)s
where tenant_id = %(tenant)s and thread_id = any(%(threads)s) and acked_at is null and superseded_by_seq is null
"""

THREADS_DRAINED: Final = """
update digests_thread t
set pending_count = t.pending_count - drained.count,
    flush_due_at = case when t.pending_count = drained.count then null else t.flush_due_at end
from unnest(%s::bigint[], %s::int[]) drained(thread, count) where t.id = drained.thread
"""

CLOSE_FINISHED: Final = """
update digests_thread set closed_at = %s where id = any(%s) and closed_at is null and pending_count = 0
"""

# Outside the lock: rows that somebody else holds are theirs to stamp, or the next reader's.
DELIVERED: Final = """
update digests_receiptstate set delivered_at = %(now)s
where receipt_id in (
    select receipt_id from digests_receiptstate
    where receipt_id = any(%(receipts)s) and delivered_at is null
    order by receipt_id for no key update skip locked
)
"""
