"""Commands on plans and DeleGates. Each plan is stored and proved by a receipt; one that takes another's place is a new one."""

import hashlib
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from apps.core.errors import Conflict, FieldError, Invalid, NotFound, pointer_to
from apps.core.foreign_schemas import validator
from apps.core.metrics import Histogram
from apps.digests import services as digests
from apps.plans import documents, language_model, selectors, shelf, validation
from apps.plans.assembling import assemble, draft_of
from apps.plans.catalogue import Catalogue
from apps.plans.documents import SUBMITTED, PlanStatus, Step, can_be_told
from apps.plans.local.history import FITTED_ON, MOST, Past
from apps.plans.local.history import learn as learned
from apps.plans.local.proposing import propose as propose_locally
from apps.plans.models import LearnedModel, Plan
from apps.plans.proposals import Asked, Evidence, Proposal
from apps.plans.shapes import WORKER_STEPS, Budget, CreatePlan, PlanAnswer, PlanConstraints
from apps.plans.validation import Problem
from apps.principals import services as principals
from apps.principals.models import Principal
from apps.principals.scopes import Kind
from apps.principals.selectors import caller_or_named
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller, acting_in
from apps.receipts.services import ObligationDraft, Poster, ReceiptDraft
from apps.workers import selectors as workers
from apps.workers import services as registry

