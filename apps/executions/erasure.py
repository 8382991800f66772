"""What executions lose when a subject is forgotten."""

from typing import Final

from apps.core.erasure import FORGOTTEN, Rows, belong, register
from apps.tasks.erasure import FORGOTTEN_TASKS, forget_artifacts, give_artifacts

_DEFINITION: Final = f"""jsonb_strip_nulls(jsonb_build_object('step_id', definition->'step_id', 'step_type', definition->'step_type',
    'worker_id', definition->'worker_id', 'tool_name', definition->'tool_name', 'executor', definition->'executor',
    'decision_required', definition->'decision_required', 'done', definition->'done', 'params', '{FORGOTTEN}'::jsonb))"""
# The pointer stays where it names an artifact: its file is found by it.
_ENVELOPE: Final = f"""case when envelope->>'result_pointer' ~ '^artifact:sha256-[0-9a-f]{{64}}$'
    then '{FORGOTTEN}'::jsonb || jsonb_build_object('result_pointer', envelope->'result_pointer')
    when envelope is not null then '{FORGOTTEN}'::jsonb end"""
_OF_TENANT: Final = "tenant_id = %(tenant)s"

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
        then=forget_artifacts,
    ),
)
give_artifacts(
    f"""select envelope->>'result_pointer', envelope::text,
        envelope ? 'gatehouse:forgotten' or coalesce(task_id in ({FORGOTTEN_TASKS}), false)
    from executions_executionstep where {_OF_TENANT} and envelope is not null"""
)
belong(
    "tasks_task",
    f"id in (select task_id from executions_executionstep where {_OF_TENANT} and ended_at is not null"
    f" and definition->'params' = '{FORGOTTEN}')",
)
belong(
    "receipts_receipt",
    "source_system = 'executions' and metadata->>'execution_id' in"
    f" (select 'exec_' || id from executions_execution where {_OF_TENANT} and intent = '')",
)
