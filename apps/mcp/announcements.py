"""What happens below, as cues for the clients that listen."""

from apps.core import cues
from apps.digests.signals import inbox_changed
from apps.mcp.resources import inbox_topic, task_topic
from apps.tasks.signals import task_finished


def connect() -> None:
    """Cue from now on in this process whatever commits here."""
    inbox_changed.connect(_inbox_changed, dispatch_uid="mcp_inbox_changed")
    task_finished.connect(_task_finished, dispatch_uid="mcp_task_finished")


def _inbox_changed(*, principal_id: int, **_: object) -> None:
    cues.send(inbox_topic(principal_id))


def _task_finished(*, tenant_id: int, task_id: int, **_: object) -> None:
    cues.send(task_topic(tenant_id, f"task_{task_id}"))
