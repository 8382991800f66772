"""How receipts come in: the two service endpoints of the seeds, the API, and the tool.

All of them check what is given, count it against the hourly limits of the sources, and post it as one batch.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

import prometheus_client
from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.core import strict_json
from apps.core.errors import Conflict, DomainError, FieldError, Forbidden, Invalid, NotFound, RateLimited, TooLarge
from apps.core.metrics import once_committed
from apps.core.operations import Coalesces, Route, operation
from apps.core.schemas import Input, Name, Output, Text
from apps.digests import metrics, selectors, services
from apps.digests.grouping import read_key
from apps.digests.services import Posted
from apps.digests.shapes import NewReference, Reference, Source
from apps.principals import selectors as principals
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.receipts import selectors as receipts
from apps.receipts.models import MAX_METADATA, Surface
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


class PostedOutput(Output):
    receipt_id: str
    uuid: str
    dedupe_key: str
    created_at: datetime
    entry: str | None
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


def _post_together(calls: Sequence[tuple[Caller, PostReceipt]]) -> list[PostedOutput | DomainError | None]:
    answers = _post(calls[0][0], [given for _, given in calls], together=True)
    return [_output(answer) if isinstance(answer, Posted) else answer for answer in map(answers.get, range(len(calls)))]


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
    return _output(_post_one(caller, given))


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
    return InboxReceiptOutput(receipt_id=posted.receipt_id, dedupe_key=posted.dedupe_key, created_at=posted.created_at)


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
    given: Sequence[InboxReceipt],
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


def _refused(caller: Caller, given: Sequence[InboxReceipt], now: datetime) -> dict[int, Posted | DomainError]:
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


def _output(posted: Posted) -> PostedOutput:
    return PostedOutput(
        receipt_id=posted.receipt_id,
        uuid=str(posted.uuid),
        dedupe_key=posted.dedupe_key,
        created_at=posted.created_at,
        entry=posted.entry_ref,
    )


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
