"""Operations of the DeleGate."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from django.utils import timezone
from pydantic import AliasPath, ConfigDict, Field

from apps.core.operations import Asks, Reply, Route, operation
from apps.core.schemas import FitForAPath, Input, Moment, Output, Paged, Text
from apps.plans import selectors, services
from apps.plans.documents import plan_hash
from apps.plans.models import Plan
from apps.plans.shapes import CapabilityMatch, CreatePlan, Id, OnePlan, PlanAnswer, PlanSummary
from apps.plans.validation import Problem
from apps.principals.scopes import Scope
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller

_PLAN_BYTES = 1_048_576


class BarePlan(Output):
    """The plan itself, with the receipt that proves it."""

    model_config = ConfigDict(frozen=True, extra="allow")

    next_step: str
    plan_id: str
    receipt_id: str
    receipt_uuid: str


class SetDelegate(Input):
    delegate_id: Annotated[Id, FitForAPath]
    """The name of a principal of the kind delegate."""
    parent: Id = DELEGATE
    """The DeleGate above; left out, the root."""


class DelegateOutput(Output):
    delegate_id: str = Field(validation_alias="name")
    parent: str = Field(validation_alias=AliasPath("parent", "name"))


class AnswerPlan(OnePlan):
    answers: Annotated[dict[Id, Any], Field(min_length=1, max_length=100)]
    """Your answers by question_id: a value that the question's schema takes, or one of its choices. What you leave out is
    asked again.
    """


class ListPlans(Paged):
    status: Literal["ready", "needs_confirmation", "needs_input", "needs_escalation"] | None = None
    since: Moment | None = None
    """Made at this moment or later."""


class PlanList(Output):
    plans: list[PlanSummary]
    next: str | None
    """Pass it as cursor for older ones; null: these are all."""


class SearchCapabilities(Input):
    query: Annotated[Text, Field(min_length=1, max_length=2000)]
    """What you look for, in plain words."""
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class CapabilityMatches(Output):
    matches: list[CapabilityMatch]


class ValidatePlan(Input):
    plan: dict[str, Any]
    """A plan of any author."""


class SubmitPlan(Input):
    plan: dict[str, Any]
    """A plan that you have made or changed, as validate_plan finds it valid."""
    caused_by_receipt_id: Id | None = None
    """The receipt that made you ask; left out, a chain begins here."""


class Verdict(Output):
    valid: bool
    errors: list[Problem]
    plan_hash: str | None
    """SHA-256 of the canonical plan, if it is valid."""


def _go_on(caller: Caller, given: CreatePlan, plan_id: str, answers: Mapping[str, Any] | None) -> PlanAnswer:
    return services.go_on(caller=caller, plan_id=plan_id, answers=answers, now=timezone.now())


@operation(
    title="Create a delegation plan",
    scope=Scope.PLANS,
    routes=[Route("POST", "/api/v1/plans", status=201)],
    own_transactions=True,
    example={"intent": "Send the weather of Vienna to ops@example.com"},
    after_refusal="Change the argument named. That no plan is ready is no refusal: next_step of the answer says what to do.",
    asks=Asks(questionnaire=selectors.questionnaire_of, go_on=_go_on),
)
def create_delegation_plan(caller: Caller, given: CreatePlan) -> PlanAnswer:
    """Turn an intent into a plan of worker calls, without carrying it out. Then pass its plan_id to execute_delegation_plan.

    Only a plan with status ready can be carried out. With needs_confirmation some value is a guess: confirm_plan. With
    needs_input something was not said: answer_plan, by call_tool. With needs_escalation the plan says why there is none. The first line
    of the answer, next_step, says what to do.
    """
    return services.plan_request(caller=caller, given=given, now=timezone.now())


@operation(
    title="Confirm a plan",
    scope=Scope.PLANS,
    routes=[Route("POST", "/api/v1/plans/{plan_id}/confirm", status=201)],
    listed_for=["agent"],
    example={"plan_id": "plan_7"},
    after_refusal="The plan has changed its status: get_plan_status shows it.",
)
def confirm_plan(caller: Caller, given: OnePlan) -> PlanAnswer:
    """Confirm what a plan with status needs_confirmation guesses, see its `unsure`. A plan that is ready takes its place.

    Is a guess wrong, ask for another plan with the right value in quotes or in the context.
    """
    made = services.settle(caller=caller, plan_id=given.plan_id, answers=None, now=timezone.now())
    return selectors.answer_of(made)


@operation(
    title="Answer a plan's questions",
    scope=Scope.PLANS,
    routes=[Route("POST", "/api/v1/plans/{plan_id}/answer", status=201)],
    example={"plan_id": "plan_7", "answers": {"question-1": "acme/shop"}},
    after_refusal="The places named are answers of another form than the question's schema; the plan still waits.",
)
def answer_plan(caller: Caller, given: AnswerPlan) -> PlanAnswer:
    """Answer what a plan with status needs_input asks, see its `questions`. A plan with your answers takes its place."""
    made = services.settle(caller=caller, plan_id=given.plan_id, answers=given.answers, now=timezone.now())
    return selectors.answer_of(made)


@operation(
    title="Ask a DeleGate for a plan",
    scope=Scope.PLANS,
    routes=[Route("POST", "/delegate/plan")],
    tool=False,
    own_transactions=True,
)
def request_plan(caller: Caller, given: CreatePlan) -> BarePlan:
    """As create_delegation_plan, answering the plan itself."""
    made = services.plan_request(caller=caller, given=given, now=timezone.now())
    beside = {"next_step": made.next_step, "receipt_id": made.receipt_id, "receipt_uuid": made.receipt_uuid}
    return BarePlan.model_validate({**made.plan, **beside})


@operation(
    title="Read a plan",
    scope=Scope.PLANS,
    routes=[Route("GET", "/api/v1/plans/{plan_id}")],
    read_only=True,
    example={"plan_id": "plan_7"},
    after_refusal="list_plans shows your plans.",
)
def get_plan(caller: Caller, given: OnePlan) -> PlanAnswer:
    """Read a plan that you asked for, as it was made."""
    return selectors.answer_of(selectors.plan_for(given.plan_id, caller=caller))


@operation(
    title="List plans",
    scope=Scope.PLANS,
    routes=[Route("GET", "/api/v1/plans")],
    read_only=True,
    example={"status": "needs_input", "limit": 20},
)
def list_plans(caller: Caller, given: ListPlans) -> PlanList:
    """List the plans that you asked for or submitted, refusals included, newest first."""
    found = Plan.objects.filter(principal_id=caller.principal_id).defer("document")
    found = found.filter(status=given.status) if given.status else found
    page, following = given.of(found.filter(created_at__gte=given.since) if given.since else found, newest_first=True)
    return PlanList(plans=list(map(PlanSummary.model_validate, page)), next=following)


@operation(
    title="Validate a plan",
    scope=Scope.PLANS,
    output=Verdict,
    routes=[Route("POST", "/api/v1/plans/validate", max_body=_PLAN_BYTES)],
    read_only=True,
    example={"plan": {"steps": []}},
    after_refusal="Faults of the plan are no refusal: they stand in errors. Pass the plan as an object.",
)
def validate_plan(caller: Caller, given: ValidatePlan) -> Reply:
    """Judge a plan that anybody wrote against the rules and the workers registered now; every fault is named with its place."""
    found, _, _ = selectors.judged(given.plan, tenant_id=caller.tenant_id)
    verdict = Verdict(valid=not found, errors=found, plan_hash=None if found else plan_hash(given.plan))
    return Reply(verdict, status=200)


@operation(
    title="Submit a plan",
    scope=Scope.PLANS,
    routes=[Route("POST", "/api/v1/plans/submit", status=201, max_body=_PLAN_BYTES)],
    example={"plan": {"steps": []}},
    after_refusal="Mend the faults named; validate_plan judges a plan without keeping it.",
)
def submit_plan(caller: Caller, given: SubmitPlan) -> PlanAnswer:
    """Keep a plan that you have made yourself, without carrying it out. Then pass the plan_id of the answer to execute_delegation_plan.

    It is judged as by validate_plan; one with any fault is refused with all of them. The plan is kept under an id of its own.
    """
    made = services.submit(caller=caller, document=given.plan, caused_by=given.caused_by_receipt_id, now=timezone.now())
    return selectors.answer_of(made)


@operation(
    title="Search capabilities",
    scope=(Scope.PLANS, Scope.WORKERS_REGISTER, Scope.TASKS_QUEUE),
    routes=[Route("GET", "/api/v1/capabilities/search")],
    read_only=True,
    example={"query": "weather forecast"},
)
def search_capabilities(caller: Caller, given: SearchCapabilities) -> CapabilityMatches:
    """Find tools of ready MCP workers by plain words, best first. Tolerates typos."""
    found = selectors.search_tools(given.query, tenant_id=caller.tenant_id, limit=given.limit)
    return CapabilityMatches(matches=found)


@operation(
    title="Set up a DeleGate",
    scope=Scope.ADMIN,
    routes=[Route("PUT", "/api/v1/delegates/{delegate_id}")],
    idempotent=True,
    example={"delegate_id": "research"},
    after_refusal="Change the argument named; issue_token makes principals of the kind delegate.",
)
def set_delegate(caller: Caller, given: SetDelegate) -> DelegateOutput:
    """Let a DeleGate report to another. It plans with the workers that it registers, and the one above it does not."""
    delegate = services.set_delegate(tenant_id=caller.tenant_id, delegate_id=given.delegate_id, parent=given.parent)
    return DelegateOutput.model_validate(delegate)
