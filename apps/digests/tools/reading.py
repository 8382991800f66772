"""Reading and acking an inbox, by entries and by single receipts. A read consumes nothing; an ack adds what it names."""

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Annotated, Final

from django.utils import timezone
from pydantic import Field

from apps.core.errors import Conflict, FieldError, Invalid
from apps.core.ids import encode_cursor
from apps.core.operations import Route, Streams, Waits, operation
from apps.core.schemas import Input, Output, Paged
from apps.digests import hooks, metrics, selectors, services
from apps.digests.formats import parse_entry, parse_through
from apps.digests.models import FlushReason
from apps.digests.selectors import Mark
from apps.digests.services import inbox_topic
from apps.digests.shapes import (
    AckedOutput,
    EntryOutput,
    EntryRef,
    ExpandedOutput,
    HistoryOutput,
    InboxOutput,
    Limit,
    NextActionOutput,
    PastEntryOutput,
    ReceiptOutput,
    ReceiptsOutput,
    Reference,
    Sequence,
    Source,
)
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.receipts import selectors as receipts
from apps.receipts.errors import UnknownReceipt
from apps.receipts.models import Receipt, Surface


class ReadInbox(Input):
    limit: Limit = 50
    after: Sequence = 0
    """Entries with a greater sequence only: the page after the one that ended there. Never above `as_of`."""
    source_system: Source | None = None
    """Entries of this source only."""
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """End the page before it takes more of your context than this; the first entry always comes."""
    wait: Annotated[float, Field(ge=0, le=60)] = 0
    """If there is no entry to show, wait up to so many seconds for one; then the page comes, empty or not."""


class StreamInbox(Input):
    after: Sequence = 0
    """Begin after this sequence. A `Last-Event-ID` header, which clients send when they come again, stands over it."""
    source_system: Source | None = None
    """Entries of this source only."""
    limit: Limit = 50
    """The most entries in one event."""


def _refuse_ahead(after: int, newest: int) -> None:
    if after > newest:
        fault = f"is ahead of this inbox, whose newest sequence is {newest}"
        raise Invalid(f"{after} {fault}.", code="ahead_of_inbox", errors=[FieldError("/after", fault)])


def _worth_waking(given: ReadInbox | StreamInbox, shown: InboxOutput) -> bool:
    """Whether there is, or may be behind a full page, more than remainders of digests that were shown before."""
    full = len(shown.entries) == given.limit or (isinstance(given, ReadInbox) and given.max_tokens is not None)
    return bool(shown.entries) and (full or shown.has_news)


def _has_news(caller: Caller, after: int, entries: Many[EntryOutput]) -> bool:
    """Whether these entries hold a receipt that nothing up to a sequence held; asked only if all are remainders, since
    a remainder may be of a digest that grew and was never shown.
    """
    remainders = sum(entry.flush_reason == FlushReason.NARROW for entry in entries)
    if not entries or remainders < len(entries):
        return bool(entries)
    mark = Mark(tenant_id=caller.tenant_id, principal_id=caller.principal_id, sequence=after)
    return selectors.any_news(entries, mark)


_WAITS: Final = Waits(
    topics=lambda caller, _: [inbox_topic(caller.principal_id)],
    found=lambda shown: bool(shown.entries),
    worth_waking=_worth_waking,
    patience=lambda given: getattr(given, "wait", 0.0),
)


@operation(
    title="Read the inbox",
    keywords="unread messages notifications news",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox")],
    read_only=True,
    waits=_WAITS,
    listed_for=["agent"],
    example={"limit": 20, "max_tokens": 2000},
)
def read_inbox(caller: Caller, given: ReadInbox) -> InboxOutput:
    """Read what waits for you, oldest first. Each entry is one receipt, or a digest of many about one thing.

    Reading consumes nothing. When you have dealt with entries, hand the `token` of the last one to `ack_through`:
    it acks what this read showed you up to there, and nothing that came later. With `wait` it stays until there is
    something to read, which spares you asking again and again.
    """
    page = selectors.read_inbox(
        caller.principal_id,
        after=given.after,
        source_system=given.source_system,
        limit=given.limit,
        max_tokens=given.max_tokens,
    )
    _refuse_ahead(given.after, page.as_of)
    _delivered(page.entries)
    return page.model_copy(update={"has_news": not given.wait or _has_news(caller, given.after, page.entries)})


