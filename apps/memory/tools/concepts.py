"""Concepts and how they stand to each other."""

from datetime import datetime
from typing import Annotated, Any

from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.core.ids import decode_position, encode_cursor
from apps.core.operations import Route, operation
from apps.core.schemas import Cursor, Input, Name, Output, Text
from apps.memory import selectors, services
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
    services.permit_knowledge(author=caller)
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
    services.permit_knowledge(author=caller)
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


class ListRelationships(Input):
    from_concept: Label | None = None
    """Only how this one stands to others: a name or an alias."""
    to_concept: Label | None = None
    """Only how others stand to this one."""
    rel_type: Name | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    cursor: Cursor | None = None
    """`next` of the page before."""


class RelationshipOutput(Output):
    from_concept: str
    to_concept: str
    rel_type: str
    description: str
    author: str
    """Who said so first."""
    recorded_at: datetime
    revised_at: datetime


class RelationshipsOutput(Output):
    relationships: list[RelationshipOutput]
    """The newest first."""
    next: str | None
    """The cursor of the next page; null on the last."""


@operation(
    title="List relationships",
    scope="memory",
    routes=[Route("GET", "/api/v1/memory/relationships")],
    read_only=True,
)
def list_memory_relationships(caller: Caller, given: ListRelationships) -> RelationshipsOutput:
    """List how concepts stand to each other: all, those of one concept, or those of a type."""
    found = selectors.relationships(
        tenant_id=caller.tenant_id,
        from_concept=given.from_concept,
        to_concept=given.to_concept,
        rel_type=given.rel_type,
        before=decode_position(given.cursor) if given.cursor else None,
        limit=given.limit + 1,
    )
    page = found[: given.limit]
    return RelationshipsOutput(
        relationships=[
            RelationshipOutput(
                from_concept=one.source.name,
                to_concept=one.target.name,
                rel_type=one.type,
                description=one.description,
                author=one.author.name,
                recorded_at=one.recorded_at,
                revised_at=one.revised_at,
            )
            for one in page
        ],
        next=encode_cursor(page[-1].pk) if len(found) > given.limit else None,
    )
