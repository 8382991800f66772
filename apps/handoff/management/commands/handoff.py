import sys

from django.core.management.base import BaseCommand

from apps.handoff import cli


class Command(BaseCommand):
    """`manage.py handoff VERB …` takes the arguments of `bin/handoff`, and needs no database."""

    help = "What one session leaves to the next one: inherit, leave, outbox, status, clean, sync, harvest, place."

    def run_from_argv(self, argv: list[str]) -> None:
        sys.exit(cli.main(argv[2:]))
