"""Between the app's database and the hub. What is sent twice is there once, so that senders need no lock."""

import logging
from datetime import timedelta
from typing import Final

from django.utils import timezone  # noqa: TID251  # with or without a zone, as the app's settings say

from gatehouse_client.client import Client
from gatehouse_client.django import entry_arrived
from gatehouse_client.django.models import DeferredTask
from gatehouse_client.errors import Refused

logger = logging.getLogger("gatehouse_client")

_KEPT: Final = timedelta(days=7)
_OF_THE_TASK: Final = {409, 413, 422}
"""What the hub answers to a task that it will not take, whenever it is sent. Also 404 for an unknown type."""


def send(client: Client) -> int:
    """Queue what waits in the outbox, each task by itself; how many the hub has answered.

    :raises Unreachable, Refused: if the hub is away, or refuses the token. Nothing is lost then.
    """
    waiting = DeferredTask.objects.filter(task_id="", refusal="").order_by("pk")
    sent = 0
    while one := waiting.first():
        try:
            one.task_id = client.queue(**one.request).task_id
        except Refused as refusal:
            if refusal.status not in _OF_THE_TASK and refusal.code != "unknown_task_type":
                raise
            one.refusal = f"{refusal.code}: {refusal.detail}"
            logger.warning("the deferred task %s was refused: %s", one.pk, one.refusal)
        one.save(update_fields=["task_id", "refusal"])
        sent += 1
    DeferredTask.objects.filter(created_at__lt=timezone.now() - _KEPT).exclude(task_id="").delete()
    return sent


def hear(client: Client, *, wait: float = 0.0) -> int:
    """Send the signal for each unread entry, and ack it; how many were heard.

    :param wait: how long to wait for the first, in seconds.
    :raises Exception: what a receiver raises. Its entry stays unread.
    """
    entries = client.wait(wait).entries
    for entry in entries:
        entry_arrived.send(sender=Client, entry=entry)
        client.ack(str(entry.token))
    return len(entries)
