from django.apps import AppConfig


class DeliveryConfig(AppConfig):
    name = "apps.delivery"

    def ready(self) -> None:
        # The tick registers itself.
        from apps.delivery import jobs  # noqa: F401, PLC0415
