"""The read models of the inbox, which services and selectors return and every interface shows; and types of inputs."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Self
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints

from apps.core.schemas import Output, Text
from apps.digests.models import FlushReason, ReceiptState
from apps.receipts.models import Receipt

_MAX_NUMBER: Final = 2**63 - 1


def _no_foreign_form(value: str) -> str:
    """An id that could be taken for another receipt's uuid, or for a step within a path, names nothing for certain."""
    if value in {".", ".."}:
        raise ValueError("is no name in a path")
    try:
        UUID(value)
    except ValueError:
        return value
    raise ValueError("has the form of a uuid; those are given by us")


Limit = Annotated[int, Field(ge=1, le=500)]
Sequence = Annotated[int, Field(ge=0, le=_MAX_NUMBER)]
Source = Annotated[str, StringConstraints(min_length=1, max_length=50, pattern=r"^[^\x00-\x1f\x7f]+$")]
Reference = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
NewReference = Annotated[
    str, StringConstraints(min_length=1, max_length=100, pattern=r"^[!-.0-~]+$"), AfterValidator(_no_foreign_form)
]
EntryRef = Annotated[Text, StringConstraints(min_length=1, max_length=8000)]


class EntryOutput(Output):
    """One entry: a receipt, or an immutable snapshot of many."""

    ref: str
    token: str | None
    """Hand this back to `ack_through`; it remembers what you were shown. Null where the list gives no such right."""
    kind: str
    thread: str | None
    revision: int | None
    sequence: int
    count: int
    title: str | None
    summary: str
    receipt_ids: list[str]
    source_systems: list[str]
    group_key: str | None
    first_at: datetime
    last_at: datetime
    flush_reason: FlushReason | None
    """Why the snapshot was made; null for an item."""
    supersedes: str | None
    delivery_handle: str | None
    tokens_estimate: int
    id: int = Field(exclude=True)
    receipt_pks: list[int] = Field(exclude=True)
    """Primary keys of the receipts, those that retention has deleted too."""
    pruned: int = Field(default=0, exclude=True)
    """How many of its receipts retention has deleted."""


class PastEntryOutput(EntryOutput):
    """An entry with what has become of it."""

    truncated: bool
    """Retention has deleted some of the receipts that it counts, which were acked."""
    acked_at: datetime | None
    superseded_at: datetime | None
    superseded_by_seq: int | None


class InboxOutput(Output):
    """The visible entries, oldest first."""

    as_of: int
    entries: list[EntryOutput]
    visible: int
    """Unread receipts in visible entries."""
    pending: int
    """Unread receipts in buffers; they will surface within the inbox's window."""
    more_waiting: int
    """Unread receipts that are not in these entries."""
    has_news: bool = Field(default=True, exclude=True)
    """Whether any entry is more than the rest of a digest that the reader has been shown before."""

    @property
    def unread(self) -> int:
        return self.visible + self.pending


class HistoryOutput(Output):
    """All entries, newest first, acked and superseded ones too."""

    entries: list[PastEntryOutput]
    next: str | None
    """The cursor of the next page; null on the last."""


class ReceiptOutput(Output):
    """A receipt with its lifecycle."""

    receipt_id: str
    uuid: str
    recipient_ai: str
    source_system: str
    event_type: str
    dedupe_key: str
    title: str | None
    summary: str
    metadata: dict[str, Any]
    artifact_pointer: str | None
    artifact_location: str | None
    requires_action: bool
    suggested_next_step: str | None
    caused_by_receipt_id: str | None
    pairs_with: str | None
    surface: str
    delivery_handle: str | None
    created_at: datetime
    delivered_at: datetime | None
    read_at: datetime | None
    archived_at: datetime | None
    pk: int = Field(exclude=True)

    @classmethod
    def of(cls, fact: Receipt, state: ReceiptState | None) -> Self:
        """A receipt and its state in the inbox; receipts of the ledger have none."""
        return cls(
            **{name: getattr(fact, name) for name in _OF_RECEIPT},
            uuid=str(fact.uuid),
            recipient_ai=fact.recipient.name,
            caused_by_receipt_id=fact.caused_by_ref,
            pairs_with=fact.pairs_with_ref,
            delivered_at=state.delivered_at if state else None,
            read_at=state.acked_at if state else None,
            archived_at=state.archived_at if state else None,
        )


_OF_RECEIPT: Final = (
    *("receipt_id", "source_system", "event_type", "dedupe_key", "title", "summary", "metadata", "artifact_pointer"),
    *("artifact_location", "requires_action", "suggested_next_step", "surface", "delivery_handle", "created_at", "pk"),
)


class ReceiptsOutput(Output):
    """Single receipts, newest first."""

    receipts: list[ReceiptOutput]
    next: str | None


class ExpandedOutput(Output):
    receipts: list[ReceiptOutput]
    count: int
    """How many the entry was made of."""
    pruned: int
    """How many of them were acked, kept their time, and are gone."""
    truncated: bool
    """Some are gone: the receipts are fewer than the entry counts."""
    next: str | None
    """The cursor of the next page; null on the last."""


class NextActionOutput(Output):
    """What you would do next: a sentence, and the tool that does it where there is one."""

    description: str
    tool: str | None = None
    arguments: Mapping[str, Any] = Field(default_factory=dict)


class AckedOutput(Output):
    """What this call added; zeros when all of it had been acked before."""

    acked_entries: int = 0
    acked_receipts: int = 0


class _PolicyOutput(Output):
    enabled: bool
    window_ms: int
    max_items: int
    max_thread_age_ms: int


class SourcePolicyOutput(_PolicyOutput):
    """How the receipts of one source are grouped."""

    source_system: str


class PolicyOutput(_PolicyOutput):
    """How receipts with a group are buffered and flushed."""

    source_system: str | None
    """The source that was asked about; null: what holds where a source has nothing of its own."""
    sources: list[SourcePolicyOutput]
    """The sources that have a policy of their own."""


class ReplayOutput(Output):
    """What came, and how many entries it makes under either policy. Groups are those that it would get today."""

    receipts: int
    grouped: int
    """How many of the receipts have a group; each of the others is an entry under any policy."""
    entries_then: int
    """With the policies that your inbox has."""
    entries_now: int
    """With the window and size that you ask about, for every source."""
    wakes_saved: int
    """How many entries fewer; below zero, how many more."""
    since: datetime
    """The receipts are all that came since then."""
    truncated: bool
    """More receipts came than are looked at, so `since` is later than you asked."""
