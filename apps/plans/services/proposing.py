"""Which proposer finds the tools and values: the local planner first, then a model if one is configured and needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from django.conf import settings

from apps.plans import shelf
from apps.plans.catalogue import Catalogue, Tool
from apps.plans.documents import Constraints, ModelUse
from apps.plans.language_model import MOST_TOOLS
from apps.plans.local.proposing import propose as propose_locally
from apps.plans.local.values import read
from apps.plans.models import Delegate
from apps.plans.proposals import Asked, Evidence, Proposal
from apps.plans.services import model_calls
from apps.plans.services.delegates import delegate_asked
from apps.plans.shelf import Held
from apps.principals.tenancy import Caller

_SEARCHED: Final = 60
_READ: Final = 4_000
GIVEN: Final = frozenset({Evidence.CONTEXT, Evidence.ANSWER, Evidence.CONFIRMED})
"""Evidence of values that the principal has given beside the words of the request."""
_GROUNDING_KEYS: Final = frozenset({"memory_refs", "receipt_refs", "concept_names"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a principal asks of a DeleGate."""

    intent: str
    context: Mapping[str, Any] = field(default_factory=dict)
    constraints: Constraints = field(default_factory=Constraints)
    currency: str = "USD"
    caused_by: str | None = None
    delegate_id: str | None = None
    delegation_path: tuple[str, ...] = ()
    """The keys of the DeleGates that the request has come through, the first asked first."""
    tools: Mapping[int, str] = field(default_factory=dict)
    """The uids of the tools that answers have named, by the part of the intent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """What a proposer found, and why this one was used."""

    proposal: Proposal
    reason: str
    model_use: ModelUse | None = None


def asked_of(request: PlanRequest, delegate: Delegate, now: datetime) -> Asked:
    """The request as proposers see it."""
    return Asked(
        intent=request.intent,
        now=now,
        context={name: value for name, value in request.context.items() if name not in _GROUNDING_KEYS},
        tools=request.tools,
        delegation_path=(*request.delegation_path, str(delegate.key)),
    )


def view(held: Held, request: PlanRequest) -> Catalogue:
    """What may be used for a request."""
    return held.catalogue.within(held.pool).without(request.constraints.exclude_workers or ())


def local(held: Held, catalogue: Catalogue, asked: Asked) -> Proposed:
    """What the local planner proposes."""
    reason = "It is ready without a model." if model_calls.may_ask() else "No model is configured."
    return Proposed(proposal=propose_locally(asked, held.library, catalogue, held.history), reason=reason)


def propose(*, caller: Caller, request: PlanRequest, now: datetime) -> Proposed | None:
    """What the proposers find where a model may be asked; None: :func:`local` is enough. Not within a transaction.

    :raises NotFound: if the request names a DeleGate that is not here (`unknown_delegate`).
    """
    if not model_calls.may_ask():
        return None
    with caller.acting():
        delegate = delegate_asked(caller, request.delegate_id, now)
        asked = asked_of(request, delegate, now)
        with shelf.held(tenant_id=caller.tenant_id, delegate=delegate) as held:
            catalogue = view(held, request)
            found = local(held, catalogue, asked)
            tools = _candidates(held, catalogue, asked)
    if settings.PLANNER_USE_MODEL == "when_needed" and found.proposal.is_ready:
        return found
    proposal, use = model_calls.ask(tenant_id=caller.tenant_id, asked=asked, tools=tools)
    if proposal is None:
        reason = f"{use.failure or 'The model finds no tool for this.'} So the local planner is used."
        return replace(found, reason=reason, model_use=use)
    reason = "The model is always asked." if found.proposal.is_ready else "The local planner has no plan that is ready."
    return Proposed(proposal=proposal, reason=reason, model_use=use)


def _candidates(held: Held, catalogue: Catalogue, asked: Asked) -> Sequence[Tool]:
    """The tools that a model may choose from, those first whose words are most like the request's."""
    reading = read(asked.intent[:_READ], asked.now)
    kinds = {str(one.kind) for one in reading.found}
    found = held.library.search({token.stem for token in reading.tokens}, kinds, _SEARCHED)
    return [profile.tool for profile, _ in found if catalogue.open_offers(profile.tool.uid)][:MOST_TOOLS]
