"""How receipts come in: the two service endpoints of the seeds, the API, and the tool.

All of them check what is given, count it against the hourly limits of the sources, and post it as one batch.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from django.utils import timezone
from prometheus_client import Counter
from pydantic import Field, StringConstraints

from apps.core import strict_json
from apps.core.errors import Conflict, DomainError, FieldError, Forbidden, RateLimited, TooLarge
from apps.core.metrics import once_committed
from apps.core.operations import Coalesces, Route, operation
from apps.core.schemas import Input, Name, Output, Text
from apps.digests import metrics, selectors, services
from apps.digests.grouping import read_key
from apps.digests.services import Posted
from apps.digests.shapes import NewReference, Reference, Source
from apps.principals import limits
from apps.principals import selectors as principals
from apps.principals.limits import Quota
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller
from apps.receipts import selectors as receipts
from apps.receipts.errors import LivesElsewhere
from apps.receipts.models import MAX_METADATA, Surface
from apps.receipts.services import Poster, ReceiptDraft
from apps.receipts.shapes import GroupInput

MAX_SUMMARY: Final = 16 * 1024
_MAX_EVENT_TYPE: Final = 50

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
    except LivesElsewhere as refusal:
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
    :param together: the receipts come from several calls. Leave out those that must be posted alone: the recipient may
        have to be made, or the source groups the receipt.
    :raises LivesElsewhere: if a receipt would have to be sent on and may not.
    """
    now = timezone.now()
    known = principals.principal_ids_named({one.recipient_ai for one in given}, tenant_id=caller.tenant_id)
    answers: dict[int, Posted | DomainError] = {}
    drafts: dict[int, ReceiptDraft] = {}
    for place, one in enumerate(given):
        try:
            _check(caller, one)
            if one.recipient_ai in known:
                draft = _draft(one, known[one.recipient_ai])
                if not together or selectors.group_of(caller.tenant_id, draft) is None:
                    drafts[place] = draft
            elif not together:
                # In a savepoint of its own: a recipient for whom nothing is stored is not made.
                with caller.acting():
                    recipient = services.recipient_named(tenant_id=caller.tenant_id, name=one.recipient_ai, now=now)
                    (answer,) = _admit_and_post(caller, [_draft(one, recipient)], now, sends_on=sends_on)
                    if isinstance(answer, DomainError):
                        raise answer
                    answers[place], known[one.recipient_ai] = answer, recipient
        except DomainError as refusal:
            once_committed(_refusals(caller, one, refusal).inc)
            answers[place] = refusal
    posted = _admit_and_post(caller, list(drafts.values()), now, sends_on=sends_on) if drafts else []
    for (place, draft), answer in zip(drafts.items(), posted, strict=True):
        answers[place] = answer
        if isinstance(answer, DomainError):
            once_committed(_refusals(caller, draft, answer).inc)
    return answers


def _refusals(caller: Caller, given: InboxReceipt | ReceiptDraft, refusal: DomainError) -> Counter:
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


def _admit_and_post(
    caller: Caller, drafts: Sequence[ReceiptDraft], now: datetime, *, sends_on: bool
) -> list[Posted | DomainError]:
    """Post what the hourly limits of the sources let in."""
    admission = _Admission(tenant_id=caller.tenant_id, drafts=drafts, now=now)
    let_in = [place for place in range(len(drafts)) if place not in admission.refused]
    try:
        admitted = [drafts[place] for place in let_in]
        posted = services.post_many(poster=Poster.of(caller), drafts=admitted, now=now) if admitted else []
    except Exception:
        admission.settle([])
        raise
    answers: dict[int, Posted | DomainError] = {**admission.refused, **dict(zip(let_in, posted, strict=True))}
    if not sends_on and any(isinstance(answer, Posted) and answer.goes_elsewhere for answer in posted):
        admission.settle([])
        # Ends the transaction, and with it what has just been stored.
        raise LivesElsewhere("The recipient lives elsewhere, and what comes by this endpoint is not sent on.")
    admission.settle([place for place, answer in answers.items() if isinstance(answer, Posted)])
    return [answers[place] for place in range(len(drafts))]


class _Admission:
    """Posts that are about to be made, counted against the limits of their sources.

    A repetition is let in without being counted, so that it is refused as what it is. `refused` holds the others that
    there is no room for, by their place among the drafts.
    """

    def __init__(self, *, tenant_id: int, drafts: Sequence[ReceiptDraft], now: datetime) -> None:
        self.refused: dict[int, RateLimited] = {}
        self._counted: list[tuple[Quota, list[int], int]] = []
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, draft in enumerate(drafts):
            places[draft.source_system].append(place)
        for source, its_places in places.items():
            own = selectors.source_rule(tenant_id, source).rate_per_hour
            per_hour = limits.per_hour(source) if own is None else own
            quota = Quota(tenant_id=tenant_id, source_system=source, per_hour=per_hour, now=now)
            self._count(quota, drafts, its_places)

    def settle(self, stored: Collection[int]) -> None:
        """Uncount what was not stored; `stored` are places among the drafts."""
        for quota, places, granted in self._counted:
            quota.give_back(max(0, granted - len(set(places) & set(stored))))

    def _count(self, quota: Quota, drafts: Sequence[ReceiptDraft], places: list[int]) -> None:
        # Of several drafts of one key one is stored at most.
        keys = list(dict.fromkeys(drafts[place].dedupe_key for place in places))
        granted = quota.take(len(keys), leaving=(quota.per_hour + 1) // 2)
        if granted == len(keys):
            self._counted.append((quota, places, granted))
            return
        # Where room may run out, repetitions are not counted even for a moment, in which a new one would lack it.
        quota.give_back(granted)
        known = receipts.used_keys(quota.tenant_id, quota.source_system, keys)
        new = [key for key in keys if key not in known]
        granted = quota.take(len(new))
        self._counted.append((quota, places, granted))
        refused = set(new[granted:])
        for place in places:
            if drafts[place].dedupe_key in refused:
                self.refused[place] = RateLimited(
                    f"{quota.source_system} has posted its {quota.per_hour} receipts of this hour.",
                    retry_after=quota.retry_after,
                )


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
