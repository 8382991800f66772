"""What was found to hold in many cases."""

from typing import Annotated

from django.utils import timezone
from pydantic import Field

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Output
from apps.memory import services
from apps.memory.tools.shapes import Domain, Label, Share, Words
from apps.principals.tenancy import Caller


class UpdatePattern(Input):
    category: Domain
    """The domain in which the pattern is recalled, such as `delegation_patterns`."""
    pattern_name: Label
    pattern_text: Words
    """What was found to hold."""
    confidence: Share = 0.8
    evidence_observation_ids: Annotated[list[Annotated[int, Field(ge=1, lt=2**63)]], Field(max_length=500)] = Field(
        default_factory=list
    )
    """The observations that it was found in."""


class StoredPattern(Output):
    status: str
    id: int
    ref: str
    category: str
    pattern_name: str
    revision: int
    confidence: float


@operation(
    title="Write down a pattern",
    scope="memory",
    routes=[Route("POST", "/api/v1/memory/patterns", status=201)],
)
def memory_update_pattern(caller: Caller, given: UpdatePattern) -> StoredPattern:
    """Write down what was found to hold in many cases, or revise it under the same category and name.

    Every revision is kept.
    """
    services.permit_knowledge(author=caller)
    pattern = services.update_pattern(
        author=caller,
        category=given.category,
        pattern_name=given.pattern_name,
        pattern_text=given.pattern_text,
        confidence=given.confidence,
        evidence_observation_ids=given.evidence_observation_ids,
        now=timezone.now(),
    )
    return StoredPattern(
        status="stored",
        id=pattern.pk,
        ref=pattern.ref,
        category=pattern.category,
        pattern_name=pattern.name,
        revision=pattern.revision,
        confidence=pattern.confidence,
    )
