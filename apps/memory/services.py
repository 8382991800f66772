"""Commands that write to memory. Every row says which principal wrote it."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import DateTimeField, ExpressionWrapper, F, Min, Q, Value
from django.db.models.functions import Greatest, Least

from apps.core import erasure
from apps.core.errors import Conflict, Forbidden, Invalid
from apps.core.ids import random_id
from apps.core.sealing import keyed_digest
from apps.core.sql import database_now, violated_constraint
from apps.digests import selectors as digests
from apps.digests import services as inboxes
from apps.memory import envelopes, search, selectors, sql
from apps.memory.envelopes import Envelope
from apps.memory.models import (
    MOST_MESSAGES,
    ConceptName,
    EnvelopeLoaded,
    Memory,
    MemoryPolicy,
    PromotionPolicy,
    Relationship,
    Revision,
    SearchTotals,
    Session,
    Subject,
    SubjectQuerySet,
    TermFrequency,
)
from apps.memory.references import LONGEST_KEY, AliasTaken, UnusableName, cited_in, key_of
from apps.memory.shapes import (
    Conversation,
    ForgottenOutput,
    InboxItem,
    MemoryPolicyOutput,
    PromotionOutput,
    RememberFact,
    Start,
    number_of,
)
from apps.memory.states import ItemType, Kind
from apps.memory.texts import same_text
from apps.principals import selectors as principals
from apps.principals.scopes import Kind as PrincipalKind
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller, acting_as_system
from apps.receipts import selectors as receipts
from apps.receipts.models import Surface
from apps.receipts.services import Poster, ReceiptDraft

_DAY: Final = timedelta(days=1)

# Observations, patterns, concepts.


def cited(author: Caller, given: Sequence[str]) -> list[str]:
    """These references as they are stored, each once.

    :raises Malformed: `malformed_memory_reference`, if one has the form of a reference to a memory, and no number.
    :raises NotFound: `unknown_memory`, if there is no such memory, or the author may not read its subject.
    """
    named = [(text, cited_in(text)) for text in given]
    wanted = [memory for _, memory in named if memory is not None]
    found = selectors.memories_cited(author, wanted)
    for memory in wanted:
        if memory not in found:
            raise selectors.unknown_memory(":".join(memory))
    return list(dict.fromkeys(text if memory is None else ":".join(memory) for text, memory in named))


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
    conversation_id: str | None = None,
    speaker: str = "",
) -> Memory:
    """Store one observation.

    :param conversation_id: the author's session that it is the next message of; a new one begins if there is none.
        A message of a session with a subject is about the subject.
    :param speaker: who said it.
    :param supersedes: the reference of an older observation that this one supersedes.
    :raises Malformed: `malformed_memory_reference`, if a reference has the wrong form.
    :raises NotFound: `unknown_memory`, if the older observation or some evidence does not exist, or the author may not read
        its subject.
    :raises Conflict: `about_another`, if the older one is about another subject; `already_superseded`; `conversation_full`.
    :raises Forbidden: `memory_disabled`, if memory is disabled for the session's subject.
    """
    refs = cited(author, evidence)
    session = None
    if conversation_id is not None:
        session = _next_message(author, conversation_id, at=min(occurred_at or now, now), now=now)
    observation = Memory(
        **({} if session is None else {"place": session.place_of(session.message_count - 1)}),
        tenant_id=author.tenant_id,
        author_id=author.principal_id,
        kind=Kind.OBSERVATION,
        session=session,
        subject=None if session is None else session.subject,
        speaker=speaker,
        text=text,
        domain=domain,
        confidence=confidence,
        evidence=refs,
        metadata=dict(metadata or {}),
        occurred_at=occurred_at or now,
        recorded_at=now,
    )
    observation.save(force_insert=True)
    if supersedes is not None:
        older = selectors.observation_of(supersedes, viewer=author)
        if older.subject_id != observation.subject_id:
            raise Conflict(f"{older} is not about the same subject as what supersedes it.", code="about_another")
        rows = Memory.objects.filter(pk=older.pk, superseded_at=None)
        # If this writer's clock is behind, it is superseded at the moment when it was recorded.
        if not rows.update(superseded_at=Greatest("recorded_at", Value(now)), superseded_by=observation):
            raise _already_superseded(older)
        search.supersede([older.pk])
    month = "" if occurred_at is None else f" {occurred_at:%B %Y}"
    search.index(observation, text, context=speaker + month, replaces=supersedes is not None)
    return observation


def _already_superseded(older: Memory) -> Conflict:
    return Conflict(f"{older} has been superseded already.", code="already_superseded")


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
) -> Memory:
    """Store a pattern, or revise it; every revision is kept.

    No revision is older than the one before it, even if this writer's clock is behind.

    :raises NotFound: `unknown_memory`, if one of these observations does not exist, or the author may not read its subject.
    """
    evidence = cited(author, [f"observation:{number}" for number in evidence_observation_ids])
    reading: dict[str, Any] = {
        "text": pattern_text,
        "confidence": confidence,
        "evidence": evidence,
        "author_id": author.principal_id,
    }
    pattern, is_new = Memory.objects.select_for_update().get_or_create(
        tenant_id=author.tenant_id,
        kind=Kind.PATTERN,
        domain=category,
        name=pattern_name,
        defaults={**reading, "revision": 1, "recorded_at": now, "revised_at": now},
    )
    if not is_new:
        _keep_reading(pattern, until=max(now, pattern.revised_at or now))
        pattern.revision = (pattern.revision or 0) + 1
        for name, value in reading.items():
            setattr(pattern, name, value)
        pattern.save(update_fields=[*reading, "revision", "revised_at"])
    search.index(pattern, f"{category} {pattern_name} {pattern_text}", is_new=is_new)
    return pattern


def _keep_reading(memory: Memory, *, until: datetime) -> None:
    """Store how a memory read until this moment; from then on it reads differently."""
    Revision.objects.create(
        tenant_id=memory.tenant_id,
        author_id=memory.author_id,
        memory=memory,
        number=memory.revision,
        domain=memory.domain,
        text=memory.text,
        aliases=memory.aliases,
        confidence=memory.confidence,
        evidence=memory.evidence,
        metadata=memory.metadata,
        recorded_at=memory.revised_at or memory.recorded_at,
        superseded_at=until,
    )
    memory.revised_at = until


MOST_ALIASES: Final = 200


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
) -> Memory:
    """Describe a new or known concept; what is not given stays as it was, aliases are added.

    :raises AliasTaken: if one of the names stands for another concept.
    :raises Conflict: `too_many_aliases`, if it would have more than :data:`MOST_ALIASES`.
    :raises UnusableName: if one of them can't be a name.
    """
    (concept,) = _named_concepts(author=author, names=[name], aliases=aliases, now=now)
    aliases = [alias for alias in dict.fromkeys([*concept.aliases, *aliases]) if key_of(alias) != concept.key]
    if len(aliases) > max(MOST_ALIASES, len(concept.aliases)):
        raise Conflict(f"{name[:60]!r} would have more than {MOST_ALIASES} aliases.", code="too_many_aliases")
    if _claim(concept, {concept.key or "", *map(key_of, aliases)}):
        raise AliasTaken(f"A name or alias of {name[:60]!r} stands for another concept.")
    reading: dict[str, Any] = {
        "aliases": aliases,
        "domain": concept.domain if concept_type is None else concept_type,
        "text": concept.text if description is None else description,
        "metadata": concept.metadata if metadata is None else dict(metadata),
    }
    if all(getattr(concept, column) == value for column, value in reading.items()):
        return concept
    # A description of the same moment, or of a later one by another clock, is replaced without an earlier reading.
    if concept.revised_at is None or concept.revised_at < now:
        _keep_reading(concept, until=now)
    concept.author_id = author.principal_id
    for column, value in reading.items():
        setattr(concept, column, value)
    concept.save(update_fields=[*reading, "author", "revised_at"])
    _index_concept(concept, is_new=False)
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
    """Relate two concepts, by name or alias. If the relation exists, its description is revised.

    A concept that is named for the first time is created, to be described later.

    :raises UnusableName: if one of the names can't be one.
    """
    source, target = _named_concepts(author=author, names=[from_concept, to_concept], now=now)
    relationship, _ = Relationship.objects.update_or_create(
        tenant_id=author.tenant_id,
        source=source,
        target=target,
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
def retract_relationships(
    *,
    author: Caller,
    rel_type: str,
    but: Collection[Relationship],
    from_concept: str | None = None,
    to_concept: str | None = None,
) -> int:
    """Delete the relations of a type that the author has stored from or to a concept; returns how many.

    :param but: relations to keep.
    """
    rows = Relationship.objects.filter(author_id=author.principal_id, type=rel_type)
    if from_concept is not None:
        rows = rows.filter(source__names__key=key_of(from_concept))
    if to_concept is not None:
        rows = rows.filter(target__names__key=key_of(to_concept))
    deleted, _ = rows.exclude(pk__in=[relationship.pk for relationship in but]).delete()
    return deleted


class _Overtaken(Exception):
    """Another transaction has changed what this one was about to lock."""


def _named_concepts(
    *, author: Caller, names: Sequence[str], now: datetime, aliases: Sequence[str] = ()
) -> list[Memory]:
    """The concepts of these names or aliases, locked; created where there is none.

    Known concepts are locked in the order of their ids, then new names are claimed in the order of their keys, so that no
    two writers wait for each other. A writer that was overtaken releases its locks before it looks again.

    :param aliases: what a new concept is going to claim too.
    :raises UnusableName: if the normalized form of a name is empty or too long.
    """
    for name in [*names, *aliases]:
        if not 0 < len(key_of(name)) <= LONGEST_KEY:
            raise UnusableName(f"{name[:60]!r} can't be the name of a concept.")
    while True:
        with suppress(_Overtaken), transaction.atomic():
            return _lock_or_create(author=author, names=names, aliases=aliases, now=now)


def _lock_or_create(*, author: Caller, names: Sequence[str], aliases: Sequence[str], now: datetime) -> list[Memory]:
    name_of = {key_of(name): name for name in reversed(names)}
    ids = selectors.concepts_named(name_of)
    known = Memory.objects.filter(pk__in=set(ids.values())).order_by("pk").select_for_update(no_key=True)
    locked = {concept.pk: concept for concept in known}
    if set(ids.values()) - locked.keys():
        raise _Overtaken
    concepts = {key: locked[pk] for key, pk in ids.items()}
    for key in sorted(name_of.keys() - concepts.keys()):
        concept = Memory.objects.create(
            tenant_id=author.tenant_id,
            author_id=author.principal_id,
            kind=Kind.CONCEPT,
            key=key,
            name=name_of[key],
            recorded_at=now,
            revised_at=now,
        )
        if key in _claim(concept, {key, *map(key_of, aliases)}):
            raise _Overtaken
        _index_concept(concept, is_new=True)
        concepts[key] = concept
    return [concepts[key_of(name)] for name in names]


def _claim(concept: Memory, keys: Collection[str]) -> set[str]:
    """Make these keys name the concept; returns those that name another.

    They are claimed in their order. This waits for a rival that has claimed one and not yet committed.
    """
    ConceptName.objects.bulk_create(
        [ConceptName(tenant_id=concept.tenant_id, key=key, concept=concept) for key in sorted(keys)],
        ignore_conflicts=True,
    )
    return {key for key, pk in selectors.concepts_named(keys).items() if pk != concept.pk}


def _index_concept(concept: Memory, *, is_new: bool) -> None:
    text = " ".join([concept.name, *concept.aliases, concept.domain, concept.text])
    search.index(concept, text, is_new=is_new)


# Sessions.


@transaction.atomic
def record_session(
    *,
    principal: Caller,
    conversation_id: str,
    now: datetime,
    subject_id: str | None = None,
    platform: str | None = None,
    title: str | None = None,
    summary: str | None = None,
    topics: Sequence[str] | None = None,
    tone: str | None = None,
) -> Conversation:
    """Store a session, or revise it; what is not given stays as it was.

    With a subject it is the recent context of the subject's envelopes, and its messages are about the subject.
    If its subject is no longer shared with the principal, another session begins under its id.

    :raises NotFound: `unknown_subject`, if there is none, or it is not shared with the principal.
    :raises Forbidden: `memory_disabled`, if memory is disabled for the subject.
    """
    if subject_id is not None:
        # An unknown subject is refused before anything is locked.
        selectors.subject_of(subject_id, viewer=principal)
    session, subjects = _locked_session(principal, conversation_id, at=now, now=now, subject_id=subject_id)
    since = None
    if subject_id is not None:
        subject = _enabled(next((one for one in subjects if one.key == subject_id), None), subject_id)
        if session.subject_id != subject.pk:
            since, session.subject = session.started_at, subject
            if session.message_count:
                search.move(session)
    given = {"platform": platform, "title": title, "summary": summary, "topics": topics, "tone": tone}
    for name, value in given.items():
        if value is not None:
            setattr(session, name, list(value) if name == "topics" else value)
    session.last_active_at = max(session.last_active_at, now)
    session.save()
    for subject in subjects:
        revise(subject, now, since=since)
    return Conversation.model_validate(session).by_month(selectors.hides_dates(session.subject))


def _next_message(principal: Caller, conversation_id: str, *, at: datetime, now: datetime) -> Session:
    """The principal's session with one more message. Others who write to it wait until this transaction has committed."""
    session, subjects = _locked_session(principal, conversation_id, at=at, now=now)
    if session.message_count >= MOST_MESSAGES:
        raise Conflict(f"The conversation {conversation_id[:60]!r} is full; begin another.", code="conversation_full")
    session.message_count += 1
    session.started_at, session.last_active_at = min(session.started_at, at), max(session.last_active_at, at)
    session.save(update_fields=["message_count", "started_at", "last_active_at"])
    for subject in subjects:
        revise(subject, now, since=at)
    return session


