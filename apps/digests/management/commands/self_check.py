"""Go over all inboxes at once, and mend what is not as it must be."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from apps.digests import services
from apps.digests.soundness import REPAIRED


class Command(BaseCommand):
    help = "Look for receipts, threads, entries and counters that the rules of the inbox forbid, and mend them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--look-only", action="store_true", help="mend nothing; fails if something is found")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        found = services.self_check(patience=None, repair=not options["look_only"])
        repaired = found.pop(REPAIRED, 0)
        sound = sum(found.values()) == repaired
        if options["json"]:
            self.stdout.write(json.dumps({"found": found, "repaired": repaired}))
        else:
            for kind, count in sorted(found.items()):
                self.stdout.write(f"{kind.replace('_', ' ')}: {count}")
            self.stdout.write(f"{sum(found.values())} found, {repaired} mended")
        if not sound:
            raise SystemExit(1)
