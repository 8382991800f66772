"""How receipts come in: the two service doors, the API, and the tool."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Never, TypeVar

from django.utils import timezone
from prometheus_client import Counter
from pydantic import Field, StringConstraints

from apps.core import strict_json
from apps.core.errors import Conflict, DomainError, FieldError, Forbidden, TooLarge
from apps.core.metrics import once_committed
from apps.core.operations import Coalesces, Route, operation
from apps.core.schemas import Input, Name, Output, Text
from apps.digests import metrics, selectors, services
from apps.digests.grouping import read_key
from apps.digests.services import Posted, Poster, ReceiptDraft
from apps.digests.tools.admission import Admission
from apps.digests.tools.shapes import NewReference, Reference, Source
from apps.principals import selectors as principals
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.receipts.errors import LivesElsewhere
from apps.receipts.models import MAX_METADATA, Surface
from apps.receipts.shapes import GroupInput

MAX_SUMMARY: Final = 16 * 1024

Key = Annotated[Text, StringConstraints(min_length=1, max_length=200)]
Title = Annotated[Text, StringConstraints(max_length=200)]
Summary = Annotated[Text, StringConstraints(min_length=1, max_length=MAX_SUMMARY)]
Line = Annotated[Text, StringConstraints(min_length=1, max_length=2000)]


class InboxReceipt(Input):
    """A receipt for an inbox."""

    recipient_ai: Name
    """The one principal that it is for."""
    source_system: Source
    """Who says so; one of the source systems of your token."""
    dedupe_key: Key
    """Unique per source: posting it again changes nothing. Form: `{source}:{event}:{entity}:{version}`."""
    summary: Summary
    title: Title | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    group: GroupInput | None = None
    delivery_handle: Annotated[Text, StringConstraints(max_length=500)] | None = None
    """Opaque to us; stands on the entry."""


class _Chained(InboxReceipt):
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


class UniversalReceipt(_Chained):
    """A receipt of any kind, for an inbox or for the ledger."""

    event_type: Annotated[Text, StringConstraints(min_length=1, max_length=50)]
    surface: Literal["inbox", "ledger"] | None = None
    """Left out: the ledger for what only proves (task_queued, task_received, plan_…), else the inbox."""


class PostReceipt(_Chained):
    """A receipt of any kind; `event_type` may be left out."""

    event_type: Annotated[Text, StringConstraints(min_length=1, max_length=50)] | None = None
    surface: Literal["inbox", "ledger"] | None = None
    """Left out: the ledger for what only proves (task_queued, task_received, plan_…), else the inbox."""


class PostReceipts(Input):
    receipts: Annotated[list[PostReceipt], Field(min_length=1, max_length=500)]


class PostedOutput(Output):
    receipt_id: str
    uuid: str
    dedupe_key: str
    created_at: datetime
    entry: str | None
    """The entry that this post made visible; null where the receipt is gathered first, or stands in the ledger."""


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


class InboxDoorOutput(Output):
    receipt_id: str
    dedupe_key: str
    created_at: datetime


class UniversalDoorOutput(Output):
    status: Literal["stored"]
    uuid: str
    receipt_id: str


def _stands_alone(given: PostReceipt) -> bool:
    """Whether it names no other receipt, nor has an id or a group by which others are concerned with it."""
    return not (given.group or given.receipt_id or given.caused_by_receipt_id or given.pairs_with)


def _post_together(caller: Caller, given: Sequence[PostReceipt]) -> list[PostedOutput | DomainError | None]:
    """What each would be answered alone; None where its recipient may have to be made, or its source has it gathered."""
    now = timezone.now()
    known = principals.principal_ids_named({one.recipient_ai for one in given}, tenant_id=caller.tenant_id)
    answers: dict[int, PostedOutput | DomainError] = {}
    drafts: dict[int, ReceiptDraft] = {}
    for place, one in enumerate(given):
        if one.recipient_ai not in known:
            continue
        draft = _draft(caller, one, _surface(one), known.__getitem__)
        if isinstance(draft, DomainError):
            answers[place] = _counted(caller, one, draft)
        elif selectors.group_of(caller.tenant_id, draft) is None:
            drafts[place] = draft
    posted = _post_many(caller, list(drafts.values()), now)
    answers |= {
        place: _answer(one) if isinstance(one, Posted) else one for place, one in zip(drafts, posted, strict=True)
    }
    return [answers.get(place) for place in range(len(given))]


@operation(
    title="Post a receipt",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/api/v1/receipts", status=201)],
    coalesces=Coalesces(may=_stands_alone, run=_post_together),
)
def post_receipt(caller: Caller, given: PostReceipt) -> PostedOutput:
    """Tell one principal that something happened.

    A receipt is a signal with pointers, never the payload. The same dedupe key again changes nothing and names the
    receipt that is there. With a group, receipts about one thing are gathered into one digest.
    """
    return _answer(_post(caller, given, _surface(given), may_go_on=True))


@operation(
    title="Post many receipts",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/api/v1/receipts/batch", max_body=8 * 1024 * 1024)],
    tool=False,
)
def post_receipts(caller: Caller, given: PostReceipts) -> VerdictsOutput:
    """Post up to 500 receipts in one transaction, with a verdict for each."""
    now = timezone.now()
    known = principals.principal_ids_named({one.recipient_ai for one in given.receipts}, tenant_id=caller.tenant_id)
    answers: dict[int, Posted | DomainError] = {}
    drafts: dict[int, ReceiptDraft] = {}
    for place, one in enumerate(given.receipts):
        if one.recipient_ai not in known:
            answers[place] = _post_to_unknown(caller, one)
            if isinstance(answers[place], Posted):
                known |= principals.principal_ids_named({one.recipient_ai}, tenant_id=caller.tenant_id)
            continue
        draft = _draft(caller, one, _surface(one), known.__getitem__)
        if isinstance(draft, DomainError):
            answers[place] = _counted(caller, one, draft)
        else:
            drafts[place] = draft
    answers |= zip(drafts, _post_many(caller, list(drafts.values()), now), strict=True)
    return VerdictsOutput(results=[_verdict(answers[place]) for place in range(len(given.receipts))])


def _post_to_unknown(caller: Caller, given: PostReceipt) -> Posted | DomainError:
    """Post one of several as it would be alone: whom nothing is stored for is not made."""
    try:
        with caller.acting():
            return _post(caller, given, _surface(given), may_go_on=True)
    except DomainError as refusal:
        return refusal


@operation(
    title="The inbox door",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/internal/inbox/receipt", manner="service")],
    tool=False,
)
def post_at_inbox_door(caller: Caller, given: InboxReceipt) -> InboxDoorOutput:
    """Post a receipt to an inbox here, service to service."""
    try:
        posted = _post(caller, given, Surface.INBOX, may_go_on=False)
    except Conflict as refusal:
        _refuse_with(refusal, "existing_receipt_id")
    return InboxDoorOutput(receipt_id=posted.receipt_id, dedupe_key=posted.dedupe_key, created_at=posted.created_at)


@operation(
    title="The universal door",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/internal/receipt", manner="service")],
    tool=False,
)
def post_at_universal_door(caller: Caller, given: UniversalReceipt) -> UniversalDoorOutput:
    """Post a receipt of any kind to a principal that lives here, service to service."""
    try:
        posted = _post(caller, given, _surface(given), may_go_on=False)
    except Conflict as refusal:
        _refuse_with(refusal, "existing_uuid")
    return UniversalDoorOutput(status="stored", uuid=str(posted.uuid), receipt_id=posted.receipt_id)


def _refuse_with(refusal: Conflict, member: str) -> Never:
    """The same refusal with the one id that this door's clients look for."""
    kept = {member: refusal.extra[member]} if member in refusal.extra else {}
    raise type(refusal)(refusal.detail, errors=refusal.errors, **kept) from refusal


