"""Questions to memory. Memories of a subject are shown to those it is shared with, by its rules."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Least

from apps.core.errors import Malformed, NotFound
from apps.core.ids import encode_cursor
from apps.core.sealing import keyed_digest
from apps.core.sql import fetch
from apps.memory import search, sql, vectors
from apps.memory.envelopes import Constraints, assemble, first_moment, format_envelope_for_llm, last_moment
from apps.memory.models import (
    ConceptName,
    EnvelopeLoaded,
    Memory,
    MemoryPolicy,
    Relationship,
    Session,
    Subject,
    SubjectQuerySet,
)
from apps.memory.references import MALFORMED, cited_in, key_of, observation_number
from apps.memory.shapes import (
    Conversation,
    EarlierMemory,
    Export,
    ItemOutput,
    MemoryOutput,
    MemoryPolicyOutput,
    RecalledMemory,
    RelationshipOutput,
    SubjectOutput,
)
from apps.memory.states import Kind
from apps.memory.texts import read_question, tokens
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller

_FORGOTTEN: Final = "memory.forgotten"

# Subjects.


def policy(*, tenant_id: int) -> MemoryPolicyOutput:
    """A tenant's policy, or the default."""
    row = MemoryPolicy.objects.filter(tenant_id=tenant_id).first()
    return MemoryPolicyOutput() if row is None else MemoryPolicyOutput.model_validate(row)


def unknown(subject_id: str) -> NotFound:
    """The one answer for a subject that does not exist, and for one that the caller may not read."""
    return NotFound(f"Nothing is known of {subject_id[:60]!r}.", code="unknown_subject")


def unknown_memory(ref: str) -> NotFound:
    return NotFound(f"There is no {ref[:60]!r}.", code="unknown_memory")


def known_to(viewer: Caller) -> SubjectQuerySet:
    """The subjects that are shared with the viewer; an administrator reads all of the tenant."""
    rows = Subject.objects.filter(tenant_id=viewer.tenant_id)
    return rows if viewer.may(Scope.ADMIN) else rows.shared_with(viewer.name)


def changeable_by(viewer: Caller) -> SubjectQuerySet:
    """The subjects that the viewer may read or has added, so that who adds a subject can always share it again."""
    rows = Subject.objects.filter(tenant_id=viewer.tenant_id)
    if viewer.may(Scope.ADMIN):
        return rows
    return rows.shared_or_added_by(viewer.name, principal_id=viewer.principal_id)


def subject_of(subject_id: str, *, viewer: Caller) -> Subject:
    """:raises NotFound: `unknown_subject`, if there is none, or it is not shared with the viewer."""
    subject = known_to(viewer).filter(key=subject_id).first()
    if subject is None:
        raise unknown(subject_id)
    return subject


def subject_shown_to(viewer: Caller, subject_id: str) -> SubjectOutput:
    """:raises NotFound: `unknown_subject`, if there is none, or the viewer may not read it and has not added it."""
    subject = changeable_by(viewer).filter(key=subject_id).first()
    if subject is None:
        raise unknown(subject_id)
    return shown(subject)


def shown(subject: Subject) -> SubjectOutput:
    """A subject as its readers see it."""
    enabled = subject.memory_enabled
    return SubjectOutput.model_validate(
        {
            "key": subject.key,
            "display_name": subject.display_name or None,
            "learning_level": (enabled and subject.learning_level) or None,
            "domains": subject.domains if enabled else [],
            "preferences": subject.preferences if enabled else {},
            "constraints": Constraints.model_validate(subject),
            "rev": subject.rev,
            "created_at": subject.created_at,
            "revised_at": subject.revised_at,
        }
    ).by_month(subject.anonymize_dates)


def prompt_of(subject: Subject, *, now: datetime) -> str:
    """The subject's envelope for a prompt, as whoever changed the subject last gets it. Nothing is noted."""
    author = subject.author or subject.added_by
    known = author and sql.known(tenant_id=subject.tenant_id, subject_id=subject.key, viewer=author.name, now=now)
    return format_envelope_for_llm(assemble(known, tenant_slug=subject.tenant.slug, now=now)).text if known else ""


def hides_dates(subject: Subject | None) -> bool:
    return subject is not None and subject.anonymize_dates


