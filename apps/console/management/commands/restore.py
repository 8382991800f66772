from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.console import backups
from config.typed import typed


class Command(BaseCommand):
    help = f"Restore a backup into an empty database. For a new data folder: {typed('restore')} DIR --data NEW."
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", metavar="DIR", type=Path)

    def handle(self, *args: Any, folder: Path, **options: Any) -> None:
        try:
            backups.restore(folder.resolve())
        except (backups.Refused, OSError) as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(f"Restored. Start the product, then run {typed('doctor')}.")