def _locked_session(
    principal: Caller, conversation_id: str, *, at: datetime, now: datetime, subject_id: str | None = None
) -> tuple[Session, list[Subject]]:
    """The principal's session of this id, new if there is none, its subject, and the subject that it is to have, locked.

    A session is locked before its subject.

    :raises Forbidden: `memory_disabled`, if memory is disabled for its subject.
    """

    def locked() -> Session:
        session, _ = Session.objects.select_for_update(of=("self",)).get_or_create(
            tenant_id=principal.tenant_id,
            principal_id=principal.principal_id,
            conversation_id=conversation_id,
            defaults={"started_at": at, "last_active_at": at},
        )
        return session

    session = locked()
    if session.subject_id is None and subject_id is None:
        return session, []
    wanted = Q(pk=session.subject_id) | Q(key=subject_id)
    subjects = list(holding(selectors.known_to(principal).filter(wanted)))
    if session.subject_id is not None:
        subject = next((one for one in subjects if one.pk == session.subject_id), None)
        if subject is None:
            # It is over for this principal, as if its subject were forgotten.
            Session.objects.filter(pk=session.pk).update(conversation_id=random_id("over"))
            session = locked()
        else:
            session.subject = _enabled(subject, subject.key)
    return session, subjects


# The source under which sessions leave work to later ones.
HANDOFF: Final = "session_handoff"