def is_shown(memory: Memory, *, now: datetime) -> bool:
    """Whether the memory's subject lets it be shown at this moment."""
    subject = memory.subject
    if subject is None:
        return True
    days = subject.delete_after_days
    said_at = min(memory.occurred_at or memory.recorded_at, memory.recorded_at)
    return subject.memory_enabled and (days is None or said_at > now - timedelta(days=days))


def _kept(subject: Subject, column: str, now: datetime) -> Q:
    """The rows that are not due for deletion, by the column with the moment from which their days count."""
    days = subject.delete_after_days
    return Q() if days is None else Q(**{f"{column}__gt": now - timedelta(days=days)})


def proof_of(subject_id: str, *, item: int | None = None) -> bytes:
    """The keyed digest of a forgotten subject's id, or of that id and an item's number."""
    return keyed_digest(_FORGOTTEN, f"{subject_id}\0{item or ''}".encode())


# Memories.


def memories_known_to(viewer: Caller) -> QuerySet[Memory]:
    """The memories of the viewer's tenant, without those about a subject that is not shared with it."""
    known = known_to(viewer).filter(pk=OuterRef("subject_id"))
    return Memory.objects.filter(Q(subject=None) | Exists(known))


def observation_of(ref: str, *, viewer: Caller) -> Memory:
    """The observation of this reference.

    :raises Malformed: `malformed_memory_reference`, if it is none.
    :raises NotFound: `unknown_memory`, if there is none, or it is about a subject that the viewer may not read.
    """
    number = observation_number(ref)
    found = memories_known_to(viewer).filter(kind=Kind.OBSERVATION, pk=number).select_related("subject").first()
    if found is None:
        raise unknown_memory(ref)
    return found


def item_of(subject: Subject, number: int) -> Memory:
    """:raises NotFound: `unknown_memory`, if the subject has no item of this number."""
    item = Memory.objects.filter(subject=subject, kind=Kind.ITEM, pk=number).first()
    if item is None:
        raise NotFound(f"There is no item:{number} of this subject.", code="unknown_memory")
    return item


def memories_cited(viewer: Caller, refs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Memory]:
    """The memories that the viewer may read among these pairs of a kind and a number or key, in at most two statements."""
    numbers: dict[str, set[int]] = {}
    keys: set[str] = set()
    for kind, key in refs:
        if kind == Kind.CONCEPT:
            keys.add(key)
        else:
            numbers.setdefault(kind, set()).add(int(key))
    found: dict[tuple[str, str], Memory] = {}
    if numbers:
        wanted = Q()
        for kind, of_kind in numbers.items():
            wanted |= Q(kind=kind, pk__in=of_kind)
        found |= {(row.kind, str(row.pk)): row for row in memories_known_to(viewer).filter(wanted)}
    if keys:
        named = ConceptName.objects.filter(key__in=keys).select_related("concept")
        found |= {(Kind.CONCEPT.value, name.key): name.concept for name in named}
    return found


def memory_of(ref: str, *, viewer: Caller, now: datetime, before: int = 2**63 - 1, limit: int = 50) -> MemoryOutput:
    """The memory of this reference, superseded or not, with a page of the earlier ones.

    :param ref: `observation:12`, `pattern:4`, `item:7`, or a concept by name or alias, `concept:python`.
    :param before: only the earlier ones after this position.
    :raises Malformed: `malformed_memory_reference`, if it is none.
    :raises NotFound: `unknown_memory`, if there is none, it is due for deletion, or the viewer may not read its subject.
    """
    named = cited_in(ref)
    if named is None:
        raise Malformed(f"{ref[:60]!r} is no reference to a memory.", code=MALFORMED)
    kind, key = named
    known = memories_known_to(viewer).filter(kind=kind).select_related("author", "session", "subject")
    row = known.filter(**({"names__key": key} if kind == Kind.CONCEPT else {"pk": int(key)})).first()
    if row is None or not is_shown(row, now=now):
        raise unknown_memory(ref)
    found = MemoryOutput.model_validate(row).by_month(hides_dates(row.subject))
    if kind in {Kind.PATTERN, Kind.CONCEPT}:
        # Revisions of a memory are written under its lock: later ones have greater keys.
        revisions = list(row.revisions.select_related("author").filter(pk__lt=before).order_by("-pk")[:limit])
        earlier = [EarlierMemory.model_validate(one) for one in revisions]
        last = revisions[-1].pk if len(revisions) == limit else None
    else:
        older = list(known.filter(superseded_by=row, pk__lt=before).order_by("-pk")[:limit])
        shown_of_older = (one for one in older if is_shown(one, now=now))
        earlier = [EarlierMemory.model_validate(one).by_month(hides_dates(one.subject)) for one in shown_of_older]
        last = older[-1].pk if len(older) == limit else None
        newer = None if row.superseded_by_id is None else known.filter(pk=row.superseded_by_id).first()
        if newer is None or not is_shown(newer, now=now):
            found = found.model_copy(update={"superseded_by": None})
        if found.superseded_at is not None and (
            found.superseded_by is None or hides_dates(None if newer is None else newer.subject)
        ):
            # This is a date of the memory that superseded it.
            found = found.model_copy(update={"superseded_at": first_moment(found.superseded_at)})
    return found.model_copy(update={"earlier": earlier, "next": None if last is None else encode_cursor(last)})


