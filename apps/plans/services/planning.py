"""Making plans: a new one, or one that takes another's place. Each is stored and proved by a receipt."""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Final

from django.db import transaction

from apps.core.errors import Conflict, FieldError, Invalid, pointer_to
from apps.core.metrics import once_committed
from apps.digests import services as digests
from apps.plans import documents, metrics, selectors, shelf
from apps.plans.assembling import PLANNER_VERSION, Draft, assemble, draft_of, drafted
from apps.plans.catalogue import contract_key
from apps.plans.documents import Constraints, PlanStatus, can_be_told
from apps.plans.errors import PlanReplaced
from apps.plans.models import Delegate, Plan, WaitingPlan
from apps.plans.services import proposing
from apps.plans.services.delegates import delegate_asked, refuse_detours
from apps.plans.services.proposing import PlanRequest, Proposed
from apps.plans.shapes import Budget, CreatePlan, PlanAnswer, PlanConstraints
from apps.plans.validation import validator
from apps.principals.selectors import caller_or_named
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller
from apps.receipts.services import ObligationDraft, Poster, ReceiptDraft

SOURCE: Final = "delegate"
EXPIRY: Final = timedelta(days=7)
"""A plan that has not been begun for so long is abandoned."""
_CURRENCY: Final = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """What a plan is made of that takes another's place."""

    old: Plan
    draft: Draft | None = None
    """None: the intent is planned again."""
    failed: tuple[Mapping[str, Any], ...] = ()
    """Tools of workers that are not used again: worker_id, tool_name, reason."""
    away: frozenset[str] = frozenset()
    """Workers that can't be reached just now."""


def plan_request(*, caller: Caller, given: CreatePlan, now: datetime) -> PlanAnswer:
    """Plan what is asked, with a model if one is configured and needed. Opens its own transactions.

    :raises UnknownPrincipal: if the request names a principal that the caller may not plan for.
    :raises Invalid: as :func:`create_plan`.
    """
    request = _request(given)
    proposed = proposing.propose(caller=caller, request=request, now=now)
    with caller.acting():
        caller_or_named(caller, given.principal_ai)
        return selectors.answer_of(create_plan(caller=caller, request=request, now=now, proposed=proposed))


def _request(given: CreatePlan) -> PlanRequest:
    bounds = given.constraints or PlanConstraints()
    budget = bounds.budget or Budget()
    return PlanRequest(
        intent=given.intent,
        context=given.context or {},
        constraints=Constraints(
            max_total_cost=budget.max_total_cost,
            max_cost_per_step=budget.max_cost_per_step,
            timeout_seconds=bounds.timeout_seconds,
            exclude_workers=tuple(sorted(set(bounds.exclude_workers))) or None,
            prefer=None if bounds.prefer == "balanced" else bounds.prefer,
        ),
        currency=budget.currency,
        caused_by=given.caused_by_receipt_id,
        delegate_id=given.delegate_id,
        delegation_path=tuple(given.delegation_path),
    )


@transaction.atomic
def create_plan(*, caller: Caller, request: PlanRequest, now: datetime, proposed: Proposed | None = None) -> Plan:
    """Plan an intent, keep the plan and post its `plan_created` receipt; a refusal is a plan as well.

    Without a cause, the request itself becomes the root of the chain as `task_received`.

    :param proposed: what :func:`proposing.propose` found; None: the local planner proposes.
    :raises UnknownDelegate: if the request names a DeleGate that is not here.
    :raises Invalid: if the budget is not in USD (`unknown_currency`), if the request has come through this DeleGate
        before (`delegation_loop`), or through too many (`delegation_too_deep`).
    """
    if request.currency != _CURRENCY:
        detail = f"Costs are known in {_CURRENCY} only, not in {request.currency[:10]!r}."
        raise Invalid(detail, code="unknown_currency")
    return make(caller=caller, request=request, now=now, proposed=proposed)


@transaction.atomic
def confirm(*, caller: Caller, plan_id: str, now: datetime) -> Plan:
    """Make the plan that takes the place of one that needs a confirmation: the same steps, and nothing is a guess.

    :raises UnknownPlan: if the caller has no such plan.
    :raises Conflict: if it needs no confirmation (`not_to_confirm`), or another has taken its place (`plan_replaced`).
    """
    old = _waiting_for(PlanStatus.NEEDS_CONFIRMATION, plan_id, caller)
    return revise(caller=caller, now=now, revision=Revision(old=old, draft=draft_of(old.document).confirmed()))


