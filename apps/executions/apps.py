from django.apps import AppConfig

from apps.core import notifications
from apps.executions.signals import execution_told, execution_topic


class ExecutionsConfig(AppConfig):
    name = "apps.executions"

    def ready(self) -> None:
        # Handlers and hints register themselves when they are imported.
        from apps.executions import handlers, jobs  # noqa: F401, PLC0415

        execution_told.connect(_notify, dispatch_uid="executions_execution_told")


def _notify(*, tenant_id: int, plan_id: str, **_: object) -> None:
    notifications.notify(execution_topic(tenant_id, plan_id))
