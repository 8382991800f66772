"""Remembering."""

from datetime import datetime
from typing import Annotated, Any

from django.utils import timezone
from pydantic import Field, StringConstraints

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Moment, Output, Text
from apps.memory import selectors, services
from apps.memory.tools.shapes import Domain, Label, Ref, Share, Words
from apps.principals.tenancy import Caller


class StoreMemory(Input):
    observation: Words
    """What was observed, decided or found, in a sentence or a few."""
    domain: Domain | None = None
    """The field it belongs to, such as `code_patterns`."""
    confidence: Share = 0.8
    """How sure you are, from 0 to 1."""
    evidence: Annotated[list[Ref], Field(max_length=100)] = Field(default_factory=list)
    """References to what it rests on: `observation:12`, `task:task_7`, `plan:…`. What is cited of memory must be there."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Anything to find it by later (see the filters of `memory_recall`)."""
    occurred_at: Moment | None = None
    """When it was so, if not now."""
    conversation_id: Label | None = None
    """Your conversation that it was said in, as its next turn: it is then also found by what was said around it."""
    speaker: Annotated[Text, StringConstraints(max_length=100)] = ""
    """Who said it."""
    supersedes: Label | None = None
    """The reference of an older observation in whose place this one stands."""


class StoredMemory(Output):
    status: str
    id: int
    ref: str
    recorded_at: datetime


@operation(
    title="Remember an observation",
    scope="memory",
    routes=[Route("POST", "/api/v1/memory/observations", status=201)],
)
def memory_store(caller: Caller, given: StoreMemory) -> StoredMemory:
    """Remember one observation for good, with its domain, your confidence and the evidence.

    It can be recalled at once, by every agent of your tenant. A DeleGate stores its `delegation_trace` so, and
    promotes what it learned (`memory_promote`).
    """
    services.permit_observation(author=caller, domain=given.domain or "", supersedes=given.supersedes)
    stored = services.store_observation(
        author=caller,
        text=given.observation,
        domain=given.domain or "",
        confidence=given.confidence,
        evidence=given.evidence,
        metadata=given.metadata,
        occurred_at=given.occurred_at,
        conversation_id=given.conversation_id,
        speaker=given.speaker,
        supersedes=given.supersedes,
        now=timezone.now(),
    )
    shown = selectors.dates_of(None if stored.session is None else stored.session.subject)
    return StoredMemory(status="stored", id=stored.pk, ref=stored.ref, recorded_at=shown(stored.recorded_at))
