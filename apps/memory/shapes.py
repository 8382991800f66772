"""What operations on memory take and return. Selectors and services return the read models."""

import re
from datetime import datetime
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, AliasPath, Field, StringConstraints, WithJsonSchema

from apps.core.schemas import Input, Moment, Name, Output, Text
from apps.memory.envelopes import DEFAULT_DAYS, Constraints, first_moment
from apps.memory.references import LONGEST_SUBJECT_ID, SUBJECT_ID
from apps.memory.states import ItemType
from apps.memory.texts import one_line
from apps.receipts.shapes import ObligationOutput

Words = Annotated[Text, StringConstraints(min_length=1, max_length=65_536)]
Label = Annotated[Text, StringConstraints(min_length=1, max_length=200)]
# A reference to a memory, or to anything else. `concept:` and a key may be longer than a label.
Ref = Annotated[Text, StringConstraints(min_length=1, max_length=300)]
Domain = Annotated[Text, StringConstraints(min_length=1, max_length=100)]
Share = Annotated[float, Field(ge=0, le=1)]
Evidence = Annotated[list[Ref], Field(max_length=100)]
Sharing = Annotated[list[Name], Field(max_length=200)]
ItemRef = Annotated[str, StringConstraints(pattern=r"^(item:)?[1-9][0-9]{0,17}$")]

_SUBJECT_ID: Final = re.compile(SUBJECT_ID)


def _subject_id(given: str) -> str:
    if _SUBJECT_ID.fullmatch(given) is None:
        raise ValueError(
            "is no subject's id: a kind in capitals, a colon and a name of letters, digits and, but for its end, _:@.+~-,"
            " such as USER:246030816692404234"
        )
    return given


SubjectId = Annotated[
    str,
    StringConstraints(max_length=LONGEST_SUBJECT_ID),
    AfterValidator(_subject_id),
    WithJsonSchema({"type": "string", "maxLength": LONGEST_SUBJECT_ID, "pattern": f"^{SUBJECT_ID}$"}),
]


def number_of(ref: str) -> int:
    """The number in `item:12` or `12`."""
    return int(ref.removeprefix("item:"))


class Dated(Output):
    """A read model whose dates a subject may want anonymized."""

    def by_month(self, hidden: bool, /) -> Self:  # noqa: FBT001  # reads as a sentence where it is called
        """The same with each date as the first moment of its month, if `hidden`."""
        if not hidden:
            return self
        dates = {name: first_moment(value) for name, value in self if isinstance(value, datetime)}
        return self.model_copy(update=dates)


class RecalledMemory(Dated):
    ref: str
    text: str
    score: float
    why: str
    domain: str
    confidence: float
    metadata: dict[str, Any]
    author: str
    recorded_at: datetime
    occurred_at: datetime | None
    speaker: str
    conversation_id: str


class EarlierMemory(Dated):
    """An older observation or item that the memory supersedes, or an earlier reading of a pattern or concept."""

    ref: str | None = None
    """Of an observation or an item; an earlier reading has none of its own."""
    revision: int | None = Field(default=None, validation_alias="number")
    text: str
    domain: str
    """Of a pattern its category; of a concept or an item its type."""
    aliases: list[str]
    confidence: float | None
    """As it was stored; a concept has none, and envelopes show an item's faded."""
    evidence: list[str]
    """What it rests on. Memories among it are read in the same way."""
    metadata: dict[str, Any]
    author: str = Field(validation_alias=AliasPath("author", "name"))
    """Who wrote it, of a pattern and a concept as it reads now."""
    recorded_at: datetime
    """When this reading was stored."""


class MemoryOutput(EarlierMemory):
    """A memory with its provenance. What its kind has not is null or empty."""

    ref: str
    revision: int | None
    name: str
    """Of a pattern or a concept."""
    speaker: str
    conversation_id: str = Field(default="", validation_alias=AliasPath("session", "conversation_id"))
    subject_id: str | None = Field(default=None, validation_alias=AliasPath("subject", "key"))
    """Whom it is about: of an item, and of a message of a session with a subject."""
    slot: str | None
    source: str
    stated: bool
    occurred_at: datetime | None
    """When it happened; of an item, when it was said."""
    valid_from: datetime | None
    valid_to: datetime | None
    revised_at: datetime | None
    superseded_at: datetime | None
    superseded_by: str | None = Field(default=None, validation_alias="superseded_by_ref")
    earlier: list[EarlierMemory] = Field(default_factory=list, validation_alias="earlier_readings")
    """What it supersedes, the latest first."""
    next: str | None = None


class ItemOutput(Dated):
    """Something remembered of a subject."""

    ref: str
    type: ItemType = Field(validation_alias="domain")
    text: str
    slot: str | None
    confidence: float
    """As it was stored; envelopes show it faded."""
    source: str
    stated: bool
    evidence: list[str]
    valid_from: datetime
    valid_to: datetime | None
    said_at: datetime = Field(validation_alias="occurred_at")
    recorded_at: datetime
    superseded_at: datetime | None
    superseded_by: str | None = Field(validation_alias="superseded_by_ref")


def _seen(said: str) -> str:
    if not one_line(said):
        raise ValueError("holds no visible character")
    return said


