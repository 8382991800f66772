"""An inbox at the command line: what its principal would read, expand, ack and look back on, with the same answers."""

import json
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from apps.core import operations
from apps.core.errors import DomainError
from apps.core.schemas import parse
from apps.principals import selectors as principals
from apps.principals.tenancy import Caller, acting_as_system, acting_in, on_behalf_of

Answer = Mapping[str, Any]

_OPERATIONS: Final = {
    "read": "read_inbox",
    "expand": "expand_entry",
    "ack": "ack_through",
    "history": "inbox_history",
}


class Command(BaseCommand):
    help = "Read, expand, ack or look back on the inbox of a principal, as that principal."

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
        parser.add_argument("--json", action="store_true", help="print what the API answers")

    def handle(self, *args: Any, **options: Any) -> None:
        verb = options["verb"]
        try:
            caller = _principal(options["tenant"], options["principal"])
            declared = operations.find(_OPERATIONS[verb])
            answer = operations.call(declared, caller, parse(declared.input, _given(verb, options))).output
        except DomainError as refusal:
            raise CommandError(refusal.detail) from refusal
        shown = answer.model_dump(mode="json") if answer is not None else {}
        self.stdout.write(json.dumps(shown, indent=2) if options["json"] else _TEXTS[verb](shown))


def _principal(slug: str, name: str) -> Caller:
    with acting_as_system("inbox command"):
        tenant = principals.tenant_named(slug)
    with acting_in(tenant.pk, "inbox command"):
        return on_behalf_of(principals.principal_named(name))


def _given(verb: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if verb in {"ack", "expand"} and not options["through"]:
        raise CommandError(f"{verb} needs --through, an entry or the token that a read gave for it.")
    named = {
        "through": options["through"] if verb == "ack" else None,
        "ref": options["through"] if verb == "expand" else None,
        "source_system": options["source_system"],
        "limit": options["limit"],
        "cursor": options["cursor"],
    }
    return {name: value for name, value in named.items() if value is not None}


def _entry(entry: Answer) -> str:
    return f"{entry['token'] or entry['ref']}  {entry['title'] or entry['summary']}  ({entry['count']})"


def _inbox(page: Answer) -> str:
    lines = [_entry(entry) for entry in page["entries"]]
    return "\n".join([*lines, f"as of {page['as_of']}: {page['visible']} visible, {page['pending']} in buffers"])


def _past(page: Answer) -> str:
    return "\n".join(
        f"{_entry(entry)}  {entry['flush_reason'] or entry['kind']}, {_fate(entry)}" for entry in page["entries"]
    )


def _fate(entry: Answer) -> str:
    if entry["acked_at"] is not None:
        return "acked"
    return "visible" if entry["superseded_by_seq"] is None else f"superseded by {entry['superseded_by_seq']}"


def _members(page: Answer) -> str:
    return "\n".join(
        f"{one['receipt_id']}  {one['source_system']}  {one['title'] or one['summary']}" for one in page["receipts"]
    )


def _acked(page: Answer) -> str:
    return f"acked {page['acked_entries']} entries, {page['acked_receipts']} receipts"


_TEXTS: Final[dict[str, Callable[[Answer], str]]] = {
    "read": _inbox,
    "history": _past,
    "expand": _members,
    "ack": _acked,
}