@transaction.atomic(savepoint=False)
def bootstrap(*, principal_id: int, tenant_id: int, ai_name: str, now: datetime, items: int = 10) -> Start:
    """Gather what a principal needs to begin a session, and mark the inbox entries that it is shown as delivered."""
    inbox = digests.newest_entries(principal_id, limit=items)
    inboxes.mark_delivered(receipt_pks=[pk for entry in inbox.entries for pk in entry.receipt_pks], now=now)
    observations, patterns, concepts, services = sql.held(tenant_id=tenant_id)
    obligations = partial(receipts.obligations, limit=items)
    return Start(
        ai_name=ai_name,
        sessions=selectors.recent_sessions(principal_id=principal_id, now=now),
        observations_count=observations,
        patterns_count=patterns,
        concepts_count=concepts,
        inbox_unread_count=inbox.unread,
        inbox_pending_count=inbox.pending,
        inbox_items=[InboxItem.model_validate(entry) for entry in inbox.entries],
        inbox_more_waiting=inbox.more_waiting,
        owed_by_me=obligations(owed_by=principal_id).obligations,
        awaited=obligations(awaited_by=principal_id).obligations,
        handoffs_waiting=digests.unread_of_source(principal_id, HANDOFF),
        connected_services=services,
    )


# Subjects.

MOST_PREFERENCES: Final = 50
# The rules that only who added the subject may lift.
_RULES: Final = ("memory_enabled", "learn_patterns", "anonymize_dates", "delete_after_days")


Preferences = Mapping[str, str | None]
"""By their names; null removes one."""


@transaction.atomic
def add_subject(
    *, author: Caller, subject_id: str, given: Mapping[str, Any], preferences: Preferences, now: datetime
) -> Subject:
    """Add a subject, so that something may be remembered of it.

    :param given: values by column.
    :raises Conflict: `subject_exists`.
    :raises NotFound: `unknown_principal`, if it is to be shared with an unknown name.
    :raises Forbidden: `memory_disabled`, if its memory is disabled, and it has a name, preferences or the like.
    """
    subject = Subject(
        tenant_id=author.tenant_id,
        key=subject_id,
        added_by_id=author.principal_id,
        author_id=author.principal_id,
        created_at=now,
        revised_at=now,
    )
    principals.refuse_unknown(given.get("share_with") or (), tenant_id=author.tenant_id)
    _apply(subject, given, preferences)
    try:
        with transaction.atomic():
            subject.save(force_insert=True)
    except IntegrityError as exc:
        if violated_constraint(exc) != "memory_subject_key_once":
            raise
        raise Conflict(f"The subject {subject_id[:60]!r} exists already.", code="subject_exists") from exc
    return subject


