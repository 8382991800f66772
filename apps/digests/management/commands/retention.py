"""Say or set how long receipts are kept, or remove at once what has been kept its time."""

import json
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from apps.core.errors import DomainError
from apps.digests import services
from apps.principals import services as principals
from apps.principals.models import Tenant
from apps.principals.tenancy import acting_as_system


class Command(BaseCommand):
    help = "Without options: say how long what is acked is kept. Unacked receipts are kept for ever."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--run", action="store_true", help="remove at once what has been kept its time")
        parser.add_argument("--tenant", metavar="SLUG", help="whose receipts --days is about")
        parser.add_argument(
            "--days", type=int, metavar="N", help="keep this tenant's receipts so long; 0: as the others"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if (options["tenant"] is None) != (options["days"] is None):
            raise CommandError("--tenant and --days go together.")
        if options["tenant"] is not None:
            self._set(options["tenant"], options["days"])
        if options["run"]:
            self.stdout.write(json.dumps(services.retain()))
        self._say()

    def _set(self, slug: str, days: int) -> None:
        try:
            with acting_as_system("retention"):
                principals.keep_receipts(slug=slug, period=timedelta(days=days) if days else None)
        except (DomainError, OverflowError) as refusal:
            raise CommandError(str(refusal)) from refusal

    def _say(self) -> None:
        self.stdout.write(f"acked receipts and their entries: {settings.RECEIPTS_KEPT.days} days")
        self.stdout.write(f"superseded snapshots: {settings.SUPERSEDED_ENTRIES_KEPT // timedelta(hours=1)} hours")
        self.stdout.write(f"dedupe keys and tombstones: {settings.RECEIPT_TRACES_KEPT.days} days")
        with acting_as_system("retention"):
            for tenant in Tenant.objects.exclude(keep_receipts=None).order_by("slug"):
                self.stdout.write(f"acked receipts of {tenant.slug}: {tenant.keep_receipts}")
