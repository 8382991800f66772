"""Reading an inbox: reading consumes nothing, and every read says what it may ack."""

from collections.abc import Sequence as Many
from datetime import timedelta
from typing import Annotated

from django.utils import timezone
from pydantic import Field

from apps.core.operations import Route, operation
from apps.core.pagination import decode_position, encode_cursor
from apps.core.schemas import Empty, Input, Output
from apps.digests import selectors, services
from apps.digests.formats import parse_entry
from apps.digests.models import THREAD_LIMIT
from apps.digests.selectors import EntryView, Policy
from apps.digests.services import PolicyChange
from apps.digests.tools.shapes import (
    Cursor,
    EntryOutput,
    EntryRef,
    Limit,
    PastEntryOutput,
    ReceiptOutput,
    Sequence,
    Source,
)
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller


class ReadInbox(Input):
    limit: Limit = 50
    after: Sequence = 0
    """Entries with a greater sequence only: the page after the one that ended there."""
    source_system: Source | None = None
    """Entries of this source only."""
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """End the page before it takes more of your context than this; the first entry always comes."""


class InboxOutput(Output):
    """The visible entries, oldest first."""

    as_of: int
    entries: list[EntryOutput]
    visible: int
    """Unread receipts in visible entries."""
    pending: int
    """Unread receipts still being gathered; they will surface within the inbox's window."""
    more_waiting: int
    """Unread receipts that are not in these entries."""


@operation(
    title="Read the inbox",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox")],
    read_only=True,
)
def read_inbox(caller: Caller, given: ReadInbox) -> InboxOutput:
    """Read what waits for you, oldest first. Each entry is one receipt, or a digest of many about one thing.

    Reading consumes nothing. When you have dealt with entries, hand the `token` of the last one to `ack_through`:
    it acks what this read showed you up to there, and nothing that came later.
    """
    page = selectors.read_inbox(
        caller.principal_id,
        after=given.after,
        source_system=given.source_system,
        limit=given.limit,
        max_tokens=given.max_tokens,
    )
    _delivered(page.entries)
    return InboxOutput(
        as_of=page.as_of,
        entries=[EntryOutput.of(entry) for entry in page.entries],
        visible=page.visible,
        pending=page.pending,
        more_waiting=page.more_waiting,
    )


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
    return PastEntryOutput.of(found)


class ExpandEntry(OneEntry):
    limit: Limit = 50
    cursor: Cursor | None = None
    """`next` of the page before."""


class ExpandedOutput(Output):
    receipts: list[ReceiptOutput]
    next: str | None
    """The cursor of the next page; null on the last."""


@operation(
    title="Expand an entry",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox/entries/{ref}/expand")],
    read_only=True,
)
def expand_entry(caller: Caller, given: ExpandEntry) -> ExpandedOutput:
    """The single receipts inside an entry, page by page; only when the digest's summary is not enough."""
    start = decode_position(given.cursor) if given.cursor else 0
    members, following = selectors.expand(caller.principal_id, parse_entry(given.ref), start=start, limit=given.limit)
    services.mark_delivered(receipt_pks=[one.receipt.pk for one in members], now=timezone.now())
    return ExpandedOutput(
        receipts=[ReceiptOutput.of(one) for one in members],
        next=encode_cursor(following) if following is not None else None,
    )


class InboxHistory(Input):
    limit: Limit = 50
    cursor: Cursor | None = None
    """`next` of the page before."""


class HistoryOutput(Output):
    """All entries, newest first, acked and superseded ones too."""

    entries: list[PastEntryOutput]
    next: str | None


@operation(
    title="Inbox history",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox/history")],
    read_only=True,
    tool=False,
)
def inbox_history(caller: Caller, given: InboxHistory) -> HistoryOutput:
    """Everything that your inbox has ever shown, with what became of it."""
    before = decode_position(given.cursor) if given.cursor else None
    entries = selectors.history(caller.principal_id, before=before, limit=given.limit)
    _delivered(entries)
    return HistoryOutput(
        entries=[PastEntryOutput.of(entry) for entry in entries],
        next=encode_cursor(entries[-1].sequence) if len(entries) == given.limit else None,
    )


def _delivered(entries: Many[EntryView]) -> None:
    services.mark_delivered(receipt_pks=[pk for entry in entries for pk in entry.receipt_pks], now=timezone.now())


class PolicyOutput(Output):
    """How receipts with a group are gathered."""

    enabled: bool
    window_ms: int
    max_items: int
    max_thread_age_ms: int


class SetPolicy(Input):
    """Left out: stays as it is."""

    enabled: bool | None = None
    """False: every receipt is an entry of its own."""
    window_ms: Annotated[int, Field(ge=0, le=86_400_000)] | None = None
    """How long the first receipt of a burst waits for others."""
    max_items: Annotated[int, Field(ge=1, le=THREAD_LIMIT)] | None = None
    """How many waiting receipts end the wait."""
    max_thread_age_ms: Annotated[int, Field(ge=1000, le=2_592_000_000)] | None = None
    """After how long a thread gives way to a new one."""


@operation(
    title="Inbox policy",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox/policy")],
    read_only=True,
    tool=False,
)
def get_inbox_policy(caller: Caller, given: Empty) -> PolicyOutput:
    """How your inbox gathers receipts that belong together."""
    return _policy(selectors.policy(caller.principal_id))


@operation(
    title="Change the inbox policy",
    scope=Scope.INBOX,
    routes=[Route("PUT", "/api/v1/inbox/policy")],
    idempotent=True,
    tool=False,
)
def set_inbox_policy(caller: Caller, given: SetPolicy) -> PolicyOutput:
    """Change how your inbox gathers. What already waits keeps its due time; switching it off shows it at once."""
    change = PolicyChange(
        enabled=given.enabled,
        window=_duration(given.window_ms),
        max_items=given.max_items,
        max_thread_age=_duration(given.max_thread_age_ms),
    )
    return _policy(
        services.set_policy(
            tenant_id=caller.tenant_id, principal_id=caller.principal_id, change=change, now=timezone.now()
        )
    )


def _duration(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def _policy(policy: Policy) -> PolicyOutput:
    return PolicyOutput(
        enabled=policy.enabled,
        window_ms=policy.window // timedelta(milliseconds=1),
        max_items=policy.max_items,
        max_thread_age_ms=policy.max_thread_age // timedelta(milliseconds=1),
    )
