"""From a proposal to a plan: workers for its calls, the steps as numbered instructions, and what is said of the whole.

A draft is a plan's calls without their workers. It comes from a proposal, or from a plan that another is to take the place of.
The validator judges each plan that is whole. What fails there or has no worker becomes a plan that says what is missing.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from apps.plans.catalogue import (
    GENTLE_EFFECTS,
    Catalogue,
    Tool,
    choose,
    expected_seconds,
    lacks_room,
    mode,
    payload_bytes,
    reference_to,
)
from apps.plans.documents import ModelUse, Plan, PlanStatus, Step, can_be_told, partial_of
from apps.plans.proposals import UNSURE, Asked, Evidence, Lack, Missing, Proposal, Question, Ref, Value, question_for
from apps.plans.shapes import OPENING, RESULT_POINTER, PlanConstraints, StepType
from apps.plans.validation import Problem, estimates, validate
from apps.workers.shapes import OfferView as Offer

_MOST_STEPS: Final = 12
_REFUSED: Final = 0.35
_NUMBERED: Final = re.compile(r"step-(\d{1,6})")
_PATH: Final = "delegation_path"
"""A tool with this param passes requests on, and is told the way that they came."""
_KEPT: Final = ("step_id", "tool_name", "tool_uid", "params", "provenance", "confidence", "alternatives", "clause")
_RAN: Final = ("step_type", "worker_id", "critical")
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

Call = dict[str, Any]
"""A step that runs a tool, as a partial plan tells it. With `done` it has run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a plan is to do, and what stands against it."""

    calls: Sequence[Call]
    proposer: str
    confidence: float = 0.0
    questions: Sequence[dict[str, Any]] = ()
    """As the plan tells them, but for their ids."""
    missing: Sequence[Missing] = ()
    doubtful: bool = False
    assumptions: Sequence[str] = ()
    synthesis: str | None = None
    """How the results are to be put together; None: as results of several calls always are."""
    reason: str | None = None
    """Why this proposer was used."""
    model_use: ModelUse | None = None

    def confirmed(self) -> Draft:
        """The same, after the principal has confirmed its guesses."""
        calls = []
        for call in self.calls:
            guesses = {name: one for name, one in call["provenance"].items() if str(one.get("source")) in UNSURE}
            sure = {name: {**one, "source": str(Evidence.CONFIRMED)} for name, one in guesses.items()}
            calls.append({**call, "provenance": call["provenance"] | sure})
        return replace(self, calls=calls, doubtful=False)

    def answered(self, answers: Mapping[str, Any]) -> Draft:
        """The same with answers to questions about params, by question id."""
        calls = {call["step_id"]: call for call in self.calls}
        for question in self.questions:
            if question["question_id"] in answers:
                call, param = calls[question["step_id"]], question["param"]
                calls[question["step_id"]] = {
                    **call,
                    "params": {**call["params"], param: answers[question["question_id"]]},
                    "provenance": {**call["provenance"], param: {"source": str(Evidence.ANSWER)}},
                    "missing_params": [name for name in call["missing_params"] if name != param],
                }
        left = [one for one in self.questions if one["question_id"] not in answers]
        return replace(self, calls=list(calls.values()), questions=left)


def drafted(proposal: Proposal, asked: Asked) -> Draft:
    """What a proposer found."""
    ids = {place: f"step-{place + 1}" for place in range(len(proposal.steps))}
    calls, missing = [], list(proposal.missing)
    questions = list(proposal.questions)
    asked_for = {(one.step, one.param) for one in questions}
    for place, step in enumerate(proposal.steps):
        values = {name: one for name, one in step.values.items() if can_be_told(_written(one.value, ids))}
        if _PATH in step.tool.inputs:
            values[_PATH] = Value(value=list(asked.delegation_path), evidence=Evidence.DELEGATION)
        above = {ref.step for value in values.values() for ref in _refs(value.value)} | step.after
        if any(one >= place for one in above):
            detail = f"{step.tool.name} takes the result of a step that comes later."
            missing.append(Missing(kind=Lack.CONFIDENCE, detail=detail, tool_name=step.tool.name))
        lost = [name for name in step.values if name not in values and name in step.tool.required]
        lacking = [name for name in dict.fromkeys((*step.missing, *lost)) if name not in values]
        for name in lacking:
            if (place, name) not in asked_for:
                why = " What there is has no exact form; give it as text." if name in step.values else ""
                question = question_for(place, step.tool, name)
                questions.append(replace(question, text=question.text + why))
        calls.append(
            {
                "step_id": ids[place],
                "depends_on": [ids[one] for one in sorted(above) if one < place],
                "tool_name": step.tool.name,
                "tool_uid": step.tool.uid,
                "params": {name: _written(value.value, ids) for name, value in values.items()},
                "provenance": {name: _source(name, value, ids) for name, value in values.items()},
                "confidence": step.confidence,
                "alternatives": [_scored(*one) for one in step.alternatives],
                **({} if step.part is None else {"clause": step.part}),
                "missing_params": lacking,
            }
        )
    wishes = "".join(f" Also: {wish}." for wish in proposal.wishes)
    return Draft(
        calls=calls,
        proposer=proposal.proposer,
        confidence=proposal.confidence,
        questions=[_told(one, calls[one.step]) for one in questions],
        missing=missing,
        doubtful=proposal.doubtful,
        assumptions=proposal.assumptions,
        synthesis=_synthesis(calls, asked.intent) + wishes if wishes else None,
        reason=proposal.reason,
        model_use=proposal.model_use,
    )


def draft_of(document: Mapping[str, Any], ended: Collection[str] = ()) -> Draft:
    """What a plan was made of.

    :param ended: the ids of steps that have run to their end, beside those of which the plan says so.
    """
    told = partial_of(document)
    ended = {*ended, *(step["step_id"] for step in told["steps"] if step.get("done"))}
    waited = {step["step_id"]: step.get("wait_for_step_ids") or () for step in told["steps"]}
    runs = {step["step_id"]: step for step in told["steps"] if step.get("tool_name")}
    calls = []
    for step_id, step in runs.items():
        above = dict.fromkeys(
            source for one in step.get("depends_on", ()) for source in waited[one] or (one,) if source in runs
        )
        call = {"params": {}, "provenance": {}, **{one: step[one] for one in _KEPT if one in step}}
        call["missing_params"] = step.get("missing_params", ())
        if step_id in ended:
            call |= {name: step[name] for name in _RAN if name in step} | {"done": True}
        calls.append({**call, "depends_on": [one for one in above if step_id not in ended or one in ended]})
    return Draft(
        calls=calls,
        proposer=document.get("proposer", "submitted"),
        confidence=told.get("confidence", 0.0),
        questions=document.get("questions", ()),
        doubtful=any("param" not in one for one in document.get("unsure", ())),
        assumptions=document.get("assumptions", ()),
        synthesis=next(
            (one["synthesis_instructions"] for one in told["steps"] if one.get("step_type") == StepType.AGGREGATE), None
        ),
        reason=document.get("proposer_reason"),
        model_use=ModelUse.model_validate(document["model_use"]) if document.get("model_use") else None,
    )


def assemble(
    draft: Draft,
    catalogue: Catalogue,
    *,
    intent: str,
    head: Mapping[str, Any],
    constraints: PlanConstraints | None = None,
) -> Plan:
    """The plan that a draft gives: ready, to be confirmed, with questions, or with what is missing.

    :param head: members that the plan has whatever comes of the request.
    """
    bounds = constraints or PlanConstraints()
    work = _Assembly(draft, catalogue, intent, {**head, "constraints": constraints}, bounds)
    work.look_for_workers()
    if work.missing:
        return work.refusal()
    if draft.questions:
        return work.inquiry()
    made = work.whole()
    work.missing += [_missing_of(problem, made) for problem in validate(made, catalogue)]
    return work.refusal() if work.missing else made


def _told(question: Question, call: Call) -> dict[str, Any]:
    told = {
        "text": question.text[:2000],
        "step_id": call["step_id"],
        "tool_name": call["tool_name"],
        "param": question.param,
        "choices": list(question.choices[:300]) or None,
        "schema": question.schema if can_be_told(question.schema) else None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _scored(tool: Tool, score: float) -> dict[str, Any]:
    return {"tool_name": tool.name, "tool_uid": tool.uid, "score": score}


def _refs(value: Any) -> Iterator[Ref]:
    """All results of earlier steps that a value takes."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _refs(item)