@transaction.atomic
def update_subject(
    *, author: Caller, subject_id: str, given: Mapping[str, Any], preferences: Preferences, now: datetime
) -> Subject:
    """Change a subject's name, preferences and the like, or the rules for memories of it. What is left out stays.

    :param given: new values by column.
    :raises NotFound: `unknown_subject`, if there is none, or the author may not read it and has not added it;
        `unknown_principal`, if it is to be shared with a new name that is unknown.
    :raises Forbidden: `shared_by_another`, if sharing is to change; `settled_by_another`, if a rule is to be lifted; both
        unless the author added it or is an administrator. `memory_disabled`, if its memory is disabled then, and it gets
        a name, preferences or the like.
    :raises Conflict: `too_many_preferences`, if it would have more than :data:`MOST_PREFERENCES`.
    """
    subject = holding(selectors.changeable_by(author).filter(key=subject_id)).first()
    if subject is None:
        raise selectors.unknown(subject_id)
    may_lift = subject.added_by_id in {None, author.principal_id} or author.may(Scope.ADMIN)
    if given.get("share_with", subject.share_with) != subject.share_with:
        if not may_lift:
            raise Forbidden(
                f"Only who added {subject.key[:60]!r}, or an administrator, may change who may read it.",
                code="shared_by_another",
            )
        principals.refuse_unknown(given["share_with"] or (), tenant_id=author.tenant_id)
    if not may_lift and _lifts(subject, given):
        raise Forbidden(
            f"Only who added {subject.key[:60]!r}, or an administrator, may lift its rules or set when it deletes.",
            code="settled_by_another",
        )
    _apply(subject, given, preferences)
    subject.author_id = author.principal_id
    if "delete_after_days" in given:
        # The sweep computes the next moment.
        subject.expires_at = None if subject.delete_after_days is None else now
    subject.rev += 1
    subject.revised_at = now
    subject.save()
    return subject


def _lifts(subject: Subject, given: Mapping[str, Any]) -> bool:
    """Whether a rule is to forbid less than it does, or to delete at another time."""
    to_be = {name: given.get(name, getattr(subject, name)) for name in _RULES}
    return bool(
        to_be["memory_enabled"] > subject.memory_enabled
        or to_be["learn_patterns"] > subject.learn_patterns
        or to_be["anonymize_dates"] < subject.anonymize_dates
        or to_be["delete_after_days"] != subject.delete_after_days
    )


def _apply(subject: Subject, given: Mapping[str, Any], preferences: Preferences) -> None:
    for name, value in given.items():
        setattr(subject, name, value)
    if preferences:
        merged = {**subject.preferences, **preferences}
        chosen = {key: value for key, value in merged.items() if value is not None}
        if len(chosen) > max(MOST_PREFERENCES, len(subject.preferences)):
            raise Conflict(
                f"{subject.key[:60]!r} would have more than {MOST_PREFERENCES} preferences.",
                code="too_many_preferences",
            )
        subject.preferences = chosen
    said = [given.get(name) for name in ("display_name", "learning_level", "domains")]
    if not subject.memory_enabled and any([*said, *preferences.values()]):
        raise _disabled(subject.key)


def _disabled(subject_id: str) -> Forbidden:
    return Forbidden(f"Memory is disabled for {subject_id[:60]!r}.", code="memory_disabled")


@transaction.atomic
def set_memory_policy(
    *,
    author: Caller,
    now: datetime,
    fact_days: int | None = None,
    pattern_days: int | None = None,
    narrative_days: int | None = None,
    share_with: Sequence[str] | None = None,
    share_with_everybody: bool = False,
) -> MemoryPolicyOutput:
    """Set how long items stay in envelopes, and who may read subjects that have no list of their own.

    What is left out stays as it was.

    :raises NotFound: `unknown_principal`, if they are to be shared with a new name that is unknown.
    """
    defaults = {**MemoryPolicyOutput().model_dump(), "revised_at": now}
    MemoryPolicy.objects.bulk_create([MemoryPolicy(tenant_id=author.tenant_id, **defaults)], ignore_conflicts=True)
    policy = MemoryPolicy.objects.select_for_update(no_key=True).get(tenant_id=author.tenant_id)
    days = {"fact_days": fact_days, "pattern_days": pattern_days, "narrative_days": narrative_days}
    for name, value in days.items():
        if value is not None:
            setattr(policy, name, value)
    if share_with is not None or share_with_everybody:
        principals.refuse_unknown(share_with or (), tenant_id=author.tenant_id)
        policy.share_with = None if share_with is None else list(share_with)
    policy.author_id = author.principal_id
    policy.revised_at = now
    policy.save()
    return MemoryPolicyOutput.model_validate(policy)


def holding(subjects: SubjectQuerySet) -> SubjectQuerySet:
    """These subjects, locked once they are read, in the order in which every writer locks them."""
    return subjects.order_by("pk").select_for_update(no_key=True, of=("self",))


def _enabled(subject: Subject | None, subject_id: str) -> Subject:
    """The subject that was found under this id, if something may be remembered of it.

    :raises NotFound: `unknown_subject`.
    :raises Forbidden: `memory_disabled`.
    """
    if subject is None:
        raise selectors.unknown(subject_id)
    if not subject.memory_enabled:
        raise _disabled(subject_id)
    return subject


