"""What becomes of plans that are not carried out as they are: begun, replaced by another, or abandoned."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from apps.digests import services as digests
from apps.plans import planner, selectors, sql
from apps.plans.catalogue import Tool
from apps.plans.documents import Step
from apps.plans.errors import NoTool, PlanReplaced, StepDone, UnknownStep
from apps.plans.layout import HandedOn
from apps.plans.models import Plan, WaitingPlan
from apps.plans.offers import Priority
from apps.plans.services.planning import SOURCE, MadePlan, PlanRequest, make
from apps.plans.shapes import WORKER_STEPS, StepType
from apps.plans.validation import Limits, bounds_of
from apps.principals.services import DELEGATE
from apps.principals.tenancy import Caller
from apps.receipts.services import Poster, ReceiptDraft
from apps.workers import selectors as workers
from apps.workers.models import ToolVersion

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
    _abandon(selectors.plan_row(plan_id), reason="expired", now=now)
    return True


@transaction.atomic
def expire_forgotten(*, tenant_id: int) -> int:
    """End the time of plans that were forgotten on request and not begun, so that what is owed for them is closed.

    Answers how many. Runs as the system.
    """
    waiting = WaitingPlan.objects.forgotten(tenant_id).filter(expires_at__gt=sql.GATEHOUSE_NOW)
    return waiting.update(expires_at=sql.GATEHOUSE_NOW)


@transaction.atomic
def replan(
    *, caller: Caller, replacement: Replacement, done: Collection[str], was_waiting: bool, now: datetime
) -> MadePlan:
    """Make the plan that takes another's place: what is done stays done, what failed is not used again.

    :param done: the ids of the steps of the old plan that have run to their end.
    :param was_waiting: whether the old plan had not been begun: what is owed for it is closed here, otherwise by its execution.
    :raises UnknownPlan: if the caller has no such plan.
    :raises UnknownStep: if it has no such step.
    :raises NoTool: if the step runs no tool.
    :raises StepDone: if the step has run to its end.
    :raises PlanReplaced: if the plan has been replaced before.
    """
    old = _held(replacement.plan_id, caller)
    document = old.document
    finished = {*done, *(step["step_id"] for step in document["steps"] if step.get("done"))}
    failed = _failed_step(document, replacement.failed_step, finished)
    revision = _revision(document, failed, finished, replacement)
    made = make(caller=caller, request=_request(old, document, replacement), now=now, revision=revision, old=old)
    if was_waiting:
        _abandon(old, reason="replaced", now=now, successor=made.plan_id)
    return made


def _held(plan_id: str, caller: Caller) -> Plan:
    """The plan, for as long as the transaction lasts nobody else's to replace."""
    selectors.plan_for(plan_id, caller=caller)
    old = Plan.objects.select_for_update(no_key=True, of=("self",)).select_related("delegate").get(plan_id=plan_id)
    successor = old.successors.first()
    if successor is not None:
        raise PlanReplaced(f"{old} was replaced by {successor}.", successor_plan_id=successor.plan_id)
    return old


def _failed_step(document: Mapping[str, Any], step_id: str, finished: Collection[str]) -> Mapping[str, Any]:
    found = next((step for step in document["steps"] if step["step_id"] == step_id), None)
    if found is None:
        raise UnknownStep(f"{document['plan_id']} has no step {step_id[:100]!r}.")
    if found["step_type"] not in WORKER_STEPS:
        raise NoTool(f"{step_id} is {found['step_type']}: it runs no tool, so nothing can be chosen otherwise.")
    if step_id in finished:
        raise StepDone(f"{step_id} has run to its end; its result stands.")
    return dict(found)


