"""The raw path: single receipts, whatever entry they are in."""

from collections.abc import Mapping
from typing import Any

from django.utils import timezone
from pydantic import Field

from apps.core.ids import decode_position, encode_cursor
from apps.core.operations import Route, operation
from apps.core.schemas import Cursor, Input, Output
from apps.digests import hooks, selectors, services
from apps.digests.errors import NotInInbox
from apps.digests.guidance import Clues
from apps.digests.tools.shapes import Limit, ReceiptOutput, Reference, Source
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.receipts import selectors as receipts
from apps.receipts.errors import UnknownReceipt
from apps.receipts.models import Receipt, Surface


class InboxReceipts(Input):
    unread_only: bool = True
    unread: bool | None = None
    """Another name of `unread_only`."""
    limit: Limit = 10
    source_system: Source | None = None
    cursor: Cursor | None = None
    """`next` of the page before."""


class ReceiptsOutput(Output):
    """Single receipts, newest first."""

    receipts: list[ReceiptOutput]
    next: str | None


@operation(
    title="List single receipts",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/receipts")],
    read_only=True,
)
def get_inbox_receipts(caller: Caller, given: InboxReceipts) -> ReceiptsOutput:
    """The single receipts of your inbox, newest first, those still being gathered too.

    `read_inbox` is the better way in: it gathers what belongs together and lets you ack what you were shown.
    """
    seen = selectors.inbox_receipts(
        caller.principal_id,
        unread_only=given.unread_only if given.unread is None else given.unread,
        source_system=given.source_system,
        before=decode_position(given.cursor) if given.cursor else None,
        limit=given.limit,
    )
    services.mark_delivered(receipt_pks=[one.receipt.pk for one in seen], now=timezone.now())
    return ReceiptsOutput(
        receipts=[ReceiptOutput.of(one) for one in seen],
        next=encode_cursor(seen[-1].receipt.pk) if len(seen) == given.limit else None,
    )


class OneReceipt(Input):
    receipt_id: Reference
    """Its receipt id, or its uuid."""


class NextActionOutput(Output):
    """What you would do next."""

    description: str
    tool: str | None
    arguments: Mapping[str, Any] = Field(default_factory=dict)


class ReadOutput(Output):
    receipt: ReceiptOutput
    next_action: NextActionOutput


@operation(
    title="Look at a receipt",
    scope=[Scope.INBOX, Scope.RECEIPTS_WRITE],
    routes=[Route("GET", "/api/v1/receipts/{receipt_id}")],
    read_only=True,
    tool=False,
)
def get_receipt(caller: Caller, given: OneReceipt) -> ReceiptOutput:
    """One receipt that you have received or posted; acks nothing."""
    found = receipts.find_for(given.receipt_id, principal_id=caller.principal_id)
    if found.recipient_id == caller.principal_id:
        services.mark_delivered(receipt_pks=[found.pk], now=timezone.now())
    return _view(found)


@operation(
    title="Read a receipt",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/receipts/{receipt_id}/read")],
    idempotent=True,
)
def read_inbox_receipt(caller: Caller, given: OneReceipt) -> ReadOutput:
    """Read one receipt in full and mark it as read, which acks exactly this one. Says what to do next.

    Receipts of the ledger (plan_created, task_queued) can be read as proof; that acks nothing.
    """
    found = receipts.find_for(given.receipt_id, principal_id=caller.principal_id)
    if found.surface == Surface.INBOX:
        found = _own(caller, found)
        services.ack_receipt(principal_id=caller.principal_id, receipt_pk=found.pk, now=timezone.now())
    return _read(found)


@operation(
    title="Archive a receipt",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/receipts/{receipt_id}/archive")],
    idempotent=True,
)
def archive_inbox_receipt(caller: Caller, given: OneReceipt) -> ReceiptOutput:
    """Put one receipt away: it leaves the inbox and stays in the history. Acks it if you have not."""
    found = _own(caller, receipts.find_for(given.receipt_id, principal_id=caller.principal_id))
    if found.surface != Surface.INBOX:
        raise NotInInbox(f"{found.receipt_id} stands in the ledger only; there is nothing to archive.")
    services.archive_receipt(principal_id=caller.principal_id, receipt_pk=found.pk, now=timezone.now())
    return _view(found)


def _own(caller: Caller, found: Receipt) -> Receipt:
    """A receipt in the caller's own inbox; whoever only posted it has no say there."""
    if found.recipient_id != caller.principal_id:
        raise UnknownReceipt(f"There is no receipt {found.receipt_id!r} in your inbox.")
    return found


def _view(found: Receipt) -> ReceiptOutput:
    return ReceiptOutput.of(selectors.with_lifecycle([found])[0])


def _read(found: Receipt) -> ReadOutput:
    action = hooks.next_action(
        Clues(
            receipt_id=found.receipt_id,
            source_system=found.source_system,
            event_type=found.event_type,
            metadata=found.metadata,
            artifact_pointer=found.artifact_pointer,
            artifact_location=found.artifact_location,
            suggested_next_step=found.suggested_next_step,
            in_inbox=found.surface == Surface.INBOX,
        )
    )
    return ReadOutput(
        receipt=_view(found),
        next_action=NextActionOutput(
            description=action.description, tool=action.tool, arguments=dict(action.arguments)
        ),
    )
