"""What happens to tasks, as cues for the clients that listen. Inboxes cue by themselves."""

from collections.abc import Sequence

from apps.core import notifications
from apps.mcp.resources import task_topic
from apps.tasks.signals import tasks_finished


def connect() -> None:
    """Cue from now on in this process whatever commits here."""
    tasks_finished.connect(_tasks_finished, dispatch_uid="mcp_tasks_finished")


def _tasks_finished(*, tenant_id: int, task_ids: Sequence[int], **_: object) -> None:
    notifications.notify(*(task_topic(tenant_id, f"task_{task_id}") for task_id in task_ids))
