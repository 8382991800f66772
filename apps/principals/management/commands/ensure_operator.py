"""Make sure that there is an operator account to log in with."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.principals.models import Operator


class Command(BaseCommand):
    help = "Create a superuser with the password in a file unless one of that name exists."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--username", required=True)
        parser.add_argument("--password-file", type=Path, required=True)

    def handle(self, *args: Any, **options: Any) -> None:
        password = options["password_file"].read_text().strip()
        if not password:
            raise CommandError("The password file is empty.")
        if Operator.objects.filter(username=options["username"]).exists():
            self.stdout.write("exists")
            return
        Operator.objects.create_superuser(username=options["username"], password=password)
        self.stdout.write("created")
