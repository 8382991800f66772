"""Operations on inboxes, and the endpoints that receive receipts.

A post is checked, counted against the hourly limits of its source, and stored with the others of its batch.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence as Many
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

import prometheus_client
from django.utils import timezone
from pydantic import BeforeValidator, Field, StringConstraints

from apps.core import strict_json
from apps.core.errors import Conflict, DomainError, FieldError, Forbidden, Invalid, NotFound, RateLimited, TooLarge
from apps.core.ids import encode_cursor
from apps.core.metrics import once_committed
from apps.core.operations import Coalesces, Route, Streams, Waits, operation
from apps.core.schemas import Input, Moment, Name, Output, Paged, Text
from apps.digests import hooks, metrics, selectors, services
from apps.digests.formats import parse_entry, parse_through
from apps.digests.grouping import read_key
from apps.digests.models import THREAD_LIMIT, FlushReason
from apps.digests.selectors import Mark
from apps.digests.services import Posted, inbox_topic
from apps.digests.shapes import (
    AckedOutput,
    EntryOutput,
    EntryRef,
    ExpandedOutput,
    HistoryOutput,
    InboxOutput,
    Limit,
    NewReference,
    NextActionOutput,
    PastEntryOutput,
    PolicyOutput,
    ReceiptOutput,
    ReceiptsOutput,
    Reference,
    ReplayOutput,
    Sequence,
    Source,
)
from apps.principals import selectors as principals
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.receipts import selectors as receipts
from apps.receipts.errors import UnknownReceipt
from apps.receipts.models import MAX_METADATA, Receipt, Surface
from apps.receipts.services import Poster, ReceiptDraft
from apps.receipts.shapes import GroupInput

MAX_SUMMARY: Final = 16 * 1024
_MAX_EVENT_TYPE: Final = 50
_HOUR: Final = timedelta(hours=1)

DedupeKey = Annotated[Text, StringConstraints(min_length=1, max_length=200)]
Title = Annotated[Text, StringConstraints(max_length=200)]
Summary = Annotated[Text, StringConstraints(min_length=1, max_length=MAX_SUMMARY)]
Line = Annotated[Text, StringConstraints(min_length=1, max_length=2000)]
EventType = Annotated[Text, StringConstraints(min_length=1, max_length=_MAX_EVENT_TYPE)]


class InboxReceipt(Input):
    """A receipt for an inbox."""

    recipient_ai: Name
    """The one principal that it is for."""
    source_system: Source
    """The source of the receipt; one of the source systems of your token."""
    dedupe_key: DedupeKey
    """Unique per source: posting it again changes nothing. Form: `{source}:{event}:{entity}:{version}`."""
    summary: Summary
    title: Title | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    group: GroupInput | None = None
    delivery_handle: Annotated[Text, StringConstraints(max_length=500)] | None = None
    """Opaque to us; stands on the entry."""


class PostReceipt(InboxReceipt):
    """A receipt of any kind, for an inbox or for the ledger; `event_type` may be left out."""

    event_type: EventType | None = None
    receipt_id: NewReference | None = None
    """Your own id for it, of visible characters without a slash, no uuid; left out, one is made."""
    artifact_pointer: Line | None = None
    """Where the thing itself is; receipts carry pointers, no payloads."""
    artifact_location: Line | None = None
    requires_action: bool = False
    """The recipient owes something until a receipt pairs with this one."""
    suggested_next_step: Line | None = None
    caused_by_receipt_id: Reference | None = None
    """The receipt that this one follows from: its id or uuid, known or not yet."""
    pairs_with: Reference | None = None
    """The receipt that this one answers; closes its obligation."""
    surface: Literal["inbox", "ledger"] | None = None
    """Left out: the ledger for what only proves (task_queued, task_received, plan_…), else the inbox."""


class UniversalReceipt(PostReceipt):
    """A receipt of any kind, for an inbox or for the ledger."""

    event_type: EventType


class PostReceipts(Input):
    receipts: Annotated[list[PostReceipt], Field(min_length=1, max_length=500)]


Uuid = Annotated[str, BeforeValidator(str)]


class PostedOutput(Output):
    receipt_id: str
    uuid: Uuid
    dedupe_key: str
    created_at: datetime
    entry: str | None = Field(validation_alias="entry_ref")
    """The entry that this post made visible; null if the receipt waits in a buffer, or stands in the ledger."""


class VerdictOutput(Output):
    status: Literal["stored", "refused"]
    receipt_id: str | None
    """The stored one's, or that of the one that stands in its way."""
    uuid: str | None = None
    entry: str | None = None
    code: str | None = None
    detail: str | None = None


