"""Concepts, their names and how they stand to each other."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.memory import selectors, sql
from apps.memory.errors import AliasTaken, TooManyAliases, UnusableName
from apps.memory.models import Concept, ConceptName, ConceptRevision, Passage, Relationship
from apps.memory.references import LONGEST_KEY, key_of
from apps.principals.tenancy import Caller

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
) -> Concept:
    """Describe a concept, new or known; what is not given stays as it was, aliases are added.

    :raises AliasTaken: if one of the names stands for another concept.
    :raises TooManyAliases: if it would have more than :data:`MOST_ALIASES`.
    :raises UnusableName: if one of them can't be a name.
    """
    (concept,) = _named_concepts(author=author, names=[name], aliases=aliases, now=now)
    aliases = [alias for alias in dict.fromkeys([*concept.aliases, *aliases]) if key_of(alias) != concept.key]
    if len(aliases) > max(MOST_ALIASES, len(concept.aliases)):
        raise TooManyAliases(f"{name[:60]!r} would have more than {MOST_ALIASES} aliases.")
    if _claim(concept, {concept.key, *map(key_of, aliases)}):
        raise AliasTaken(f"A name or alias of {name[:60]!r} stands for another concept.")
    told: dict[str, Any] = {
        "aliases": aliases,
        "type": concept.type if concept_type is None else concept_type,
        "description": concept.description if description is None else description,
        "metadata": concept.metadata if metadata is None else dict(metadata),
    }
    _revise(concept, told, now)
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

    :raises UnusableName: if one of the names can't be one.
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
def retract_relationships(
    *,
    author: Caller,
    rel_type: str,
    but: Collection[Relationship],
    from_concept: str | None = None,
    to_concept: str | None = None,
) -> int:
    """Take back how a concept stands to others, or others to it, as far as the author has told it; returns how many
    relations are gone.

    :param but: those that stand.
    """
    told = Relationship.objects.filter(author_id=author.principal_id, type=rel_type)
    if from_concept is not None:
        told = told.filter(source__names__key=key_of(from_concept))
    if to_concept is not None:
        told = told.filter(target__names__key=key_of(to_concept))
    gone, _ = told.exclude(pk__in=[relationship.pk for relationship in but]).delete()
    return gone


class _Overtaken(Exception):
    """A name that was free is another writer's concept by now, or its concept is forgotten."""


def _named_concepts(
    *, author: Caller, names: Sequence[str], now: datetime, aliases: Sequence[str] = ()
) -> list[Concept]:
    """The concepts of these names or aliases, locked; created bare where there is none.

    Known concepts are locked by id, then new names are claimed by key, so that no two writers wait for each other.
    A writer that is overtaken gives up all these locks before it looks again.

    :param aliases: what a new concept is going to claim besides, at its turn in the order of keys.
    :raises UnusableName: for one that stands for nothing, or whose key is longer than a name may be.
    """
    for name in [*names, *aliases]:
        if not 0 < len(key_of(name)) <= LONGEST_KEY:
            raise UnusableName(f"{name[:60]!r} can't be the name of a concept.")
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
    if set(ids.values()) - locked.keys():
        raise _Overtaken
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


def _revise(concept: Concept, told: Mapping[str, Any], now: datetime) -> None:
    """Describe a concept otherwise, and keep how it was described before, if it was before this moment.

    By a clock that is behind it was not, and is described otherwise from when it was last.
    """
    before = {name: getattr(concept, name) for name in told}
    if before != told and concept.revised_at < now:
        ConceptRevision.objects.create(
            tenant_id=concept.tenant_id,
            author_id=concept.author_id,
            concept=concept,
            recorded_at=concept.revised_at,
            superseded_at=now,
            **before,
        )
    for name, value in told.items():
        setattr(concept, name, value)
    concept.revised_at = max(concept.revised_at, now)


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
