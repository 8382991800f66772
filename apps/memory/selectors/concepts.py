"""Concepts by name, alias and type."""

from collections.abc import Iterable

from apps.memory.models import Concept, ConceptName, Relationship
from apps.memory.references import key_of


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
