from collections.abc import Sequence

from django.apps import AppConfig


class MCPConfig(AppConfig):
    name = "apps.mcp"

    def ready(self) -> None:
        from apps.tasks.signals import tasks_finished  # noqa: PLC0415  # the apps below must be ready first

        tasks_finished.connect(_notify, dispatch_uid="mcp_tasks_finished")


def _notify(*, tenant_id: int, task_ids: Sequence[int], **_: object) -> None:
    from apps.core.notifications import notify  # noqa: PLC0415  # as above
    from apps.tasks.signals import task_topic  # noqa: PLC0415

    notify(*(task_topic(tenant_id, f"task_{task_id}") for task_id in task_ids))
