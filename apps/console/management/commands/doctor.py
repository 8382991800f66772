"""Examine every part and say how to mend what is not well."""

import json
import os
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connection

from apps.console import health


class Command(BaseCommand):
    help = "Examine every part that the product stands on, and say how to mend what is not well."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        if not (os.environ.get("DATABASE_URL") or (settings.DATA_DIR / "stack.json").exists()):
            connection.ensure_connection()  # fails: nothing runs, and manage.py says so
        findings = health.examination()
        well = all(finding.ok for finding in findings if finding.needed)
        if options["json"]:
            self.stdout.write(json.dumps({"well": well, "findings": [asdict(finding) for finding in findings]}))
        else:
            for finding in findings:
                self._tell(finding)
        if not well:
            raise SystemExit(1)

    def _tell(self, finding: health.Finding) -> None:
        if finding.ok:
            self.stdout.write(f"{self.style.SUCCESS('ok  ')} {finding.part}: {finding.says}")
            return
        mark = self.style.ERROR("FAIL") if finding.needed else self.style.WARNING("late")
        self.stdout.write(f"{mark} {finding.part}: {finding.says}\n     {finding.mend}")
