"""An inbox at the command line: what its principal would read, expand, ack and look back on, with the same answers."""

import json
from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from apps.core import operations
from apps.core.errors import DomainError
from apps.core.schemas import parse
from apps.principals import selectors as principals
from apps.principals.tenancy import acting_as_system, acting_in, on_behalf_of

_OPERATIONS: Final = {
    "read": "read_inbox",
    "expand": "expand_entry",
    "ack": "ack_through",
    "history": "inbox_history",
}


class Command(BaseCommand):
    help = "Read, expand, ack or look back on the inbox of a principal, as that principal; prints what the API answers."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("verb", choices=sorted(_OPERATIONS))
        parser.add_argument("--principal", required=True, metavar="NAME", help="whose inbox")
        parser.add_argument("--tenant", default="default", metavar="SLUG", help="of which tenant (default: default)")
        parser.add_argument(
            "--through",
            metavar="ent_42@57",
            help="ack: up to this entry, as far as the read that gave this token showed; expand: this entry",
        )
        parser.add_argument("--source-system", metavar="NAME", help="read: entries of this source only")
        parser.add_argument("--limit", type=int, metavar="N", help="of a page (default: 50)")
        parser.add_argument("--cursor", help="expand, history: the page after the one that ended with this")
        parser.add_argument("--json", action="store_true", help="has no effect: the answer is JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        verb = options["verb"]
        if verb in {"ack", "expand"} and not options["through"]:
            raise CommandError(f"{verb} needs --through, an entry or the token that a read gave for it.")
        given = {name: options[name] for name in ("source_system", "limit", "cursor")}
        given["ref" if verb == "expand" else "through"] = options["through"]
        try:
            with acting_as_system("inbox command"):
                tenant = principals.tenant_named(options["tenant"])
            with acting_in(tenant.pk, "inbox command"):
                caller = on_behalf_of(principals.principal_named(options["principal"]))
            declared = operations.find(_OPERATIONS[verb])
            stated = {name: value for name, value in given.items() if value is not None}
            answer = operations.call(declared, caller, parse(declared.input, stated)).output
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal
        self.stdout.write(json.dumps(answer.model_dump(mode="json") if answer is not None else {}, indent=2))
