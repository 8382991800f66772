"""Operations of the DeleGate."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from django.utils import timezone
from pydantic import ConfigDict, Field

from apps.core.ids import decode_position, encode_cursor
from apps.core.operations import Reply, Route, operation
from apps.core.schemas import Cursor, FitForAPath, Input, Name, Output, Text
from apps.memory import selectors as memory
from apps.plans import selectors, services
from apps.plans.documents import plan_hash
from apps.plans.models import Delegate
from apps.plans.offers import Priority
from apps.plans.services import MadePlan, PlanRequest
from apps.plans.shapes import Money
from apps.plans.validation import Limits
from apps.principals.scopes import Scope
from apps.principals.selectors import caller_or_named
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller

_PLAN_BYTES = 1_048_576

Id = Annotated[Text, Field(min_length=1, max_length=100)]


class Budget(Input):
    max_total_cost: Money | None = None
    max_cost_per_step: Money | None = None
    currency: Annotated[str, Field(max_length=10)] = "USD"


class PlanConstraints(Input):
    """Hard bounds: a plan that would break one is refused."""

    timeout_seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    """The longest that the plan may take by its estimate."""
    budget: Budget | None = None
    exclude_workers: Annotated[list[Id], Field(max_length=200)] = []
    prefer: Literal["balanced", "cheap", "fast", "safe"] = "balanced"
    """What decides between workers that offer the same tool."""


class CreatePlan(Input):
    intent: Annotated[Text, Field(min_length=1, max_length=20_000)]
    """What you want done, in plain words. Put paths and texts in quotes."""
    principal_ai: Name | None = None
    """Who will carry the plan out; left out, it is you."""
    context: Annotated[dict[str, Any], Field(max_length=200)] | None = None
    """Values for params by name (language, path, …), and grounding: memory_refs, receipt_refs, concept_names."""
    constraints: PlanConstraints | None = None
    caused_by_receipt_id: Id | None = None
    """The receipt that made you ask; left out, a chain begins here."""
    delegate_id: Id | None = None
    """Which DeleGate to ask; left out, the root."""
    delegation_path: Annotated[list[Id], Field(max_length=32)] = []
    """What a DeleGate that passes this on was given in its own delegation_path. One that stands in it already refuses."""


class CreatedPlan(Output):
    plan: dict[str, Any]
    """The whole plan. With status needs_escalation it says what is missing and which tools come nearest."""
    plan_id: str
    status: Literal["ready", "needs_escalation"]
    steps: list[dict[str, Any]]
    estimated_runtime_seconds: float
    """What the plan says, and how long its calls wait just now, where workers have been sent what they take in an hour."""
    can_execute_now: bool
    """Is the plan ready, and has every worker in it room?"""
    receipt_id: str
    receipt_uuid: str


class BarePlan(Output):
    """The plan itself, with the receipt that proves it."""

    model_config = ConfigDict(frozen=True, extra="allow")

    plan_id: str
    receipt_id: str
    receipt_uuid: str


class SetDelegate(Input):
    delegate_id: Annotated[Id, FitForAPath]
    principal: Name
    """As whom it acts: a principal of the kind delegate, which reports to the parent's from now on."""
    parent: Id = DELEGATE
    """The delegate_id of the DeleGate above; left out, the root."""
    scope: Annotated[Text, Field(max_length=200)] = ""
    """What it is there for, as its plans say."""


class DelegatePromotion(Output):
    """What a DeleGate may promote to knowledge by itself."""

    domains: list[str]
    confidence_threshold: float
    requires_novel: bool


class DelegateOutput(Output):
    delegate_id: str
    principal: str
    parent: str | None
    """None: the root."""
    scope: str
    promotion_policy: DelegatePromotion | None
    """None: it may promote nothing."""


class ListDelegates(Input):
    limit: Annotated[int, Field(ge=1, le=500)] = 500
    cursor: Cursor | None = None


class DelegateList(Output):
    delegates: list[DelegateOutput]
    next: str | None
    """Pass it as cursor for the rest; null: this is all."""


class OnePlan(Input):
    plan_id: Id


class FoundPlan(Output):
    plan: dict[str, Any]
    plan_id: str
    status: Literal["ready", "needs_escalation"]
    can_execute_now: bool
    """Is the plan ready, does it still wait to be begun, and has every worker in it room?"""
    receipt_id: str
    receipt_uuid: str


