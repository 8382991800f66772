"""What tasks lose when a subject is forgotten: their params, progress, results, files and receipts."""

from collections.abc import Collection
from typing import Final

from django.core.files.storage import storages

from apps.core.erasure import FORGOTTEN, Rows, belong, register
from apps.tasks import selectors
from apps.tasks.models import Artifact, FinishedTask
from apps.tasks.results import artifact_pointer
from apps.tasks.states import FENCING_TOKEN_BITS

_MARK: Final = f"'{FORGOTTEN}'::jsonb"
_FORGOTTEN_TASKS: Final = f"select id from tasks_task where tenant_id = %(tenant)s and params = {_MARK}"


def _remove_artifacts(tenant_id: int, tasks: Collection[int]) -> None:
    """Remove the artifacts that these tasks gave: files, then rows."""
    pointers = set(FinishedTask.objects.filter(pk__in=tasks).values_list("result_pointer", flat=True))
    for artifact in Artifact.objects.filter(tenant_id=tenant_id):
        if artifact_pointer(artifact.digest) in pointers:
            storages["artifacts"].delete(selectors.place_of(tenant_id, artifact.digest))
            artifact.delete()


register(
    Rows(
        table="tasks_task",
        redacted={"params": _MARK, '"group"': "null", "caused_by": "null"},
        also=f"id in (select task_id from task_history where tenant_id = %(tenant)s and content = {_MARK})",
    ),
    Rows(
        table="tasks_run",
        redacted={"message": "''", "checkpoint": "null", "error": "null", "answer": "null"},
        also=f"id >> {FENCING_TOKEN_BITS} in ({_FORGOTTEN_TASKS})",
    ),
    Rows(
        table="task_history",
        # The pointer stays where it names an artifact: its file is found by it.
        redacted={
            "error": "null",
            "content": _MARK,
            "summary": "''",
            "result_pointer": "case when result_pointer like 'artifact:sha256-%%' then result_pointer end",
        },
        also=f"task_id in ({_FORGOTTEN_TASKS})",
        then=_remove_artifacts,
    ),
    Rows(table="tasks_schedule", redacted={"params": _MARK, "last_refusal": "''"}),
)
belong(
    "receipts_receipt",
    f"receipt_id in (select receipt_id from task_history where tenant_id = %(tenant)s and content = {_MARK}"
    f" union all select receipt_id from tasks_task where tenant_id = %(tenant)s and params = {_MARK})",
)
