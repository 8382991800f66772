from django.apps import AppConfig


class ActivationConfig(AppConfig):
    name = "apps.activation"

    def ready(self) -> None:
        # Hints register themselves when they are imported.
        from apps.activation import jobs  # noqa: F401, PLC0415
