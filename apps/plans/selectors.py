"""Questions about plans, and the registry as the planner sees it."""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, Final

from django.db.models import Count, Q

from apps.core.errors import NotFound
from apps.core.lexical import words
from apps.core.operations import Questionnaire
from apps.core.sql import GATEHOUSE_NOW
from apps.plans import documents, shelf, validation
from apps.plans.catalogue import GENTLE_EFFECTS, Catalogue
from apps.plans.local.words import SMALL, pieces, stem
from apps.plans.models import LearnedModel, Plan
from apps.plans.shapes import WORKER_STEPS, CapabilityMatch, PlanAnswer
from apps.plans.validation import Problem
from apps.principals.models import Principal
from apps.principals.scopes import Kind
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller
from apps.workers import selectors as workers

_SMALL_STEMS: Final = frozenset(map(stem, SMALL))


def order_of(document: Mapping[str, Any]) -> tuple[dict[str, list[str]], frozenset[str]]:
    """By step of a plan the steps that come before it, in the plan's order; and the steps whose failure fails it."""
    steps = documents.Plan.model_validate(document).steps
    parents = documents.parents_of(steps)
    before = {one.step_id: [other.step_id for other in steps if other.step_id in parents[one.step_id]] for one in steps}
    return before, documents.critical_steps(steps)


def stems(text: str) -> dict[str, float]:
    """The stems of a text's words, each with what it counts: a small word ("my", "every") a tenth of another."""
    found = map(stem, words(text))
    return {word: 0.1 if word in _SMALL_STEMS else 1.0 for word in found}


def plan(plan_id: str) -> Plan:
    """The plan of this id in the current tenant, with its DeleGate.

    :raises NotFound: if there is none (`unknown_plan`).
    """
    found = Plan.objects.filter(plan_id=plan_id).select_related("delegate").first()
    if found is None:
        raise NotFound(f"There is no plan {plan_id[:100]!r}.", code="unknown_plan")
    return found


def plan_for(plan_id: str, *, caller: Caller) -> Plan:
    """As :func:`plan`, for the principal that asked for it; for others there is none."""
    found = plan(plan_id)
    if found.principal_id != caller.principal_id:
        raise NotFound(f"There is no plan {plan_id[:100]!r}.", code="unknown_plan")
    return found


def successor_of(plan_id: str) -> str | None:
    """The plan that has taken another's place, if one has."""
    return Plan.objects.filter(replaces__plan_id=plan_id).values_list("plan_id", flat=True).first()


def expired(*, limit: int) -> list[tuple[int, str]]:
    """Plans that have waited too long to be begun, or were forgotten, longest waiting first. Runs as the system.

    :return: the tenant and the plan_id of each.
    """
    over = Q(waits_until__lte=GATEHOUSE_NOW) | Q(intent="")
    found = Plan.objects.filter(over).exclude(waits_until=None).order_by("waits_until")
    return list(found.values_list("tenant_id", "plan_id")[:limit])


def delegate_named(delegate_id: str) -> Principal:
    """:raises NotFound: if the tenant has no DeleGate of this name (`unknown_delegate`)."""
    found = Principal.objects.named(delegate_id).filter(kind=Kind.DELEGATE).first()
    if found is None:
        raise NotFound(f"There is no DeleGate {delegate_id[:100]!r}.", code="unknown_delegate")
    return found


def outside_pool(worker_ids: Collection[str], *, tenant_id: int, delegate: str) -> list[str]:
    """Those among the workers that are not in a DeleGate's pool at the moment. It is asked of rows: who only begins a plan
    or makes a call needs no registry in memory.
    """
    found = workers.managers(tenant_id=tenant_id, worker_ids=worker_ids) if worker_ids else {}
    return sorted(one for one in worker_ids if found.get(one, (0, DELEGATE))[1] != delegate)


def only_reads(document: Mapping[str, Any], *, tenant_id: int) -> bool:
    """Does no step of a plan change anything, by what its tools may touch?"""
    steps = [step for step in document["steps"] if step["step_type"] in WORKER_STEPS]
    with shelf.held(tenant_id=tenant_id) as held:
        found = [held.catalogue.find(step["worker_id"], step["tool_name"]) for step in steps]
    return all(one is not None and one[1].effects <= GENTLE_EFFECTS for one in found)


