import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.mcp.bridge import Bridge


class Command(BaseCommand):
    help = "Carry MCP between stdin/stdout and the endpoint, for hosts that only start processes."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--url", default=settings.PUBLIC_URL, help="of the hub; left out, the one that runs here")

    def handle(self, *args: Any, **options: Any) -> None:
        token = os.environ.get("GATEHOUSE_TOKEN")
        if not token:
            raise CommandError("Put the agent's token into GATEHOUSE_TOKEN (manage.py issue_token makes one).")
        if not options["url"]:
            raise CommandError("No hub runs here; say where one is with --url.")
        Bridge(f"{options['url'].rstrip('/')}/mcp", token, sys.stdout).run(sys.stdin)
        # A stream that is still open must not keep the process, whose host is gone.
        sys.stdout.flush()
        os._exit(0)
