"""Break the product on purpose and judge what it answered: `python -m tests.chaos.run`."""

import os
import sys

from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Break the product on purpose, on servers of its own, and judge what it answered. See chaos --help."

    def run_from_argv(self, argv: list[str]) -> None:
        os.chdir(settings.BASE_DIR)
        arguments = [sys.executable, "-m", "tests.chaos.run", *argv[2:]]
        os.execv(sys.executable, arguments)  # noqa: S606  # the same interpreter