class ListPlans(Input):
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    cursor: Cursor | None = None


class PlanSummary(Output):
    plan_id: str
    status: Literal["ready", "needs_escalation"]
    intent: str
    """Its first 200 characters; empty: it was forgotten on request."""
    is_submitted: bool
    """Have you made it yourself?"""
    replaces: str | None
    """The plan whose place it took."""
    can_be_begun: bool
    """Does it wait to be carried out? What becomes of one that was begun, get_plan_status tells."""
    created_at: datetime


class PlanList(Output):
    plans: list[PlanSummary]
    next: str | None
    """Pass it as cursor for older ones; null: these are all."""


class ValidatePlan(Input):
    plan: dict[str, Any]
    """A plan of any author."""


class SubmitPlan(Input):
    plan: dict[str, Any]
    """A plan that you have made or changed, as validate_plan finds it valid."""
    caused_by_receipt_id: Id | None = None
    """The receipt that made you ask; left out, a chain begins here."""


class PlanFault(Output):
    path: str
    """JSON pointer to the place."""
    code: str
    message: str


class Verdict(Output):
    valid: bool
    errors: list[PlanFault]
    plan_hash: str | None
    """SHA-256 of the canonical plan, if it is valid."""


@operation(
    title="Create a delegation plan",
    scope=Scope.PLANS,
    routes=[Route("POST", "/api/v1/plans", status=201)],
    own_transactions=True,
)
def create_delegation_plan(caller: Caller, given: CreatePlan) -> CreatedPlan:
    """Turn an intent into a plan of worker calls, without carrying it out. Then pass its plan_id to execute_delegation_plan.

    An intent that the registered workers cannot serve gives a plan with status needs_escalation that names what is missing.
    """
    made = _create(caller, given)
    return CreatedPlan(
        plan=dict(made.document),
        plan_id=made.plan_id,
        status=made.document["status"],
        steps=made.document["steps"],
        estimated_runtime_seconds=made.document["estimated_total_runtime_seconds"]
        + round(made.readiness.wait.total_seconds(), 3),
        can_execute_now=made.readiness.can_execute_now,
        receipt_id=made.receipt_id,
        receipt_uuid=str(made.receipt_uuid),
    )


@operation(
    title="Ask a DeleGate for a plan",
    scope=Scope.PLANS,
    routes=[Route("POST", "/delegate/plan")],
    tool=False,
    own_transactions=True,
)
def request_plan(caller: Caller, given: CreatePlan) -> BarePlan:
    """As create_delegation_plan, answering the plan itself."""
    made = _create(caller, given)
    receipt = {"receipt_id": made.receipt_id, "receipt_uuid": str(made.receipt_uuid)}
    return BarePlan.model_validate({**made.document, **receipt})


@operation(title="Read a plan", scope=Scope.PLANS, routes=[Route("GET", "/api/v1/plans/{plan_id}")], read_only=True)
def get_plan(caller: Caller, given: OnePlan) -> FoundPlan:
    """Read a plan that you asked for, as it was made."""
    found = selectors.plan_for(given.plan_id, caller=caller)
    return FoundPlan(
        plan=dict(found.document),
        plan_id=found.plan_id,
        status=found.status.value,
        can_execute_now=selectors.can_be_begun(found) and selectors.readiness(found.document).can_execute_now,
        receipt_id=found.receipt_id,
        receipt_uuid=str(found.receipt_uuid),
    )


@operation(title="List plans", scope=Scope.PLANS, routes=[Route("GET", "/api/v1/plans")], read_only=True)
def list_plans(caller: Caller, given: ListPlans) -> PlanList:
    """List the plans that you asked for or submitted, refusals included, newest first."""
    before = None if given.cursor is None else decode_position(given.cursor)
    found = selectors.plans_of(caller.principal_id, before=before, limit=given.limit + 1)
    page = found[: given.limit]
    return PlanList(
        plans=[PlanSummary.model_validate(one) for one in page],
        next=encode_cursor(page[-1].key) if len(found) > len(page) else None,
    )