class VerdictsOutput(Output):
    results: list[VerdictOutput]
    """One per receipt, in the order given."""


class InboxReceiptOutput(Output):
    receipt_id: str
    dedupe_key: str
    created_at: datetime


class UniversalReceiptOutput(Output):
    status: Literal["stored"]
    uuid: str
    receipt_id: str


def _post_together(calls: Many[tuple[Caller, PostReceipt]]) -> list[PostedOutput | DomainError | None]:
    answers = _post(calls[0][0], [given for _, given in calls], together=True)
    return [
        PostedOutput.model_validate(answer) if isinstance(answer, Posted) else answer
        for answer in map(answers.get, range(len(calls)))
    ]


@operation(
    title="Post a receipt",
    keywords="send message notify tell another agent",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/api/v1/receipts", status=201)],
    coalesces=Coalesces(
        # It names no other receipt, and has no id or group by which others are concerned with it.
        may=lambda given: not (given.group or given.receipt_id or given.caused_by_receipt_id or given.pairs_with),
        run=_post_together,
        of_one_caller=True,
    ),
    example={
        "recipient_ai": "Kee",
        "source_system": "github",
        "dedupe_key": "build-512",
        "summary": "Build 512 failed.",
    },
    after_refusal="With dedupe_conflict, the key belongs to another receipt: choose a key of its own. The recipient must exist.",
)
def post_receipt(caller: Caller, given: PostReceipt) -> PostedOutput:
    """Tell one principal that something happened.

    A receipt is a signal with pointers, never the payload. The same dedupe key again changes nothing and names the
    receipt that is there. With a group, receipts about one thing become one digest.
    """
    return PostedOutput.model_validate(_post_one(caller, given))


@operation(
    title="Post many receipts",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/api/v1/receipts/batch", max_body=8 * 1024 * 1024)],
    tool=False,
)
def post_receipts(caller: Caller, given: PostReceipts) -> VerdictsOutput:
    """Post up to 500 receipts in one transaction, with a verdict for each."""
    answers = _post(caller, given.receipts)
    return VerdictsOutput(results=[_verdict(answers[place]) for place in range(len(given.receipts))])


@operation(
    title="Post a receipt to an inbox",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/internal/inbox/receipt", manner="service")],
    tool=False,
)
def post_inbox_receipt(caller: Caller, given: InboxReceipt) -> InboxReceiptOutput:
    """Post a receipt to an inbox here, service to service."""
    posted = _post_one(caller, given, existing="existing_receipt_id")
    return InboxReceiptOutput.model_validate(posted)


@operation(
    title="Post a receipt of any kind",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/internal/receipt", manner="service")],
    tool=False,
)
def post_universal_receipt(caller: Caller, given: UniversalReceipt) -> UniversalReceiptOutput:
    """Post a receipt of any kind to a principal that lives here, service to service."""
    posted = _post_one(caller, given, existing="existing_uuid")
    return UniversalReceiptOutput(status="stored", uuid=str(posted.uuid), receipt_id=posted.receipt_id)


def _post_one(caller: Caller, given: InboxReceipt, *, existing: str | None = None) -> Posted:
    """Post a batch of one; a refusal ends the transaction.

    :param existing: at a service endpoint, the one id that its clients look for in a refusal. What comes by these is not
        sent on to another deployment: deliveries arrive there, so deployments that send to each other never send in a
        circle.
    """
    answer: Posted | DomainError
    try:
        answer = _post(caller, [given], sends_on=existing is None)[0]
    except DomainError as refusal:
        answer = refusal
    if isinstance(answer, Posted):
        return answer
    # The refusal ends the transaction, so it is counted now.
    _refusals(caller, given, answer).inc()
    if existing is None or not isinstance(answer, Conflict):
        raise answer
    kept = {existing: answer.extra[existing]} if existing in answer.extra else {}
    raise type(answer)(answer.detail, code=answer.code, errors=answer.errors, **kept)


