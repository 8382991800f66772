from django.apps import AppConfig


class ReceiptsConfig(AppConfig):
    name = "apps.receipts"

    def ready(self) -> None:
        # The announcements on commit become Celery messages; connected here because signals know no listener.
        from apps.receipts import jobs  # noqa: PLC0415

        jobs.listen()
