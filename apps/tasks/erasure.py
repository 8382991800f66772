"""Where somebody's words can stand in tasks: what was asked, how far it came, what it gave, and files."""

from typing import Final

from apps.core.erasure import FORGOTTEN, Rows, Wanted, register
from apps.receipts.models import REDACTED
from apps.tasks import services
from apps.tasks.states import FENCE_BITS

_MARK: Final = f"'{FORGOTTEN}'::jsonb"
_FORGOTTEN_TASKS: Final = f"select id from tasks_task where tenant_id = %(tenant)s and params = {_MARK}"
# Where an artifact was is how it is found.
_POINTER: Final = "case when result_pointer like 'artifact:sha256-%%' then result_pointer end"


class Artifacts:
    """Files of the artifact storage."""

    name = "artifacts"

    def count(self, wanted: Wanted) -> int:
        return services.artifacts_holding(wanted=wanted)

    def erase(self, wanted: Wanted) -> int:
        return services.remove_artifacts(wanted=wanted)


register(
    Rows(
        table="tasks_task",
        columns=["params", '"group"', "caused_by", "concurrency_key", "receipt_id"],
        redacted={"params": _MARK, '"group"': "null", "caused_by": "null"},
        also=f"id in (select task_id from tasks_terminalrecord where tenant_id = %(tenant)s and content = {_MARK})",
    ),
    Rows(
        table="tasks_run",
        columns=["message", "checkpoint", "error", "answer"],
        redacted={"message": "''", "checkpoint": "null", "error": "null", "answer": "null"},
        also=f"id >> {FENCE_BITS} in ({_FORGOTTEN_TASKS})",
    ),
    Rows(
        table="tasks_terminalrecord",
        columns=["error", "content", "summary", "result_channel", "result_pointer", "checksum", "media_type"],
        redacted={"error": "null", "content": _MARK, "summary": "''", "result_pointer": _POINTER},
        also=f"task_id in ({_FORGOTTEN_TASKS})",
    ),
    Rows(
        alias="receipts of tasks",
        table="receipts_receipt",
        columns=["receipt_id"],
        redacted=REDACTED,
        also=f"receipt_id in (select receipt_id from tasks_terminalrecord where tenant_id = %(tenant)s and content = {_MARK}"
        f" union all select receipt_id from tasks_task where tenant_id = %(tenant)s and params = {_MARK})",
    ),
    Rows(
        table="tasks_schedule",
        columns=["name", "params", "last_refusal"],
        redacted={"params": _MARK, "last_refusal": "''"},
    ),
    Rows(table="tasks_hottask", columns=["concurrency_key"], redacted={}),
    Rows(table="tasks_queue", columns=["name"], redacted={}),
    Rows(table="tasks_idempotencykey", columns=["key", "answer"], redacted={}),
    Rows(table="tasks_tasktype", columns=["name", "params_schema", "title", "requires"], redacted={}),
    Artifacts(),
)
