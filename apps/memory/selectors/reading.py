"""A memory by its reference: who said it on what evidence, and what it stands in the place of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from apps.memory.envelopes import first_moment
from apps.memory.errors import MalformedMemoryReference, UnknownMemory
from apps.memory.models import Concept, ConceptRevision, Item, Observation, Pattern, PatternRevision, Subject
from apps.memory.references import cited_in, item_ref
from apps.memory.selectors.observations import observations_known_to
from apps.memory.selectors.subjects import dates_of, is_shown, known_to
from apps.principals.tenancy import Caller

# Before whatever position comes first.
_NEWEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What a memory stands in the place of: an older memory, or how the same one read before."""

    text: str
    author: str
    recorded_at: datetime
    """From when on it was known so, until that in whose place it is listed was."""
    ref: str | None = None
    """Of an observation or an item; revisions have none."""
    revision: int | None = None
    """Of a pattern."""
    domain: str = ""
    confidence: float | None = None
    evidence: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A memory with where it is from. What its kind has not is null or empty."""

    ref: str
    text: str
    domain: str
    """As recall has it: of a pattern its category, of a concept or an item its type."""
    author: str
    """Who wrote it, of a pattern and a concept as it reads now."""
    recorded_at: datetime
    name: str = ""
    """Of a pattern or a concept."""
    aliases: list[str] = field(default_factory=list)
    confidence: float | None = None
    evidence: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    occurred_at: datetime | None = None
    revised_at: datetime | None = None
    revision: int | None = None
    """Of a pattern, from 1 on."""
    speaker: str = ""
    conversation_id: str = ""
    subject_id: str | None = None
    """Whom it is about: of an item, and of what was said in a conversation with somebody."""
    slot: str | None = None
    source: str = ""
    stated: bool = False
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    superseded_at: datetime | None = None
    superseded_by: str | None = None
    earlier: list[Earlier]
    """The latest first."""
    following: int | None
    """After which position there may be more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """By whom and when, and for which of the earlier."""

    viewer: Caller
    now: datetime
    before: int
    limit: int


def memory_of(ref: str, *, viewer: Caller, now: datetime, before: int | None = None, limit: int = 50) -> Memory:
    """The memory of this reference, which may have been superseded, with so many of the earlier.

    What is about a subject is shown as far, and with dates, as the subject has settled it.

    :param ref: `observation:12`, `pattern:4`, `item:7`, or a concept by name or alias, `concept:python`.
    :param before: only the earlier ones that follow this position.
    :raises MalformedMemoryReference: if it is none.
    :raises UnknownMemory: if the tenant has no such memory, it was forgotten or has had its days, or it is about a subject that
        the viewer may not know.
    """
    named = cited_in(ref)
    if named is None:
        raise MalformedMemoryReference(f"{ref[:60]!r} is no reference to a memory.")
    kind, key = named
    asked = _Asked(viewer=viewer, now=now, before=_NEWEST if before is None else before, limit=limit)
    found = _OF_KIND[kind](key, asked)
    if found is None:
        raise UnknownMemory(f"There is no {ref[:60]!r}.")
    return found


def _observation(number: str, asked: _Asked) -> Memory | None:
    known = observations_known_to(asked.viewer).select_related("author", "session__subject")
    row = known.filter(pk=int(number)).first()
    if row is None or not _shown(row, asked):
        return None
    subject = _about(row)
    dated = dates_of(subject)
    older = list(known.filter(superseded_by=row, pk__lt=asked.before).order_by("-pk")[: asked.limit])
    newer = None if row.superseded_by_id is None else known.filter(pk=row.superseded_by_id).first()
    # What stands in its place may be forgotten, and its conversation may have come to be with somebody since.
    newer = newer if newer is not None and _shown(newer, asked) else None
    ended = first_moment if newer is None else dates_of(_about(newer))
    return Memory(
        ref=row.ref,
        text=row.text,
        domain=row.domain,
        author=row.author.name,
        recorded_at=dated(row.recorded_at),
        confidence=row.confidence,
        evidence=row.evidence,
        metadata=row.metadata,
        occurred_at=dated(row.occurred_at),
        speaker=row.speaker,
        conversation_id="" if row.session is None else row.session.conversation_id,
        subject_id=None if subject is None else subject.key,
        superseded_at=row.superseded_at and dated(ended(row.superseded_at)),
        superseded_by=None if newer is None else newer.ref,
        earlier=[
            Earlier(
                ref=one.ref,
                text=one.text,
                domain=one.domain,
                author=one.author.name,
                recorded_at=dates_of(_about(one))(one.recorded_at),
                confidence=one.confidence,
                evidence=one.evidence,
                metadata=one.metadata,
            )
            for one in older
            if _shown(one, asked)
        ],
        following=_following(older, asked),
    )


