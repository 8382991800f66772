import sys
from argparse import Namespace
from dataclasses import replace
from typing import Any, ClassVar, TextIO, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.handoff import cli
from apps.handoff.cli import Streams
from apps.handoff.errors import Refused


class HandoffCommand(BaseCommand):
    """One of the commands of files, with the same arguments and answers; it asks no database."""

    requires_system_checks = []
    verb: ClassVar[cli.Command | None] = None
    verbs: ClassVar[dict[str, cli.Command]] = {}

    def add_arguments(self, parser: CommandParser) -> None:
        if self.verb is None:
            cli.add_verbs(parser, self.verbs)
            return
        self.verb.add_to(parser)
        cli.add_common(parser)
        parser.set_defaults(command=self.verb)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            streams = Streams.standard()
        except Refused as exc:
            raise CommandError(str(exc)) from exc
        if options.get("stdout") is not None:
            # Whoever calls the command from code wants to have what it says.
            streams = replace(streams, out=cast("TextIO", self.stdout))
        try:
            cli.run(options["command"], Namespace(**options), streams)
        except Refused as exc:
            raise CommandError(str(exc)) from exc
        except BrokenPipeError:
            cli.drop_output()
            sys.exit(1)