def answer(
    *, caller: Caller, plan_id: str, answers: Mapping[str, Any], now: datetime, within_transaction: bool = False
) -> Plan:
    """Make the plan that takes the place of one that asks: each param gets its answer, and all else stays.

    An answer that names a tool lets the intent be planned again, with this tool. Opens its own transactions.

    :param answers: by question id; those that are left out are asked again.
    :param within_transaction: the caller has one open, so that no model is asked.
    :raises UnknownPlan: if the caller has no such plan.
    :raises Conflict: if it asks nothing (`not_to_answer`), or another has taken its place (`plan_replaced`).
    :raises Invalid: if it does not ask this (`unknown_question`), or the answer is none to it (`answer_refused`).
    """
    with caller.acting():
        document = _waiting_for(PlanStatus.NEEDS_INPUT, plan_id, caller).document
        asked = {one["question_id"]: one for one in document["questions"]}
        _refuse_strange(answers, asked)
        named = _tools_named(document, asked, answers)
        context = {asked[one]["param"]: value for one, value in answers.items() if "param" in asked[one]}
        request = _again(document, context=context, tools=named)
    proposed = proposing.propose(caller=caller, request=request, now=now) if named and not within_transaction else None
    with caller.acting():
        old = _waiting_for(PlanStatus.NEEDS_INPUT, plan_id, caller)
        draft = None if named else draft_of(document).answered(answers)
        revision = Revision(old=old, draft=draft, failed=tuple(document.get("excluded", ())))
        return make(caller=caller, request=request, now=now, revision=revision, proposed=proposed)


def go_on(*, caller: Caller, plan_id: str, answers: Mapping[str, Any] | None, now: datetime) -> PlanAnswer:
    """Confirm a plan or answer its questions, whichever it waits for.

    Opens its own transactions.

    :param answers: None leaves the plan as it is.
    :raises DomainError: as :func:`confirm` and :func:`answer`.
    """
    with caller.acting():
        found = selectors.plan_for(plan_id, caller=caller)
        if answers is not None and found.status == PlanStatus.NEEDS_CONFIRMATION:
            found = confirm(caller=caller, plan_id=plan_id, now=now)
    if answers and found.status == PlanStatus.NEEDS_INPUT:
        found = answer(caller=caller, plan_id=plan_id, answers=answers, now=now)
    with caller.acting():
        return selectors.answer_of(found)


def _tools_named(
    document: Mapping[str, Any], asked: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Any]
) -> dict[int, str]:
    """The uids of the tools that answers name, by the part of the intent."""
    steps = {step["step_id"]: step for step in document["partial_plan"]["steps"]}
    found = {}
    for question_id, name in answers.items():
        if "param" not in asked[question_id]:
            step = steps[asked[question_id]["step_id"]]
            uids = {one["tool_name"]: one["tool_uid"] for one in reversed((step, *step["alternatives"]))}
            if not isinstance(name, str) or name not in uids:
                place = FieldError(pointer_to("answers", question_id), f"is one of {', '.join(uids)}")
                raise Invalid("The plan knows no such tool.", code="answer_refused", errors=[place])
            found[step.get("clause", 0)] = uids[name]
    return found


def _refuse_strange(answers: Mapping[str, Any], asked: Mapping[str, Mapping[str, Any]]) -> None:
    unknown = [FieldError(pointer_to("answers", one), "no question has this id") for one in answers if one not in asked]
    if unknown:
        raise Invalid(f"The plan asks {', '.join(asked)}.", code="unknown_question", errors=unknown)
    errors = []
    for question_id, value in answers.items():
        question, pointer = asked[question_id], pointer_to("answers", question_id)
        if "param" not in question:
            continue
        if not can_be_told(value):
            errors.append(FieldError(pointer, "has no exact form in a plan; give it as text"))
        elif isinstance(schema := question.get("schema"), Mapping):
            faults = validator(contract_key(schema)).iter_errors(value)
            errors += [FieldError(pointer + pointer_to(*one.instance_path), one.message[:500]) for one in faults]
    if errors:
        raise Invalid("An answer is not what the param takes.", code="answer_refused", errors=errors[:100])


