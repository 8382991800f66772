"""Keep this app and its hub in touch: `manage.py gatehouse outbox` and `manage.py gatehouse inbox`."""

import time
from argparse import ArgumentParser
from contextlib import suppress
from functools import partial
from typing import Any, Final

from django.core.management.base import BaseCommand

from gatehouse_client.client import Client
from gatehouse_client.django import delivery
from gatehouse_client.errors import GatehouseError

_PAUSE: Final = 1.0
_LONGEST_WAIT: Final = 50.0


class Command(BaseCommand):
    help = "Send deferred tasks to the hub (outbox), or hear what is in the inbox (inbox). Runs until it is ended."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("box", choices=("outbox", "inbox"))
        parser.add_argument("--once", action="store_true", help="end when nothing is left to do")

    def handle(self, *_args: Any, **options: Any) -> None:
        once = options["once"]
        with suppress(KeyboardInterrupt), Client.from_environment() as client:
            turn = {
                "outbox": partial(delivery.send, client),
                "inbox": partial(delivery.hear, client, wait=0.0 if once else _LONGEST_WAIT),
            }[options["box"]]
            while True:
                done = 0
                try:
                    done = turn()
                except GatehouseError as exc:
                    if once:
                        raise
                    self.stderr.write(f"The hub did not take it; trying again: {exc}")
                if once and not done:
                    return
                if not done:
                    time.sleep(_PAUSE)