class _Further(StreamInbox):
    """What comes next on a stream that has shown everything between its start and `after`."""

    start: Sequence


def _further(given: StreamInbox, shown: InboxOutput) -> _Further:
    start = given.start if isinstance(given, _Further) else given.after
    return _Further(after=shown.entries[-1].sequence, start=start, source_system=given.source_system, limit=given.limit)


def _begin(caller: Caller, given: StreamInbox) -> None:
    _refuse_ahead(given.after, selectors.newest_sequence(caller.principal_id))


@operation(
    title="Stream the inbox",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox/stream")],
    read_only=True,
    tool=False,
    waits=_WAITS,
    streams=Streams(
        event="inbox",
        mark=lambda shown: shown.entries[-1].sequence,
        resumes="after",
        begin=_begin,
        further=_further,
    ),
)
def stream_inbox(caller: Caller, given: StreamInbox) -> InboxOutput:
    """Server-sent events: what waits for you after a sequence, then each new entry as it becomes visible.

    An event named `inbox` carries entries in the shape of `read_inbox`. Its id is the sequence of the last entry: a
    client that connects again with `Last-Event-ID` continues without a gap or a repetition. The `token` of an entry
    acks what this stream has shown from its start up to that entry, and nothing else. A comment comes at least every
    20 seconds. After ten minutes the stream ends, and its client connects again.
    """
    # Sequences are visible in their order. What is visible as of a later state between the stream's start and an entry
    # was so when the stream passed there, and was shown: binding the start alone binds exactly what was shown.
    start = given.start if isinstance(given, _Further) else given.after
    page = selectors.read_inbox(
        caller.principal_id,
        after=given.after,
        shown_after=start,
        source_system=given.source_system,
        limit=given.limit,
    )
    _refuse_ahead(given.after, page.as_of)
    _delivered(page.entries)
    return page.model_copy(update={"has_news": _has_news(caller, given.after, page.entries)})


class OneEntry(Input):
    ref: EntryRef
    """`ent_42`, or the token that you were handed."""


@operation(
    title="Look at one entry",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox/entries/{ref}")],
    read_only=True,
    tool=False,
)
def get_entry(caller: Caller, given: OneEntry) -> PastEntryOutput:
    """One entry of your inbox, also when it is acked or superseded."""
    found = selectors.entry(caller.principal_id, parse_entry(given.ref))
    _delivered([found])
    return found


class ExpandEntry(OneEntry, Paged):
    """The receipts of an entry, by pages."""


@operation(
    title="Expand an entry",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox/entries/{ref}/expand")],
    read_only=True,
    listed_for=["agent"],
    example={"ref": "ent_42"},
    after_refusal="The entry was replaced or acked: read_inbox shows the entries that are there.",
)
def expand_entry(caller: Caller, given: ExpandEntry) -> ExpandedOutput:
    """The single receipts inside an entry, page by page; only when the digest's summary is not enough."""
    page = selectors.expand(caller.principal_id, parse_entry(given.ref), start=given.position or 0, limit=given.limit)
    services.mark_delivered(receipt_pks=[one.pk for one in page.receipts], now=timezone.now())
    metrics.EXPANSIONS.inc()
    return page


@operation(
    title="Inbox history",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox/history")],
    read_only=True,
    tool=False,
)
def inbox_history(caller: Caller, given: Paged) -> HistoryOutput:
    """Everything that your inbox has ever shown, with what became of it.

    A page of large digests ends before `limit`; follow `next` until it is null.
    """
    page = selectors.history(caller.principal_id, before=given.position, limit=given.limit)
    _delivered(page.entries)
    return page


