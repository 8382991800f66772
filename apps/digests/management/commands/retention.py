"""Say how long receipts are kept, or remove at once what has been kept its time."""

import json
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from apps.digests import services


class Command(BaseCommand):
    help = "Without options: say how long what is acked is kept. Unacked receipts are kept for ever."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--run", action="store_true", help="remove at once what has been kept its time")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["run"]:
            self.stdout.write(json.dumps(services.retain(patience=None)))
        self.stdout.write(f"acked receipts and their entries: {settings.RECEIPTS_KEPT.days} days")
        self.stdout.write(f"superseded snapshots: {settings.SUPERSEDED_ENTRIES_KEPT // timedelta(hours=1)} hours")
        self.stdout.write(f"dedupe keys and tombstones: {settings.RECEIPT_TRACES_KEPT.days} days")
