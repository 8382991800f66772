"""Serve a stdio MCP server over HTTP on loopback: `manage.py mcp_adapter --port 8765 -- npx -y some-mcp-server DIR`."""

import os
import socket
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.mcp.adapter import Adapter


class Command(BaseCommand):
    """It ends when the server does, and the server ends with it."""

    help = __doc__
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=0, help="port to listen on; left out, a free one")
        parser.add_argument(
            "--env", action="append", default=[], metavar="NAME", help="a variable of the environment to hand on"
        )
        parser.add_argument("server", nargs="+", metavar="COMMAND", help="the server and its arguments, after --")

    def handle(self, *_args: Any, port: int, env: list[str], server: list[str], **_options: Any) -> None:
        if missing := [name for name in env if name not in os.environ]:
            raise CommandError(f"The environment has no {missing[0]}.")
        try:
            with socket.create_server(("127.0.0.1", port)) as listener:
                Adapter(server, inherited=env).serve(listener, ready=self._say)
        except OSError as refusal:
            raise CommandError(f"{server[0]} can't be served: {refusal}") from refusal

    def _say(self, endpoint: str) -> None:
        self.stdout.write(f"ready {endpoint}")
        self.stdout.flush()