_PROOF_ONLY: Final = ("task_queued", "task_received")


def _surface(given: PostReceipt | UniversalReceipt) -> str:
    if given.surface is not None:
        return given.surface
    event = _event_type(given)
    return Surface.LEDGER if event in _PROOF_ONLY or event.startswith("plan_") else Surface.INBOX


_MAX_EVENT_TYPE: Final = 50


def _event_type(given: InboxReceipt) -> str:
    """As given; else what a dedupe key of the usual form says; else just a message."""
    if isinstance(given, (PostReceipt, UniversalReceipt)) and given.event_type is not None:
        return given.event_type
    usual = read_key(given.source_system, given.dedupe_key)
    return usual.event_type if usual is not None and len(usual.event_type) <= _MAX_EVENT_TYPE else "message"


def _post(caller: Caller, given: InboxReceipt, surface: str, *, may_go_on: bool) -> Posted:
    """:param may_go_on: to another deployment. Letters arrive by the service doors: what comes by those goes no
    further, so that deployments which send to each other never send in a circle.
    """
    now = timezone.now()
    draft = _draft(caller, given, surface, _recipients(caller, now))
    if isinstance(draft, DomainError):
        raise _counted_alone(caller, given, draft)
    admission = Admission(tenant_id=caller.tenant_id, drafts=[draft], now=now)
    if admission.refused:
        raise _counted_alone(caller, given, admission.refused[0])
    try:
        posted = services.post(poster=Poster.of(caller), draft=draft, now=now)
    except DomainError as refusal:
        admission.settle([])
        raise _counted_alone(caller, given, refusal) from None
    except Exception:
        admission.settle([])
        raise
    if posted.goes_elsewhere and not may_go_on:
        admission.settle([])
        elsewhere = LivesElsewhere(f"{given.recipient_ai} lives elsewhere, and what comes by this door is not sent on.")
        # Ends the transaction, and with it what has just been stored.
        raise _counted_alone(caller, given, elsewhere)
    return posted


