from django.apps import AppConfig


class ReceiptsConfig(AppConfig):
    name = "apps.receipts"

    def ready(self) -> None:
        # Models can be imported only now.
        from apps.delivery.models import Kind  # noqa: PLC0415
        from apps.delivery.senders import register  # noqa: PLC0415
        from apps.receipts.deliveries import ReceiptSender  # noqa: PLC0415

        register(Kind.REMOTE, ReceiptSender())
