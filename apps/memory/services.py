"""Commands that write to memory. Every row says which principal wrote it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.digests import selectors as digests
from apps.digests import services as inboxes
from apps.digests.selectors import InboxPage
from apps.memory import selectors, sql
from apps.memory.errors import AliasTaken, AlreadySuperseded, UnknownMemory
from apps.memory.models import (
    Concept,
    ConceptName,
    Observation,
    Passage,
    Pattern,
    PatternRevision,
    Relationship,
    Session,
)
from apps.memory.references import key_of, observation_ref
from apps.principals import selectors as principals
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts import selectors as receipts
from apps.receipts.selectors import Owed

# The source under which sessions leave work to later ones.
HANDOFF: Final = "session_handoff"


@transaction.atomic
def store_observation(
    *,
    author: Caller,
    text: str,
    now: datetime,
    domain: str = "",
    confidence: float = 0.8,
    evidence: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    occurred_at: datetime | None = None,
    supersedes: str | None = None,
) -> Observation:
    """Remember one statement, findable at once.

    :param supersedes: the reference of an older statement in whose place this one stands from now on.
    :raises UnknownMemory: if there is no such older statement.
    :raises AlreadySuperseded: if another statement stands in its place already.
    """
    observation = Observation.objects.create(
        tenant_id=author.tenant_id,
        author_id=author.principal_id,
        text=text,
        domain=domain,
        confidence=confidence,
        evidence=list(evidence),
        metadata=dict(metadata or {}),
        occurred_at=occurred_at or now,
        recorded_at=now,
    )
    if supersedes is not None:
        older = selectors.observation_of(supersedes)
        replaced = Observation.objects.filter(pk=older.pk, superseded_at=None).update(
            superseded_at=now, superseded_by=observation
        )
        if not replaced:
            raise AlreadySuperseded(f"{older} has been superseded already.")
    passage = Passage.objects.create(
        tenant_id=author.tenant_id, observation=observation, domain=domain, recorded_at=now
    )
    sql.index_words(passage.pk, text, observations=1 if supersedes is None else 0, passages=1)
    return observation


@transaction.atomic
def store_concept(
    *,
    author: Caller,
    name: str,
    now: datetime,
    concept_type: str | None = None,
    description: str | None = None,
    aliases: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Concept:
    """Describe a concept, new or known; what is not given stays as it was, aliases are added.

    :raises AliasTaken: if one of the names stands for another concept.
    """
    (concept,) = _named_concepts(author=author, names=[name], aliases=aliases, now=now)
    aliases = [alias for alias in dict.fromkeys([*concept.aliases, *aliases]) if key_of(alias) != concept.key]
    if _claim(concept, {concept.key, *map(key_of, aliases)}):
        raise AliasTaken(f"A name or alias of {name[:60]!r} stands for another concept.")
    concept.aliases = aliases
    concept.type = concept.type if concept_type is None else concept_type
    concept.description = concept.description if description is None else description
    concept.metadata = concept.metadata if metadata is None else dict(metadata)
    concept.revised_at = now
    concept.author_id = author.principal_id
    concept.save()
    _index_concept(concept)
    return concept


@transaction.atomic
def add_relationship(
    *,
    author: Caller,
    from_concept: str,
    to_concept: str,
    rel_type: str,
    now: datetime,
    description: str | None = None,
) -> Relationship:
    """Relate two concepts, by name or alias; saying it again revises the description.

    A concept that is named here for the first time is created, to be described later.
    """
    ends = _named_concepts(author=author, names=[from_concept, to_concept], now=now)
    relationship, _ = Relationship.objects.update_or_create(
        tenant_id=author.tenant_id,
        source=ends[0],
        target=ends[1],
        type=rel_type,
        defaults={"revised_at": now} | ({} if description is None else {"description": description}),
        create_defaults={
            "author_id": author.principal_id,
            "description": description or "",
            "recorded_at": now,
            "revised_at": now,
        },
    )
    return relationship


@transaction.atomic
def update_pattern(
    *,
    author: Caller,
    category: str,
    pattern_name: str,
    pattern_text: str,
    confidence: float,
    now: datetime,
    evidence_observation_ids: Sequence[int] = (),
) -> Pattern:
    """Write down what was found to hold, or revise it; every revision is kept.

    :raises UnknownMemory: if the tenant has not all of these observations.
    """
    known = set(Observation.objects.filter(pk__in=evidence_observation_ids).values_list("pk", flat=True))
    if missing := [number for number in evidence_observation_ids if number not in known]:
        raise UnknownMemory(f"There is no {observation_ref(missing[0])!r}.")
    pattern, _ = Pattern.objects.get_or_create(
        tenant_id=author.tenant_id,
        category=category,
        name=pattern_name,
        defaults={
            "author_id": author.principal_id,
            "text": pattern_text,
            "confidence": confidence,
            "revision": 0,
            "recorded_at": now,
            "revised_at": now,
        },
    )
    pattern = Pattern.objects.select_for_update().get(pk=pattern.pk)
    pattern.author_id = author.principal_id
    pattern.text = pattern_text
    pattern.confidence = confidence
    pattern.evidence = [observation_ref(number) for number in evidence_observation_ids]
    pattern.revision += 1
    pattern.revised_at = now
    pattern.save()
    PatternRevision.objects.create(
        tenant_id=author.tenant_id,
        author_id=author.principal_id,
        pattern=pattern,
        number=pattern.revision,
        text=pattern_text,
        confidence=confidence,
        evidence=pattern.evidence,
        recorded_at=now,
    )
    passage, created = Passage.objects.get_or_create(
        tenant_id=author.tenant_id, pattern=pattern, defaults={"domain": category, "recorded_at": pattern.recorded_at}
    )
    sql.index_words(
        passage.pk, f"{category} {pattern_name} {pattern_text}", patterns=int(created), passages=int(created)
    )
    return pattern


@transaction.atomic
def record_session(
    *,
    principal: Caller,
    conversation_id: str,
    now: datetime,
    platform: str | None = None,
    title: str | None = None,
    summary: str | None = None,
    topics: Sequence[str] | None = None,
    tone: str | None = None,
) -> Session:
    """Note a conversation, or what has become of it; what is not given stays as it was."""
    given = {"platform": platform, "title": title, "summary": summary, "topics": topics, "tone": tone}
    said = {name: list(value) if name == "topics" else value for name, value in given.items() if value is not None}
    session, _ = Session.objects.update_or_create(
        tenant_id=principal.tenant_id,
        principal_id=principal.principal_id,
        conversation_id=conversation_id,
        defaults={**said, "last_active_at": now},
        create_defaults={**said, "started_at": now, "last_active_at": now},
    )
    return session


def fold_tallies() -> None:
    """Make one row of each tenant's tallies, so that a reader has few to sum. Sums stay what they are."""
    with acting_as_system("tallies are folded"):
        sql.fold_tallies()


