"""What several operations take and give."""

from datetime import datetime
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints

from apps.core.schemas import Output, Text
from apps.digests.selectors import EntryView, ReceiptView

MAX_NUMBER = 2**63 - 1


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
Sequence = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
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
    flush_reason: str | None
    supersedes: str | None
    delivery_handle: str | None
    tokens_estimate: int

    @classmethod
    def of(cls, entry: EntryView, **more: Any) -> Self:
        return cls(
            ref=entry.ref,
            token=entry.token,
            kind=entry.kind,
            thread=entry.thread,
            revision=entry.revision,
            sequence=entry.sequence,
            count=entry.count,
            title=entry.title,
            summary=entry.summary,
            receipt_ids=entry.receipt_ids,
            source_systems=entry.source_systems,
            group_key=entry.group_key,
            first_at=entry.first_at,
            last_at=entry.last_at,
            flush_reason=entry.flush_reason,
            supersedes=entry.supersedes,
            delivery_handle=entry.delivery_handle,
            tokens_estimate=entry.tokens_estimate,
            **more,
        )


class PastEntryOutput(EntryOutput):
    """An entry with what has become of it."""

    truncated: bool
    """Some of the receipts that it counts were acked, kept their time, and are gone."""
    acked_at: datetime | None
    superseded_at: datetime | None
    superseded_by_seq: int | None

    @classmethod
    def of(cls, entry: EntryView, **more: Any) -> Self:
        return super().of(
            entry,
            truncated=entry.pruned > 0,
            acked_at=entry.acked_at,
            superseded_at=entry.superseded_at,
            superseded_by_seq=entry.superseded_by_seq,
            **more,
        )


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

    @classmethod
    def of(cls, seen: ReceiptView) -> Self:
        fact = seen.receipt
        return cls(
            receipt_id=fact.receipt_id,
            uuid=str(fact.uuid),
            recipient_ai=fact.recipient.name,
            source_system=fact.source_system,
            event_type=fact.event_type,
            dedupe_key=fact.dedupe_key,
            title=fact.title,
            summary=fact.summary,
            metadata=fact.metadata,
            artifact_pointer=fact.artifact_pointer,
            artifact_location=fact.artifact_location,
            requires_action=fact.requires_action,
            suggested_next_step=fact.suggested_next_step,
            caused_by_receipt_id=fact.caused_by_ref,
            pairs_with=fact.pairs_with_ref,
            surface=fact.surface,
            delivery_handle=fact.delivery_handle,
            created_at=fact.created_at,
            delivered_at=seen.delivered_at,
            read_at=seen.read_at,
            archived_at=seen.archived_at,
        )
