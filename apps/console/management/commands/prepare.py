"""Bring a database up to date, in one process. Everything may be repeated."""

import io
import json
import secrets
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand

from apps.principals.models import Operator
from apps.principals.services import set_password
from config.stack.folders import DataFolder


class Command(BaseCommand):
    help = "Migrate, write the schedules, and add what the environment names: the default target, tokens of sources."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--tokens",
            metavar="JSON",
            type=json.loads,
            help="what bin/up keeps in its data folder: an operator, the key of the demo MCP workers, and these tokens,"
            " by name, each as the arguments of issue_token",
        )

    def handle(self, *_args: Any, tokens: dict[str, list[str]] | None, **options: Any) -> None:
        call_command("migrate", interactive=False, skip_checks=False, verbosity=options["verbosity"])
        call_command("sync_schedules")
        if tokens is not None:
            self._fill(DataFolder(settings.DATA_DIR), tokens)
        call_command("default_target")
        call_command("source_tokens")

    def _fill(self, data: DataFolder, wanted: dict[str, list[str]]) -> None:
        new = not data.password_file.exists()
        password = secrets.token_urlsafe(12) if new else data.password_file.read_text().strip()
        if (admin := Operator.objects.filter(username="admin").first()) is None:
            Operator.objects.create_superuser("admin", password=password)
        elif new:  # a restored database
            set_password(operator=admin, password=password)
        if new:
            data.write(data.password_file, password + "\n")
        kept = data.secrets()
        tokens = kept["tokens"].setdefault(settings.DATABASE_URL, {})
        for name in wanted.keys() - tokens.keys():
            answer = io.StringIO()
            call_command("issue_token", *wanted[name], "--json", stdout=answer)
            tokens[name] = json.loads(answer.getvalue())["token"]
        data.write(data.secrets_file, kept)
        data.write(data.token_file, tokens.get("agent", "") + "\n")
        key = str(data.worker_key_file)
        call_command("mcp_workers", "enroll-key", "--name", "bundled", "--ceiling", "verified", "--private-file", key)
