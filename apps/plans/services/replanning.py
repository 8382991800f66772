"""What becomes of plans that are not carried out as they are: begun, replaced by another, or abandoned."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.core.errors import Conflict, Invalid, NotFound
from apps.core.lexical import words
from apps.digests import services as digests
from apps.plans import selectors
from apps.plans.assembling import ran_before, read_again
from apps.plans.catalogue import Catalogue, Tool
from apps.plans.documents import Constraints, Step
from apps.plans.local.params import params_of
from apps.plans.models import Plan, WaitingPlan
from apps.plans.proposals import Evidence, Proposal, ProposedStep, Value
from apps.plans.services import proposing
from apps.plans.services.planning import SOURCE, Revision, held_plan, make, request_again
from apps.plans.services.proposing import Proposed
from apps.plans.shapes import WORKER_STEPS
from apps.plans.shelf import Held
from apps.plans.validation import Limits, bounds_of
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller
from apps.receipts.services import Poster, ReceiptDraft

_NUMBERED: Final = re.compile(r"step-(\d{1,6})")
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
    max_total_cost: float | None = None
    """What the steps that are left may cost, in the place of the old bound."""
    carried_out_within: Limits | None = None
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

    The other steps stay as they are, at other workers where need be. Where a tool has no other worker, the intent is
    planned again.

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
    ended = {*done, *(step["step_id"] for step in document["steps"] if step.get("done"))}
    failed = _failed_step(document, replacement.failed_step, ended)
    kept = {
        step["step_id"]: _done(step, document, ended)
        for step in document["steps"]
        if step["step_id"] in ended and step["step_type"] in WORKER_STEPS
    }
    request = request_again(
        document,
        context=replacement.context,
        constraints=_constraints(document, replacement),
        caused_by=replacement.caused_by or old.receipt_id,
    )
    runs = [step["step_id"] for step in document["steps"] if step.get("tool_name")]

    def find(held: Held, catalogue: Catalogue) -> Proposed:
        again = None if replacement.context else read_again(document, catalogue.by_uid, kept)
        if again is not None:
            again = _handed_on(again, runs.index(failed["step_id"]), replacement.escalation, catalogue)
            if all(step.done or _can_run(step, catalogue) for step in again.steps):
                return Proposed(proposal=again, reason=document.get("proposer_reason", ""))
        found = proposing.local(held, catalogue, proposing.asked_of(request, old.delegate, now))
        return replace(found, proposal=_with_done(found.proposal, kept))

    new = {"worker_id": failed["worker_id"], "tool_name": failed["tool_name"], "reason": replacement.reason[:_REASON]}
    before = [one for one in document.get("excluded", ()) if {**one, "reason": ""} != {**new, "reason": ""}]
    numbers = (match[1] for step in document["steps"] if (match := _NUMBERED.fullmatch(step["step_id"])))
    revision = Revision(
        old=old,
        after=max(map(int, numbers), default=0),
        failed=(*before, new)[-_MOST_FAILURES:],
        away=frozenset({failed["worker_id"]} if replacement.worker_is_out else ()),
    )
    made = make(caller=caller, request=request, now=now, revision=revision, find=find)
    if was_waiting:
        _abandon(old, reason="replaced", now=now, successor=made.plan_id)
    return made


def _failed_step(document: Mapping[str, Any], step_id: str, ended: Collection[str]) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = next((step for step in document["steps"] if step["step_id"] == step_id), None)
    if found is None:
        raise NotFound(f"{document['plan_id']} has no step {step_id[:100]!r}.", code="unknown_step")
    if found["step_type"] not in WORKER_STEPS:
        detail = f"{step_id} is {found['step_type']}: it runs no tool, so nothing can be chosen otherwise."
        raise Invalid(detail, code="step_without_tool")
    if step_id in ended:
        raise Conflict(f"{step_id} has run to its end; its result stands.", code="step_done")
    return found


def _done(step: Mapping[str, Any], document: Mapping[str, Any], ended: Collection[str]) -> Step:
    """A step as it ran: waits are looked through, and what it cost is paid."""
    waited = {one["step_id"]: one.get("wait_for_step_ids", ()) for one in document["steps"]}
    above = [source for one in step.get("depends_on", ()) for source in (one, *waited.get(one, ()))]
    depends_on = tuple(dict.fromkeys(one for one in above if one in ended and not waited.get(one)))
    stays = ("step_id", "step_type", "worker_id", "tool_name", "tool_uid", "params", "provenance", "confidence")
    kept = {name: step[name] for name in (*stays, "critical", "clause") if name in step}
    return Step.model_validate({**kept, "depends_on": depends_on, "done": True})


def _constraints(document: Mapping[str, Any], new: Replacement) -> Constraints:
    """The bounds of then and those of the execution, with what is left of the budget."""
    own = Constraints.model_validate(document.get("constraints") or {})
    bounds = bounds_of(own, new.carried_out_within or Limits())
    left = new.max_total_cost
    if left is None and bounds.max_total_cost is not None:
        left = max(round(bounds.max_total_cost - new.spent, 6), 0.0)
    return own.model_copy(update={"max_total_cost": left, "max_cost_per_step": bounds.max_cost_per_step})


def _can_run(step: ProposedStep, catalogue: Catalogue) -> bool:
    return any(step.worker_id in {None, offer.worker_id} for offer in catalogue.open_offers(step.tool.uid))


def _handed_on(proposal: Proposal, place: int, escalation: Escalation | None, catalogue: Catalogue) -> Proposal:
    """The proposal with a step given to the worker that another has named, if it may be used and takes a request.

    A step that no part of the intent asked for is not handed on.
    """
    failed = proposal.steps[place]
    if escalation is None or failed.part is None:
        return proposal
    about = set(words(escalation.intent))
    able: list[tuple[int, str, Tool, str]] = []
    for uid in catalogue.tools_of(escalation.worker_id):
        tool = catalogue.by_uid[uid]
        takes = [param.name for param in params_of(tool) if param.role == "request"]
        is_open = any(offer.worker_id == escalation.worker_id for offer in catalogue.open_offers(uid))
        if takes and is_open and {*tool.required} <= {takes[0], "delegation_path"}:
            able.append((-len(about.intersection(words(f"{tool.name} {tool.description}"))), uid, tool, takes[0]))
    if not able:
        return proposal
    _, _, tool, param = min(able)
    step = replace(
        failed,
        tool=tool,
        values={param: Value(value=escalation.intent, evidence=Evidence.ESCALATION)},
        missing=(),
        alternatives=(),
        worker_id=escalation.worker_id,
    )
    said = f"{escalation.worker_id} is asked, as was suggested: {escalation.intent[:200]}"
    steps = (*proposal.steps[:place], step, *proposal.steps[place + 1 :])
    return replace(proposal, steps=steps, assumptions=(*proposal.assumptions, said))


def _with_done(proposal: Proposal, done: Mapping[str, Step]) -> Proposal:
    """A new proposal in which the steps that have run stand as they ran; those that it does not have come last."""
    left = dict(done)
    steps = []
    for step in proposal.steps:
        given = {name: one.value for name, one in step.values.items() if one.evidence != Evidence.STEP}
        same = (
            ran
            for ran in left.values()
            if ran.tool_uid == step.tool.uid and given.items() <= (ran.params or {}).items()
        )
        ran = next(same, None)
        if ran is not None:
            del left[ran.step_id]
        steps.append(step if ran is None else replace(step, done=ran))
    return replace(proposal, steps=(*steps, *map(ran_before, left.values())))


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
