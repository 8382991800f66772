"""What DeleGates learn becomes knowledge where a policy says so, and else is recommended to whom they report."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from django.db import transaction

from apps.memory import selectors
from apps.memory.errors import NotADelegate, PromotionNeeded
from apps.memory.models import Observation, PromotionPolicy
from apps.memory.novelty import says_the_same
from apps.memory.services.evidence import words_of
from apps.memory.services.observations import store_observation
from apps.principals import selectors as principals
from apps.principals.scopes import Kind
from apps.principals.tenancy import Caller

# What a DeleGate writes of what it did: no knowledge, and for nobody to allow.
TRACE: Final = "delegation_trace"
# How many of the nearest memories a statement is compared with.
_COMPARED: Final = 10
# Characters of it that are asked for.
_ASKED: Final = 2_000


class Verdict(StrEnum):
    """What became of something learned."""

    PROMOTED = "promoted"
    NO_POLICY = "no_policy"
    OTHER_DOMAIN = "other_domain"
    NOT_SURE_ENOUGH = "not_sure_enough"
    KNOWN_ALREADY = "known_already"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """Something learned: knowledge by now, or a recommendation for the report to the principal."""

    verdict: Verdict
    reason: str
    observation: Observation | None = None


def permit_knowledge(*, author: Caller) -> None:
    """Refuse to let a DeleGate write knowledge by itself. What the product writes on its behalf it does not ask here.

    :raises PromotionNeeded: if the author is one.
    """
    if author.kind == Kind.DELEGATE:
        raise PromotionNeeded(
            f"A DeleGate writes observations of the domain {TRACE!r} and no knowledge; promote what you learned"
            " (memory_promote), or recommend it in your report."
        )


def permit_observation(*, author: Caller, domain: str, supersedes: str | None) -> None:
    """Refuse to let a DeleGate write by itself what is no trace, or stands in the place of what is none.

    :raises PromotionNeeded: if the author is one, and this is so.
    :raises MalformedMemoryReference: if what it is to supersede should name a memory, and does not.
    :raises UnknownMemory: if that is not there.
    """
    if author.kind != Kind.DELEGATE:
        return
    older = None if supersedes is None else selectors.observation_of(supersedes, viewer=author)
    if domain != TRACE or (older is not None and older.domain != TRACE):
        permit_knowledge(author=author)


@transaction.atomic
def set_promotion_policy(
    *,
    author: Caller,
    delegate: str,
    domains: Sequence[str],
    confidence_threshold: float,
    requires_novel: bool,
    now: datetime,
) -> PromotionPolicy:
    """Say what a DeleGate may promote by itself; without domains it may nothing.

    :raises UnknownPrincipal: if there is nobody of this name.
    :raises NotADelegate: if it is somebody else than a DeleGate.
    """
    principal = principals.principal_named(delegate)
    if principal.kind != Kind.DELEGATE:
        raise NotADelegate(f"{principal.name} is no DeleGate.")
    policy, _ = PromotionPolicy.objects.update_or_create(
        tenant_id=author.tenant_id,
        delegate=principal,
        defaults={
            "domains": list(dict.fromkeys(domains)),
            "confidence_threshold": confidence_threshold,
            "requires_novel": requires_novel,
            "author_id": author.principal_id,
            "revised_at": now,
        },
    )
    return policy


@transaction.atomic
def promote(
    *, delegate: Caller, text: str, domain: str, confidence: float, now: datetime, evidence: Sequence[str] = ()
) -> Promotion:
    """Make knowledge of what a DeleGate learned, if its policy allows that; else nothing is written.

    Promotions of one DeleGate are judged one after the other, so that the second of two that say the same is not new.
    """
    policy = PromotionPolicy.objects.filter(delegate_id=delegate.principal_id).select_for_update().first()
    if policy is None:
        return Promotion(verdict=Verdict.NO_POLICY, reason="No policy lets this DeleGate promote anything.")
    if domain not in policy.domains:
        return Promotion(verdict=Verdict.OTHER_DOMAIN, reason=f"Its policy does not name the domain {domain[:60]!r}.")
    if confidence < policy.confidence_threshold:
        return Promotion(
            verdict=Verdict.NOT_SURE_ENOUGH, reason=f"Its policy asks for {policy.confidence_threshold:g} at least."
        )
    if policy.requires_novel and (known := _known(delegate, text)):
        return Promotion(verdict=Verdict.KNOWN_ALREADY, reason=f"{known} says the same.")
    observation = store_observation(
        author=delegate, text=text, domain=domain, confidence=confidence, evidence=evidence, now=now
    )
    return Promotion(verdict=Verdict.PROMOTED, reason="Its policy allows it.", observation=observation)


def _known(delegate: Caller, text: str) -> str | None:
    """The memory that says the same: in the same words, or by recall. A name that it has says nothing for or against it."""
    if (said := selectors.saying(text)) is not None:
        return said
    hits = selectors.recall(text[:_ASKED], caller=delegate, limit=_COMPARED)
    bare = words_of(delegate, [hit.ref for hit in hits])
    return next((hit.ref for hit in hits if says_the_same(text, bare.get(hit.ref, hit.text))), None)