Saying = Annotated[Text, StringConstraints(min_length=1, max_length=2_000, pattern=r"\S"), AfterValidator(_seen)]


class RememberFact(Input):
    subject_id: SubjectId
    fact: Saying
    """What to remember of the subject, in one sentence."""
    type: ItemType = ItemType.USER_FACT
    """A fact, a pattern inferred from several occasions, or a story that you share."""
    slot: Label | None = None
    """The question that it answers (`home town`): a newer answer replaces the older."""
    confidence: Share = 0.8
    """How sure you are, from 0 to 1."""
    source: Annotated[Text, StringConstraints(max_length=200)] = ""
    """Where it is from: `session c-1`, `multiple sessions`."""
    stated: bool = False
    """The subject said so itself. Only another statement of the subject replaces it."""
    evidence: Evidence = Field(default_factory=list)
    """References to what it rests on: `observation:12`, `task:task_7`. What is cited of memory must be there."""
    valid_from: Moment | None = None
    """When it becomes true, if not now."""
    valid_to: Moment | None = None
    """When it ends, if that is known."""
    supersedes: ItemRef | None = None
    """The item (`item:12`) that this one replaces."""


class RelationshipOutput(Output):
    from_concept: str = Field(validation_alias=AliasPath("source", "name"))
    to_concept: str = Field(validation_alias=AliasPath("target", "name"))
    rel_type: str = Field(validation_alias="type")
    description: str
    author: str = Field(validation_alias=AliasPath("author", "name"))
    """Who stored it first."""
    recorded_at: datetime
    revised_at: datetime


class Conversation(Dated):
    conversation_id: str
    platform: str
    title: str
    summary: str
    topics: list[str]
    tone: str
    updated_at: datetime = Field(validation_alias="last_active_at")


class SubjectOutput(Dated):
    """A subject without its memories. With memory disabled, only its names and constraints are shown."""

    subject_id: str = Field(validation_alias="key")
    display_name: str | None
    learning_level: str | None
    domains: list[str]
    preferences: dict[str, str]
    constraints: Constraints
    rev: int
    """Grows with everything that is written about the subject."""
    created_at: datetime
    revised_at: datetime


class MemoryPolicyOutput(Output):
    """The tenant's defaults for all its subjects."""

    fact_days: int = DEFAULT_DAYS[ItemType.USER_FACT]
    pattern_days: int = DEFAULT_DAYS[ItemType.USER_PATTERN]
    narrative_days: int = DEFAULT_DAYS[ItemType.SHARED_NARRATIVE]
    share_with: list[str] | None = None
    """Null: everybody in the tenant."""


class PromotionOutput(Output):
    verdict: str
    """`promoted`, or why it was not: then recommend it in your report instead."""
    reason: str
    ref: str | None = None


class ForgottenOutput(Output):
    status: str = "forgotten"
    erased: dict[str, int]
    """How many rows of each table were deleted or redacted."""
    remaining: dict[str, int]
    """How many rows of each table still hold the id, because a client chose it as an id or a name there."""
    receipt_id: str
    """The receipt that proves it. It holds numbers and a keyed digest, and nothing of what was forgotten."""
    proof: str
    """A keyed digest of the id of the subject, or of the subject and the item."""


class Export(Output):
    """What is stored about a subject: its lists one after the other, a thousand rows at once, the oldest first."""

    subject: dict[str, Any]
    """On the first page."""
    items: list[dict[str, Any]]
    sessions: list[dict[str, Any]]
    envelopes_loaded: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    """The messages of its sessions."""
    next: str | None


class InboxItem(Output):
    """An entry of the inbox; `receipt_id` is its newest receipt's."""

    receipt_id: str = Field(default="", validation_alias=AliasPath("receipt_ids", -1))
    source_system: str = Field(validation_alias=AliasPath("source_systems", 0))
    title: str | None
    summary: str
    created_at: datetime = Field(validation_alias="last_at")
    ref: str
    token: str | None
    kind: str
    count: int
    receipt_ids: list[str]


class ReceiptConfig(Output):
    """The form of receipts that the inbox accepts."""

    schema_version: str = "1.0"
    event_types: list[str] = [
        "task_received",
        "plan_created",
        "plan_complete",
        "plan_failed",
        "plan_canceled",
        "plan_abandoned",
        "task_queued",
        "task_complete",
        "task_failed",
        "task_canceled",
        "escalation",
        "learning",
        "caution",
        "context",
        "thread",
    ]
    required_fields: list[str] = ["recipient_ai", "source_system", "event_type", "dedupe_key", "summary"]
    dedupe_key_format: str = "<source_system>:<event_type>:<entity_id>:<version>"


class Start(Output):
    """Everything to begin a session with."""

    status: str = "initialized"
    ai_name: str
    sessions: list[Conversation]
    observations_count: int
    """Of what is about no subject, as are the next two."""
    patterns_count: int
    concepts_count: int
    inbox_unread_count: int
    inbox_pending_count: int
    inbox_items: list[InboxItem]
    inbox_more_waiting: int
    owed_by_me: list[ObligationOutput]
    awaited: list[ObligationOutput]
    handoffs_waiting: int
    receipt_config: ReceiptConfig = ReceiptConfig()
    connected_services: list[str]
