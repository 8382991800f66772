from django.apps import AppConfig

from apps.core import notifications
from apps.tasks.signals import queue_topic, task_queued, type_topic


def _notify_workers(*, tenant_id: int, queue: str, task_type: str, **_: object) -> None:
    notifications.notify(queue_topic(tenant_id, queue), type_topic(tenant_id, task_type))


class TasksConfig(AppConfig):
    name = "apps.tasks"

    def ready(self) -> None:
        # The announcements on commit become Celery messages; connected here because signals know no listener.
        from apps.tasks import jobs  # noqa: PLC0415

        jobs.listen()
        # Whoever waits for a lease may be in any process.
        task_queued.connect(_notify_workers, dispatch_uid="tasks.notify_workers")
