from django.apps import AppConfig


class DeliveryConfig(AppConfig):
    name = "apps.delivery"

    def ready(self) -> None:
        # The tick registers itself.
        from apps.core.erasure import Rows, register  # noqa: PLC0415
        from apps.delivery import jobs  # noqa: F401, PLC0415

        register(Rows(table="delivery_delivery", redacted={"said": "null"}))
