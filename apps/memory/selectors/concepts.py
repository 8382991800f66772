"""Concepts by name, alias and type."""

from collections.abc import Iterable

from django.db.models import Func

from apps.memory.errors import UnknownMemory
from apps.memory.models import Concept, ConceptName, Relationship
from apps.memory.references import key_of
from apps.memory.selectors.narrowing import is_among


def concept_named(name: str) -> Concept | None:
    """The concept of this name or alias."""
    return Concept.objects.filter(names__key=key_of(name)).first()


def concepts_of_type(concept_type: str) -> list[Concept]:
    """Every concept of a type, by name."""
    return list(Concept.objects.filter(type=concept_type).order_by("key"))


def concepts_told_of(rel_type: str) -> frozenset[int]:
    """The keys of the concepts of which somebody has said, by a relation of this type, that another stands so to them."""
    return frozenset(Relationship.objects.filter(type=rel_type).values_list("target_id", flat=True))


def concepts_named(keys: Iterable[str]) -> dict[str, int]:
    """Which concept each of these keys stands for; what stands for none is left out."""
    return dict(ConceptName.objects.filter(key__in=list(keys)).values_list("key", "concept_id"))


def relationships(
    *,
    tenant_id: int,
    from_concept: str | None = None,
    to_concept: str | None = None,
    rel_type: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Relationship]:
    """How concepts of a tenant stand to each other, the newest first.

    What agents say of concepts is the tenant's knowledge: it is shared with all of it, whomever it names.

    :param before: only what was recorded before the relationship of this number.
    :raises UnknownMemory: if no concept has one of these names or aliases.
    """
    ends = {"source_id": from_concept, "target_id": to_concept}
    narrowed: dict[str, Func] = {
        column: is_among(column, number, "bigint")
        for column, number in _numbers({column: name for column, name in ends.items() if name is not None}).items()
    }
    if rel_type is not None:
        narrowed["type"] = is_among("type", rel_type, "text")
    rows = Relationship.objects.filter(*narrowed.values(), tenant_id=tenant_id)
    rows = rows if before is None else rows.filter(pk__lt=before)
    rows = rows.select_related("source", "target", "author")
    return list(rows.order_by(*list(narrowed)[:1], "-pk")[:limit])


def _numbers(named: dict[str, str]) -> dict[str, int]:
    """
    :raises UnknownMemory: if no concept has one of these names or aliases.
    """
    known = concepts_named(map(key_of, named.values())) if named else {}
    for name in named.values():
        if key_of(name) not in known:
            raise UnknownMemory(f"There is no concept {name[:60]!r}.")
    return {column: known[key_of(name)] for column, name in named.items()}