def _written(value: Any, ids: Mapping[int, str]) -> Any:
    """A value as JSON, its results of earlier steps as references."""
    if isinstance(value, Ref):
        return reference_to(ids[value.step], *value.path)
    if isinstance(value, Mapping):
        return {name: _written(item, ids) for name, item in value.items()}
    return [_written(item, ids) for item in value] if isinstance(value, (list, tuple)) else value


def _source(name: str, value: Value, ids: Mapping[int, str]) -> dict[str, Any]:
    """Where the value of a param is from, as a plan tells it."""
    ref = next(_refs(value.value), None)
    if ref is not None:
        return {"source": str(Evidence.STEP), "step_id": ids[ref.step], "path": ".".join(ref.path)}
    if value.evidence == Evidence.CONTEXT:
        return {"source": str(value.evidence), "key": value.text or name}
    return {"source": str(value.evidence), **({"text": value.text} if value.text else {})}


def _synthesis(calls: Iterable[Call], intent: str) -> str:
    parts = ", ".join(f"{call['step_id']} ({call['tool_name']})" for call in calls)
    return f"Put the results of {parts} together into one answer to: {intent}."


class _Assembly:
    """One draft on its way to a plan."""

    def __init__(
        self, draft: Draft, catalogue: Catalogue, intent: str, head: Mapping[str, Any], bounds: PlanConstraints
    ) -> None:
        self.draft, self.catalogue, self.intent, self.head, self.bounds = draft, catalogue, intent, head, bounds
        self.calls = draft.calls
        self.missing = list(draft.missing)
        self.parents = self._parents()
        self.chosen: dict[str, Offer] = {}
        self._steps: list[Step] = []
        self._waits: dict[str, str] = {}
        self._number = max(
            (int(one[1]) for call in self.calls if (one := _NUMBERED.fullmatch(call["step_id"]))), default=0
        )

    def _offers(self, call: Call) -> Sequence[Offer]:
        return self.catalogue.open_offers(call.get("tool_uid", ""))

    def _parents(self) -> dict[str, list[str]]:
        """What each call waits for: what it takes results from, and what comes first.

        Nothing runs beside a call that changes something: it waits for all before it, and all after it wait for it.
        """
        found: dict[str, list[str]] = {}
        above: dict[str, set[str]] = {}
        changing: set[str] = set()
        for call in self.calls:
            step_id, parents = call["step_id"], dict.fromkeys(call["depends_on"])
            if not call.get("done"):
                if any(offer.effects - GENTLE_EFFECTS for offer in self._offers(call)):
                    changing.add(step_id)
                reached = {*parents}.union(*(above.get(one, ()) for one in parents))
                for before in reversed(found):
                    if (step_id in changing or before in changing) and before not in reached:
                        parents[before] = None
                        reached |= {before, *above[before]}
            above[step_id] = {*parents}.union(*(above.get(one, ()) for one in parents))
            found[step_id] = [one for one in found if one in parents]
        return found

    def look_for_workers(self) -> None:
        """Give each call that is to run a worker that may run it, within the budget if possible."""
        if not self.calls and not self.missing:
            detail = "The request names nothing that a registered tool does."
            self.missing.append(Missing(kind=Lack.TOOL, detail=detail, text=self.intent[:2000]))
        todo = [call for call in self.calls if not call.get("done")]
        if len(todo) > _MOST_STEPS:
            detail = f"The request needs {len(todo)} tools; {_MOST_STEPS} are the most for one plan."
            self.missing.append(Missing(kind=Lack.LIMIT, detail=detail))
        salt = hashlib.blake2b(self.intent.encode("utf-8", "replace"), digest_size=16).hexdigest()
        calls: Counter[str] = Counter()
        spent = 0.0
        for number, call in enumerate(todo):
            offers, size = self._offers(call), payload_bytes(call["params"])
            reasons = [lacks_room(one, payload_bytes=size, calls=calls[one.worker_id] + 1) for one in offers]
            able = [one for one, reason in zip(offers, reasons, strict=True) if reason is None]
            if able:
                later = [self._offers(one) for one in todo[number + 1 :]]
                offer = choose(self._affordable(able, spent, later), salt=salt, prefer=self.bounds.prefer)
                self.chosen[call["step_id"]] = offer
                calls[offer.worker_id] += 1
                spent += offer.cost
            elif offers:
                why = "; ".join(sorted(reason for reason in reasons if reason))
                self._lack(call, Lack.LIMIT, f"No worker has room for {call['tool_name']}: {why}.")
            elif known := self.catalogue.offers_of(call.get("tool_uid", "")):
                why = "; ".join(
                    sorted({f"{one.worker_id}: {reason}" for one in known if (reason := self.catalogue.bar(one))})
                )
                self._lack(call, Lack.PERMISSION, f"{call['tool_name']} does this, but may not be used. {why}.")
            else:
                self._lack(call, Lack.TOOL, f"No worker offers {call['tool_name']}.")

    def _lack(self, call: Call, kind: Lack, detail: str) -> None:
        told = {"tool_name": call["tool_name"], "tool_uid": call.get("tool_uid")}
        self.missing.append(Missing(kind=kind, detail=detail, **told))

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
        for call in self.calls:
            step_id = call["step_id"]
            if call.get("done"):
                told = {name: value for name, value in call.items() if name not in ("missing_params", "alternatives")}
                self._steps.append(Step.model_validate(told))
                continue
            self._wait(self.parents[step_id])
            offer = self.chosen[step_id]
            told = {
                **{name: call[name] for name in _KEPT if name in call},
                "step_type": mode(offer),
                "depends_on": self._after(self.parents[step_id]),
                "worker_id": offer.worker_id,
                "estimated_runtime_seconds": expected_seconds(offer),
                "estimated_cost": offer.cost,
                "critical": any(step_id in parents for parents in self.parents.values()),
            }
            self._steps.append(Step.model_validate(told))
        ids = [call["step_id"] for call in self.calls]
        self._wait(ids)
        ends = self._after(ids)
        if len(ids) > 1 or self.draft.synthesis:
            text = _plain(self.draft.synthesis or _synthesis(self.calls, self.intent))
            more = {"aggregate_step_ids": ids, "synthesis_instructions": text, "executor": "principal"}
            ends = [self._add(StepType.AGGREGATE, ends, **more)]
        self._add(
            StepType.ESCALATE,
            ends,
            report_summary=_plain(f"Done ({', '.join(one['tool_name'] for one in self.calls)}): {self.intent[:500]}"),
            decision_required=False,
            recommendation="Review the result and keep what is worth remembering.",
        )
        doubts = self._doubts()
        pointers = [reference_to(step_id, RESULT_POINTER) for step_id in ids]
        made = self._plan(
            PlanStatus.NEEDS_CONFIRMATION if doubts else PlanStatus.READY,
            self._steps,
            confidence=self.draft.confidence,
            unsure=doubts or None,
            references={**self.head["references"], "expected_outputs": {"result_pointers": pointers}},
        )
        return made.model_copy(update=estimates(made, self.catalogue))

    def _add(self, kind: StepType, depends_on: Sequence[str], **members: Any) -> str:
        self._number += 1
        step_id = f"step-{self._number}"
        self._steps.append(
            Step.model_validate({"step_id": step_id, "step_type": kind, "depends_on": list(depends_on), **members})
        )
        return step_id

    def _after(self, ids: Iterable[str]) -> list[str]:
        """What a step depends on that comes after these: where they are queued, the wait for them."""
        return list(dict.fromkeys(self._waits.get(one, one) for one in ids))

    def _wait(self, ids: Sequence[str]) -> None:
        """One wait for all queued results among these that nothing has waited for yet."""
        queued = {one.step_id for one in self._steps if one.step_type == StepType.QUEUE_EXECUTION and not one.done}
        targets = [one for one in ids if one in queued and one not in self._waits]
        if targets:
            step_id = self._add(StepType.WAIT_FOR, targets, wait_for_step_ids=targets, wait_for_receipts=())
            self._waits.update(dict.fromkeys(targets, step_id))

    def _doubts(self) -> list[dict[str, Any]]:
        """Each value that is a guess, and the choice of tools if it is doubtful."""
        todo = [call for call in self.calls if not call.get("done")]
        found = [
            {
                "detail": (
                    f"{call['tool_name']} takes {name} = {json.dumps(call['params'].get(name), ensure_ascii=False)[:500]},"
                    f" from {'your words' if source['source'] == Evidence.CUT else 'nothing that you said'}."
                ),
                "step_id": call["step_id"],
                "param": name,
            }
            for call in todo
            for name, source in call["provenance"].items()
            if str(source.get("source")) in UNSURE
        ]
        if self.draft.doubtful and todo:
            least = min(todo, key=lambda call: call.get("confidence", 1.0) if "clause" in call else 1.0)
            others = " or ".join(one["tool_name"] for one in least.get("alternatives", ())[:2])
            detail = f"{least['tool_name']} is meant{f', not {others}' if others else ''}."
            found.insert(0, {"detail": detail, "step_id": least["step_id"]})
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
            confidence=round(min(self.draft.confidence, _REFUSED), 2),
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
            {**one, "question_id": f"question-{number}"}
            for number, one in enumerate(self.draft.questions[:100], start=1)
        ]
        return self._without_steps(
            PlanStatus.NEEDS_INPUT,
            f"Some of what this needs was not said: {self.intent[:500]}",
            _sentence(questions[0]["text"][:1500]),
            confidence=round(min(self.draft.confidence, _REFUSED), 2),
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
        for call in self.calls:
            offer = self.chosen.get(call["step_id"])
            worker = {"step_type": str(mode(offer)), "worker_id": offer.worker_id} if offer else {}
            above = {"depends_on": self.parents[call["step_id"]]}
            calls.append({"step_type": str(StepType.CALL_WORKER), **call, **worker, **above})
        partial = {"confidence": self.draft.confidence, "steps": calls}
        figures = {"estimated_total_runtime_seconds": 0.0, "execution_cost_estimate": 0.0, "can_run_parallel": False}
        return self._plan(status, [escalate], partial_plan=partial, **figures, **more)

    def _plan(self, status: PlanStatus, steps: Sequence[Step], **more: Any) -> Plan:
        tags = (tag for offer in self.chosen.values() for tag in offer.capabilities)
        return Plan.model_validate(
            {
                **self.head,
                "scope": self.head.get("scope") or next(tags, "general")[:200],
                "status": status,
                "steps": tuple(steps),
                "proposer": self.draft.proposer,
                "proposer_reason": self.draft.reason,
                "model_use": self.draft.model_use,
                "assumptions": self.draft.assumptions[:100],
                **more,
            }
        )


def _missing_of(problem: Problem, made: Plan) -> Missing:
    """What the validator finds wrong with a plan, as a reason that its asker can read."""
    kind = {"budget": Lack.BUDGET, "time": Lack.TIME}.get(problem.code, Lack.LIMIT)
    member, _, rest = problem.path[1:].partition("/")
    place, _, _ = rest.partition("/")
    step = made.steps[int(place)] if member == "steps" and place.isdigit() else None
    detail = f"{step.tool_name}: {problem.message}" if step and step.tool_name else problem.message
    return Missing(kind=kind, detail=detail[:2000], tool_name=step.tool_name if step else None)


def _plain(text: str) -> str:
    """Prose that quotes the asker must hold nothing that reads as a reference."""
    return text.replace(OPENING, "{ {")[:20_000]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
