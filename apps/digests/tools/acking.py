"""Acking: it adds exactly what its boundary named."""

from dataclasses import replace
from typing import Annotated

from django.utils import timezone
from pydantic import Field

from apps.core.errors import FieldError, Invalid
from apps.core.operations import Route, operation
from apps.core.schemas import Input
from apps.digests import services
from apps.digests.formats import parse_entry, parse_through
from apps.digests.shapes import AckedOutput, EntryRef, Sequence
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller


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
    entries = [parse_entry(ref) for ref in given.entries]
    return services.ack(principal_id=caller.principal_id, entry_ids=entries, now=timezone.now())


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
        if through.as_of not in {None, given.as_of}:
            fault = "contradicts the token"
            raise Invalid(f"as_of {fault}.", errors=[FieldError("/as_of", fault)])
        through = replace(through, as_of=given.as_of)
    return services.ack_through(principal_id=caller.principal_id, through=through, now=timezone.now())
