"""What the database holds, as a reader from outside sees it: contradictions now and then, and every task in the end."""

from collections.abc import Iterator
from typing import Any, Final

import psycopg

from apps.chaos.history import Json

# How far back a look in the middle of it all goes, in tasks and in receipts; the last one goes back to the beginning.
_BACK: Final = {"tasks": 5_000, "receipts": 10_000}

_FLOORS: Final = """
    select coalesce((select max(id) from tasks_task), 0) - %(tasks)s,
           coalesce((select max(id) from receipts_receipt), 0) - %(receipts)s,
           coalesce((select max(id) from digests_entry), 0) - 2 * %(receipts)s
"""
# Terminal receipts of AsyncGate, and what is in entries.
_ENDS: Final = """
    with ends as materialized (
        select id, tenant_id, receipt_id, metadata ->> 'task_id' as task from receipts_receipt
        where id > %(receipts)s and source_system = 'asyncgate'
          and event_type in ('task_complete', 'task_failed', 'task_canceled')
    ), shown as materialized (
        select unnest(receipt_ids) as id from digests_entry where id > %(entries)s
    ), old as materialized (
        select id, tenant_id, receipt_id from tasks_task where id > %(tasks)s
    ), facts as materialized (
        select id, tenant_id, receipt_id from receipts_receipt where id > %(receipts)s
    ), records as materialized (
        select task_id, tenant_id, receipt_id from task_history where task_id > %(tasks)s
    )
"""
# Each must find nothing, at any moment, in one snapshot. Where a side is cut off, the other is cut off further.
_CONTRADICTIONS: Final = {
    "a record without its receipt": """
        select r.task_id from records r left join receipts_receipt f using (tenant_id, receipt_id) where f.id is null
    """,
    "a terminal receipt without its record": """
        select e.receipt_id from ends e
        left join task_history r on r.task_id = substr(e.task, 6)::bigint and r.receipt_id = e.receipt_id
        where r.task_id is null
    """,
    "a terminal receipt in no entry": """
        select e.receipt_id from ends e
        left join digests_receiptstate s on s.receipt_id = e.id
        left join shown on shown.id = e.id
        where shown.id is null and not coalesce(s.pending, false)
    """,
    "an ended task that is open": """
        select h.task_id from task_live h join task_history r using (task_id)
    """,
    "a task that is neither open nor ended": """
        select old.id from old
        left join task_live h on h.task_id = old.id left join task_history r on r.task_id = old.id
        where h.task_id is null and r.task_id is null
    """,
    "a task without the receipt that it is queued": """
        select old.id from old left join receipts_receipt f using (tenant_id, receipt_id) where f.id is null
    """,
    "an ended task that is still owed": """
        select old.id from old join records r on r.task_id = old.id
        join receipts_receipt f on f.tenant_id = old.tenant_id and f.receipt_id = old.receipt_id
        left join receipts_obligation o on o.receipt_id = f.id where o.closed_at is null
    """,
}

_TASKS: Final = """
    with ends as materialized (
        select tenant_id, metadata ->> 'task_id' as task, array_agg(receipt_id order by id) as receipts
        from receipts_receipt
        where source_system = 'asyncgate' and event_type in ('task_complete', 'task_failed', 'task_canceled')
        group by 1, 2
    ), runs as materialized (
        select id >> 16 as task_id, jsonb_object_agg(id & 65535, outcome) as outcomes from tasks_run group by 1
    ), spends as materialized (
        select task_id, jsonb_object_agg(fence, tokens) as tokens
        from (select task_id, fence, sum(tokens) as tokens from tasks_spend group by 1, 2) as spent group by 1
    )
    select 'task_' || t.id, n.slug, q.name, y.name, k.key, r.status, r.reason, r.fence, r.receipt_id,
           coalesce(ends.receipts, '{}'), coalesce(runs.outcomes, '{}'), t.params ->> 'schedule',
           'task_' || t.budget_id, coalesce(spends.tokens, '{}'), b.max_tokens, b.spent_tokens
    from tasks_task t
    join principals_tenant n on n.id = t.tenant_id
    join principals_principal q on q.id = t.requester_id
    join tasks_tasktype y on y.id = t.task_type_id
    left join task_history r on r.task_id = t.id
    left join tasks_idempotencykey k on k.task_id = t.id
    left join ends on ends.task = 'task_' || t.id and ends.tenant_id = t.tenant_id
    left join runs on runs.task_id = t.id
    left join spends on spends.task_id = t.id
    left join tasks_budget b on b.task_id = t.id
    order by t.id
"""
_MEMBERS: Final = (
    *("id", "tenant", "requester", "task_type", "key", "status", "reason", "fence", "receipt_id"),
    *("terminal_receipts", "runs", "schedule", "draws_from", "spends", "budget", "spent"),
)


def look(connection: psycopg.Connection, *, whole: bool) -> Json:
    """The contradictions of one snapshot, and how big the hot table is. What is not `whole` looks at what is new."""
    with connection.transaction():
        floors = dict.fromkeys(("tasks", "receipts", "entries"), 0)
        if not whole:
            row = connection.execute(_FLOORS, _BACK).fetchone() or (0, 0, 0)
            floors = dict(zip(floors, row, strict=True))
        found = {
            name: [one for (one,) in connection.execute(_ENDS + query, floors)]
            for name, query in _CONTRADICTIONS.items()
        }
        size = _one(connection, "select pg_total_relation_size('task_live')")
        count = still_open(connection)
    return {"contradictions": {name: rows for name, rows in found.items() if rows}, "open": count, "hot_bytes": size}


def still_open(connection: psycopg.Connection) -> int:
    """How many tasks have no end yet."""
    return _one(connection, "select count(*) from task_live")


def tasks(connection: psycopg.Connection) -> Iterator[Json]:
    """Every task, as it is in the end."""
    for row in connection.execute(_TASKS):
        yield dict(zip(_MEMBERS, row, strict=True))


def _one(connection: psycopg.Connection, query: str) -> int:
    row: tuple[Any, ...] | None = connection.execute(query).fetchone()
    return 0 if row is None else int(row[0])