def revise(subject: Subject, now: datetime, *, since: datetime | None = None) -> None:
    """Raise the revision of a subject that the caller has locked, since its envelope may change.

    :param since: when the oldest of what is stored now was said, if earlier than now.
    """
    expires_at = Least(
        "expires_at",
        ExpressionWrapper(
            Value(since or now, DateTimeField()) + F("delete_after_days") * Value(_DAY), output_field=DateTimeField()
        ),
    )
    Subject.objects.filter(pk=subject.pk).update(rev=F("rev") + 1, revised_at=now, expires_at=expires_at)


_AUDIT: Final = "memory.envelope"


def get_memory_envelope(*, viewer: Caller, subject_id: str, now: datetime) -> Envelope:
    """What is known of a subject at this moment, with an audit record. Runs within its caller's transaction.

    :raises NotFound: `unknown_subject`, if there is none, or it is not shared with the viewer.
    """
    known = sql.known(tenant_id=viewer.tenant_id, subject_id=subject_id, viewer=viewer.name, now=now)
    if known is None:
        raise selectors.unknown(subject_id)
    envelope = envelopes.assemble(known, tenant_slug=viewer.tenant_slug, now=now)
    content = envelope.model_dump_json(exclude={"metadata"})
    digest = keyed_digest(_AUDIT, hashlib.sha256(content.encode()).digest())
    if not sql.note_load(
        subject_pk=known.subject_pk, viewer_id=viewer.principal_id, rev=known.rev, digest=digest, now=now
    ):
        raise selectors.unknown(subject_id)
    return envelope


# Items of a subject.

# The most confidence that repetition gives.
_SUREST: Final = 0.99
_END: Final = datetime.max.replace(tzinfo=UTC)
# References to what memory itself says of the subject. They are no evidence for it.
_OF_MEMORY: Final = ("envelope:", "item:")


class Outcome(StrEnum):
    """What became of a draft."""

    STORED = "stored"
    MERGED = "merged"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """An item as it is stored now, and the items that it supersedes."""

    item: Memory
    outcome: Outcome
    replaced: list[int]


class _Period(NamedTuple):
    """From a moment up to another; an open end is the end of the calendar."""

    begin: datetime
    end: datetime

    def meets(self, other: "_Period") -> bool:
        return self.begin < other.end and other.begin < self.end

    def covers(self, other: "_Period") -> bool:
        return self.begin <= other.begin and other.end <= self.end

    @classmethod
    def of(cls, item: Memory) -> "_Period":
        return cls(item.valid_from or item.recorded_at, item.valid_to or _END)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """Items with the same text, the period that the draft is true for together with them, and the evidence that counts."""

    digest: bytes
    same: list[Memory]
    period: _Period
    own: frozenset[str]


@transaction.atomic
def remember(*, author: Caller, draft: RememberFact, now: datetime) -> Remembered:
    """Remember something of a subject.

    The same text at the same time is one item, unless the slots differ: evidence is merged, and new evidence raises the
    confidence. Without a slot, the text joins the item of this text that was said last. Another answer in the same slot
    is superseded for the time of the new one, and stays true for the rest of its own time.

    :raises NotFound: `unknown_subject`, if there is none, or it is not shared with the author; `unknown_memory`, if the item to
        supersede or some evidence does not exist for the author.
    :raises Forbidden: `memory_disabled`; `patterns_not_learned`, if it is a pattern and the subject wants none learned.
    :raises Conflict: `statement_stands`, if the subject itself has said otherwise; `already_superseded`.
    :raises Malformed: `malformed_memory_reference`, if some evidence has the wrong form.
    :raises Invalid: `impossible_period`, if it ends before it begins.
    :raises UnusableName: if its slot can't be a name.
    """
    if draft.slot is not None and not 0 < len(key_of(draft.slot)) <= LONGEST_KEY:
        raise UnusableName(f"{draft.slot[:60]!r} can't be the name of a slot.")
    subject = _enabled(holding(selectors.known_to(author).filter(key=draft.subject_id)).first(), draft.subject_id)
    draft = draft.model_copy(update={"evidence": cited(author, draft.evidence)})
    own = frozenset(ref for ref in draft.evidence if not ref.startswith(_OF_MEMORY))
    digest = same_text(draft.fact)
    if draft.type == ItemType.USER_PATTERN and not subject.learn_patterns:
        raise Forbidden(f"No patterns may be stored of {draft.subject_id[:60]!r}.", code="patterns_not_learned")
    current = Memory.objects.filter(subject=subject, kind=Kind.ITEM, superseded_at=None)
    said = current.filter(domain=draft.type, text_digest=digest)
    said = said.valid_between(draft.valid_from or now, draft.valid_to or _END).order_by("-occurred_at", "-pk")
    slot = draft.slot or next((item.slot for item in said if item.slot), None)
    same = [item for item in said if item.slot_key in (None, slot and key_of(slot))]
    match = _Match(digest=digest, same=same, own=own, period=_merged_period(draft, same, now))
    replaced = {item.pk: item for item in same}
    if slot:
        rivals = current.filter(slot_key=key_of(slot)).valid_between(match.period.begin, match.period.end)
        replaced |= {item.pk: item for item in rivals}
    if draft.supersedes is not None:
        older = selectors.item_of(subject, number_of(draft.supersedes))
        if older.superseded_at is not None:
            raise _already_superseded(older)
        replaced[older.pk] = older
    if not draft.stated:
        _yield_to_statements(replaced.values(), match)
    item = _new_item(author, subject, draft.model_copy(update={"slot": slot}), match, now)
    _supersede(item, replaced.values(), same, now)
    revise(subject, now)
    outcome = Outcome.MERGED if same else Outcome.SUPERSEDED if replaced else Outcome.STORED
    return Remembered(item=item, outcome=outcome, replaced=sorted(replaced))


