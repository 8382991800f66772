"""What becomes of plans that are not carried out as they are: begun, replaced by another, or abandoned."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.core.errors import Conflict, Invalid, NotFound
from apps.digests import services as digests
from apps.plans import selectors, shelf
from apps.plans.assembling import Draft, draft_of
from apps.plans.catalogue import Catalogue
from apps.plans.documents import Constraints
from apps.plans.local.params import params_of
from apps.plans.models import Plan, WaitingPlan
from apps.plans.proposals import Evidence
from apps.plans.services.planning import SOURCE, Revision, held_plan, revise
from apps.plans.shapes import WORKER_STEPS, tighter
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller
from apps.receipts.services import Poster, ReceiptDraft

_PATH: Final = "delegation_path"
_REASON: Final = 500
_MOST_FAILURES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """What the worker of a step can't do, in its words, and which worker it says can."""

    intent: str
    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Which step of a plan failed and why, and what is to be otherwise. All else is as it was asked for."""

    plan_id: str
    failed_step: str
    reason: str
    escalation: Escalation | None = None
    worker_is_out: bool = False
    """Nothing else of the worker is planned with either."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Values by name for params of the steps that are left."""
    max_total_cost: float | None = None
    """What the steps that are left may cost, in the place of the old bound."""
    execution_bounds: Constraints = field(default_factory=Constraints)
    """What its execution was allowed to cost, which binds as the plan's own bounds do."""
    spent: float = 0.0
    """What the plan has cost, which is taken from the old bound."""
    caused_by: str | None = None


@transaction.atomic
def take_up(*, plan_id: str) -> bool:
    """Take a plan away from those that wait to be begun; False if it did not wait any more. Runs within its tenant."""
    taken, _ = WaitingPlan.objects.filter(plan__plan_id=plan_id).delete()
    return taken > 0


@transaction.atomic
def abandon_expired(*, plan_id: str, now: datetime) -> bool:
    """Give a plan up that has waited too long, and close what is owed for it; False if it waits no more."""
    if not take_up(plan_id=plan_id):
        return False
    _abandon(selectors.plan(plan_id), reason="expired", now=now)
    return True


@transaction.atomic
def replan(
    *, caller: Caller, replacement: Replacement, done: Collection[str], was_waiting: bool, now: datetime
) -> Plan:
    """Make the plan that takes another's place: what is done stays done, what failed is not used again.

    The other steps stay as they are, at other workers where need be. Where a tool has no other worker, the plan says so.

    :param done: the ids of the steps of the old plan that have run to their end.
    :param was_waiting: whether the old plan had not been begun: what is owed for it is closed here, otherwise by its execution.
    :raises UnknownPlan: if the caller has no such plan.
    :raises NotFound: if it has no such step (`unknown_step`).
    :raises Invalid: if the step runs no tool (`step_without_tool`).
    :raises Conflict: if the step has run to its end (`step_done`).
    :raises PlanReplaced: if the plan has been replaced before.
    """
    selectors.plan_for(replacement.plan_id, caller=caller)
    old = held_plan(replacement.plan_id)
    document = old.document
    failed = _failed_step(document, replacement.failed_step, done)
    draft = draft_of(document, done).given(replacement.context)
    if replacement.escalation is not None:
        with shelf.held(tenant_id=caller.tenant_id, delegate=old.delegate) as held:
            catalogue = held.catalogue.within(held.pool)
            way = [*document.get("delegation_path", ()), str(old.delegate.key)]
            draft = _handed_on(draft, failed["step_id"], replacement.escalation, catalogue, way)
    new = {"worker_id": failed["worker_id"], "tool_name": failed["tool_name"], "reason": replacement.reason[:_REASON]}
    before = [one for one in document.get("excluded", ()) if {**one, "reason": ""} != {**new, "reason": ""}]
    made = revise(
        caller=caller,
        now=now,
        revision=Revision(
            old=old,
            draft=draft,
            failed=(*before, new)[-_MOST_FAILURES:],
            away=frozenset({failed["worker_id"]} if replacement.worker_is_out else ()),
        ),
        constraints=_constraints(document, replacement),
        caused_by=replacement.caused_by,
    )
    if was_waiting:
        _abandon(old, reason="replaced", now=now, successor=made.plan_id)
    return made


