from django.apps import AppConfig


class ExecutionsConfig(AppConfig):
    name = "apps.executions"

    def ready(self) -> None:
        # Handlers and hints register themselves when they are imported.
        from apps.executions import handlers, jobs  # noqa: F401, PLC0415
