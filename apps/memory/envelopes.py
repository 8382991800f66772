"""The memory envelope, version 1.0: its shape, and how it is made of what a subject's rows say. Pure.

The shape is also written down as a JSON Schema, `schemas/envelope-1.0.json`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ConfigDict, Field, ValidationError, model_validator

from apps.core.schemas import Output
from apps.memory import months
from apps.memory.decay import Windows, faded, lasts
from apps.memory.errors import UnsupportedEnvelope
from apps.memory.states import ItemType

SCHEMA_VERSION: Final = "1.0"
SOURCE: Final = "memory_system:v1.0"
CACHE_TTL: Final = timedelta(minutes=15)
UNNAMED_SOURCE: Final = "unspecified"
_DAY: Final = timedelta(days=1)
_NOTHING: Final = timedelta(0)
_TICK: Final = timedelta(microseconds=1)


def schema() -> dict[str, Any]:
    """The JSON Schema of an envelope."""
    document: dict[str, Any] = json.loads((Path(__file__).parent / "schemas" / "envelope-1.0.json").read_text())
    return document


class Identity(Output):
    """Whom it is about."""

    subject_id: str
    tenant_id: str
    subject_type: str
    display_name: str | None


class MemorableFact(Output):
    fact: str
    confidence: float
    added_at: str
    """ISO 8601; the month alone where the subject's dates are anonymized."""
    age_days: int | None = Field(default=None, exclude_if=lambda days: days is None)
    """Left out where the subject's dates are anonymized."""
    type: str


class LearnedPattern(Output):
    pattern: str
    confidence: float
    inferred_from: str
    type: str


class SharedNarrative(Output):
    narrative: str
    confidence: float
    type: str


class Preferences(Output):
    """What the subject prefers; beside these three whatever else it was said to."""

    model_config = ConfigDict(extra="allow")

    communication_style: str | None = None
    detail_level: str | None = None
    explanation_style: str | None = None

    def chosen(self) -> Iterable[tuple[str, str]]:
        """Those that are set."""
        return ((key, value) for key, value in self.model_dump().items() if value is not None)


class Relational(Output):
    """What is known of the subject, surest first."""

    memorable_facts: list[MemorableFact]
    patterns: list[LearnedPattern]
    narratives: list[SharedNarrative]
    confidence_score: float
    learning_level: str | None
    domains: list[str]
    preferences: Preferences


class RecentContext(Output):
    """The last session with the subject."""

    session_id: str | None = None
    last_active: str | None = None
    session_summary: str | None = None
    topics_discussed: list[str] = Field(default_factory=list)
    tone: str | None = None


class Constraints(Output):
    """What may be done with memories of the subject."""

    memory_enabled: bool
    learn_patterns: bool
    share_with: list[str] | None
    """The principals that may read them; null: everybody in the tenant."""
    anonymize_dates: bool
    delete_after_days: int | None


class Metadata(Output):
    created_at: str
    cache_ttl_seconds: int
    source: str
    schema_version: str


class Envelope(Output):
    """What is known of a subject, for one who may know it. Context, neither facts to rely on nor permissions."""

    identity: Identity
    relational: Relational
    recent_context: RecentContext
    constraints: Constraints
    metadata: Metadata

    @model_validator(mode="after")
    def _supported(self) -> "Envelope":
        if self.metadata.schema_version != SCHEMA_VERSION:
            raise ValueError(f"has version {self.metadata.schema_version[:20]!r}")
        return self


def load(text: str) -> Envelope:
    """An envelope from its JSON.

    :raises UnsupportedEnvelope: if it is no envelope of this version.
    """
    try:
        return Envelope.model_validate_json(text)
    except ValidationError as exc:
        raise UnsupportedEnvelope(f"This is no envelope of version {SCHEMA_VERSION}.") from exc


