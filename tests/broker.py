"""What is published for worker processes, read in their place: none of them runs beside a test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.simple import SimpleQueue

from config.celery import app


@contextmanager
def listening_at(queue: str) -> Iterator[SimpleQueue]:
    """A queue of which all that was there before is gone."""
    with app.connection_for_read() as broker:
        opened = SimpleQueue(broker.default_channel, queue)
        opened.clear()
        yield opened


def take(queue: SimpleQueue, name: str) -> Any:
    """The arguments of the next message of this name; others are let go."""
    while True:
        message = queue.get(timeout=20)
        message.ack()
        if message.headers["task"] == name:
            return message.payload[0]