def _merged_period(draft: RememberFact, same: Collection[Memory], now: datetime) -> _Period:
    """The draft's own bounds where it has some, else those of the items with the same text."""
    begin = draft.valid_from or min([now, *(_Period.of(item).begin for item in same)])
    end = draft.valid_to or max((_Period.of(item).end for item in same), default=_END)
    if end <= begin:
        raise Invalid("The period ends before it begins.", code="impossible_period")
    return _Period(begin, end)


def _yield_to_statements(replaced: Iterable[Memory], match: _Match) -> None:
    """Refuse to supersede a statement of the subject, unless by the same text and slot, for all of its time."""
    agreed = {item.pk for item in match.same if match.period.covers(_Period.of(item))}
    for item in replaced:
        if item.stated and item.pk not in agreed:
            raise Conflict(
                "The subject itself has said otherwise; only another statement of the subject replaces that.",
                code="statement_stands",
                existing=item.ref,
            )


def _new_item(author: Caller, subject: Subject, draft: RememberFact, match: _Match, now: datetime) -> Memory:
    """The item as it is to be stored. New evidence raises the confidence; repetition does not, whoever repeats it."""
    same = match.same
    known = list(dict.fromkeys(ref for item in same for ref in item.evidence))
    confidence = draft.confidence
    if same:
        before = max(item.confidence or 0.0 for item in same)
        if match.own.difference(known):
            confidence = min(_SUREST, 1 - (1 - before) * (1 - confidence))
        confidence = max(before, confidence)
    return Memory(
        tenant_id=author.tenant_id,
        kind=Kind.ITEM,
        subject=subject,
        author_id=author.principal_id,
        domain=draft.type,
        text=draft.fact,
        text_digest=match.digest,
        slot=draft.slot,
        slot_key=draft.slot and key_of(draft.slot),
        confidence=confidence,
        source=draft.source or next((item.source for item in same if item.source), ""),
        stated=draft.stated or any(item.stated for item in same),
        evidence=list(dict.fromkeys([*known, *draft.evidence])),
        valid_from=match.period.begin,
        valid_to=None if match.period.end == _END else match.period.end,
        occurred_at=now,
        recorded_at=now,
    )


# What an item has in common with the one that holds the rest of its time.
_KEPT: Final = (
    "tenant_id", "kind", "subject_id", "author_id", "domain", "text", "text_digest", "slot", "slot_key", "confidence",
    "source", "stated", "evidence", "occurred_at",
)  # fmt: skip


def _supersede(item: Memory, replaced: Collection[Memory], same: Collection[Memory], now: datetime) -> None:
    """Store the item, supersede others, and store again what these say of other times.

    If this writer's clock is behind, they are superseded at the moment when they were recorded.
    """
    taken = _Period.of(item)
    older_rows = Memory.objects.filter(pk__in=[older.pk for older in replaced])
    if replaced:
        # Before the item is stored: a slot has one item that is not superseded.
        older_rows.update(superseded_at=Greatest("recorded_at", Value(now)))
    rests: list[Memory] = []
    for older in replaced:
        whole = _Period.of(older)
        # An item that is superseded by its reference, and was true at another time, is wrong as a whole.
        if older in same or not taken.meets(whole):
            continue
        parts = [_Period(whole.begin, min(whole.end, taken.begin)), _Period(max(whole.begin, taken.end), whole.end)]
        rests += [
            Memory(
                **{name: getattr(older, name) for name in _KEPT},
                valid_from=part.begin,
                valid_to=None if part.end == _END else part.end,
                recorded_at=now,
            )
            for part in parts
            if part.begin < part.end
        ]
    for stored in [item, *rests]:
        stored.save(force_insert=True)
        search.index(stored, stored.text)
    if replaced:
        older_rows.update(superseded_by=item)
        search.supersede([older.pk for older in replaced])


# Promotion.

# The domain of what a DeleGate did. It is no knowledge, and needs no permission.
TRACE: Final = "delegation_trace"
# The longest question to memory, in characters.
_ASKED: Final = 2_000


class Verdict(StrEnum):
    """What became of something learned."""

    PROMOTED = "promoted"
    NO_POLICY = "no_policy"
    OTHER_DOMAIN = "other_domain"
    NOT_SURE_ENOUGH = "not_sure_enough"
    KNOWN_ALREADY = "known_already"


def permit_knowledge(*, author: Caller) -> None:
    """Refuse a DeleGate that writes knowledge by itself. What the product writes on its behalf is not checked here.

    :raises Forbidden: `promotion_needed`, if the author is one.
    """
    if author.kind == PrincipalKind.DELEGATE:
        raise Forbidden(
            f"A DeleGate writes observations of the domain {TRACE!r} and no knowledge; promote what you learned"
            " (memory_promote), or recommend it in your report.",
            code="promotion_needed",
        )


def permit_observation(*, author: Caller, domain: str, supersedes: str | None) -> None:
    """Refuse a DeleGate that stores by itself anything but a trace, or supersedes anything but a trace.

    :raises Forbidden: `promotion_needed`.
    :raises Malformed: `malformed_memory_reference`, if the reference of the older observation has the wrong form.
    :raises NotFound: `unknown_memory`, if there is no such observation.
    """
    if author.kind != PrincipalKind.DELEGATE:
        return
    older = None if supersedes is None else selectors.observation_of(supersedes, viewer=author)
    if domain != TRACE or (older is not None and older.domain != TRACE):
        permit_knowledge(author=author)


@transaction.atomic
def set_promotion_policy(
    *,
    author: Caller,
    delegate: str,
    domains: Sequence[str],
    confidence_threshold: float,
    requires_novel: bool,
    now: datetime,
) -> PromotionPolicy:
    """Set what a DeleGate may promote by itself; without domains, nothing.

    :raises NotFound: `unknown_principal`, if there is nobody of this name.
    :raises Invalid: `not_a_delegate`.
    """
    principal = principals.principal_named(delegate)
    if principal.kind != PrincipalKind.DELEGATE:
        raise Invalid(f"{principal.name} is no DeleGate.", code="not_a_delegate")
    policy, _ = PromotionPolicy.objects.update_or_create(
        tenant_id=author.tenant_id,
        delegate=principal,
        defaults={
            "domains": list(dict.fromkeys(domains)),
            "confidence_threshold": confidence_threshold,
            "requires_novel": requires_novel,
            "author_id": author.principal_id,
            "revised_at": now,
        },
    )
    return policy