GENERATION: Final = Histogram(
    "delegate_plan_generation_with_receipt_duration_seconds",
    "From a request for a plan until the plan and its receipt are stored.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
MOST_DELEGATES: Final = 8
"""A wish that has come through so many goes no further."""
EXPIRY: Final = timedelta(days=7)
"""A plan that has not been begun for so long is abandoned."""
_SOURCE: Final = "delegate"
_SEARCHED: Final = 60
_READ: Final = 4_000
_GROUNDING: Final = {"memory_ids": "memory_refs", "receipt_ids": "receipt_refs", "concept_names": "concept_names"}
"""What a plan refers to, by the members of the context that name it."""
_MOST_FAILURES: Final = 200
_ANEW: Final = ("plan_hash", "next_step", "receipt_id", "receipt_uuid")
"""What a plan says of itself that is another's once it is kept."""
_FAILED: Final = 0.25
"""How much a plan counts of which only a part ran to its end."""


# Plans.


def plan_request(*, caller: Caller, given: CreatePlan, now: datetime) -> PlanAnswer:
    """Plan what is asked, with a model if one is configured and needed. Opens its own transactions.

    :raises UnknownPrincipal: if the request names a principal that the caller may not plan for.
    :raises NotFound, Invalid: as :func:`create_plan`.
    """
    begun, proposed = monotonic(), None
    if language_model.may_ask():
        with caller.acting():
            caller_or_named(caller, given.principal_ai)
            delegate = selectors.delegate_named(given.delegate_id or DELEGATE)
            asked = _asked(given, delegate, now)
        proposed = _propose(caller, delegate, asked, given.constraints or PlanConstraints())
    with caller.acting():
        caller_or_named(caller, given.principal_ai)
        made = selectors.answer_of(create_plan(caller=caller, given=given, now=now, proposed=proposed))
    GENERATION.observe(monotonic() - begun)
    return made


@transaction.atomic
def create_plan(*, caller: Caller, given: CreatePlan, now: datetime, proposed: Proposal | None = None) -> Plan:
    """Plan an intent, keep the plan and post its `plan_created` receipt; a refusal is a plan as well.

    Without a cause, the request itself becomes the root of the chain as `task_received`.

    :param proposed: what a proposer found; None: the local planner proposes.
    :raises NotFound: if the request names a DeleGate that is not here (`unknown_delegate`).
    :raises Invalid: if the request has come through this DeleGate before (`delegation_loop`), or through too many
        (`delegation_too_deep`).
    """
    delegate = selectors.delegate_named(given.delegate_id or DELEGATE)
    asked = _asked(given, delegate, now)
    inputs = {name: list(_texts((given.context or {}).get(member))) for name, member in _GROUNDING.items()}
    return _make(
        caller,
        delegate,
        asked,
        given.constraints,
        proposed=proposed,
        inputs={name: found for name, found in inputs.items() if found},
        caused_by=given.caused_by_receipt_id,
    )


@transaction.atomic
def settle(*, caller: Caller, plan_id: str, answers: Mapping[str, Any] | None, now: datetime) -> Plan:
    """Make the plan that takes the place of one that waits for its principal, and of which all else stays.

    What failed before is not used. An answer that names a tool lets the local planner plan the intent again, with it.

    :param answers: None confirms all guesses. Else by question id: those that are left out are asked again, and so are
        params if an answer names a tool.
    :raises NotFound: if the caller has no such plan (`unknown_plan`).
    :raises Conflict: if it guesses nothing (`not_to_confirm`) or asks nothing (`not_to_answer`), or another has taken its
        place (`plan_replaced`).
    :raises Invalid: if it does not ask this (`unknown_question`), or the answer is none to it (`answer_refused`).
    """
    status = PlanStatus.NEEDS_CONFIRMATION if answers is None else PlanStatus.NEEDS_INPUT
    found = selectors.plan_for(plan_id, caller=caller)
    if found.status != status:
        code = "not_to_confirm" if answers is None else "not_to_answer"
        raise Conflict(f"{plan_id} is {found.status}, not {status}.", code=code)
    old = _held(plan_id)
    draft, asked = draft_of(old.document), _asked_again(old, now)
    named = {} if answers is None else _tools_named(old.document, answers)
    return _make(
        caller,
        old.delegate,
        replace(asked, tools={**asked.tools, **named}),
        _bounds_of(old),
        old=old,
        caused_by=old.receipt_id,
        proposed=None if named else draft.confirmed() if answers is None else draft.answered(answers),
        failed=old.document.get("excluded", ()),
    )


def go_on(*, caller: Caller, plan_id: str, answers: Mapping[str, Any] | None, now: datetime) -> PlanAnswer:
    """Confirm a plan or answer its questions, whichever it waits for. Opens its own transaction.

    :param answers: None leaves the plan as it is.
    :raises DomainError: as :func:`settle`.
    """
    with caller.acting():
        found = selectors.plan_for(plan_id, caller=caller)
        guesses = found.status == PlanStatus.NEEDS_CONFIRMATION
        if answers is not None and (guesses or (answers and found.status == PlanStatus.NEEDS_INPUT)):
            found = settle(caller=caller, plan_id=plan_id, answers=None if guesses else answers, now=now)
        return selectors.answer_of(found)


@transaction.atomic
def replan(
    *,
    caller: Caller,
    plan_id: str,
    failed_step: str,
    reason: str,
    now: datetime,
    done: Collection[str] = (),
    was_waiting: bool,
    budget: Budget | None = None,
    caused_by: str | None = None,
) -> Plan:
    """Make the plan that takes another's place: what is done stays done, what failed is not used again.

    The other steps stay as they are, at other workers where need be. Where a tool has no other worker, the plan says so.

    :param reason: why the step failed.
    :param done: the ids of the steps of the old plan that have run to their end.
    :param was_waiting: whether the old plan had not been begun: what is owed for it is closed here, otherwise by its execution.
    :param budget: what the steps that are left may cost; what it leaves open stands in the plan.
    :raises NotFound: if the caller has no such plan (`unknown_plan`), or it has no such step (`unknown_step`).
    :raises Invalid: if the step runs no tool (`step_without_tool`).
    :raises Conflict: if the step has run to its end (`step_done`), or the plan has been replaced before (`plan_replaced`).
    """
    selectors.plan_for(plan_id, caller=caller)
    old = _held(plan_id)
    document = old.document
    failed: Mapping[str, Any] = next((step for step in document["steps"] if step["step_id"] == failed_step), {})
    if not failed:
        raise NotFound(f"{plan_id} has no step {failed_step[:100]!r}.", code="unknown_step")
    if failed["step_type"] not in WORKER_STEPS:
        detail = f"{failed_step} is {failed['step_type']}: it runs no tool, so nothing can be chosen otherwise."
        raise Invalid(detail, code="step_without_tool")
    if failed_step in done or failed.get("done"):
        raise Conflict(f"{failed_step} has run to its end; its result stands.", code="step_done")
    new = {"worker_id": failed["worker_id"], "tool_name": failed["tool_name"], "reason": reason[:500]}
    before = [one for one in document.get("excluded", ()) if {**one, "reason": ""} != {**new, "reason": ""}]
    own = _bounds_of(old)
    left = own.budget.model_copy(update=budget.model_dump(exclude_none=True) if budget else {})
    made = _make(
        caller,
        old.delegate,
        _asked_again(old, now),
        own.model_copy(update={"budget": left}),
        old=old,
        caused_by=caused_by or old.receipt_id,
        proposed=draft_of(document, done),
        failed=(*before, new)[-_MOST_FAILURES:],
    )
    if was_waiting:
        _abandon(old, reason="replaced", now=now, successor=made.plan_id)
    return made


@transaction.atomic
def submit(*, caller: Caller, document: Mapping[str, Any], caused_by: str | None, now: datetime) -> Plan:
    """Keep a plan of any author that the validator finds nothing wrong with, and post its `plan_created` receipt.

    It is kept as it was given, its defaults written out. Added are an id, the time, the version of each tool, the estimates
    of cost and duration, and the hash. No step costs less than its worker asks.

    :raises Invalid: if anything is wrong with it, or it is none to be carried out (`plan_invalid`), if it has come through
        its DeleGate before (`delegation_loop`), or through too many (`delegation_too_deep`). Nothing is kept.
    """
    problems, plan, catalogue = selectors.judged(document, tenant_id=caller.tenant_id)
    problems = problems or list(_unfit(plan, caller) if plan else ())
    if problems or plan is None:
        raise Invalid(
            f"The plan is not kept. {problems[0].path or 'The whole of it'}: {problems[0].message}"[:500],
            code="plan_invalid",
            errors=[FieldError(f"/plan{one.path}", f"{one.code}: {one.message}") for one in problems],
        )
    delegate = selectors.delegate_named(plan.delegate_id)
    _refuse_detours(delegate, plan.delegation_path or ())
    added = {
        **dict.fromkeys(_ANEW),
        "plan_id": new_plan_id(),
        "created_at": _told(now),
        "proposer": SUBMITTED,
        "steps": tuple(_pinned(step, catalogue) for step in plan.steps),
    }
    kept = plan.model_copy(update=added)
    kept = kept.model_copy(update=validation.estimates(kept, catalogue))
    return keep(caller=caller, delegate=delegate, plan=kept, caused_by=caused_by, now=now)


@transaction.atomic
def take_up(*, plan_id: str) -> bool:
    """Take a plan away from those that wait to be begun; False if it did not wait any more. Runs within its tenant."""
    return Plan.objects.filter(plan_id=plan_id).exclude(waits_until=None).update(waits_until=None) > 0


@transaction.atomic
def abandon_expired(*, plan_id: str, now: datetime) -> bool:
    """Give a plan up that has waited too long, and close what is owed for it; False if it waits no more."""
    if not take_up(plan_id=plan_id):
        return False
    _abandon(selectors.plan(plan_id), reason="expired", now=now)
    return True


def _asked(given: CreatePlan, delegate: Principal, now: datetime) -> Asked:
    """The request as proposers see it."""
    _refuse_detours(delegate, given.delegation_path)
    context = {name: value for name, value in (given.context or {}).items() if name not in _GROUNDING.values()}
    path = (*given.delegation_path, _key(delegate))
    return Asked(intent=given.intent, now=now, context=context, delegation_path=path)


def _asked_again(old: Plan, now: datetime) -> Asked:
    """What was asked for a plan. Of its context there is what its steps took from it."""
    document = old.document
    taken = {
        str(source["key"]): step["params"][name]
        for step in documents.partial_of(document)["steps"]
        for name, source in (step.get("provenance") or {}).items()
        if source.get("source") == Evidence.CONTEXT and "key" in source and name in step.get("params", {})
    }
    return Asked(
        intent=document["intent"],
        now=now,
        context=taken,
        tools={int(part): uid for part, uid in document.get("settled_tools", {}).items()},
        delegation_path=(*document.get("delegation_path", ()), _key(old.delegate)),
    )


def _bounds_of(plan: Plan) -> PlanConstraints:
    return PlanConstraints.model_validate(plan.document.get("constraints") or {})


def _texts(given: object) -> Iterable[str]:
    items = given[:200] if isinstance(given, list) else []
    return (str(one)[:100] for one in items if isinstance(one, (str, int)))


def _propose(caller: Caller, delegate: Principal, asked: Asked, bounds: PlanConstraints) -> Proposal:
    """What the proposers find: the local planner first, then the model if it is needed. Not within a transaction."""
    with caller.acting(), shelf.held(tenant_id=caller.tenant_id, delegate=delegate) as held:
        catalogue = held.catalogue.without(bounds.exclude_workers)
        found = propose_locally(asked, held.library, catalogue, held.history)
        near = held.library.shown(asked.intent[:_READ], asked.now, _SEARCHED)
        tools = [tool for tool in near if catalogue.open_offers(tool.uid)]
    if settings.PLANNER_USE_MODEL == "when_needed" and found.is_ready:
        return replace(found, reason="It is ready without a model.")
    proposal, use = language_model.ask(tenant_id=caller.tenant_id, asked=asked, tools=tools)
    if proposal is None:
        reason = f"{use.failure or 'The model finds no tool for this.'} So the local planner is used."
        return replace(found, reason=reason, model_use=use)
    reason = "The model is always asked." if found.is_ready else "The local planner has no plan that is ready."
    return replace(proposal, reason=reason, model_use=use)


def _make(
    caller: Caller,
    delegate: Principal,
    asked: Asked,
    constraints: PlanConstraints | None,
    *,
    caused_by: str | None,
    proposed: Proposal | None,
    inputs: Mapping[str, Any] | None = None,
    old: Plan | None = None,
    failed: Sequence[Mapping[str, Any]] = (),
) -> Plan:
    """Make a plan and keep it, within the caller's transaction.

    :param proposed: what is to be done; None: what the local planner proposes.
    :param failed: tools of workers that are not used again: worker_id, tool_name, reason.
    :param inputs: what the request is grounded in, by `references` of the plan.
    :param old: the plan whose place it takes, which was grounded in the same.
    """
    reasons = {(one["worker_id"], one["tool_name"]): f"it failed before: {one['reason']}" for one in failed}
    with shelf.held(tenant_id=caller.tenant_id, delegate=delegate) as held:
        catalogue = held.catalogue.without(constraints.exclude_workers if constraints else ())
        catalogue = catalogue.barring(lambda *offered: reasons.get(offered))
        proposed = proposed or propose_locally(asked, held.library, catalogue, held.history)
        head = {
            "plan_id": new_plan_id(),
            "delegate_id": delegate.name,
            "principal_ai": caller.name,
            "intent": asked.intent,
            "created_at": _told(asked.now),
            "settled_tools": {str(part): uid for part, uid in asked.tools.items()} or None,
            "delegation_path": asked.delegation_path[:-1] or None,
            "excluded": failed or None,
            "references": (old and old.document.get("references")) or {"inputs": inputs or {}},
            "replaces": old and old.plan_id,
        }
        made = assemble(proposed, catalogue, intent=asked.intent, head=head, constraints=constraints)
    return keep(caller=caller, delegate=delegate, plan=made, caused_by=caused_by, old=old, now=asked.now)


def keep(
    *,
    caller: Caller,
    delegate: Principal,
    plan: documents.Plan,
    caused_by: str | None,
    old: Plan | None = None,
    now: datetime,
) -> Plan:
    """Store a plan with its hash and post its `plan_created` receipt, within the caller's transaction.

    Only a plan that is ready is owed, by whoever asked for it, until an execution of it ends.

    :param old: the plan whose place it takes.
    """
    document, ready, plan_id = plan.document(), plan.status == PlanStatus.READY, plan.plan_id
    submitted = old is None and plan.proposer == SUBMITTED
    cause = (
        caused_by
        or digests.post(
            poster=Poster.of(caller),
            draft=ReceiptDraft(
                recipient_id=caller.principal_id,
                source_system=_SOURCE,
                event_type="task_received",
                dedupe_key=f"delegate:task_received:{plan_id}:v1",
                summary=plan.intent[:2000],
                surface="ledger",
            ),
            now=now,
        ).receipt_id
    )
    receipt = _post(
        caller.principal_id,
        delegate,
        plan_id,
        "plan_created",
        now=now,
        receipt_id=f"R.{now.astimezone(UTC):%Y%m%dT%H%M%SZ}.delegate.{plan_id}",
        summary=f"Plan {'submitted' if submitted else 'created'} for: {plan.intent[:100]}",
        requires_action=ready,
        suggested_next_step="Execute plan steps" if ready else documents.next_step(document)[:500],
        caused_by=cause,
        metadata={
            "scope": plan.scope,
            "status": str(plan.status),
            "confidence": plan.confidence,
            "step_count": len(plan.steps),
            "estimated_total_runtime_seconds": plan.estimated_total_runtime_seconds or 0,
            "can_run_parallel": bool(plan.can_run_parallel),
            **({"submitted": True} if submitted else {}),
            **({"replaces": plan.replaces} if plan.replaces else {}),
        },
        obligation=ObligationDraft(debtor_id=caller.principal_id, creditor_id=delegate.pk) if ready else None,
    )
    return Plan.objects.create(
        tenant_id=caller.tenant_id,
        plan_id=plan_id,
        delegate=delegate,
        principal_id=caller.principal_id,
        intent=plan.intent,
        status=plan.status,
        document={**document, "plan_hash": documents.plan_hash(document)},
        receipt_id=receipt.receipt_id,
        receipt_uuid=receipt.uuid,
        created_at=now,
        replaces=old,
        waits_until=now + EXPIRY if ready else None,
    )


def _abandon(plan: Plan, *, reason: str, now: datetime, successor: str | None = None) -> None:
    """Close what is owed for a plan that nobody will carry out."""
    told = "was replaced before it was begun" if successor else "was not begun in time"
    _post(
        plan.principal_id,
        plan.delegate,
        plan.plan_id,
        "plan_abandoned",
        now=now,
        summary=f"{plan.plan_id} {told}: {plan.intent[:100]}",
        caused_by=plan.receipt_id,
        pairs_with=plan.receipt_id,
        metadata={"reason": reason, **({"replaced_by": successor} if successor else {})},
    )


def _post(
    recipient_id: int,
    delegate: Principal,
    plan_id: str,
    event: str,
    *,
    now: datetime,
    metadata: Mapping[str, Any],
    **members: Any,
) -> digests.Posted:
    """Post a receipt of a DeleGate about a plan."""
    return digests.post(
        poster=Poster(tenant_id=delegate.tenant_id, principal_id=delegate.pk, name=DELEGATE),
        draft=ReceiptDraft(
            recipient_id=recipient_id,
            source_system=_SOURCE,
            event_type=event,
            dedupe_key=f"delegate:{event}:{plan_id}:v1",
            artifact_pointer=plan_id,
            artifact_location="delegate_registry",
            metadata={"plan_id": plan_id, "delegate_id": delegate.name, **metadata},
            surface="ledger",
            **members,
        ),
        now=now,
    )


def new_plan_id() -> str:
    """An id that no plan has."""
    return f"plan-{secrets.token_hex(12)}"


def _told(moment: datetime) -> str:
    """A moment as plans tell it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _held(plan_id: str) -> Plan:
    """The plan, for as long as the transaction lasts nobody else's to replace."""
    old = Plan.objects.select_for_update(no_key=True, of=("self",)).select_related("delegate").get(plan_id=plan_id)
    successor = old.successors.first()
    if successor is not None:
        detail = f"{old} was replaced by {successor}."
        raise Conflict(detail, code="plan_replaced", successor_plan_id=successor.plan_id)
    return old


def _tools_named(document: Mapping[str, Any], answers: Mapping[str, Any]) -> dict[int, str]:
    """The uids of the tools that answers name, by the part of the intent. Refuses what is no answer to a question."""
    asks = {one["question_id"]: one for one in document["questions"]}
    unknown = [FieldError(pointer_to("answers", one), "no question has this id") for one in answers if one not in asks]
    if unknown:
        raise Invalid(f"The plan asks {', '.join(asks)}.", code="unknown_question", errors=unknown)
    steps = {step["step_id"]: step for step in document["partial_plan"]["steps"]}
    found, errors = {}, []
    for question_id, value in answers.items():
        question, pointer = asks[question_id], pointer_to("answers", question_id)
        if "param" not in question:
            step = steps[question["step_id"]]
            uids = {one["tool_name"]: one["tool_uid"] for one in reversed((step, *step.get("alternatives", ())))}
            if isinstance(value, str) and value in uids:
                found[step.get("clause", 0)] = uids[value]
            else:
                errors.append(FieldError(pointer, f"is one of {', '.join(uids)}"))
        elif not can_be_told(value):
            errors.append(FieldError(pointer, "has no exact form in a plan; give it as text"))
        elif isinstance(schema := question.get("schema"), Mapping):
            faults = validator(schema, formats=True).iter_errors(value)
            errors += [FieldError(pointer + pointer_to(*one.instance_path), one.message[:500]) for one in faults]
    if errors:
        raise Invalid("An answer is not what its question takes.", code="answer_refused", errors=errors[:100])
    return found


def _unfit(plan: documents.Plan, caller: Caller) -> Iterator[Problem]:
    """Why a valid plan is nevertheless none for this caller to carry out."""
    if plan.status != PlanStatus.READY:
        yield Problem("/status", "not_ready", "A plan that only says what is missing is not carried out.")
    if plan.principal_ai != caller.name:
        yield Problem("/principal_ai", "another_principal", f"You are {caller.name}, and submit your own plans only.")
    if caller.kind == Kind.DELEGATE and caller.name != plan.delegate_id:
        message = f"You are the DeleGate {caller.name}: other pools are not yours to plan with."
        yield Problem("/delegate_id", "outside_pool", message)
    for name in ("replaces", "excluded"):
        if getattr(plan, name) is not None:
            yield Problem(f"/{name}", "replaces", "Only replan_plan makes a plan that takes another's place.")


def _pinned(step: Step, catalogue: Catalogue) -> Step:
    """The step, with the version of the tool that it was judged by and what its worker asks for it."""
    found = catalogue.find(step.worker_id or "", step.tool_name or "") if step.runs_tool else None
    if found is None:
        return step
    tool, offer = found
    cost = {"estimated_cost": offer.cost} if offer.cost > (step.estimated_cost or 0) else {}
    return step.model_copy(update={"tool_uid": tool.uid, **cost})


# DeleGates.


def _key(delegate: Principal) -> str:
    """What a DeleGate is known by in every deployment, on the path of a wish."""
    told = f"{delegate.tenant_id}/{delegate.pk}/{delegate.created_at.isoformat()}"
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def _refuse_detours(delegate: Principal, path: Sequence[str]) -> None:
    """:raises Invalid: if a request has come through this DeleGate before (`delegation_loop`), or through too many
    (`delegation_too_deep`).
    """
    if _key(delegate) in path:
        detail = f"{delegate} has been asked for this before, and would plan for itself through others."
        raise Invalid(detail, code="delegation_loop")
    if len(path) >= MOST_DELEGATES:
        detail = f"This has come through {len(path)} DeleGates; {MOST_DELEGATES} are the most."
        raise Invalid(detail, code="delegation_too_deep")


@transaction.atomic
def set_delegate(*, tenant_id: int, delegate_id: str, parent: str) -> Principal:
    """Let a DeleGate be another's, and plan with the workers of its own pool: from now on it reports to the other.

    :raises NotFound: if there is no such DeleGate (`unknown_delegate`).
    :raises Conflict: if it would be above itself (`delegate_circle`), as all stand below the root.
    """
    # Whoever changes the tree waits for whoever does so already.
    Principal.objects.select_for_update(no_key=True).get(name=DELEGATE)
    found, above = selectors.delegate_named(delegate_id), selectors.delegate_named(parent)
    way = [above]
    while way[-1].parent is not None:
        way.append(way[-1].parent)
    if found.name == DELEGATE or found in way:
        raise Conflict(f"{found} stands above {above}.", code="delegate_circle")
    if principals.place_under(parent=above, principal=found):
        registry.rearrange(tenant_id=tenant_id, moved=found)
    found.parent = above
    return found


# What plans that were carried out teach.


@transaction.atomic
def record_outcome(*, plan_id: str, completed: Collection[str]) -> None:
    """Note once which steps with tools of a plan ran to their end; what did nothing teaches nothing."""
    if completed:
        Plan.objects.filter(plan_id=plan_id, completed=None).update(completed=sorted(completed))


def past_of(plan: Plan) -> Past:
    """What a plan that was carried out teaches: which tools ran to their end, and who took whose result."""
    steps, completed = draft_of(plan.document).steps, plan.completed or ()
    ran = {step.step_id: step.tool_uid for step in steps if step.step_id in completed and step.tool_uid}
    links = ((ran.get(above), uid) for step in steps if (uid := ran.get(step.step_id)) for above in step.depends_on)
    return Past(
        request=plan.intent,
        tools=tuple(dict.fromkeys(ran.values())),
        links=frozenset((source, target) for source, target in links if source),
        weight=1.0 if len(ran) == len(steps) else _FAILED,
    )


def learn(*, tenant_id: int) -> LearnedModel | None:
    """Learn anew from the plans that a tenant has carried out.

    Seconds of numbers, with no transaction open meanwhile. None: there is nothing to learn from, or something of it was
    forgotten on request meanwhile.
    """
    with acting_in(tenant_id, "what is to be learned from"), shelf.held(tenant_id=tenant_id) as held:
        plans = Plan.objects.exclude(completed=None)
        number, latest = plans.count(), list(plans.only("intent", "document", "completed").order_by("-id")[:MOST])
        said = {one.pk: one.intent for one in reversed(latest)}
        past = [one for plan in reversed(latest) if (one := past_of(plan)).tools]
        heirs = _heirs({uid for one in past for uid in one.tools}, held.catalogue)
        fits = {one.request: held.library.relevance(one.request) for one in past[-FITTED_ON:]}
    if not past:
        return None
    past = [
        replace(
            one,
            tools=tuple(dict.fromkeys(heirs.get(uid, uid) for uid in one.tools)),
            links=frozenset((heirs.get(source, source), heirs.get(target, target)) for source, target in one.links),
        )
        for one in past
    ]
    model = learned(past, lambda request: fits[request])
    with acting_in(tenant_id, "what was learned"):
        # Whoever forgets one of these changes its row: it waits for this transaction, or this one for it.
        rows = Plan.objects.select_for_update(no_key=True).order_by("id").filter(pk__in=said)
        if dict(rows.values_list("pk", "intent")) != said:
            return None
        # Processes tell by the number of the row what they hold, so it is a new one each time.
        LearnedModel.objects.all().delete()
        return LearnedModel.objects.create(
            tenant_id=tenant_id,
            learned_from=number,
            body=model.dumps(),
        )


def _heirs(uids: Collection[str], catalogue: Catalogue) -> dict[str, str]:
    """The tool that stands in the place of each that is offered no more: the only one of its name now, if there is one."""
    by_name: dict[str, list[str]] = {}
    for tool in catalogue.tools:
        by_name.setdefault(tool.name, []).append(tool.uid)
    gone = workers.tool_versions([uid for uid in uids if uid not in catalogue.by_uid])
    return {uid: by_name[tool.name][0] for uid, tool in gone.items() if len(by_name.get(tool.name, ())) == 1}


def unlearn(tenant_id: int, _plans: Collection[int] = ()) -> None:
    """Forget what was learned: the planner does without until it has learned anew, from what is left."""
    LearnedModel.objects.filter(tenant_id=tenant_id).delete()