def _post(
    caller: Caller,
    given: Many[InboxReceipt],
    *,
    sends_on: bool = True,
    together: bool = False,
) -> dict[int, Posted | DomainError]:
    """Post receipts in the caller's transaction; returns what became of each, by its place.

    :param sends_on: whether a receipt may go to a recipient at another deployment.
    :param together: the receipts come from several calls. Leave out those that are grouped, which are posted alone.
    :raises Invalid: `lives_elsewhere`, if a receipt would have to be sent on and may not.
    """
    now = timezone.now()
    answers = _refused(caller, given, now)
    rest = {place: one for place, one in enumerate(given) if place not in answers}
    known = principals.principal_ids_named({one.recipient_ai for one in rest.values()}, tenant_id=caller.tenant_id)
    drafts: dict[int, ReceiptDraft] = {}
    for place, one in rest.items():
        if one.recipient_ai not in known:
            answers[place] = NotFound(f"There is no recipient {one.recipient_ai!r}.", code="unknown_recipient")
            continue
        draft = _draft(one, known[one.recipient_ai])
        if not together or selectors.group_of(caller.tenant_id, draft) is None:
            drafts[place] = draft
    if drafts:
        posted = services.post_many(poster=Poster.of(caller), drafts=list(drafts.values()), now=now)
        answers.update(zip(drafts, posted, strict=True))
    stored = Counter(given[place].source_system for place, one in answers.items() if isinstance(one, Posted))
    for place, answer in answers.items():
        if isinstance(answer, DomainError):
            once_committed(_refusals(caller, given[place], answer).inc)
        elif answer.goes_elsewhere and not sends_on:
            # Ends the transaction, and with it what has just been stored.
            message = "The recipient lives elsewhere, and what comes by this endpoint is not sent on."
            raise Invalid(message, code="lives_elsewhere")
    if stored:
        services.count_posts(caller.tenant_id, stored, now)
    return answers


def _refused(caller: Caller, given: Many[InboxReceipt], now: datetime) -> dict[int, Posted | DomainError]:
    """What is refused before anything is written, by its place: what is not sound, and what is over a source's limit."""
    refused: dict[int, Posted | DomainError] = {}
    places: defaultdict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, one in enumerate(given):
        try:
            _check(caller, one)
        except DomainError as refusal:
            refused[place] = refusal
        else:
            places[one.source_system][one.dedupe_key].append(place)
    for source, by_key in places.items():
        room = selectors.room_for(caller.tenant_id, source, len(by_key), now)
        if room == len(by_key):
            continue
        # A repetition takes no room, and is refused as what it is.
        known = receipts.used_keys(caller.tenant_id, source, list(by_key))
        for key in [key for key in by_key if key not in known][room:]:
            retry_after = int((selectors.hour_of(now) + _HOUR - now).total_seconds())
            over = RateLimited(f"{source} has posted as many receipts as it may in this hour.", retry_after=retry_after)
            refused.update(dict.fromkeys(by_key[key], over))
    return refused


def _refusals(caller: Caller, given: InboxReceipt, refusal: DomainError) -> prometheus_client.Counter:
    source = given.source_system if given.source_system in caller.source_systems else metrics.OTHER
    return metrics.REFUSED.labels(source, refusal.code)


def _check(caller: Caller, given: InboxReceipt) -> None:
    if given.source_system not in caller.source_systems:
        raise Forbidden(f"This token does not post as {given.source_system!r}.", code="not_this_caller")
    strict_json.check(given.metadata, pointer="/metadata")
    for name, size, limit in (
        ("metadata", strict_json.size(given.metadata), MAX_METADATA),
        ("summary", len(given.summary.encode()), MAX_SUMMARY),
    ):
        if size > limit:
            fault = f"is over {limit // 1024} KiB"
            raise TooLarge(f"{name} {fault}.", errors=[FieldError(f"/{name}", fault)])


def _draft(given: InboxReceipt, recipient_id: int) -> ReceiptDraft:
    members = {name: getattr(given, name) for name in type(given).model_fields if name in _OF_DRAFT}
    # A dedupe key of the usual form names the event; without one it is just a message.
    named, _ = read_key(given.source_system, given.dedupe_key) or ("message", "")
    named = named if len(named) <= _MAX_EVENT_TYPE else "message"
    event_type, surface = named, "inbox"
    if isinstance(given, PostReceipt):
        event_type = given.event_type or named
        is_proof = event_type in _PROOF_ONLY or event_type.startswith("plan_")
        surface = given.surface or (Surface.LEDGER if is_proof else Surface.INBOX)
        members["caused_by"] = given.caused_by_receipt_id
    group = given.group.as_group() if given.group else None
    return ReceiptDraft(**members, recipient_id=recipient_id, event_type=event_type, surface=surface, group=group)


_PROOF_ONLY: Final = ("task_queued", "task_received")
# What a receipt and its draft have in common.
_OF_DRAFT: Final = frozenset(ReceiptDraft.__dataclass_fields__) - {"event_type", "surface", "group"}


