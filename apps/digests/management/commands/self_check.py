"""Check all inboxes and change nothing."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from apps.digests import soundness
from apps.principals.tenancy import acting_as_system


class Command(BaseCommand):
    help = "Report receipts, threads, entries and counters that break the rules of the inbox. Changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object: the ids by kind of fault")

    def handle(self, *args: Any, **options: Any) -> None:
        with acting_as_system("self-check"):
            found = soundness.unsound()
        if options["json"]:
            self.stdout.write(json.dumps({"found": found}))
        else:
            for kind, ids in sorted(found.items()):
                self.stdout.write(f"{kind.replace('_', ' ')}: {len(ids)} ({', '.join(map(str, ids[:10]))})")
            self.stdout.write(f"{sum(map(len, found.values()))} faults found")
        if found:
            raise SystemExit(1)