_Answer = TypeVar("_Answer")


def _counted(caller: Caller, given: InboxReceipt | ReceiptDraft, answer: _Answer) -> _Answer:
    """The answer to one post of several; a refusal is counted once they are committed, for they may be made again."""
    if isinstance(answer, DomainError):
        once_committed(_refusals(caller, given, answer).inc)
    return answer


def _counted_alone(caller: Caller, given: InboxReceipt, refusal: DomainError) -> DomainError:
    """The refusal of a post, which ends its transaction, counted."""
    _refusals(caller, given, refusal).inc()
    return refusal


def _refusals(caller: Caller, given: InboxReceipt | ReceiptDraft, refusal: DomainError) -> Counter:
    source = given.source_system if given.source_system in caller.source_systems else metrics.OTHER
    return metrics.REFUSED.labels(source, refusal.code)


def _post_many(caller: Caller, drafts: list[ReceiptDraft], now: datetime) -> list[Posted | DomainError]:
    admission = Admission(tenant_id=caller.tenant_id, drafts=drafts, now=now)
    let_in = [place for place in range(len(drafts)) if place not in admission.refused]
    try:
        posted = services.post_many(poster=Poster.of(caller), drafts=[drafts[place] for place in let_in], now=now)
    except Exception:
        admission.settle([])
        raise
    answers: dict[int, Posted | DomainError] = {**admission.refused, **dict(zip(let_in, posted, strict=True))}
    admission.settle([place for place, answer in answers.items() if isinstance(answer, Posted)])
    for place, answer in answers.items():
        _counted(caller, drafts[place], answer)
    return [answers[place] for place in range(len(drafts))]


RecipientOf = Callable[[str], int]


def _recipients(caller: Caller, now: datetime) -> RecipientOf:
    def recipient_of(name: str) -> int:
        return services.recipient_named(tenant_id=caller.tenant_id, name=name, now=now)

    return recipient_of


def _draft(caller: Caller, given: InboxReceipt, surface: str, recipient_of: RecipientOf) -> ReceiptDraft | DomainError:
    """What is to be posted, or why it can't be."""
    try:
        _check(caller, given)
        recipient = recipient_of(given.recipient_ai)
    except DomainError as refusal:
        return refusal
    return ReceiptDraft(
        recipient_id=recipient,
        source_system=given.source_system,
        event_type=_event_type(given),
        dedupe_key=given.dedupe_key,
        title=given.title,
        summary=given.summary,
        metadata=given.metadata,
        group=given.group.as_said() if given.group else None,
        delivery_handle=given.delivery_handle,
        surface=surface,
        **_chained(given),
    )


def _chained(given: InboxReceipt) -> dict[str, Any]:
    """What only a receipt says that may hang from others."""
    if not isinstance(given, _Chained):
        return {}
    return {
        "receipt_id": given.receipt_id,
        "artifact_pointer": given.artifact_pointer,
        "artifact_location": given.artifact_location,
        "requires_action": given.requires_action,
        "suggested_next_step": given.suggested_next_step,
        "caused_by": given.caused_by_receipt_id,
        "pairs_with": given.pairs_with,
    }


def _check(caller: Caller, given: InboxReceipt) -> None:
    if given.source_system not in caller.source_systems:
        raise Forbidden(f"This token does not post as {given.source_system!r}.", code="not_this_caller")
    strict_json.check(given.metadata, pointer="/metadata")
    _refuse_over(MAX_METADATA, "metadata", strict_json.size(given.metadata))
    _refuse_over(MAX_SUMMARY, "summary", len(given.summary.encode()))


def _refuse_over(limit: int, name: str, size: int) -> None:
    if size > limit:
        fault = f"is over {limit // 1024} KiB"
        raise TooLarge(f"{name} {fault}.", errors=[FieldError(f"/{name}", fault)])


def _answer(posted: Posted) -> PostedOutput:
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