def _verdict(posted: Posted | DomainError) -> VerdictOutput:
    if isinstance(posted, DomainError):
        return VerdictOutput(
            status="refused",
            receipt_id=posted.extra.get("existing_receipt_id"),
            uuid=posted.extra.get("existing_uuid"),
            code=posted.code,
            detail=posted.detail,
        )
    return VerdictOutput(status="stored", receipt_id=posted.receipt_id, uuid=str(posted.uuid), entry=posted.entry_ref)


# Reading and acking an inbox, by entries and by single receipts. A read consumes nothing; an ack adds what it names.


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


# How an inbox buffers receipts: its policy, those of single sources, and a replay of its past.

WindowMs = Annotated[int, Field(ge=0, le=86_400_000)]
MaxItems = Annotated[int, Field(ge=1, le=THREAD_LIMIT)]


class GetPolicy(Input):
    source_system: Source | None = None
    """What holds for this source; left out, the inbox's own policy."""


class SetPolicy(Input):
    """Left out: stays as it is; of a source: as the inbox's own policy has it."""

    source_system: Source | None = None
    """For the receipts of this source alone."""
    enabled: bool | None = None
    """False: every receipt is an entry of its own."""
    window_ms: WindowMs | None = None
    """How long the first receipt of a burst waits for others."""
    max_items: MaxItems | None = None
    """How many waiting receipts end the wait."""
    max_thread_age_ms: Annotated[int, Field(ge=1000, le=2_592_000_000)] | None = None
    """After how long a thread gives way to a new one."""


class RemovePolicy(Input):
    source_system: Source


@operation(
    title="Inbox policy",
    scope=Scope.INBOX,
    routes=[Route("GET", "/api/v1/inbox/policy")],
    read_only=True,
    example={},
)
def get_inbox_policy(caller: Caller, given: GetPolicy) -> PolicyOutput:
    """How your inbox groups receipts into digests, for all sources or for one."""
    return selectors.policy(caller.principal_id, given.source_system)


@operation(
    title="Change the inbox policy",
    keywords="mute snooze quiet batch notifications",
    scope=Scope.INBOX,
    routes=[Route("PUT", "/api/v1/inbox/policy")],
    idempotent=True,
    example={"window_ms": 60000},
)
def set_inbox_policy(caller: Caller, given: SetPolicy) -> PolicyOutput:
    """Change how your inbox groups receipts, for all sources or for one. Pending receipts keep their due time; disabling
    shows them.

    A longer window means fewer and larger digests; `replay_inbox_policy` says how many there would have been.
    """
    services.set_policy(
        tenant_id=caller.tenant_id,
        principal_id=caller.principal_id,
        changes=given.model_dump(exclude={"source_system"}),
        source_system=given.source_system,
        now=timezone.now(),
    )
    return selectors.policy(caller.principal_id, given.source_system)


@operation(
    title="Remove the policy of a source",
    scope=Scope.INBOX,
    routes=[Route("DELETE", "/api/v1/inbox/policy")],
    destructive=True,
    example={"source_system": "github"},
    after_refusal="get_inbox_policy shows what is set.",
)
def remove_inbox_policy(caller: Caller, given: RemovePolicy) -> PolicyOutput:
    """Return a source to your inbox's own policy. Its pending receipts are shown at once."""
    services.remove_source_policy(
        principal_id=caller.principal_id, source_system=given.source_system, now=timezone.now()
    )
    return selectors.policy(caller.principal_id, given.source_system)


_PAST: Final = timedelta(days=7)


class ReplayPolicy(Input):
    since: Moment | None = None
    """Look at what came since then; left out, in the last seven days."""
    window_ms: WindowMs | None = None
    """Another window; left out, the one that holds."""
    max_items: MaxItems | None = None
    """Another size; left out, the one that holds."""
    source_system: Source | None = None
    """Look at the receipts of this source only."""


@operation(
    title="Replay the past under another policy",
    scope=Scope.INBOX,
    routes=[Route("POST", "/api/v1/inbox/policy/replay")],
    read_only=True,
    example={"window_ms": 60000},
)
def replay_inbox_policy(caller: Caller, given: ReplayPolicy) -> ReplayOutput:
    """How many entries another window or size would have made of what came to your inbox. Changes nothing.

    Ask this before you change the policy: "with a window of 60 s these 770 receipts would have been 94 entries". Nobody
    acks in a replay, and what is pending at its end counts as shown.
    """
    return selectors.replay(
        caller.principal_id,
        since=given.since or timezone.now() - _PAST,
        window_ms=given.window_ms,
        max_items=given.max_items,
        source_system=given.source_system,
    )
