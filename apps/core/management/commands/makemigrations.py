"""`makemigrations` without the choices and texts of fields, which no table holds."""

from typing import Any

from django.core.management.commands.makemigrations import Command as MakeMigrations
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.models import Field

NOT_IN_TABLES = ("choices", "error_messages", "help_text", "verbose_name")


class Autodetector(MigrationAutodetector):
    """Takes fields for the same that differ in nothing that a table holds."""

    def deep_deconstruct(self, obj: Any) -> Any:
        found = super().deep_deconstruct(obj)
        if isinstance(obj, Field):
            for name in NOT_IN_TABLES:
                found[2].pop(name, None)
        return found


class Command(MakeMigrations):
    autodetector = Autodetector
