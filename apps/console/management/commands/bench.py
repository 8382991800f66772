"""Measure the product beside its peers: `python -m benchmarks`."""

import os
import sys

from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Measure the product beside its peers, on servers of its own. See bench --help."

    def run_from_argv(self, argv: list[str]) -> None:
        os.chdir(settings.BASE_DIR)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks", *argv[2:]])  # noqa: S606  # the same interpreter