class Remembered(NamedTuple):
    """An item as an envelope needs it; moments as the rows have them. There may be hundreds of an envelope."""

    id: int
    type: ItemType
    text: str
    confidence: float
    source: str
    said_at: datetime
    recorded_at: datetime
    valid_from: datetime
    valid_to: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The last session with the subject."""

    conversation_id: str
    last_active_at: datetime
    summary: str
    topics: list[str]
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the database holds of one subject at one revision, for one who may see it."""

    subject_pk: int
    subject_id: str
    rev: int
    policy_rev: int
    display_name: str
    learning_level: str
    domains: list[str]
    preferences: Mapping[str, str]
    constraints: Constraints
    windows: Windows
    items: list[Remembered] = field(default_factory=list)
    conversation: Conversation | None = None
    begins_at: datetime | None = None
    """When the first of what is to be so, and is not among the items, will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """An envelope, and the first moment at which it would say something else although nothing was written (`until`)."""

    envelope: Envelope
    until: datetime
    since: Mapping[ItemType, datetime]
    """When the oldest that it holds of each type was said; of what it holds none of, nothing."""


def assemble(known: Known, *, tenant_slug: str, now: datetime) -> Assembled:
    """The envelope as it is at this moment."""
    days = {type_: known.windows.days(type_) for type_ in ItemType}
    counting = (item for item in known.items if _counts(item, days[item.type], known, now))
    current = sorted(
        ((item, _confidence(item, days[item.type], known, now)) for item in counting),
        key=lambda pair: (pair[1], pair[0].said_at, pair[0].id),
        reverse=True,
    )
    hidden = known.constraints.anonymize_dates
    envelope = Envelope(
        identity=Identity(
            subject_id=known.subject_id,
            tenant_id=f"TENANT:{tenant_slug}",
            subject_type=known.subject_id.partition(":")[0],
            display_name=known.display_name or None,
        ),
        relational=_relational(known, current, now, hidden=hidden),
        recent_context=_recent(known.conversation, hidden=hidden),
        constraints=known.constraints,
        metadata=Metadata(
            created_at=_moment(now),
            cache_ttl_seconds=int(CACHE_TTL.total_seconds()),
            source=SOURCE,
            schema_version=SCHEMA_VERSION,
        ),
    )
    since: dict[ItemType, datetime] = {}
    for item, _ in current:
        since[item.type] = min(item.said_at, since.get(item.type, item.said_at))
    return Assembled(envelope=envelope, until=min([now + CACHE_TTL, *_changes(known, now)]), since=since)


def _counts(item: Remembered, days: int, known: Known, now: datetime) -> bool:
    """Whether an item is in the envelope of this moment.

    Clocks differ a little: what was recorded as true from that moment on is true at once, wherever it is read.
    """
    age = now - item.said_at
    keep = known.constraints.delete_after_days
    return (
        age < lasts(days)
        and item.valid_from <= max(now, item.recorded_at)
        and (item.valid_to is None or item.valid_to > now)
        and (keep is None or age < keep * _DAY)
    )


def _changes(known: Known, now: datetime) -> Iterable[datetime]:
    """The moments after this one at which an item comes, goes or is a day older."""
    moments: list[datetime] = [] if known.begins_at is None else [known.begins_at]
    keep = known.constraints.delete_after_days
    for item in known.items:
        age = now - item.said_at
        moments.append(now + _DAY - (age % _DAY if age > _NOTHING else age))
        if item.valid_from > now:
            moments.append(item.valid_from)
        if item.valid_to is not None:
            moments.append(item.valid_to)
    if known.conversation is not None and keep is not None:
        moments.append(known.conversation.last_active_at + keep * _DAY)
    return (moment for moment in moments if moment > now)


def _confidence(item: Remembered, days: int, known: Known, now: datetime) -> float:
    """How sure it is by now; where dates are given by the month, whenever in its month it was said."""
    said_at = months.last_moment(item.said_at) + _TICK if known.constraints.anonymize_dates else item.said_at
    return faded(item.confidence, now - said_at, days)


def _relational(known: Known, current: list[tuple[Remembered, float]], now: datetime, *, hidden: bool) -> Relational:
    of: dict[ItemType, list[tuple[Remembered, float]]] = {type_: [] for type_ in ItemType}
    for item, confidence in current:
        of[item.type].append((item, round(confidence, 4)))
    shown = known.constraints.memory_enabled
    score = sum(confidence for _, confidence in current) / len(current) if current else 0.0
    # Validated at once, which takes half as long as one after the other.
    return Relational.model_validate(
        {
            "memorable_facts": [
                {
                    "fact": item.text,
                    "confidence": confidence,
                    "added_at": _dated(item.said_at, hidden=hidden),
                    "age_days": None if hidden else max(now - item.said_at, _NOTHING) // _DAY,
                    "type": item.type,
                }
                for item, confidence in of[ItemType.USER_FACT]
            ],
            "patterns": [
                {
                    "pattern": item.text,
                    "confidence": confidence,
                    "inferred_from": item.source or UNNAMED_SOURCE,
                    "type": item.type,
                }
                for item, confidence in of[ItemType.USER_PATTERN]
            ],
            "narratives": [
                {"narrative": item.text, "confidence": confidence, "type": item.type}
                for item, confidence in of[ItemType.SHARED_NARRATIVE]
            ],
            "confidence_score": round(score, 4),
            "learning_level": (known.learning_level or None) if shown else None,
            "domains": known.domains if shown else [],
            "preferences": known.preferences if shown else {},
        }
    )


def _recent(conversation: Conversation | None, *, hidden: bool) -> RecentContext:
    if conversation is None:
        return RecentContext()
    return RecentContext(
        session_id=conversation.conversation_id,
        last_active=_dated(conversation.last_active_at, hidden=hidden),
        session_summary=conversation.summary or None,
        topics_discussed=conversation.topics,
        tone=conversation.tone or None,
    )


def _dated(moment: datetime, *, hidden: bool) -> str:
    return f"{moment.astimezone(UTC):%Y-%m}" if hidden else _moment(moment)


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
