"""Gatehouse in a Django app. Add `gatehouse_client.django` to INSTALLED_APPS and run `manage.py migrate`.

    from gatehouse_client.django import defer

    with transaction.atomic():
        order.save()
        defer(task_type="ship", params={"order": order.pk})

`defer` writes a row into the app's own database, so that the task exists if and only if the transaction commits.
`manage.py gatehouse outbox` or the Celery task `gatehouse_client.django.tasks.send` sends the rows to the hub.
`manage.py gatehouse inbox` sends the signal `entry_arrived` for each entry of the inbox.
"""

import uuid
from typing import TYPE_CHECKING, Unpack

from django.dispatch import Signal

from gatehouse_client.inputs import QueueTask

if TYPE_CHECKING:
    from gatehouse_client.django.models import DeferredTask

__all__ = ["defer", "entry_arrived"]

entry_arrived = Signal()
"""Sent with `entry`, the oldest unread first. It is acked when all receivers have returned, and comes again if one raises."""


def defer(**task: Unpack[QueueTask]) -> "DeferredTask":
    """Queue a task once the transaction has committed. The row's `task_id` is set when the hub has taken it."""
    from gatehouse_client.django.models import DeferredTask  # noqa: PLC0415  # the apps must be loaded

    return DeferredTask.objects.create(request={"idempotency_key": str(uuid.uuid4()), **task})