def _delivered(entries: Many[EntryOutput]) -> None:
    services.mark_delivered(receipt_pks=[pk for entry in entries for pk in entry.receipt_pks], now=timezone.now())


class InboxReceipts(Paged):
    unread_only: bool = True
    unread: bool | None = None
    """Another name of `unread_only`."""
    limit: Limit = 10
    source_system: Source | None = None


@operation(
    title="List single receipts",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/receipts")],
    read_only=True,
    example={"unread_only": True, "limit": 20},
)
def get_inbox_receipts(caller: Caller, given: InboxReceipts) -> ReceiptsOutput:
    """The single receipts of your inbox, newest first, buffered ones too.

    `read_inbox` is the better start: it groups what belongs together and lets you ack what you were shown.
    """
    seen = selectors.inbox_receipts(
        caller.principal_id,
        unread_only=given.unread_only if given.unread is None else given.unread,
        source_system=given.source_system,
        before=given.position,
        limit=given.limit,
    )
    services.mark_delivered(receipt_pks=[one.pk for one in seen], now=timezone.now())
    return ReceiptsOutput(receipts=seen, next=encode_cursor(seen[-1].pk) if len(seen) == given.limit else None)


class OneReceipt(Input):
    receipt_id: Reference
    """Its receipt id, or its uuid."""


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
    return selectors.with_lifecycle([found])[0]


@operation(
    title="Read a receipt",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/receipts/{receipt_id}/read")],
    idempotent=True,
    example={"receipt_id": "rcpt_12"},
    after_refusal="get_inbox_receipts lists the receipts that are there.",
)
def read_inbox_receipt(caller: Caller, given: OneReceipt) -> ReadOutput:
    """Read one receipt in full and mark it as read, which acks exactly this one. Says what to do next.

    Receipts of the ledger (plan_created, task_queued) can be read as proof; that acks nothing.
    """
    found = receipts.find_for(given.receipt_id, principal_id=caller.principal_id)
    if found.surface == Surface.INBOX:
        found = _own(caller, found)
        services.ack_receipts(principal_id=caller.principal_id, receipt_pks=[found.pk], now=timezone.now())
    (receipt,) = selectors.with_lifecycle([found])
    return ReadOutput(receipt=receipt, next_action=hooks.next_action(receipt))


@operation(
    title="Archive a receipt",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/receipts/{receipt_id}/archive")],
    idempotent=True,
    example={"receipt_id": "rcpt_12"},
    after_refusal="get_inbox_receipts lists the receipts that are there.",
)
def archive_inbox_receipt(caller: Caller, given: OneReceipt) -> ReceiptOutput:
    """Put one receipt away: it leaves the inbox and stays in the history. Acks it if you have not."""
    found = _own(caller, receipts.find_for(given.receipt_id, principal_id=caller.principal_id))
    if found.surface != Surface.INBOX:
        message = f"{found.receipt_id} stands in the ledger only; there is nothing to archive."
        raise Conflict(message, code="not_in_inbox")
    services.ack_receipts(principal_id=caller.principal_id, receipt_pks=[found.pk], now=timezone.now(), archive=True)
    return selectors.with_lifecycle([found])[0]


def _own(caller: Caller, found: Receipt) -> Receipt:
    """A receipt in the caller's own inbox; whoever only posted it has no say there."""
    if found.recipient_id != caller.principal_id:
        raise UnknownReceipt(f"There is no receipt {found.receipt_id!r} in your inbox.")
    return found


class AckEntries(Input):
    entries: Annotated[list[EntryRef], Field(min_length=1, max_length=500)]
    """References (`ent_42`) or tokens of entries of your inbox."""


@operation(
    title="Ack entries",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/inbox/ack")],
    idempotent=True,
    example={"entries": ["ent_42", "ent_43"]},
    after_refusal="An unknown entry is gone or not yours: read_inbox shows those that are there.",
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
    listed_for=["agent"],
    example={"through": "ent_42@57"},
    after_refusal="Read the inbox again with read_inbox and use a token of that answer.",
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
