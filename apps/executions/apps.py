from django.apps import AppConfig


class ExecutionsConfig(AppConfig):
    name = "apps.executions"

    def ready(self) -> None:
        # The task handler and the receiver of finished tasks register themselves when they are imported.
        from apps.executions import handlers, jobs  # noqa: F401, PLC0415
