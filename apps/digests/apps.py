from django.apps import AppConfig

from apps.core import notifications
from apps.digests.signals import inbox_changed, inbox_topic


class DigestsConfig(AppConfig):
    name = "apps.digests"

    def ready(self) -> None:
        from apps.digests.hooks import github  # noqa: F401, PLC0415  # registers its hooks

        inbox_changed.connect(_notify, dispatch_uid="digests_inbox_changed")


def _notify(*, principal_id: int, **_: object) -> None:
    notifications.notify(inbox_topic(principal_id))
