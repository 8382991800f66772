"""Acking: it adds exactly what its boundary named."""

from dataclasses import replace
from typing import Annotated

from django.utils import timezone
from pydantic import Field

from apps.core.errors import FieldError, Invalid
from apps.core.operations import Route, operation
from apps.core.schemas import Input, Output
from apps.digests import services
from apps.digests.formats import Through, parse_entry, parse_through
from apps.digests.services import Acked
from apps.digests.tools.shapes import EntryRef, Sequence
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller


class AckedOutput(Output):
    """What this call added; zeros when all of it had been acked before."""

    acked_entries: int
    acked_receipts: int


class AckEntries(Input):
    entries: Annotated[list[EntryRef], Field(min_length=1, max_length=500)]
    """References (`ent_42`) or tokens of entries of your inbox."""


@operation(
    title="Ack entries",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/inbox/ack")],
    idempotent=True,
)
def ack_entries(caller: Caller, given: AckEntries) -> AckedOutput:
    """Ack just these entries: exactly the receipts inside them, all or none. Doing it twice adds nothing."""
    acked = services.ack(
        principal_id=caller.principal_id,
        entry_ids=[parse_entry(ref) for ref in given.entries],
        now=timezone.now(),
    )
    return _answer(acked)


class AckThrough(Input):
    through: EntryRef
    """The `token` of the last entry that you have dealt with, just as you read it (`ent_42@57`); or a bare reference."""
    as_of: Sequence | None = None
    """With a bare reference: the `as_of` of the read of your whole inbox in which you saw it. A reference can't say what a
    narrower read left out (`source_system`, `after`, the newest entries of a bootstrap); only its tokens do."""


@operation(
    title="Ack up to an entry",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/inbox/ack-through")],
    idempotent=True,
)
def ack_through(caller: Caller, given: AckThrough) -> AckedOutput:
    """Ack everything up to this entry that the read it came from showed you, and nothing that arrived since.

    Hand back the entry's token unchanged. Doing it twice adds nothing.
    """
    through = parse_through(given.through)
    if given.as_of is not None:
        through = _as_of(through, given.as_of)
    return _answer(services.ack_through(principal_id=caller.principal_id, through=through, now=timezone.now()))


def _as_of(through: Through, as_of: int) -> Through:
    if through.as_of not in {None, as_of}:
        fault = "contradicts the token"
        raise Invalid(f"as_of {fault}.", errors=[FieldError("/as_of", fault)])
    return replace(through, as_of=as_of)


def _answer(acked: Acked) -> AckedOutput:
    return AckedOutput(acked_entries=acked.acked_entries, acked_receipts=acked.acked_receipts)