def saying(text: str) -> str | None:
    """The reference of a memory of exactly this text, not superseded, of no subject and no session."""
    found = Memory.objects.filter(text=text, session=None, subject=None, superseded_at=None).exclude(text="").first()
    return None if found is None else found.ref


# What was said at this moment or before is due for deletion. Hours, because a calendar day may have 23.
_SINCE: Final = RawSQL("gatehouse_now() - make_interval(hours => 24 * delete_after_days)", ())


def recall(
    query: str = "",
    *,
    caller: Caller,
    domain: str | None = None,
    subject_id: str | None = None,
    filters: Mapping[str, Any] | None = None,
    as_of: datetime | None = None,
    limit: int = 10,
    max_tokens: int | None = None,
    meant: vectors.Meant | None = None,
) -> list[RecalledMemory]:
    """What the caller's tenant remembers about a question, best first; without a question, the newest.

    Memories about a subject are found by naming the subject only.

    :param subject_id: only memories about this subject.
    :param filters: paths into the metadata and the values that must stand there (`{"plan.id": "p-1"}`); a leading
        `metadata.` is understood.
    :param as_of: answer as of this moment; as of the end of its month, if the subject's dates are anonymized.
    :param limit: the most hits; never more than `search.MOST`.
    :param max_tokens: leave out hits whose texts would exceed this budget, as :func:`apps.memory.texts.tokens` counts.
    :param meant: the vector of the question.
    :raises NotFound: `unknown_subject`, if there is no such subject, or it is not shared with the caller.
    :raises Malformed: `clashing_filters`, if two filters are about the same place.
    """
    subject = None
    if subject_id is not None:
        known = known_to(caller).filter(key=subject_id)
        subject = known.values("pk", "memory_enabled", "anonymize_dates", since=_SINCE).first()
        if subject is None:
            raise unknown(subject_id)
        if not subject["memory_enabled"]:
            return []
    hidden = subject is not None and subject["anonymize_dates"]
    as_of = last_moment(as_of) if hidden and as_of is not None else as_of
    document = _nested(filters or {})
    narrowed = domain is not None or bool(document) or as_of is not None
    rows = search.find(
        read_question(query),
        tenant_id=caller.tenant_id,
        scope=0 if subject is None else subject["pk"],
        domain=domain,
        filters=document,
        as_of=as_of,
        since=None if subject is None else subject["since"],
        limit=min(limit, search.MOST),
        statement=None
        if meant is None
        else vectors.recall_statement(
            meant.embedder,
            meant.dimensions,
            narrowed=narrowed,
            of_domain=domain is not None,
            of_subject=subject is not None,
        ),
        meant=None if meant is None else meant.vector,
    )
    left = max_tokens
    hits: list[RecalledMemory] = []
    for row in rows:
        hit = _hit(row)
        if left is not None:
            cost = tokens(hit.text)
            if cost > left:
                continue
            left -= cost
        hits.append(hit.by_month(hidden))
    return hits


def _hit(row: Sequence[Any]) -> RecalledMemory:
    *columns, score, terms, context, is_among, has_phrase, is_alike = row
    reasons = []
    if terms:
        reasons.append(f"has {', '.join(sorted(terms.split(', ')))}")
    if has_phrase:
        reasons.append("has words together as the question does")
    if context:
        reasons.append(f"{', '.join(sorted(context.split(', ')))} is who said it, or when")
    if is_among:
        reasons.append("what was said around it is about this")
    if is_alike:
        reasons.append("means much the same, says the embedder")
    names = (
        "ref", "text", "domain", "confidence", "metadata", "author", "recorded_at", "occurred_at", "speaker",
        "conversation_id",
    )  # fmt: skip
    fields = dict(zip(names, columns, strict=True))
    fields["metadata"] = json.loads(fields["metadata"])
    return RecalledMemory(**fields, score=round(score, 4), why="; ".join(reasons) or "among the newest")


