"""Reading one memory."""

from datetime import datetime
from typing import Annotated, Any

from django.utils import timezone
from pydantic import Field

from apps.core.ids import decode_position, encode_cursor
from apps.core.operations import Route, operation
from apps.core.schemas import Cursor, Input, Output
from apps.memory import selectors
from apps.memory.tools.shapes import Ref
from apps.principals.tenancy import Caller


class ReadMemory(Input):
    ref: Ref
    """As recall names it: `observation:12`, `pattern:4`, `item:7`, or `concept:python` by name or alias."""
    cursor: Cursor | None = None
    """`next` of the answer before, for those of `earlier` that follow."""
    limit: Annotated[int, Field(ge=1, le=200)] = 20
    """How many of `earlier` to answer at most."""


class EarlierMemory(Output):
    """An older observation or item in whose place the memory stands, or how a pattern or concept read before."""

    ref: str | None
    """Of an observation or an item; how the same memory read before has none of its own."""
    revision: int | None
    text: str
    domain: str
    aliases: list[str]
    confidence: float | None
    evidence: list[str]
    metadata: dict[str, Any]
    author: str
    recorded_at: datetime
    """Since when it was known so."""


class MemoryOutput(Output):
    """A memory with where it is from. What its kind has not is null or empty."""

    ref: str
    name: str
    """Of a pattern or a concept."""
    aliases: list[str]
    text: str
    domain: str
    """Of a pattern its category; of a concept or an item its type."""
    confidence: float | None
    """As it was said: of a concept, nobody says any; envelopes show an item's faded."""
    evidence: list[str]
    """What it rests on. Memories among it are read in the same way."""
    metadata: dict[str, Any]
    author: str
    """Who wrote it, of a pattern and a concept as it reads now."""
    speaker: str
    conversation_id: str
    subject_id: str | None
    """Whom it is about: of an item, and of what was said in a conversation with somebody."""
    slot: str | None
    source: str
    stated: bool
    occurred_at: datetime | None
    """When it was so, of an item when it was said."""
    recorded_at: datetime
    valid_from: datetime | None
    valid_to: datetime | None
    revision: int | None
    revised_at: datetime | None
    superseded_at: datetime | None
    superseded_by: str | None
    earlier: list[EarlierMemory]
    """What it stands in the place of, the latest first."""
    next: str | None


@operation(
    title="Read a memory",
    scope="memory",
    routes=[Route("GET", "/api/v1/memory/read")],
    read_only=True,
)
def memory_read(caller: Caller, given: ReadMemory) -> MemoryOutput:
    """Read one memory by its reference: who said it when, how surely and on what evidence, and what it said before.

    Also one that recall finds no more, because another stands in its place (`superseded_by`).
    """
    found = selectors.memory_of(
        given.ref,
        viewer=caller,
        now=timezone.now(),
        before=decode_position(given.cursor) if given.cursor else None,
        limit=given.limit,
    )
    return MemoryOutput(
        **{name: getattr(found, name) for name in MemoryOutput.model_fields if name not in {"earlier", "next"}},
        earlier=[EarlierMemory.model_validate(one) for one in found.earlier],
        next=None if found.following is None else encode_cursor(found.following),
    )