def _revision(
    document: Mapping[str, Any], failed: Mapping[str, Any], finished: Collection[str], replacement: Replacement
) -> planner.Revision:
    steps = [step for step in document["steps"] if step["step_type"] in WORKER_STEPS]
    kept = [step for step in steps if step["step_id"] in finished]
    tools = _tools(kept)
    numbers = (match[1] for step in document["steps"] if (match := _NUMBERED.fullmatch(step["step_id"])))
    new = {"worker_id": failed["worker_id"], "tool_name": failed["tool_name"], "reason": replacement.reason[:_REASON]}
    before = [one for one in document.get("excluded", ()) if {**one, "reason": ""} != {**new, "reason": ""}]
    return planner.Revision(
        replaces=document["plan_id"],
        number=document.get("revision", 1) + 1,
        after=max(map(int, numbers), default=0),
        done=tuple(planner.Done(step=_done(step, document, finished), tool=tools[step["step_id"]]) for step in kept),
        open_clauses=frozenset(
            step["clause"] for step in steps if step["step_id"] not in finished and step.get("clause") is not None
        ),
        failed=(*before, new)[-_MOST_FAILURES:],
        away=frozenset({failed["worker_id"]} if replacement.worker_is_out else ()),
        handed_on=_handed_on(failed, replacement.escalation),
    )


def _handed_on(failed: Mapping[str, Any], escalation: Escalation | None) -> HandedOn | None:
    """A step that no part of the intent asked for is not handed on: what it fed is planned for otherwise."""
    clause = failed.get("clause")
    if escalation is None or clause is None:
        return None
    return HandedOn(clause=clause, intent=escalation.intent, worker_id=escalation.worker_id)


def _tools(steps: Collection[Mapping[str, Any]]) -> dict[str, Tool]:
    """The tool of each step as it was when the step ran."""
    views = workers.tool_versions({step["tool_uid"] for step in steps if step.get("tool_uid")})
    return {step["step_id"]: _tool(step, views.get(step.get("tool_uid", ""))) for step in steps}


def _tool(step: Mapping[str, Any], view: ToolVersion | None) -> Tool:
    return Tool(
        uid=step.get("tool_uid", ""),
        name=step["tool_name"],
        description=view.description if view else "",
        input_schema=view.input_schema if view else {},
        output_schema=view.output_schema if view else {},
    )


def _done(step: Mapping[str, Any], document: Mapping[str, Any], finished: Collection[str]) -> Step:
    """A step as it ran: waits are looked through, and what it cost is paid."""
    waited = {one["step_id"]: one.get("wait_for_step_ids", ()) for one in document["steps"]}
    above = [source for one in step.get("depends_on", ()) for source in (one, *waited.get(one, ()))]
    return Step(
        step_id=step["step_id"],
        step_type=StepType(step["step_type"]),
        depends_on=tuple(dict.fromkeys(one for one in above if one in finished and not waited.get(one))),
        worker_id=step["worker_id"],
        tool_name=step["tool_name"],
        tool_uid=step.get("tool_uid"),
        params=step["params"],
        provenance=step.get("provenance"),
        confidence=step.get("confidence"),
        critical=step.get("critical"),
        clause=step.get("clause"),
        done=True,
    )


def _request(old: Plan, document: Mapping[str, Any], new: Replacement) -> PlanRequest:
    """What was asked then, under the bounds of then."""
    was = document.get("constraints") or {}
    bounds = bounds_of(document, new.carried_out_within or Limits())
    left = bounds.max_total_cost
    if left is not None:
        left = max(round(left - new.spent, 6), 0.0)
    limits = Limits(
        max_total_cost=left if new.max_total_cost is None else new.max_total_cost,
        max_cost_per_step=bounds.max_cost_per_step,
        max_runtime_seconds=bounds.max_runtime_seconds,
    )
    return PlanRequest(
        intent=old.intent,
        context={**_context(document), **new.context},
        limits=limits,
        excluded_workers=frozenset(was.get("exclude_workers", ())),
        priority=Priority(was.get("prefer", Priority.BALANCED)),
        caused_by=new.caused_by or old.receipt_id,
        delegate_id=old.delegate.delegate_id,
        delegation_path=tuple(document.get("delegation_path", ())),
    )


def _context(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the old plan took from its context, as its steps tell."""
    found: dict[str, Any] = {}
    for step in document["steps"]:
        for name, source in (step.get("provenance") or {}).items():
            if source.get("source") == "context" and name in step.get("params", {}):
                found[source["key"]] = step["params"][name]
    inputs = document.get("references", {}).get("inputs", {})
    return {
        **found,
        "memory_refs": inputs.get("memory_ids", []),
        "receipt_refs": inputs.get("receipt_ids", []),
        "concept_names": inputs.get("concept_names", []),
    }


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