def _nested(filters: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as the document that must be contained: `{"a": {"b": 1}}`."""
    document: dict[str, Any] = {}
    placed = [(path.removeprefix("metadata.").split("."), path, value) for path, value in filters.items()]
    # Shorter paths first, since longer ones add to their documents.
    for (*parents, last), path, value in sorted(placed, key=lambda one: len(one[0])):
        place = document
        for name in parents:
            deeper = place.get(name, {})
            if not isinstance(deeper, dict):
                raise _clash(path)
            # The caller's document stays unchanged.
            place[name] = place = dict(deeper)
        if last in place:
            raise _clash(path)
        place[last] = value
    return document


def _clash(path: str) -> Malformed:
    return Malformed(f"The filter {path[:60]!r} is about the same place as another.", code="clashing_filters")


# Items of a subject.


def items(
    subject: Subject,
    *,
    now: datetime,
    known_at: datetime | None = None,
    true_at: datetime | None = None,
    type_: str | None = None,
    slot: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[ItemOutput]:
    """The items of a subject that may be shown, the newest first.

    Where dates are anonymized, `known_at` and `true_at` are taken as the end of their month.

    :param known_at: as one would have answered at this moment, else as of now.
    :param true_at: only what was true at this moment.
    :param before: only what was recorded before the item of this number.
    """
    if not subject.memory_enabled:
        return []
    if subject.anonymize_dates:
        known_at, true_at = known_at and last_moment(known_at), true_at and last_moment(true_at)
    rows = Memory.objects.filter(_kept(subject, "occurred_at", now), subject=subject, kind=Kind.ITEM)
    if known_at is None:
        rows = rows.filter(superseded_at=None)
    else:
        rows = rows.filter(Q(superseded_at=None) | Q(superseded_at__gt=known_at), recorded_at__lte=known_at)
    if true_at is not None:
        rows = rows.filter(Q(valid_to=None) | Q(valid_to__gt=true_at), valid_from__lte=true_at)
    narrowed = {"domain": type_, "slot_key": None if slot is None else key_of(slot), "pk__lt": before}
    rows = rows.filter(**{name: value for name, value in narrowed.items() if value is not None})
    return [ItemOutput.model_validate(one).by_month(subject.anonymize_dates) for one in rows.order_by("-pk")[:limit]]


# Concepts and their relations.


def concept_named(name: str) -> Memory | None:
    """The concept of this name or alias."""
    return Memory.objects.filter(names__key=key_of(name)).first()


def concepts_named(keys: Iterable[str]) -> dict[str, int]:
    """The concept that each of these keys names; keys of none are left out."""
    return dict(ConceptName.objects.filter(key__in=list(keys)).values_list("key", "concept_id"))


def concepts_of_type(concept_type: str) -> list[Memory]:
    """Every concept of a type that is about no subject, by name."""
    return list(Memory.objects.filter(kind=Kind.CONCEPT, domain=concept_type).order_by("key"))


def targets_of(rel_type: str) -> frozenset[int]:
    """The concepts that others stand to in a relation of this type."""
    return frozenset(Relationship.objects.filter(type=rel_type).values_list("target_id", flat=True))


def relationships(
    *,
    tenant_id: int,
    from_concept: str | None = None,
    to_concept: str | None = None,
    rel_type: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> tuple[list[RelationshipOutput], int | None]:
    """Relations of a tenant's concepts, the newest first, and the position after which there are more.

    They are shared with the whole tenant.

    :param before: only what was recorded before the relationship of this number.
    :raises NotFound: `unknown_memory`, if no concept has one of these names or aliases.
    """
    ends = {"source": from_concept, "target": to_concept}
    given = {column: name for column, name in ends.items() if name is not None}
    known = concepts_named(map(key_of, given.values())) if given else {}
    rows = Relationship.objects.filter(tenant_id=tenant_id)
    for column, name in given.items():
        if key_of(name) not in known:
            raise NotFound(f"There is no concept {name[:60]!r}.", code="unknown_memory")
        rows = rows.filter(**{column: known[key_of(name)]})
    rows = rows if rel_type is None else rows.filter(type=rel_type)
    rows = rows if before is None else rows.filter(pk__lt=before)
    found = list(rows.select_related("source", "target", "author").order_by("-pk")[: limit + 1])
    page = [RelationshipOutput.model_validate(one) for one in found[:limit]]
    return page, found[limit - 1].pk if len(found) > limit else None


# Sessions, promotion, export.


def recent_sessions(*, principal_id: int, now: datetime, limit: int = 10) -> list[Conversation]:
    """A principal's latest sessions, newest first, without those of subjects that it may no longer read."""
    rows = fetch(sql.RECENT, {"principal": principal_id, "now": now, "limit": limit}, hot=True)
    names = ("conversation_id", "platform", "title", "summary", "topics", "tone", "last_active_at")
    return [Conversation.model_validate(dict(zip(names, row, strict=False))).by_month(row[-1]) for row in rows]


AT_ONCE: Final = 1_000


PARTS: Final = ("items", "sessions", "envelopes_loaded", "messages")
"""The lists of an export."""


def _exported_rows(part: str, subject: Subject, now: datetime) -> QuerySet[Any, Any]:
    memories = Memory.objects.filter(subject=subject)
    match part:
        case "items":
            return memories.filter(_kept(subject, "occurred_at", now), kind=Kind.ITEM).values(
                "id", "text", "slot", "confidence", "source", "stated", "evidence", "valid_from", "valid_to",
                "recorded_at", "superseded_at", "superseded_by", type=F("domain"), said_at=F("occurred_at"),
                author_name=F("author__name"),
            )  # fmt: skip
        case "messages":
            said = memories.alias(said_at=Least("occurred_at", "recorded_at"))
            return said.filter(_kept(subject, "said_at", now), kind=Kind.OBSERVATION).values(
                "id", "speaker", "text", "domain", "confidence", "evidence", "metadata", "occurred_at", "recorded_at",
                "superseded_at", "superseded_by", author_name=F("author__name"),
                conversation_id=F("session__conversation_id"),
            )  # fmt: skip
        case "sessions":
            return Session.objects.filter(_kept(subject, "last_active_at", now), subject=subject).values(
                "id", "conversation_id", "platform", "title", "summary", "topics", "tone", "started_at",
                "last_active_at", principal_name=F("principal__name"),
            )  # fmt: skip
        case _:
            loads = EnvelopeLoaded.objects.filter(subject=subject)
            return loads.values("id", "rev", "loaded_at", viewer_name=F("viewer__name"))


def export(subject: Subject, *, now: datetime, position: int = 0, exactly: bool = False) -> Export:
    """What is stored about a subject and not due for deletion, at most :data:`AT_ONCE` rows: one list after the other.

    :param position: where the page before ended: the row's key and the number of its list, in one number.
    :param exactly: with exact dates, even if the subject's dates are anonymized.
    """
    hidden = subject.anonymize_dates and not exactly
    after, begin = divmod(position, len(PARTS))
    lists: dict[str, list[dict[str, Any]]] = {name: [] for name in PARTS}
    left, following = AT_ONCE, None
    for place, name in enumerate(PARTS[begin:], begin):
        found = list(_exported_rows(name, subject, now).filter(pk__gt=after).order_by("pk")[: left + 1])
        lists[name] = [_exported(row, hidden=hidden) for row in found[:left]]
        if len(found) > left:
            following = encode_cursor((found[left - 1]["id"] if left else after) * len(PARTS) + place)
            break
        left, after = left - len(found), 0
    itself = {
        name: getattr(subject, name)
        for name in (
            "key", "display_name", "learning_level", "domains", "preferences", "memory_enabled", "learn_patterns",
            "share_with", "anonymize_dates", "delete_after_days", "rev", "created_at", "revised_at",
        )
    }  # fmt: skip
    names = {name: who and who.name for name, who in (("added_by", subject.added_by), ("author_name", subject.author))}
    return Export(subject=_exported(itself | names, hidden=hidden) if position == 0 else {}, **lists, next=following)


def _exported(row: Mapping[str, Any], *, hidden: bool) -> dict[str, Any]:
    return {
        name: first_moment(value) if hidden and isinstance(value, datetime) else value for name, value in row.items()
    }
