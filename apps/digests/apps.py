from django.apps import AppConfig

from apps.core import notifications
from apps.digests.signals import inbox_changed, inbox_topic


class DigestsConfig(AppConfig):
    name = "apps.digests"

    def ready(self) -> None:
        # Models can be imported only now; hooks, the receiver of changes and the tick register themselves.
        from apps.delivery.models import Kind  # noqa: PLC0415
        from apps.delivery.senders import register  # noqa: PLC0415
        from apps.digests import jobs  # noqa: F401, PLC0415
        from apps.digests.hooks import github  # noqa: F401, PLC0415
        from apps.digests.services.waking import WakeSender  # noqa: PLC0415

        register(Kind.WEBHOOK, WakeSender())
        inbox_changed.connect(_notify, dispatch_uid="digests_inbox_changed")


def _notify(*, principal_id: int, **_: object) -> None:
    notifications.notify(inbox_topic(principal_id))
