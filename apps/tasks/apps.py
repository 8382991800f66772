from django.apps import AppConfig


class TasksConfig(AppConfig):
    name = "apps.tasks"

    def ready(self) -> None:
        # The announcements on commit become Celery messages; connected here because signals know no listener.
        from apps.tasks import jobs  # noqa: PLC0415

        jobs.listen()