def _failed_step(document: Mapping[str, Any], step_id: str, done: Collection[str]) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = next((step for step in document["steps"] if step["step_id"] == step_id), None)
    if found is None:
        raise NotFound(f"{document['plan_id']} has no step {step_id[:100]!r}.", code="unknown_step")
    if found["step_type"] not in WORKER_STEPS:
        detail = f"{step_id} is {found['step_type']}: it runs no tool, so nothing can be chosen otherwise."
        raise Invalid(detail, code="step_without_tool")
    if step_id in done or found.get("done"):
        raise Conflict(f"{step_id} has run to its end; its result stands.", code="step_done")
    return found


def _constraints(document: Mapping[str, Any], new: Replacement) -> Constraints:
    """The bounds of then and those of the execution, with what is left of the budget."""
    own, bounds = Constraints.model_validate(document.get("constraints") or {}), new.execution_bounds
    left, most = new.max_total_cost, tighter(own.max_total_cost, bounds.max_total_cost)
    if left is None and most is not None:
        left = max(round(most - new.spent, 6), 0.0)
    per_step = tighter(own.max_cost_per_step, bounds.max_cost_per_step)
    return own.model_copy(update={"max_total_cost": left, "max_cost_per_step": per_step})


def _handed_on(draft: Draft, step_id: str, escalation: Escalation, catalogue: Catalogue, way: Sequence[str]) -> Draft:
    """The draft with a call given to the worker that another has named, if one of its tools takes a request and no more."""
    for uid in sorted(catalogue.tools_of(escalation.worker_id)):
        tool = catalogue.by_uid[uid]
        takes = [param.name for param in params_of(tool) if param.role == "request"]
        is_open = any(offer.worker_id == escalation.worker_id for offer in catalogue.open_offers(uid))
        if takes and is_open and {*tool.required} <= {takes[0], _PATH}:
            params = {takes[0]: escalation.intent, **({_PATH: list(way)} if _PATH in tool.inputs else {})}
            change = {
                "tool_name": tool.name,
                "tool_uid": uid,
                "worker_id": escalation.worker_id,
                "params": params,
                "provenance": {name: {"source": str(Evidence.ESCALATION)} for name in params},
                "missing_params": [],
                "alternatives": [],
            }
            calls = [call if call["step_id"] != step_id else {**call, **change} for call in draft.calls]
            said = f"{escalation.worker_id} is asked, as was suggested: {escalation.intent[:200]}"
            return replace(draft, calls=calls, assumptions=(*draft.assumptions, said))
    return draft


def _abandon(plan: Plan, *, reason: str, now: datetime, successor: str | None = None) -> None:
    """Close what is owed for a plan that nobody will carry out."""
    told = "was replaced before it was begun" if successor else "was not begun in time"
    digests.post(
        poster=Poster(tenant_id=plan.tenant_id, principal_id=plan.delegate.principal_id, name=DELEGATE),
        draft=ReceiptDraft(
            recipient_id=plan.principal_id,
            source_system=SOURCE,
            event_type="plan_abandoned",
            dedupe_key=f"delegate:plan_abandoned:{plan.plan_id}:v1",
            summary=f"{plan.plan_id} {told}: {plan.intent[:100]}",
            artifact_pointer=plan.plan_id,
            artifact_location="delegate_registry",
            caused_by=plan.receipt_id,
            pairs_with=plan.receipt_id,
            metadata={
                "plan_id": plan.plan_id,
                "delegate_id": plan.delegate.delegate_id,
                "reason": reason,
                **({"replaced_by": successor} if successor else {}),
            },
            surface="ledger",
        ),
        now=now,
    )
