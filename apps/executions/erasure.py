"""What executions lose when a subject is forgotten."""

from typing import Final

from apps.core.erasure import FORGOTTEN, Rows, register

_DEFINITION: Final = f"""jsonb_strip_nulls(jsonb_build_object('step_id', definition->'step_id', 'step_type', definition->'step_type',
    'worker_id', definition->'worker_id', 'tool_name', definition->'tool_name', 'executor', definition->'executor',
    'decision_required', definition->'decision_required', 'params', '{FORGOTTEN}'::jsonb))"""
_ENVELOPE: Final = f"case when envelope is null then null else '{FORGOTTEN}'::jsonb end"

register(
    Rows(
        table="executions_execution",
        redacted={"intent": "''", "halted_why": "''"},
        also=f"id in (select execution_id from executions_executionstep where definition->'params' = '{FORGOTTEN}')",
    ),
    Rows(
        table="executions_executionstep",
        redacted={"definition": _DEFINITION, "envelope": _ENVELOPE},
        also="execution_id in (select id from executions_execution where tenant_id = %(tenant)s and intent = '')",
    ),
)