@operation(
    title="Validate a plan",
    scope=Scope.PLANS,
    output=Verdict,
    routes=[Route("POST", "/api/v1/plans/validate", max_body=_PLAN_BYTES)],
    read_only=True,
)
def validate_plan(caller: Caller, given: ValidatePlan) -> Reply:
    """Judge a plan that anybody wrote against the rules and the workers registered now; every fault is named with its place."""
    found = selectors.problems_of(given.plan, tenant_id=caller.tenant_id, principal_id=caller.principal_id)
    verdict = Verdict(
        valid=not found,
        errors=[PlanFault(path=one.path, code=one.code, message=one.message) for one in found],
        plan_hash=None if found else plan_hash(given.plan),
    )
    return Reply(verdict, status=200)


@operation(
    title="Submit a plan",
    scope=Scope.PLANS,
    routes=[Route("POST", "/api/v1/plans/submit", status=201, max_body=_PLAN_BYTES)],
)
def submit_plan(caller: Caller, given: SubmitPlan) -> FoundPlan:
    """Keep a plan that you have made yourself, without carrying it out. Then pass the plan_id of the answer to execute_delegation_plan.

    It is judged as by validate_plan; one with any fault is refused with all of them. The plan is kept under an id of its own.
    """
    made = services.submit(caller=caller, document=given.plan, caused_by=given.caused_by_receipt_id, now=timezone.now())
    return FoundPlan(
        plan=dict(made.document),
        plan_id=made.plan_id,
        status=made.document["status"],
        can_execute_now=made.readiness.can_execute_now,
        receipt_id=made.receipt_id,
        receipt_uuid=str(made.receipt_uuid),
    )


@operation(
    title="Set up a DeleGate",
    scope=Scope.ADMIN,
    routes=[Route("PUT", "/api/v1/delegates/{delegate_id}")],
    idempotent=True,
)
def set_delegate(caller: Caller, given: SetDelegate) -> DelegateOutput:
    """Make a DeleGate or change one. It plans with the workers that its principal registers, and the one above it no longer does."""
    found = services.set_delegate(
        tenant_id=caller.tenant_id,
        delegate_id=given.delegate_id,
        principal=given.principal,
        parent=given.parent,
        scope=given.scope,
        now=timezone.now(),
    )
    return _shown([found])[0]


@operation(title="List DeleGates", scope=Scope.ADMIN, routes=[Route("GET", "/api/v1/delegates")], read_only=True)
def list_delegates(_caller: Caller, given: ListDelegates) -> DelegateList:
    """List the DeleGates of the tenant: as whom each acts, which is above it, and what it may promote by itself."""
    after = decode_position(given.cursor) if given.cursor else 0
    found = selectors.delegates(after=after, limit=given.limit + 1)
    page = found[: given.limit]
    return DelegateList(
        delegates=_shown(page),
        next=encode_cursor(page[-1].pk) if len(found) > len(page) else None,
    )


def _shown(delegates: Sequence[Delegate]) -> list[DelegateOutput]:
    policies = memory.promotion_policies(delegate.principal_id for delegate in delegates)
    return [
        DelegateOutput(
            delegate_id=delegate.delegate_id,
            principal=delegate.principal.name,
            parent=None if delegate.parent is None else delegate.parent.delegate_id,
            scope=delegate.scope,
            promotion_policy=policy and DelegatePromotion.model_validate(policy),
        )
        for delegate in delegates
        for policy in (policies.get(delegate.principal_id),)
    ]


def _create(caller: Caller, given: CreatePlan) -> MadePlan:
    request = _request(given)
    services.prepare(caller=caller)
    if services.asks_a_model():
        with caller.acting():
            caller_or_named(caller, given.principal_ai)
            sketch = services.sketch(caller=caller, request=request, now=timezone.now())
        request = replace(request, suggested=services.suggestions(document=sketch))
    with caller.acting():
        caller_or_named(caller, given.principal_ai)
        return services.create_plan(caller=caller, request=request, now=timezone.now())


def _request(given: CreatePlan) -> PlanRequest:
    bounds = given.constraints or PlanConstraints()
    budget = bounds.budget or Budget()
    return PlanRequest(
        intent=given.intent,
        context=given.context or {},
        limits=Limits(
            max_total_cost=budget.max_total_cost,
            max_cost_per_step=budget.max_cost_per_step,
            max_runtime_seconds=bounds.timeout_seconds,
        ),
        currency=budget.currency,
        excluded_workers=frozenset(bounds.exclude_workers),
        priority=Priority(bounds.prefer),
        caused_by=given.caused_by_receipt_id,
        delegate_id=given.delegate_id,
        delegation_path=tuple(given.delegation_path),
    )
