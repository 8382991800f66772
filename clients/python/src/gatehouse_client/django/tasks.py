"""For Celery beat: a schedule of a few seconds for `send` delivers what the app defers."""

from celery import shared_task

from gatehouse_client.client import Client
from gatehouse_client.django import delivery


@shared_task(ignore_result=True)
def send() -> None:
    """Queue what waits in the outbox."""
    with Client.from_environment() as client:
        delivery.send(client)