def _waiting_for(status: PlanStatus, plan_id: str, caller: Caller) -> Plan:
    """The plan, if it has this status, for as long as the transaction lasts nobody else's to replace."""
    found = selectors.plan_for(plan_id, caller=caller)
    if found.status != status:
        code = "not_to_confirm" if status == PlanStatus.NEEDS_CONFIRMATION else "not_to_answer"
        raise Conflict(f"{plan_id} is {found.status}, not {status}.", code=code)
    return held_plan(plan_id)


def held_plan(plan_id: str) -> Plan:
    """The plan, for as long as the transaction lasts nobody else's to replace.

    :raises PlanReplaced: if another has taken its place.
    """
    old = Plan.objects.select_for_update(no_key=True, of=("self",)).select_related("delegate").get(plan_id=plan_id)
    successor = old.successors.first()
    if successor is not None:
        raise PlanReplaced(f"{old} was replaced by {successor}.", successor_plan_id=successor.plan_id)
    return old


def revise(
    *,
    caller: Caller,
    now: datetime,
    revision: Revision,
    constraints: Constraints | None = None,
    caused_by: str | None = None,
) -> Plan:
    """Make a plan that takes another's place, within the caller's transaction.

    :param constraints: the bounds; None: those of the old plan.
    """
    request = _again(revision.old.document, constraints=constraints, caused_by=caused_by)
    return make(caller=caller, request=request, now=now, revision=revision)


def _again(
    document: Mapping[str, Any],
    *,
    context: Mapping[str, Any] | None = None,
    tools: Mapping[int, str] | None = None,
    constraints: Constraints | None = None,
    caused_by: str | None = None,
) -> PlanRequest:
    """What was asked for a plan, under the bounds of then. Of its context there is what its steps took from it."""
    taken = {
        str(source.get("key", name)): step["params"][name]
        for step in documents.partial_of(document)["steps"]
        for name, source in (step.get("provenance") or {}).items()
        if str(source.get("source")) in proposing.GIVEN and name in step.get("params", {})
    }
    settled = {int(part): uid for part, uid in document.get("settled_tools", {}).items()}
    return PlanRequest(
        intent=document["intent"],
        context={**taken, **(context or {})},
        constraints=constraints or Constraints.model_validate(document.get("constraints") or {}),
        caused_by=caused_by,
        delegate_id=document["delegate_id"],
        delegation_path=tuple(document.get("delegation_path", ())),
        tools={**settled, **(tools or {})},
    )


def make(
    *,
    caller: Caller,
    request: PlanRequest,
    now: datetime,
    revision: Revision | None = None,
    proposed: Proposed | None = None,
) -> Plan:
    """Make a plan and keep it, within the caller's transaction.

    :param proposed: what a proposer found; None: the local planner proposes, unless the revision says what is to be done.
    """
    begun = monotonic()
    delegate = delegate_asked(caller, request.delegate_id, now)
    refuse_detours(delegate, request.delegation_path)
    asked = proposing.asked_of(request, delegate, now)
    old = revision.old.document if revision else {}
    failed = revision.failed if revision else ()
    reasons = {(one["worker_id"], one["tool_name"]): f"it failed before: {one['reason']}" for one in failed}
    with shelf.held(tenant_id=caller.tenant_id, delegate=delegate) as held:
        catalogue = proposing.view(held, request).without(revision.away if revision else (), reasons)
        if revision and revision.draft:
            draft, said = revision.draft, {name: old.get(name) for name in ("proposer_reason", "model_use")}
        else:
            found = proposed or proposing.local(held, catalogue, asked)
            draft = drafted(found.proposal, asked)
            said = {"proposer_reason": found.reason, "model_use": found.model_use}
        head = {
            **said,
            "plan_id": new_plan_id(),
            "delegate_id": delegate.delegate_id,
            "principal_ai": caller.name,
            "intent": request.intent,
            "created_at": told(now),
            "scope": delegate.scope,
            "planner_version": f"{PLANNER_VERSION}.{held.model}",
            "references": old.get("references") or {"inputs": _inputs(request.context)},
            "settled_tools": {str(part): uid for part, uid in request.tools.items()} or None,
            "delegation_path": request.delegation_path or None,
            "replaces": old.get("plan_id"),
            "revision": old.get("revision", 1) + 1 if revision else None,
            "excluded": failed or None,
        }
        made = assemble(draft, catalogue, intent=request.intent, head=head, constraints=request.constraints)
    document = made.document()
    document["plan_hash"] = documents.plan_hash(document)
    kept = keep(
        caller=caller,
        delegate=delegate,
        made=made,
        document=document,
        caused_by=request.caused_by or (revision.old.receipt_id if revision else None),
        old=revision.old if revision else None,
        now=now,
    )
    once_committed(metrics.GENERATION.observe, monotonic() - begun)
    return kept


