"""How receipts come in: the two service doors, the API, and the tool."""

import json
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Never

from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.core import strict_json
from apps.core.errors import Conflict, DomainError, FieldError, TooLarge
from apps.core.operations import Route, operation
from apps.core.schemas import Input, Name, Output, Text
from apps.digests import services
from apps.digests.services import Group, Posted, Poster, ReceiptDraft
from apps.digests.tools.shapes import NewReference, Reference, Source
from apps.principals.errors import NotThisCaller
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.receipts.models import Surface

MAX_METADATA: Final = 64 * 1024
MAX_SUMMARY: Final = 16 * 1024

Key = Annotated[Text, StringConstraints(min_length=1, max_length=200)]
Title = Annotated[Text, StringConstraints(max_length=200)]
Summary = Annotated[Text, StringConstraints(min_length=1, max_length=MAX_SUMMARY)]
Line = Annotated[Text, StringConstraints(min_length=1, max_length=2000)]


class GroupInput(Input):
    """What the receipt belongs to. With a resource and a family it is gathered into that thread's digest."""

    resource_ref: Annotated[Text, StringConstraints(min_length=1, max_length=200)] | None = None
    """The thing it is about: `pr:135`, `execution:7`."""
    event_family: Annotated[Text, StringConstraints(min_length=1, max_length=100)] | None = None
    """The kind of events that belong together: `ci_updates`."""
    flush_class: Literal["normal", "immediate"] = "normal"
    """`immediate` publishes the thread's digest at once."""
    summary_hint: Annotated[Text, StringConstraints(max_length=1000)] | None = None
    """A sentence that sums the thread up as of this receipt."""
    break_thread: bool = False
    """Begin a new thread with this receipt."""
    groupable: bool | None = None
    """False: an entry of its own, whatever else is said here."""


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


@operation(
    title="Post a receipt",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/api/v1/receipts", status=201)],
)
def post_receipt(caller: Caller, given: PostReceipt) -> PostedOutput:
    """Tell one principal that something happened.

    A receipt is a signal with pointers, never the payload. The same dedupe key again changes nothing and names the
    receipt that is there. With a group, receipts about one thing are gathered into one digest.
    """
    return _answer(_post(caller, given, _surface(given)))


@operation(
    title="Post many receipts",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/api/v1/receipts/batch", max_body=8 * 1024 * 1024)],
    tool=False,
)
def post_receipts(caller: Caller, given: PostReceipts) -> VerdictsOutput:
    """Post up to 500 receipts in one transaction, with a verdict for each."""
    now = timezone.now()
    drafts = [_draft(caller, one, _surface(one), now) for one in given.receipts]
    sound = [draft for draft in drafts if isinstance(draft, ReceiptDraft)]
    posted = iter(services.post_many(poster=Poster.of(caller), drafts=sound, now=now))
    return VerdictsOutput(
        results=[_verdict(next(posted) if isinstance(draft, ReceiptDraft) else draft) for draft in drafts]
    )


@operation(
    title="The inbox door",
    scope=Scope.RECEIPTS_WRITE,
    routes=[Route("POST", "/internal/inbox/receipt", manner="service")],
    tool=False,
)
def post_at_inbox_door(caller: Caller, given: InboxReceipt) -> InboxDoorOutput:
    """Post a receipt to an inbox, service to service."""
    try:
        posted = _post(caller, given, Surface.INBOX)
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
    """Post a receipt of any kind, service to service."""
    try:
        posted = _post(caller, given, _surface(given))
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


_KEY_PARTS: Final = 4
_MAX_EVENT_TYPE: Final = 50


def _event_type(given: InboxReceipt) -> str:
    """As given; else what a dedupe key of the usual form says; else just a message."""
    if isinstance(given, (PostReceipt, UniversalReceipt)) and given.event_type is not None:
        return given.event_type
    parts = given.dedupe_key.split(":", _KEY_PARTS - 1)
    usual = len(parts) == _KEY_PARTS and parts[0] == given.source_system and 0 < len(parts[1]) <= _MAX_EVENT_TYPE
    return parts[1] if usual else "message"


def _post(caller: Caller, given: InboxReceipt, surface: str) -> Posted:
    now = timezone.now()
    draft = _draft(caller, given, surface, now)
    if isinstance(draft, DomainError):
        raise draft
    return services.post(poster=Poster.of(caller), draft=draft, now=now)


def _draft(caller: Caller, given: InboxReceipt, surface: str, now: datetime) -> ReceiptDraft | DomainError:
    """What is to be posted, or why it can't be."""
    try:
        _check(caller, given)
        recipient = services.recipient_named(tenant_id=caller.tenant_id, name=given.recipient_ai, now=now)
    except DomainError as refusal:
        return refusal
    draft = ReceiptDraft(
        recipient_id=recipient,
        source_system=given.source_system,
        event_type=_event_type(given),
        dedupe_key=given.dedupe_key,
        title=given.title,
        summary=given.summary,
        metadata=given.metadata,
        group=Group(**given.group.model_dump()) if given.group else None,
        delivery_handle=given.delivery_handle,
        surface=surface,
    )
    return _chained(draft, given) if isinstance(given, _Chained) else draft


def _chained(draft: ReceiptDraft, given: _Chained) -> ReceiptDraft:
    return replace(
        draft,
        receipt_id=given.receipt_id,
        artifact_pointer=given.artifact_pointer,
        artifact_location=given.artifact_location,
        requires_action=given.requires_action,
        suggested_next_step=given.suggested_next_step,
        caused_by=given.caused_by_receipt_id,
        pairs_with=given.pairs_with,
    )


def _check(caller: Caller, given: InboxReceipt) -> None:
    if given.source_system not in caller.source_systems:
        raise NotThisCaller(f"This token does not post as {given.source_system!r}.")
    strict_json.check(given.metadata, pointer="/metadata")
    _refuse_over(MAX_METADATA, "metadata", json.dumps(given.metadata, ensure_ascii=False, separators=(",", ":")))
    _refuse_over(MAX_SUMMARY, "summary", given.summary)


def _refuse_over(limit: int, name: str, text: str) -> None:
    if len(text.encode()) > limit:
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