@dataclass(frozen=True, slots=True, kw_only=True)
class Awakening:
    """What an agent finds when it starts."""

    sessions: list[selectors.Conversation]
    holdings: selectors.Holdings
    inbox: InboxPage
    owed_by_me: list[Owed]
    awaited: list[Owed]
    handoffs_waiting: int
    services: list[str]


@transaction.atomic
def bootstrap(*, principal_id: int, tenant_id: int, now: datetime, items: int = 10) -> Awakening:
    """Gather what a principal needs to begin, and stamp the inbox items it is shown as delivered.

    An agent's first bootstrap is like any other: nothing has to be there, and nothing else is written.
    """
    inbox = digests.newest_entries(principal_id, limit=items)
    inboxes.mark_delivered(receipt_pks=[pk for entry in inbox.entries for pk in entry.receipt_pks], now=now)
    handoffs = digests.read_inbox(principal_id, source_system=HANDOFF, limit=items)
    return Awakening(
        sessions=selectors.recent_sessions(principal_id=principal_id),
        holdings=selectors.holdings(tenant_id=tenant_id),
        inbox=inbox,
        owed_by_me=receipts.obligations(owed_by=principal_id, limit=items),
        awaited=receipts.obligations(awaited_by=principal_id, limit=items),
        handoffs_waiting=sum(entry.count for entry in handoffs.entries),
        services=principals.service_names(tenant_id=tenant_id),
    )


class _Overtaken(Exception):
    """A name that was free is another writer's concept by now."""


def _named_concepts(
    *, author: Caller, names: Sequence[str], now: datetime, aliases: Sequence[str] = ()
) -> list[Concept]:
    """The concepts of these names or aliases, locked; created bare where there is none.

    Known concepts are locked by id, then new names are claimed by key, so that no two writers wait for each other.
    A writer that is overtaken gives up all these locks before it looks again.

    :param aliases: what a new concept is going to claim besides, at its turn in the order of keys.
    """
    while True:
        try:
            with transaction.atomic():
                return _lock_or_create(author=author, names=names, aliases=aliases, now=now)
        except _Overtaken:
            continue


def _lock_or_create(*, author: Caller, names: Sequence[str], aliases: Sequence[str], now: datetime) -> list[Concept]:
    spelled = {key_of(name): name for name in reversed(names)}
    ids = selectors.concepts_named(spelled)
    known = Concept.objects.filter(pk__in=set(ids.values())).order_by("pk").select_for_update(no_key=True)
    locked = {concept.pk: concept for concept in known}
    concepts = {key: locked[pk] for key, pk in ids.items()}
    for key in sorted(spelled.keys() - concepts.keys()):
        concept = Concept.objects.create(
            tenant_id=author.tenant_id,
            author_id=author.principal_id,
            key=key,
            name=spelled[key],
            recorded_at=now,
            revised_at=now,
        )
        if key in _claim(concept, {key, *map(key_of, aliases)}):
            raise _Overtaken
        _index_concept(concept)
        concepts[key] = concept
    return [concepts[key_of(name)] for name in names]


def _claim(concept: Concept, keys: Collection[str]) -> set[str]:
    """Make these keys stand for the concept; the answer are those that stand for another.

    They are claimed in their order. A rival that has claimed one and not yet committed is waited for.
    """
    ConceptName.objects.bulk_create(
        [ConceptName(tenant_id=concept.tenant_id, key=key, concept=concept) for key in sorted(keys)],
        ignore_conflicts=True,
    )
    return {key for key, pk in selectors.concepts_named(keys).items() if pk != concept.pk}


def _index_concept(concept: Concept) -> None:
    passage, created = Passage.objects.get_or_create(
        tenant_id=concept.tenant_id,
        concept=concept,
        defaults={"domain": concept.type, "recorded_at": concept.recorded_at},
    )
    if passage.domain != concept.type:
        passage.domain = concept.type
        passage.save(update_fields=["domain"])
    words = " ".join([concept.name, *concept.aliases, concept.type, concept.description])
    sql.index_words(passage.pk, words, concepts=int(created), passages=int(created))
