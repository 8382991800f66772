"""What happens to tasks, as cues for the clients that listen. Inboxes cue by themselves."""

from apps.core import cues
from apps.mcp.resources import task_topic
from apps.tasks.signals import task_finished


def connect() -> None:
    """Cue from now on in this process whatever commits here."""
    task_finished.connect(_task_finished, dispatch_uid="mcp_task_finished")


def _task_finished(*, tenant_id: int, task_id: int, **_: object) -> None:
    cues.send(task_topic(tenant_id, f"task_{task_id}"))
