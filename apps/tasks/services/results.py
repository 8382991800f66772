"""Results on their way out."""

from django.db import transaction

from apps.core.ids import format_ref
from apps.core.sql import database_now
from apps.principals.tenancy import Caller
from apps.tasks import selectors
from apps.tasks.errors import NotFinished
from apps.tasks.models import FinishedTask
from apps.tasks.services.ending import refuse_stranger
from apps.tasks.shapes import TaskResult
from apps.tasks.states import TERMINAL


@transaction.atomic
def fetch_result(*, caller: Caller, task_id: int) -> TaskResult:
    """A task's result, less the content of an artifact; notes when it was first fetched.

    :raises UnknownTask: if the caller neither asked for it nor is to be told of it.
    :raises NotFinished: if it is still open.
    """
    refuse_stranger(caller=caller, task_id=task_id)
    if not FinishedTask.objects.filter(task_id=task_id).exists():
        status = selectors.status(format_ref("task", task_id)).status
        # It may have ended since the look before.
        if status not in TERMINAL:
            raise NotFinished(f"{format_ref('task', task_id)} is {status}.", task_status=status)
    FinishedTask.objects.filter(task_id=task_id, fetched_at=None).update(fetched_at=database_now())
    return selectors.result(format_ref("task", task_id))
