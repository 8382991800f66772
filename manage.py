#!/usr/bin/env python
"""Run a management command of Gatehouse."""

import os
import sys
from itertools import groupby
from operator import itemgetter

try:
    from django.core.management import BaseCommand, ManagementUtility, get_commands, load_command_class
except ImportError:
    sys.exit("Django is not installed for this Python: run it with .venv/bin/python, which bin/up makes.")

from config.unreachable import told_in_a_sentence

# Made to fit the product, and not for its users.
_OF_DJANGO = {"flush", "makemigrations"}


class Commands(ManagementUtility):
    """`help` lists the product's own commands by app; the others of Django run too."""

    def fetch_command(self, subcommand: str) -> BaseCommand:
        """The product's own commands start at once: `check` and `migrate` are there to check the settings."""
        command = super().fetch_command(subcommand)
        if type(command).__module__.startswith("apps.") and subcommand != "migrate":
            command.requires_system_checks = ()
        return command

    def main_help_text(self, commands_only: bool = False) -> str:  # noqa: FBT001, FBT002  # as Django has it
        if commands_only:
            return super().main_help_text(commands_only)
        own = [
            (app, name) for name, app in get_commands().items() if app.startswith("apps.") and name not in _OF_DJANGO
        ]
        told = [f"{self.prog_name} help COMMAND tells more. The commands of Gatehouse, by their app:"]
        for app, names in groupby(sorted(own), key=itemgetter(0)):
            told += ["", f"[{app.removeprefix('apps.')}]"]
            for _, name in names:
                says = load_command_class(app, name).help.splitlines()[0].split(". ")[0]
                told.append(f"    {name:<16} {says}")
        return "\n".join(told)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    with told_in_a_sentence(1):
        Commands(sys.argv).execute()


if __name__ == "__main__":
    main()
