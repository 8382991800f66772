"""What DeleGates learn, and what of it they may promote by themselves."""

from typing import Annotated

from django.utils import timezone
from pydantic import Field

from apps.core.operations import Route, operation
from apps.core.schemas import Input, Name, Output
from apps.memory import services
from apps.memory.tools.shapes import Domain, Ref, Share, Words
from apps.principals.scopes import Scope
from apps.principals.tenancy import Caller


class SetPromotionPolicy(Input):
    delegate: Name
    """The DeleGate, by its principal's name."""
    domains: Annotated[list[Domain], Field(max_length=100)]
    """What it may write knowledge of; none: nothing."""
    confidence_threshold: Share = 0.8
    """From which confidence on."""
    requires_novel: bool = True
    """Only what memory does not say already."""


class PromotionPolicyOutput(Output):
    delegate: str
    domains: list[str]
    confidence_threshold: float
    requires_novel: bool


@operation(
    title="Let a DeleGate promote",
    scope=Scope.ADMIN,
    routes=[Route("PUT", "/api/v1/memory/promotion-policies/{delegate}")],
    idempotent=True,
)
def set_promotion_policy(caller: Caller, given: SetPromotionPolicy) -> PromotionPolicyOutput:
    """Say what a DeleGate may promote to knowledge by itself. What it may not, it recommends in its report."""
    policy = services.set_promotion_policy(
        author=caller,
        delegate=given.delegate,
        domains=given.domains,
        confidence_threshold=given.confidence_threshold,
        requires_novel=given.requires_novel,
        now=timezone.now(),
    )
    return PromotionPolicyOutput(
        delegate=given.delegate,
        domains=policy.domains,
        confidence_threshold=policy.confidence_threshold,
        requires_novel=policy.requires_novel,
    )


class Promote(Input):
    observation: Words
    """What was learned."""
    domain: Domain
    confidence: Share = 0.8
    evidence: Annotated[list[Ref], Field(max_length=100)] = Field(default_factory=list)
    """References to what it rests on."""


class PromotionOutput(Output):
    verdict: str
    """`promoted`, or why it was not: then recommend it in your report instead."""
    reason: str
    ref: str | None


@operation(
    title="Promote what was learned",
    scope=Scope.MEMORY,
    routes=[Route("POST", "/api/v1/memory/promotions")],
)
def memory_promote(caller: Caller, given: Promote) -> PromotionOutput:
    """Make knowledge of something you learned as a DeleGate, if your policy allows it; else nothing is stored."""
    promotion = services.promote(
        delegate=caller,
        text=given.observation,
        domain=given.domain,
        confidence=given.confidence,
        evidence=given.evidence,
        now=timezone.now(),
    )
    stored = promotion.observation
    return PromotionOutput(
        verdict=promotion.verdict, reason=promotion.reason, ref=None if stored is None else stored.ref
    )
