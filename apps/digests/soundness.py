"""A read-only check of inboxes: rows that break the rules which the services and constraints keep.

Each query reads one range of keys in one statement, so that it sees a single moment. It uses primary keys and the
indexes named beside it, whatever the size of the tables.
"""

from typing import Final

from django.db import connection

# Inbox receipts that are neither acked, nor visible, nor pending.
_LOST: Final = """
select r.id from receipts_receipt r
left join digests_receiptstate s on s.receipt_id = r.id and s.receipt_id > %(after)s and s.receipt_id <= %(upto)s
where r.id > %(after)s and r.id <= %(upto)s and r.surface = 'inbox' and r.pruned_at is null and (
    s.receipt_id is null
    or (s.acked_at is null and s.entry_id is not null and not exists (
            select from digests_entry e
            where e.id = s.entry_id and e.acked_at is null and e.superseded_by_seq is null
                  and r.id = any(e.receipt_ids)))
    or (s.acked_at is null and s.pending and not exists (
            select from digests_thread t where t.id = s.thread_id and t.flush_due_at is not null))
    or (s.acked_at is null and not s.pending and s.thread_id is not null and not exists (
            select from digests_entry h
            where h.tenant_id = s.tenant_id and h.thread_id = s.thread_id and h.acked_at is null
                  and h.superseded_by_seq is null and r.id = any(h.receipt_ids)))
)
order by r.id
"""
# Ledger receipts, remote receipts and tombstones that have a row in an inbox.
_STRAY: Final = """
select r.id from receipts_receipt r
join digests_receiptstate s on s.receipt_id = r.id and s.receipt_id > %(after)s and s.receipt_id <= %(upto)s
where r.id > %(after)s and r.id <= %(upto)s and (r.surface <> 'inbox' or r.pruned_at is not null)
order by r.id
"""
# Buffers that are overdue by a minute.
_OVERDUE: Final = """
select t.id from digests_thread t
where t.id > %(after)s and t.id <= %(upto)s and t.flush_due_at <= gatehouse_now() - interval '1 minute'
order by t.id
"""
# Threads whose live snapshot does not hold exactly the visible unacked receipts, or whose buffer is miscounted.
# Indexes: digests_receiptstate_by_thread, digests_entry_one_live_per_thread.
_HEADS: Final = """
select t.id from digests_thread t
cross join lateral (
    select array_agg(s.receipt_id order by s.receipt_id) filter (where not s.pending) as visible,
           count(*) filter (where s.pending) as pending
    from digests_receiptstate s where s.thread_id = t.id and s.acked_at is null
) unacked
left join digests_entry h
    on h.tenant_id = t.tenant_id and h.thread_id = t.id and h.acked_at is null and h.superseded_by_seq is null
where t.id > %(after)s and t.id <= %(upto)s and (h.receipt_ids is distinct from unacked.visible or unacked.pending <> t.pending_count)
order by t.id
"""
# Visible items whose receipt is acked, and entries whose count differs from their receipts.
_UNTRUE: Final = """
select e.id from digests_entry e
cross join lateral (
    select count(*) as known,
           count(*) filter (where s.entry_id = e.id and s.acked_at is null) as unacked_here
    from unnest(e.receipt_ids) m(id) join digests_receiptstate s on s.receipt_id = m.id
) members
where e.id > %(after)s and e.id <= %(upto)s and (
    known <> e.count - e.pruned
    or (e.kind = 'item' and e.acked_at is null and e.superseded_by_seq is null and unacked_here = 0)
)
order by e.id
"""
# Inboxes whose counters are wrong, or whose next sequence is already taken.
# Indexes: digests_receiptstate_unread, digests_entry_sequence_once.
_MISCOUNTED: Final = """
select i.id from digests_inbox i
cross join lateral (
    select count(*) filter (where not s.pending) as visible, count(*) filter (where s.pending) as pending
    from digests_receiptstate s where s.inbox_id = i.id and s.acked_at is null
) unread
where i.id > %(after)s and i.id <= %(upto)s and (
    i.visible_unread <> visible or i.pending_unread <> pending
    or exists (
        select from digests_entry e where e.tenant_id = i.tenant_id and e.inbox_id = i.id and e.sequence > i.last_seq)
)
order by i.id
"""

# For each table: how many rows one query reads, and the queries by kind of fault.
_CHECKS: Final = {
    "receipts_receipt": (10_000, {"lost_receipts": _LOST, "stray_states": _STRAY}),
    "digests_thread": (2_000, {"overdue_threads": _OVERDUE, "missing_heads": _HEADS}),
    "digests_entry": (10_000, {"untrue_entries": _UNTRUE}),
    "digests_inbox": (100, {"miscounted_inboxes": _MISCOUNTED}),
}


def unsound() -> dict[str, list[int]]:
    """The ids of all rows that break a rule, by kind; empty if every inbox that the caller may see is sound."""
    found: dict[str, list[int]] = {}
    with connection.cursor() as cursor:
        for table, (rows, queries) in _CHECKS.items():
            after = 0
            while True:
                following = f"select max(id) from (select id from {table} where id > %s order by id limit %s) next"  # noqa: S608  # a constant
                cursor.execute(following, [after, rows])
                (upto,) = cursor.fetchone()
                if upto is None:
                    break
                for kind, query in queries.items():
                    cursor.execute(query, {"after": after, "upto": upto})
                    if ids := [pk for (pk,) in cursor.fetchall()]:
                        found.setdefault(kind, []).extend(ids)
                after = upto
    return found