@transaction.atomic
def promote(
    *, delegate: Caller, text: str, domain: str, confidence: float, now: datetime, evidence: Sequence[str] = ()
) -> PromotionOutput:
    """Store what a DeleGate learned as knowledge, if its policy allows that; else store nothing.

    Promotions of one DeleGate are judged one after the other, so that of two equal texts the second is not novel.
    """
    policy = PromotionPolicy.objects.filter(delegate_id=delegate.principal_id).select_for_update().first()
    if policy is None:
        return PromotionOutput(verdict=Verdict.NO_POLICY, reason="No policy lets this DeleGate promote anything.")
    if domain not in policy.domains:
        return PromotionOutput(
            verdict=Verdict.OTHER_DOMAIN, reason=f"Its policy does not name the domain {domain[:60]!r}."
        )
    if confidence < policy.confidence_threshold:
        return PromotionOutput(
            verdict=Verdict.NOT_SURE_ENOUGH, reason=f"Its policy asks for {policy.confidence_threshold:g} at least."
        )
    if policy.requires_novel and (known := _known(delegate, text)):
        return PromotionOutput(verdict=Verdict.KNOWN_ALREADY, reason=f"{known} has the same text.")
    observation = store_observation(
        author=delegate, text=text, domain=domain, confidence=confidence, evidence=evidence, now=now
    )
    return PromotionOutput(verdict=Verdict.PROMOTED, reason="Its policy allows it.", ref=observation.ref)


def _known(delegate: Caller, text: str) -> str | None:
    """The reference of a memory with the same text: exactly, or, among what recall finds, but for case and spacing."""
    if (said := selectors.saying(text)) is not None:
        return said
    refs = [hit.ref.partition(":") for hit in selectors.recall(text[:_ASKED], caller=delegate)]
    found = selectors.memories_cited(delegate, [(kind, key) for kind, _, key in refs])
    digest = same_text(text)
    return next((memory.ref for memory in found.values() if same_text(memory.text) == digest), None)


# Forgetting.

_AUDIT_KEPT: Final = timedelta(days=365)
_AT_ONCE: Final = 1_000
_PARTS: Final = 100
_SWEEP: Final = "memories that are due are deleted"


def forget(*, author: Caller, subject_id: str, now: datetime, item: int | None = None) -> ForgottenOutput:
    """Forget a subject, or one item of it, and leave a receipt. Opens its own transactions.

    Of a subject this removes its items, its sessions with their messages, and every row that names it by key. Of an item
    it removes the items of the same text, those that these superseded, and the messages of the subject's sessions that
    they cite. Observations and patterns whose whole evidence was removed go too; other rows lose the reference. Free
    text that mentions the subject stays (docs/security.md).

    :raises NotFound: `unknown_subject`, if there is none, or it is not shared with the author; `unknown_memory`, if the
        subject has no such item.
    """
    with author.acting():
        known = selectors.subject_of(subject_id, viewer=author)
        if item is not None:
            selectors.item_of(known, item)
    with acting_as_system("something is forgotten on request"):
        with erasure.redacting():
            sql.await_turn(author.tenant_id)
            subject = _locked_to_forget(author, subject_id)
            erased = _forget_subject(subject) if item is None else _forget_item(subject, item)
            remaining: dict[str, int] = {}
            if item is None:
                remaining = erasure.remaining(author.tenant_id, subject_id)
            else:
                revise(subject, now)
        proof = selectors.proof_of(subject_id, item=item)
        with author.acting():
            posted = inboxes.post(
                poster=Poster.of(author),
                draft=ReceiptDraft(
                    recipient_id=author.principal_id,
                    source_system="memory",
                    event_type="memory_forgotten",
                    dedupe_key=f"memory:memory_forgotten:{random_id('gone')}:v1",
                    title="Forgotten on request",
                    summary=f"{sum(erased.values())} rows were erased; {sum(remaining.values())} names remain.",
                    metadata={
                        "proof": proof.hex(),
                        "erased": erased,
                        "remaining": remaining,
                        "forgotten_at": now.isoformat(),
                    },
                    surface=Surface.LEDGER,
                ),
                now=now,
            )
    return ForgottenOutput(erased=erased, remaining=remaining, receipt_id=posted.receipt_id, proof=proof.hex())


def _locked_to_forget(author: Caller, subject_id: str) -> Subject:
    """The subject, locked after its sessions and those that name it, as every writer locks them.

    :raises NotFound: `unknown_subject`, if somebody else has forgotten it meanwhile.
    """
    while True:
        with suppress(_Overtaken), transaction.atomic():
            subject = selectors.subject_of(subject_id, viewer=author)
            named = partial(erasure.named, tenant_id=author.tenant_id, key=subject.key)
            sessions = Session.objects.filter(Q(subject=subject) | Q(pk__in=named("memory_session")))
            locked = list(sessions.order_by("pk").select_for_update(of=("self",), no_key=True))
            of_memories = Memory.objects.filter(pk__in=named("memory_memory"), subject__isnull=False).values("subject")
            subjects = Q(pk=subject.pk) | Q(pk__in=named("memory_subject")) | Q(pk__in=of_memories)
            list(holding(Subject.objects.filter(subjects)))
            if Session.objects.filter(subject=subject).exclude(pk__in=[one.pk for one in locked]).exists():
                raise _Overtaken
            return selectors.subject_of(subject_id, viewer=author)


