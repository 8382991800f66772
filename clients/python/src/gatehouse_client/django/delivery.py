"""Between the app's database and the hub. What is sent twice is there once, so that senders need no lock."""

import logging
from datetime import timedelta
from typing import Final

from django.utils import timezone  # noqa: TID251  # with or without a zone, as the app's settings say

from gatehouse_client.client import Client
from gatehouse_client.django import entry_arrived
from gatehouse_client.django.models import DeferredTask

logger = logging.getLogger("gatehouse_client")

_AT_ONCE: Final = 100
_KEPT: Final = timedelta(days=7)


def send(client: Client) -> int:
    """Queue what waits in the outbox; how many the hub has answered.

    :raises Unreachable, Refused: if the hub is away, or refuses the token. Nothing is lost then.
    """
    sent = 0
    while waiting := list(DeferredTask.objects.filter(task_id="", refusal="").order_by("pk")[:_AT_ONCE]):
        answers = client.queue_many([one.request for one in waiting])
        for one, answer in zip(waiting, answers, strict=True):
            one.task_id = answer.task_id or ""
            one.refusal = f"{answer.code}: {answer.detail}" if answer.code else ""
            if one.refusal:
                logger.error("the deferred task %s was refused: %s", one.pk, one.refusal)
        DeferredTask.objects.bulk_update(waiting, ["task_id", "refusal"])
        sent += len(waiting)
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
