"""Whether inboxes are sound: what the rules forbid, looked for a range of keys at a time.

Each question is one statement, so that it sees one moment, at which everything must add up. Each is served by primary
keys and the indexes that are named beside it, whatever the size of the tables.
"""

from dataclasses import dataclass
from typing import Final

from django.db import connection


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it must be, and whose inbox it belongs to."""

    kind: str
    id: int
    tenant_id: int
    principal_id: int


# Inbox receipts that are in none of acked, visible, pending.
_LOST: Final = """
select r.id, r.tenant_id, r.recipient_id from receipts_receipt r
left join digests_receiptstate s on s.receipt_id = r.id and {and_of_state}
where {of_receipt} and r.surface = 'inbox' and r.pruned_at is null and (
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
# Receipts of no inbox here, or tombstones, that have a place in one.
_STRAY: Final = """
select r.id, r.tenant_id, i.principal_id from receipts_receipt r
join digests_receiptstate s on s.receipt_id = r.id and {and_of_state}
join digests_inbox i on i.id = s.inbox_id
where {of_receipt} and (r.surface <> 'inbox' or r.pruned_at is not null)
order by r.id
"""
# Buffers that should have been published a minute ago.
_OVERDUE: Final = """
select t.id, t.tenant_id, i.principal_id from digests_thread t join digests_inbox i on i.id = t.inbox_id
where {of_thread} and t.flush_due_at <= gatehouse_now() - interval '1 minute'
order by t.id
"""
# Threads with published unacked receipts and no live snapshot, or one of other receipts; or miscounted buffers.
# Indexes: digests_receiptstate_by_thread, digests_entry_one_live_per_thread.
_HEADS: Final = """
select t.id, t.tenant_id, i.principal_id from digests_thread t
join digests_inbox i on i.id = t.inbox_id
cross join lateral (
    select array_agg(s.receipt_id order by s.receipt_id) filter (where not s.pending) as published,
           count(*) filter (where s.pending) as pending
    from digests_receiptstate s where s.thread_id = t.id and s.acked_at is null
) unacked
left join digests_entry h
    on h.tenant_id = t.tenant_id and h.thread_id = t.id and h.acked_at is null and h.superseded_by_seq is null
where {of_thread} and (h.receipt_ids is distinct from unacked.published or unacked.pending <> t.pending_count)
order by t.id
"""
# Visible items of which nothing is unacked; snapshots whose members are other in number than they say.
_UNTRUE: Final = """
select e.id, e.tenant_id, i.principal_id from digests_entry e
join digests_inbox i on i.id = e.inbox_id
cross join lateral (
    select count(*) as known,
           count(*) filter (where s.entry_id = e.id and s.acked_at is null) as unacked_here
    from unnest(e.receipt_ids) m(id) join digests_receiptstate s on s.receipt_id = m.id
) members
where {of_entry} and (
    known <> e.count - e.pruned
    or (e.kind = 'item' and e.acked_at is null and e.superseded_by_seq is null and unacked_here = 0)
)
order by e.id
"""
# Inboxes whose counters differ from counting, or whose next sequence has been used.
# Indexes: digests_receiptstate_unread, digests_entry_sequence_once.
_MISCOUNTED: Final = """
select i.id, i.tenant_id, i.principal_id from digests_inbox i
cross join lateral (
    select count(*) filter (where not s.pending) as visible, count(*) filter (where s.pending) as pending
    from digests_receiptstate s where s.inbox_id = i.id and s.acked_at is null
) unread
where {of_inbox} and (
    i.visible_unread <> visible or i.pending_unread <> pending
    or exists (
        select from digests_entry e where e.tenant_id = i.tenant_id and e.inbox_id = i.id and e.sequence > i.last_seq)
)
order by i.id
"""

# What is asked of each table, and how many of its rows at a time.
_QUESTIONS: Final = {
    "receipts": {"lost_receipts": _LOST, "stray_states": _STRAY},
    "threads": {"overdue_threads": _OVERDUE, "missing_heads": _HEADS},
    "entries": {"untrue_entries": _UNTRUE},
    "inboxes": {"miscounted_inboxes": _MISCOUNTED},
}
_TABLES: Final = {
    "receipts": ("receipts_receipt", 10_000),
    "threads": ("digests_thread", 2_000),
    "entries": ("digests_entry", 10_000),
    "inboxes": ("digests_inbox", 100),
}
PARTS: Final = tuple(_TABLES)
# Beside the kinds of damage in what a round has found.
REPAIRED: Final = "repaired"

_RANGE: Final = {
    "and_of_state": "s.receipt_id > %(after)s and s.receipt_id <= %(upto)s",
    "of_receipt": "r.id > %(after)s and r.id <= %(upto)s",
    "of_thread": "t.id > %(after)s and t.id <= %(upto)s",
    "of_entry": "e.id > %(after)s and e.id <= %(upto)s",
    "of_inbox": "i.id > %(after)s and i.id <= %(upto)s",
}
_NAMED: Final = {
    "and_of_state": "s.receipt_id = any(%(ids)s)",
    "of_receipt": "r.id = any(%(ids)s)",
    "of_thread": "t.id = any(%(ids)s)",
    "of_entry": "e.id = any(%(ids)s)",
    "of_inbox": "i.id = any(%(ids)s)",
}


def look(part: str, *, after: int, limit: int | None = None) -> tuple[int | None, list[Damage]]:
    """What is not sound among the next rows of a part, and the key of the last of them; None after the end."""
    table, rows = _TABLES[part]
    with connection.cursor() as cursor:
        cursor.execute(
            f"select max(id) from (select id from {table} where id > %s order by id limit %s) next",  # noqa: S608  # a constant
            [after, limit or rows],
        )
        upto: int | None = cursor.fetchone()[0]
        if upto is None:
            return None, []
        found: list[Damage] = []
        for kind, question in _QUESTIONS[part].items():
            cursor.execute(question.format(**_RANGE), {"after": after, "upto": upto})
            found += [Damage(kind, *row) for row in cursor.fetchall()]
    return upto, found


def still(kind: str, ids: list[int]) -> list[int]:
    """Which of these are still not sound, asked again under the lock of their inbox."""
    (question,) = (questions[kind] for questions in _QUESTIONS.values() if kind in questions)
    with connection.cursor() as cursor:
        cursor.execute(question.format(**_NAMED), {"ids": ids})
        return [pk for pk, *_ in cursor.fetchall()]
