"""The statement by which each handoff goes to one session."""

from typing import Final

# Rows in the order of their key, so that two sessions never deadlock; the later one gets only what the earlier one has
# not taken. A receipt that was posted otherwise has no row yet.
CLAIM: Final = """
insert into handoff_handoff as known
    (tenant_id, recipient_id, receipt_id, project, kind, priority, from_session, left_at, inherited_by, inherited_at)
select %(tenant)s, %(recipient)s, receipt_id, project, kind, priority, from_session, left_at, %(session)s, %(now)s
from jsonb_to_recordset(%(items)s::jsonb) as item
    (receipt_id text, project text, kind text, priority text, from_session text, left_at timestamptz)
order by receipt_id
on conflict (tenant_id, receipt_id) do update
    set inherited_by = excluded.inherited_by, inherited_at = excluded.inherited_at
    where known.inherited_at is null
returning receipt_id
"""
