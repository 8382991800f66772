from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from django.utils import timezone

from apps.console import backups


class Command(BaseCommand):
    help = "Write a backup of the database, the artifacts and the keys into a new folder, while the product runs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", metavar="DIR", type=Path)

    def handle(self, *args: Any, folder: Path, **options: Any) -> None:
        connection.ensure_connection()
        try:
            manifest = backups.back_up(folder.resolve(), now=timezone.now())
        except (backups.Refused, OSError) as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(
            f"{len(manifest['files'])} files in {folder}. It holds keys: keep it as safe as the database."
        )