def _forget_subject(subject: Subject) -> dict[str, int]:
    memories = list(Memory.objects.filter(subject=subject).values_list("kind", "pk"))
    sessions = Session.objects.filter(subject=subject).count()
    search.remove([pk for _, pk in memories])
    tenant_id, key = subject.tenant_id, subject.key
    for counts in (SearchTotals, TermFrequency):
        counts.objects.filter(tenant_id=tenant_id, scope=subject.pk).delete()
    subject.delete()
    by_name = erasure.erase(tenant_id, key)
    numbers = {pk for _, pk in memories} | by_name.get("memory_memory", set())
    numbers |= _forget_derived(tenant_id, memories)
    erased = {name: len(rows) for name, rows in by_name.items()}
    erased["memory_memory"] = len(numbers)
    erased["memory_session"] = erased.get("memory_session", 0) + sessions
    erased["memory_subject"] = erased.get("memory_subject", 0) + 1
    return {name: number for name, number in erased.items() if number}


def _forget_item(subject: Subject, number: int) -> dict[str, int]:
    items = Memory.objects.filter(pk__in=sql.lineage(subject_pk=subject.pk, item_pk=number))
    refs = {ref for evidence in items.values_list("evidence", flat=True) for ref in evidence}
    cited_numbers = {ref.removeprefix("observation:") for ref in refs if ref.startswith("observation:")}
    messages = Memory.objects.filter(pk__in=cited_numbers, kind=Kind.OBSERVATION, subject=subject)
    memories = [*items.values_list("kind", "pk"), *messages.values_list("kind", "pk")]
    search.remove([pk for _, pk in memories])
    return {"memory_memory": len({pk for _, pk in memories} | _forget_derived(subject.tenant_id, memories))}


def _forget_derived(tenant_id: int, memories: Iterable[tuple[str, int]]) -> set[int]:
    """Forget memories whose whole evidence was erased, in turn; returns their keys. Other rows lose the reference."""
    derived: set[int] = set()
    while refs := [f"{kind}:{pk}" for kind, pk in memories]:
        fresh = sql.resting_on(tenant_id, refs)
        memories = list(Memory.objects.filter(pk__in=fresh).values_list("kind", "pk"))
        search.remove(fresh)
        sql.drop_evidence(tenant_id, refs)
        derived |= set(fresh)
    return derived


def forget_memories(numbers: Iterable[int], /) -> None:
    """Delete memories, and raise the revisions of their subjects."""
    rows = Memory.objects.filter(pk__in=list(numbers))
    revise_subjects(rows.filter(subject__isnull=False).values_list("subject_id", flat=True))
    search.remove(list(rows.values_list("pk", flat=True)))


def forget_sessions(numbers: Iterable[int], /) -> None:
    """Delete sessions and their messages, and raise the revisions of their subjects."""
    rows = Session.objects.filter(pk__in=list(numbers))
    revise_subjects(rows.filter(subject__isnull=False).values_list("subject_id", flat=True))
    search.remove(list(Memory.objects.filter(session__in=rows).values_list("pk", flat=True)))
    rows.delete()


def revise_subjects(numbers: Iterable[int], /) -> None:
    """Raise the revisions of these subjects."""
    for subject in holding(Subject.objects.filter(pk__in=set(numbers))):
        revise(subject, subject.revised_at)


def forget_expired() -> int:
    """Delete memories that are due by their subjects' `delete_after_days`, and old audit records, a part at each call.

    Runs as the system. Returns the number of subjects that lost something, plus the number of records deleted.
    """
    with acting_as_system(_SWEEP):
        due = Subject.objects.filter(expires_at__lte=database_now()).order_by("expires_at")[:_AT_ONCE]
        subjects = list(due.values_list("pk", flat=True))
    swept = 0
    for subject in subjects:
        was_any = False
        while _forget_some_expired_of(subject):
            was_any = True
        swept += was_any
    for _ in range(_PARTS):
        with acting_as_system(_SWEEP):
            old = EnvelopeLoaded.objects.filter(loaded_at__lt=database_now() - _AUDIT_KEPT)
            part, _rows = EnvelopeLoaded.objects.filter(pk__in=old.values("pk")[:_AT_ONCE]).delete()
        swept += part
        if part < _AT_ONCE:
            break
    return swept


def _forget_some_expired_of(subject_pk: int) -> bool:
    """Delete some memories of a subject that are due, in one transaction; says whether there were any."""
    with acting_as_system(_SWEEP):
        now = database_now()
        days = Subject.objects.filter(pk=subject_pk).values_list("delete_after_days", flat=True).first()
        if days is None:
            return False
        due = now - days * _DAY
        # Sessions are locked before their subject. What another transaction holds is left for the next sweep.
        rows = Session.objects.filter(subject=subject_pk, last_active_at__lte=due).order_by("pk")
        sessions = [session.pk for session in rows.select_for_update(no_key=True, skip_locked=True)[:_AT_ONCE]]
        subject = holding(Subject.objects.filter(pk=subject_pk, delete_after_days=days)).first()
        if subject is None:
            return False
        said = Memory.objects.filter(subject=subject).annotate(said_at=Least("occurred_at", "recorded_at"))
        memories = list(said.filter(said_at__lte=due).order_by("said_at").values_list("pk", flat=True)[:_AT_ONCE])
        if sessions:
            forget_sessions(sessions)
        search.remove(memories)
        rest = [
            said.aggregate(oldest=Min("said_at"))["oldest"],
            Session.objects.filter(subject=subject).aggregate(oldest=Min("last_active_at"))["oldest"],
        ]
        oldest = min((moment for moment in rest if moment is not None), default=None)
        Subject.objects.filter(pk=subject_pk).update(
            expires_at=None if oldest is None else oldest + days * _DAY,
            rev=F("rev") + int(bool(sessions or memories)),
        )
        return bool(sessions or memories)