def keep(
    *,
    caller: Caller,
    delegate: Delegate,
    made: documents.Plan,
    document: Mapping[str, Any],
    caused_by: str | None,
    old: Plan | None = None,
    now: datetime,
) -> Plan:
    """Store a plan and post its `plan_created` receipt, within the caller's transaction.

    :param document: the plan as it is told, with its hash.
    :param old: the plan whose place it takes.
    """
    cause = caused_by or _post_root(caller, made.intent, made.plan_id, now)
    receipt = digests.post(
        poster=Poster(tenant_id=caller.tenant_id, principal_id=delegate.principal_id, name=DELEGATE),
        draft=_plan_created(caller, delegate, made, cause=cause, now=now),
        now=now,
    )
    plan = Plan.objects.create(
        tenant_id=caller.tenant_id,
        plan_id=made.plan_id,
        delegate=delegate,
        principal_id=caller.principal_id,
        intent=made.intent,
        status=made.status,
        document=document,
        receipt_id=receipt.receipt_id,
        receipt_uuid=receipt.uuid,
        created_at=now,
        replaces=old,
    )
    if made.status == PlanStatus.READY:
        WaitingPlan.objects.create(tenant_id=caller.tenant_id, plan=plan, expires_at=now + EXPIRY)
    return plan


def new_plan_id() -> str:
    """An id that no plan has."""
    return f"plan-{secrets.token_hex(12)}"


def told(moment: datetime) -> str:
    """A moment as plans tell it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _inputs(context: Mapping[str, Any]) -> dict[str, list[str]]:
    """What the context refers to, as it was given: nothing is looked up."""
    names = {"memory_ids": "memory_refs", "receipt_ids": "receipt_refs", "concept_names": "concept_names"}
    return {name: list(_texts(context.get(given))) for name, given in names.items() if context.get(given)}


def _texts(given: object) -> Iterable[str]:
    items = given[:200] if isinstance(given, list) else []
    return (str(one)[:100] for one in items if isinstance(one, (str, int)))


def _post_root(caller: Caller, intent: str, plan_id: str, now: datetime) -> str:
    posted = digests.post(
        poster=Poster.of(caller),
        draft=ReceiptDraft(
            recipient_id=caller.principal_id,
            source_system=SOURCE,
            event_type="task_received",
            dedupe_key=f"delegate:task_received:{plan_id}:v1",
            summary=intent[:2000],
            surface="ledger",
        ),
        now=now,
    )
    return posted.receipt_id


def _plan_created(
    caller: Caller, delegate: Delegate, made: documents.Plan, *, cause: str, now: datetime
) -> ReceiptDraft:
    """Only a plan that is ready is owed, by whoever asked for it, until an execution of it ends."""
    ready = made.status == PlanStatus.READY
    return ReceiptDraft(
        recipient_id=caller.principal_id,
        source_system=SOURCE,
        event_type="plan_created",
        dedupe_key=f"delegate:plan_created:{made.plan_id}:v1",
        receipt_id=f"R.{now.astimezone(UTC):%Y%m%dT%H%M%SZ}.delegate.{made.plan_id}",
        summary=f"Plan {'submitted' if made.is_submitted else 'created'} for: {made.intent[:100]}",
        artifact_pointer=made.plan_id,
        artifact_location="delegate_registry",
        requires_action=ready,
        suggested_next_step="Execute plan steps" if ready else documents.next_step(made.document())[:500],
        caused_by=cause,
        metadata={
            "plan_id": made.plan_id,
            "delegate_id": delegate.delegate_id,
            "scope": made.scope,
            "status": str(made.status),
            "confidence": made.confidence,
            "step_count": len(made.steps),
            "estimated_total_runtime_seconds": made.estimated_total_runtime_seconds or 0,
            "can_run_parallel": bool(made.can_run_parallel),
            **({"submitted": True} if made.is_submitted else {}),
            **({"replaces": made.replaces, "revision": made.revision} if made.replaces else {}),
        },
        surface="ledger",
        obligation=ObligationDraft(debtor_id=caller.principal_id, creditor_id=delegate.principal_id) if ready else None,
    )
