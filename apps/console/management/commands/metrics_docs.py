"""Writes docs/metrics.md: the metrics as Prometheus reads them, from the code."""

from typing import Any

from django.core.management.base import BaseCommand

from apps.console import metrics
from apps.principals.tenancy import acting_as_system


class Command(BaseCommand):
    help = "Write docs/metrics.md from the code. Needs a database, however empty."

    def handle(self, *args: Any, **options: Any) -> None:
        with acting_as_system("metrics"):
            metrics.PAGE.write_text(metrics.page(), encoding="utf-8")
