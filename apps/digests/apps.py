from collections.abc import Collection

from django.apps import AppConfig

from apps.core import notifications


class DigestsConfig(AppConfig):
    name = "apps.digests"

    def ready(self) -> None:
        # Models can be imported only now. Importing the modules registers the GitHub hooks and the jobs.
        from apps.delivery.models import Kind  # noqa: PLC0415
        from apps.delivery.senders import register  # noqa: PLC0415
        from apps.digests import github, jobs, services  # noqa: F401, PLC0415

        register(Kind.WEBHOOK, services.WakeSender())
        services.inbox_changed.connect(_notify, dispatch_uid="digests_inbox_changed")


def _notify(*, principal_ids: Collection[int], **_: object) -> None:
    from apps.digests.services import inbox_topic  # noqa: PLC0415

    notifications.notify(*map(inbox_topic, principal_ids))