def answer_of(plan: Plan) -> PlanAnswer:
    """What a caller is told of a plan. What holds at the moment, and may not in the next, stands beside it, never in it."""
    document = plan.document
    steps = document["steps"]
    called = {one["worker_id"] for one in steps if one["step_type"] in WORKER_STEPS and not one.get("done")}
    return PlanAnswer(
        next_step=plan.next_step,
        plan=document,
        plan_id=plan.plan_id,
        status=document["status"],
        can_execute_now=plan.can_be_begun and called <= workers.ready(worker_id__in=called, available=True),
        receipt_id=plan.receipt_id,
        receipt_uuid=str(plan.receipt_uuid),
        steps=steps,
        estimated_runtime_seconds=document.get("estimated_total_runtime_seconds", 0),
    )


_FIELDS: Final = {
    "string": ("enum", "minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "boolean": (),
}


def search_tools(query: str, *, tenant_id: int, limit: int = 20) -> list[CapabilityMatch]:
    """Tools of ready workers by the words of a query, best first."""
    # Before the lock: other searches do not wait for this statement.
    ready = workers.ready()
    with shelf.held(tenant_id=tenant_id) as held:
        library = held.library
        # Names are indexed by their pieces: `s3_upload` by `s`, `3` and `upload`.
        parts = ([word] if library.knows(stem(word)) else pieces(word) or [word] for word in words(query))
        asked = dict.fromkeys(part for some in parts for part in some)
        asked = dict.fromkeys(word for word in asked if word not in SMALL) or asked
        near = library.search([stem(library.spelt(word)) for word in asked], (), len(library))
        best = near[0][1] if near else 1.0
        found = (
            CapabilityMatch(
                worker_id=offer.worker_id,
                tool_name=profile.tool.name,
                relevance_score=round(score / best, 4),
                description=profile.tool.description,
            )
            for profile, score in near
            for offer in held.catalogue.offers_of(profile.tool.uid)
            if offer.worker_id in ready
        )
        return list(islice(found, limit))


def questionnaire_of(made: PlanAnswer) -> Questionnaire | None:
    """What a person is asked so that a plan becomes ready; None if there is nothing to ask that a client can show."""
    document, plan_id = made.plan, made.plan_id
    if made.status == "needs_confirmation":
        guesses = "\n".join(one["detail"] for one in document["unsure"])
        return Questionnaire(about=plan_id, text=f"{document['intent'][:500]}\n{guesses}\nIs this right?", fields={})
    fields = {}
    for one in document.get("questions") or () if made.status == "needs_input" else ():
        schema = one.get("schema") or {} if "param" in one else {"type": "string", "enum": one["choices"]}
        kind = schema.get("type")
        if isinstance(kind, str) and kind in _FIELDS:
            kept = {name: schema[name] for name in _FIELDS[kind] if name in schema}
            told = {"title": one.get("param", "tool"), "description": one["text"]}
            fields[one["question_id"]] = {"type": kind, **told, **kept}
    return Questionnaire(about=plan_id, text=document["intent"][:500], fields=fields) if fields else None


def judged(document: Mapping[str, Any], *, tenant_id: int) -> tuple[list[Problem], documents.Plan | None, Catalogue]:
    """What is wrong with a plan, whoever wrote it; the plan; and what its workers offer to the DeleGate that it names.

    The registry is held only until what the plan is judged by is taken out of it, for a long plan takes a second.
    """
    plan, problems = validation.parse(document)
    named = {step.worker_id for step in plan.steps if step.worker_id} if plan else ()
    delegates = Principal.objects.named(plan.delegate_id).filter(kind=Kind.DELEGATE) if plan else ()
    delegate = next(iter(delegates), None)
    with shelf.held(tenant_id=tenant_id, delegate=delegate) as held:
        catalogue = held.catalogue.of_workers(named)
    if plan is not None:
        problems = [*validation.validate(plan, catalogue), *problems]
        if delegate is None:
            problems.append(Problem("/delegate_id", "unknown_delegate", f"There is no DeleGate {plan.delegate_id}."))
    return problems[: validation.MAX_PROBLEMS], plan, catalogue


def tenants_with_lessons() -> list[int]:
    """The tenants with a twentieth more plans carried out than when it was learned, with fifty more, or with the first fifty.

    Runs as the system.
    """
    before = dict(LearnedModel.objects.values_list("tenant_id", "learned_from"))
    now = (
        Plan.objects.exclude(completed=None).values_list("tenant_id").annotate(number=Count("pk")).order_by("tenant_id")
    )
    return [one for one, number in now if number - before.get(one, 0) >= min(max(5, before.get(one, 1000) / 20), 50)]
