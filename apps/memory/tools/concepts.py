"""Concepts and how they stand to each other."""

from typing import Annotated, Any

from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Name, Output, Text
from apps.memory import services
from apps.memory.tools.shapes import Label
from apps.principals.tenancy import Caller


class StoreConcept(Input):
    name: Label
    """What the thing is called."""
    concept_type: Name | None = None
    """What kind of thing it is: `language`, `worker`, `person`."""
    description: Annotated[Text, StringConstraints(max_length=65_536)] | None = None
    aliases: Annotated[list[Label], Field(max_length=50)] = Field(default_factory=list)
    """Other names for the same thing."""
    metadata: dict[str, Any] | None = None


class StoredConcept(Output):
    status: str
    ref: str
    name: str
    concept_type: str
    aliases: list[str]
    description: str
    metadata: dict[str, Any]


@operation(
    title="Describe a concept",
    scope="memory",
    routes=[Route("POST", "/api/v1/memory/concepts", status=201)],
    idempotent=True,
)
def memory_store_concept(caller: Caller, given: StoreConcept) -> StoredConcept:
    """Describe a thing that memories speak of: its type, aliases and what it is.

    A known concept is revised: what you leave out stays as it was, aliases are added.
    """
    concept = services.store_concept(
        author=caller,
        name=given.name,
        concept_type=given.concept_type,
        description=given.description,
        aliases=given.aliases,
        metadata=given.metadata,
        now=timezone.now(),
    )
    return StoredConcept(
        status="stored",
        ref=concept.ref,
        name=concept.name,
        concept_type=concept.type,
        aliases=concept.aliases,
        description=concept.description,
        metadata=concept.metadata,
    )


class AddRelationship(Input):
    from_concept: Label
    to_concept: Label
    rel_type: Name
    """How the first stands to the second: `manages`, `provides`, `depends_on`."""
    description: Annotated[Text, StringConstraints(max_length=65_536)] | None = None


class StoredRelationship(Output):
    status: str
    from_concept: str
    to_concept: str
    rel_type: str
    description: str


@operation(
    title="Relate two concepts",
    scope="memory",
    routes=[Route("POST", "/api/v1/memory/relationships", status=201)],
    idempotent=True,
)
def memory_add_concept_relationship(caller: Caller, given: AddRelationship) -> StoredRelationship:
    """Say how one concept stands to another. Concepts named for the first time are created."""
    relationship = services.add_relationship(
        author=caller,
        from_concept=given.from_concept,
        to_concept=given.to_concept,
        rel_type=given.rel_type,
        description=given.description,
        now=timezone.now(),
    )
    return StoredRelationship(
        status="stored",
        from_concept=relationship.source.name,
        to_concept=relationship.target.name,
        rel_type=relationship.type,
        description=relationship.description,
    )