def _about(observation: Observation) -> Subject | None:
    return None if observation.session is None else observation.session.subject


def _shown(observation: Observation, asked: _Asked) -> bool:
    said_at = min(observation.occurred_at, observation.recorded_at)
    return is_shown(_about(observation), said_at, now=asked.now)


def _pattern(number: str, asked: _Asked) -> Memory | None:
    row = Pattern.objects.select_related("author").filter(pk=int(number)).first()
    if row is None:
        return None
    # The newest revision is the pattern itself, and one without a text is forgotten.
    before = min(asked.before, row.revision)
    revisions = PatternRevision.objects.filter(tenant_id=row.tenant_id, pattern=row, number__lt=before).exclude(text="")
    older = list(revisions.select_related("author").order_by("-number")[: asked.limit])
    return Memory(
        ref=row.ref,
        text=row.text,
        domain=row.category,
        author=row.author.name,
        recorded_at=row.recorded_at,
        name=row.name,
        confidence=row.confidence,
        evidence=row.evidence,
        revised_at=row.revised_at,
        revision=row.revision,
        earlier=[
            Earlier(
                text=one.text,
                domain=row.category,
                author=one.author.name,
                recorded_at=one.recorded_at,
                revision=one.number,
                confidence=one.confidence,
                evidence=one.evidence,
            )
            for one in older
        ],
        following=older[-1].number if len(older) == asked.limit else None,
    )


def _concept(key: str, asked: _Asked) -> Memory | None:
    row = Concept.objects.select_related("author").filter(names__key=key).first()
    if row is None:
        return None
    # A concept's revisions are written under its lock: the later ones have the greater keys.
    revisions = ConceptRevision.objects.filter(concept=row, is_forgotten=False, pk__lt=asked.before)
    older = list(revisions.select_related("author").order_by("-superseded_at", "-pk")[: asked.limit])
    return Memory(
        ref=row.ref,
        text=row.description,
        domain=row.type,
        author=row.author.name,
        recorded_at=row.recorded_at,
        name=row.name,
        aliases=row.aliases,
        metadata=row.metadata,
        revised_at=row.revised_at,
        earlier=[
            Earlier(
                text=one.description,
                domain=one.type,
                author=one.author.name,
                recorded_at=one.recorded_at,
                aliases=one.aliases,
                metadata=one.metadata,
            )
            for one in older
        ],
        following=_following(older, asked),
    )


def _item(number: str, asked: _Asked) -> Memory | None:
    known = Item.objects.filter(subject__in=known_to(asked.viewer)).select_related("author", "subject")
    row = known.filter(pk=int(number)).first()
    if row is None or not is_shown(row.subject, row.said_at, now=asked.now):
        return None
    dated = dates_of(row.subject)
    older = list(known.filter(superseded_by=row, pk__lt=asked.before).order_by("-pk")[: asked.limit])
    return Memory(
        ref=row.ref,
        text=row.text,
        domain=row.type,
        author=row.author.name,
        recorded_at=dated(row.recorded_at),
        confidence=row.confidence,
        evidence=row.evidence,
        occurred_at=dated(row.said_at),
        subject_id=row.subject.key,
        slot=row.slot,
        source=row.source,
        stated=row.stated,
        valid_from=dated(row.valid_from),
        valid_to=row.valid_to and dated(row.valid_to),
        superseded_at=row.superseded_at and dated(row.superseded_at),
        superseded_by=None if row.superseded_by_id is None else item_ref(row.superseded_by_id),
        earlier=[
            Earlier(
                ref=one.ref,
                text=one.text,
                domain=one.type,
                author=one.author.name,
                recorded_at=dated(one.recorded_at),
                confidence=one.confidence,
                evidence=one.evidence,
            )
            for one in older
            if is_shown(one.subject, one.said_at, now=asked.now)
        ],
        following=_following(older, asked),
    )


def _following(older: Sequence[Observation | ConceptRevision | Item], asked: _Asked) -> int | None:
    """The key of the last of a full page."""
    return older[-1].pk if len(older) == asked.limit else None


_OF_KIND: Final[Mapping[str, Callable[[str, _Asked], Memory | None]]] = {
    "observation": _observation,
    "pattern": _pattern,
    "concept": _concept,
    "item": _item,
}
