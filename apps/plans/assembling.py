"""From a proposal to a plan: workers for its calls, the steps as numbered instructions, and what is said of the whole.

What is proposed comes from a proposer, or from a plan that another is to take the place of. The validator judges each plan
that is whole. What fails there or has no worker becomes a plan that says what is missing.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from apps.core.errors import pointer_to
from apps.plans.catalogue import (
    GENTLE_EFFECTS,
    Catalogue,
    choose,
    expected_seconds,
    lacks_room,
    mode,
    payload_bytes,
    reference_to,
)
from apps.plans.documents import SUBMITTED, ModelUse, Plan, PlanStatus, Step, parents_of, partial_of
from apps.plans.proposals import Evidence, Lack, Missing, Proposal, guesses, question_for
from apps.plans.shapes import OPENING, RESULT_POINTER, PlanConstraints, StepType
from apps.plans.validation import Problem, estimates, validate
from apps.workers.shapes import OfferView as Offer

_MOST_STEPS: Final = 12
_REFUSED: Final = 0.35
_NUMBERED: Final = re.compile(r"step-(\d{1,6})")
_ADVICE: Final = {
    Lack.TOOL: "Register an MCP worker that can do it, or change the request.",
    Lack.PERMISSION: "Let an operator allow it, register another worker that can do it, or change the request.",
    Lack.CONDITION: "Change the request.",
    Lack.CONFIDENCE: "Say it in other words, or name what is to be used.",
    Lack.LIMIT: "Ask for less at once, or change the request.",
    Lack.BUDGET: "Allow more, register an MCP worker that asks for less, or ask for less.",
    Lack.TIME: "Allow more, register an MCP worker that takes less, or ask for less.",
}
"""What helps, by the kind of what is missing first."""


def draft_of(document: Mapping[str, Any], ended: Collection[str] = ()) -> Proposal:
    """What a plan was made of.

    :param ended: the ids of steps that have run to their end, beside those of which the plan says so.
    """
    told = partial_of(document)
    every = [Step.model_validate(one) for one in told["steps"]]
    ended = {*ended, *(one.step_id for one in every if one.done)}
    parents, left = parents_of(every), {one.step_id: one for one in every}
    # The calls that each step comes after, or is; a step is placed once all before it are.
    calls: dict[str, dict[str, None]] = {}
    steps = []
    while left:
        step = left.pop(next(one for one in left if parents[one].isdisjoint(left)))
        above = dict.fromkeys(source for one in calls if one in parents[step.step_id] for source in calls[one])
        calls[step.step_id] = {step.step_id: None} if step.runs_tool else above
        if not step.runs_tool:
            continue
        more: dict[str, Any] = {"worker_id": None}
        if step.step_id in ended:
            above, more = dict.fromkeys(one for one in above if one in ended), {"done": True}
        steps.append(step.model_copy(update={"depends_on": tuple(above), **more}))
    return Proposal(
        proposer=document.get("proposer", SUBMITTED),
        steps=steps,
        confidence=told.get("confidence", 0.0),
        questions=document.get("questions", ()),
        doubtful=any("param" not in one for one in document.get("unsure", ())),
        assumptions=document.get("assumptions", ()),
        synthesis=next((one.synthesis_instructions for one in every if one.step_type == StepType.AGGREGATE), None),
        reason=document.get("proposer_reason"),
        model_use=ModelUse.model_validate(document["model_use"]) if document.get("model_use") else None,
    )


def assemble(
    proposal: Proposal,
    catalogue: Catalogue,
    *,
    intent: str,
    head: Mapping[str, Any],
    constraints: PlanConstraints | None = None,
) -> Plan:
    """The plan that a proposal gives: ready, to be confirmed, with questions, or with what is missing.

    :param head: members that the plan has whatever comes of the request.
    """
    bounds = constraints or PlanConstraints()
    work = _Assembly(proposal, catalogue, intent, {**head, "constraints": constraints}, bounds)
    work.look_for_workers()
    if not work.missing:
        made = work.whole()
        problems = validate(made, catalogue)
        if work.questions:
            lacking = {step.step_id for step in work.todo if step.missing_params}
            places = {pointer_to("steps", n, "params") for n, one in enumerate(made.steps) if one.step_id in lacking}
            problems = [
                one
                for one in problems
                if one.code != "param_missing" and (one.code != "param_invalid" or one.path not in places)
            ]
        work.missing += [_missing_of(problem, made) for problem in problems]
        if not work.missing and not work.questions:
            return made
    return work.refusal() if work.missing else work.inquiry()


class _Assembly:
    """One proposal on its way to a plan."""

    def __init__(
        self, proposal: Proposal, catalogue: Catalogue, intent: str, head: Mapping[str, Any], bounds: PlanConstraints
    ) -> None:
        self.proposal, self.catalogue, self.intent, self.head, self.bounds = proposal, catalogue, intent, head, bounds
        self.steps = proposal.steps
        self.todo = [step for step in self.steps if not step.done]
        self.missing = list(proposal.missing)
        self.parents = self._parents()
        self.chosen: dict[str, Offer] = {}
        asked = {(one["step_id"], one.get("param")) for one in proposal.questions}
        lacking = (
            (step, name) for step in self.todo for name in step.missing_params or () if name not in (step.params or {})
        )
        self.questions = [
            *proposal.questions,
            *(
                question_for(step, tool, name)
                for step, name in lacking
                if (step.step_id, name) not in asked and (tool := catalogue.by_uid.get(step.tool_uid or ""))
            ),
        ]
        self._steps: list[Step] = []
        self._waits: dict[str, str] = {}
        self._number = max(
            (int(one[1]) for step in self.steps if (one := _NUMBERED.fullmatch(step.step_id))), default=0
        )

    def _offers(self, step: Step) -> Sequence[Offer]:
        return self.catalogue.open_offers(step.tool_uid or "")

    def _parents(self) -> dict[str, list[str]]:
        """What each call waits for: what it takes results from, and what comes first.

        Nothing runs beside a call that changes something: it waits for all before it, and all after it wait for it.
        """
        found: dict[str, list[str]] = {}
        above: dict[str, set[str]] = {}
        changing: set[str] = set()
        for step in self.steps:
            parents = dict.fromkeys(step.depends_on)
            if not step.done:
                if any(offer.effects - GENTLE_EFFECTS for offer in self._offers(step)):
                    changing.add(step.step_id)
                reached = {*parents}.union(*(above.get(one, ()) for one in parents))
                for before in reversed(found):
                    if (step.step_id in changing or before in changing) and before not in reached:
                        parents[before] = None
                        reached |= {before, *above[before]}
            above[step.step_id] = {*parents}.union(*(above.get(one, ()) for one in parents))
            found[step.step_id] = [one for one in found if one in parents]
        return found

    def look_for_workers(self) -> None:
        """Give each call that is to run the best worker for it: one that may run it, within the budget, if there is one."""
        if not self.steps and not self.missing:
            detail = "The request names nothing that a registered tool does."
            self.missing.append(Missing(kind=Lack.TOOL, detail=detail, text=self.intent[:2000]))
        if len(self.todo) > _MOST_STEPS:
            detail = f"The request needs {len(self.todo)} tools; {_MOST_STEPS} are the most for one plan."
            self.missing.append(Missing(kind=Lack.LIMIT, detail=detail))
        salt = hashlib.blake2b(self.intent.encode("utf-8", "replace"), digest_size=16).hexdigest()
        calls: Counter[str] = Counter()
        spent = 0.0
        for number, step in enumerate(self.todo):
            offers = self._offers(step) or self.catalogue.offers_of(step.tool_uid or "")
            if not offers:
                detail = f"No worker offers {step.tool_name}."
                self.missing.append(
                    Missing(kind=Lack.TOOL, detail=detail, tool_name=step.tool_name, tool_uid=step.tool_uid)
                )
                continue
            size = payload_bytes(step.params or {})
            able = [one for one in offers if not lacks_room(one, payload_bytes=size, calls=calls[one.worker_id] + 1)]
            later = map(self._offers, self.todo[number + 1 :])
            offer = choose(self._affordable(able or offers, spent, later), salt=salt, prefer=self.bounds.prefer)
            self.chosen[step.step_id] = offer
            calls[offer.worker_id] += 1
            spent += offer.cost

    def _affordable(self, offers: Sequence[Offer], spent: float, later: Iterable[Sequence[Offer]]) -> Sequence[Offer]:
        """Those that leave enough for what comes later at its cheapest; all of them, if none does."""
        rest = math.fsum(min((one.cost for one in others), default=0.0) for others in later)
        budget = self.bounds.budget
        most = budget.max_cost_per_step if budget.max_cost_per_step is not None else math.inf
        if budget.max_total_cost is not None:
            most = min(most, round(budget.max_total_cost - spent - rest, 6))
        return [one for one in offers if one.cost <= most] or offers

    # What comes out.

    def whole(self) -> Plan:
        """The plan with all of its steps: what ran, the calls, a wait before each use of a queued result, and an end."""
        for step in self.steps:
            made = step
            if not step.done:
                self._wait(self.parents[step.step_id])
                offer = self.chosen[step.step_id]
                told = {
                    "step_type": mode(offer),
                    "depends_on": self._after(self.parents[step.step_id]),
                    "worker_id": offer.worker_id,
                    "estimated_runtime_seconds": expected_seconds(offer),
                    "estimated_cost": offer.cost,
                    "critical": any(step.step_id in parents for parents in self.parents.values()),
                    "missing_params": None,
                }
                made = step.model_copy(update=told)
            self._steps.append(made)
        ids = [step.step_id for step in self.steps]
        self._wait(ids)
        ends = self._after(ids)
        wishes = "".join(f" Also: {wish}." for wish in self.proposal.wishes)
        if len(ids) > 1 or self.proposal.synthesis or wishes:
            parts = ", ".join(f"{step.step_id} ({step.tool_name})" for step in self.steps)
            text = f"Put the results of {parts} together into one answer to: {self.intent}.{wishes}"
            text = _plain(self.proposal.synthesis or text)
            more = {"aggregate_step_ids": ids, "synthesis_instructions": text, "executor": "principal"}
            ends = (self._add(StepType.AGGREGATE, ends, **more),)
        self._add(
            StepType.ESCALATE,
            ends,
            report_summary=_plain(f"Done ({', '.join(str(one.tool_name) for one in self.steps)}): {self.intent[:500]}"),
            decision_required=False,
            recommendation="Review the result and keep what is worth remembering.",
        )
        doubts = self._doubts()
        pointers = [reference_to(step_id, RESULT_POINTER) for step_id in ids]
        plan = self._plan(
            PlanStatus.NEEDS_CONFIRMATION if doubts else PlanStatus.READY,
            self._steps,
            confidence=self.proposal.confidence,
            unsure=doubts or None,
            references={**self.head["references"], "expected_outputs": {"result_pointers": pointers}},
        )
        return plan.model_copy(update=estimates(plan, self.catalogue))

    def _add(self, kind: StepType, depends_on: Sequence[str], **members: Any) -> str:
        self._number += 1
        step_id = f"step-{self._number}"
        self._steps.append(
            Step.model_validate({"step_id": step_id, "step_type": kind, "depends_on": list(depends_on), **members})
        )
        return step_id

    def _after(self, ids: Iterable[str]) -> tuple[str, ...]:
        """What a step depends on that comes after these: where they are queued, the wait for them."""
        return tuple(dict.fromkeys(self._waits.get(one, one) for one in ids))

    def _wait(self, ids: Sequence[str]) -> None:
        """One wait for all queued results among these that nothing has waited for yet."""
        queued = {one.step_id for one in self._steps if one.step_type == StepType.QUEUE_EXECUTION and not one.done}
        targets = [one for one in ids if one in queued and one not in self._waits]
        if targets:
            step_id = self._add(StepType.WAIT_FOR, targets, wait_for_step_ids=targets, wait_for_receipts=())
            self._waits.update(dict.fromkeys(targets, step_id))

    def _doubts(self) -> list[dict[str, Any]]:
        """Each value that is a guess, and the choice of tools if it is doubtful."""
        found = [
            {
                "detail": (
                    f"{step.tool_name} takes {name} = {json.dumps((step.params or {}).get(name), ensure_ascii=False)[:500]},"
                    f" from {'your words' if source['source'] == Evidence.CUT else 'nothing that you said'}."
                ),
                "step_id": step.step_id,
                "param": name,
            }
            for step in self.todo
            for name, source in guesses(step).items()
        ]
        if self.proposal.doubtful and self.todo:
            least = min(self.todo, key=lambda one: 1.0 if one.clause is None else one.confidence or 0.0)
            others = " or ".join(one["tool_name"] for one in (least.alternatives or ())[:2])
            detail = f"{least.tool_name} is meant{f', not {others}' if others else ''}."
            found.insert(0, {"detail": detail, "step_id": least.step_id})
        return found[:100]

    def refusal(self) -> Plan:
        """The plan whose only step escalates, with what is missing."""
        first = self.missing[0]
        told = [
            {"kind": str(one.kind), "detail": one.detail[:2000], "clause": one.text, "tool_name": one.tool_name}
            for one in self.missing[:100]
        ]
        return self._without_steps(
            PlanStatus.NEEDS_ESCALATION,
            f"No plan can be made that does all of this: {self.intent[:500]}",
            f"{_sentence(first.detail[:1500])} {self._approval(first) or _ADVICE[first.kind]}",
            confidence=round(min(self.proposal.confidence, _REFUSED), 2),
            missing=[{name: value for name, value in one.items() if value} for one in told],
        )

    def _approval(self, first: Missing) -> str:
        """How an operator lets a tool be used whose effects are all that stands against it."""
        for offer in self.catalogue.offers_of(first.tool_uid or "") if first.kind == Lack.PERMISSION else ():
            if "does not allow" in (self.catalogue.bar(offer) or ""):
                command = f"manage.py mcp_workers approve {offer.worker_id} --tool {first.tool_name}"
                return f"An operator approves it with: {command}"
        return ""

    def inquiry(self) -> Plan:
        """The plan whose only step asks, with all questions."""
        questions = [
            {**one, "question_id": f"question-{number}"} for number, one in enumerate(self.questions[:100], start=1)
        ]
        return self._without_steps(
            PlanStatus.NEEDS_INPUT,
            f"Some of what this needs was not said: {self.intent[:500]}",
            _sentence(questions[0]["text"][:1500]),
            confidence=round(min(self.proposal.confidence, _REFUSED), 2),
            questions=questions,
        )

    def _without_steps(self, status: PlanStatus, summary: str, recommendation: str, **more: Any) -> Plan:
        escalate = Step(
            step_id="step-1",
            step_type=StepType.ESCALATE,
            report_summary=_plain(summary),
            decision_required=True,
            recommendation=_plain(recommendation),
        )
        calls = []
        for step in self.steps:
            offer = self.chosen.get(step.step_id)
            worker = {"step_type": mode(offer), "worker_id": offer.worker_id} if offer else {}
            told = {"depends_on": tuple(self.parents[step.step_id]), **worker}
            calls.append(step.model_copy(update=told).document())
        partial = {"confidence": self.proposal.confidence, "steps": calls}
        figures = {"estimated_total_runtime_seconds": 0.0, "execution_cost_estimate": 0.0, "can_run_parallel": False}
        return self._plan(status, [escalate], partial_plan=partial, **figures, **more)

    def _plan(self, status: PlanStatus, steps: Sequence[Step], **more: Any) -> Plan:
        tags = (tag for offer in self.chosen.values() for tag in offer.capabilities)
        return Plan.model_validate(
            {
                **self.head,
                "scope": next(tags, "general")[:200],
                "status": status,
                "steps": tuple(steps),
                "proposer": self.proposal.proposer,
                "proposer_reason": self.proposal.reason,
                "model_use": self.proposal.model_use,
                "assumptions": self.proposal.assumptions[:100],
                **more,
            }
        )


def _missing_of(problem: Problem, made: Plan) -> Missing:
    """What the validator finds wrong with a plan, as a reason that its asker can read."""
    kinds = {"budget": Lack.BUDGET, "time": Lack.TIME, "not_eligible": Lack.PERMISSION}
    member, _, rest = problem.path[1:].partition("/")
    place, _, _ = rest.partition("/")
    step = made.steps[int(place)] if member == "steps" and place.isdigit() else None
    detail = f"{step.tool_name}: {problem.message}" if step and step.tool_name else problem.message
    return Missing(
        kind=kinds.get(problem.code, Lack.LIMIT),
        detail=detail[:2000],
        tool_name=step.tool_name if step else None,
        tool_uid=step.tool_uid if step else None,
    )


def _plain(text: str) -> str:
    """Prose that quotes the asker must hold nothing that reads as a reference."""
    return text.replace(OPENING, "{ {")[:20_000]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
