"""From a proposal to a plan: workers for its steps, the steps as numbered instructions, and what is said of the whole.

The validator judges each plan that is whole. What fails there or has no worker becomes a plan that says what is missing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from apps.plans import references
from apps.plans.catalogue import GENTLE_EFFECTS, Catalogue, Tool
from apps.plans.documents import Plan, PlanStatus, Step, can_be_told, partial_of
from apps.plans.offers import Choice, Priority, choose, lacks_room, payload_bytes
from apps.plans.proposals import UNSURE, Asked, Evidence, Lack, Missing, Proposal, ProposedStep, Question, Ref, Value
from apps.plans.references import Reference
from apps.plans.shapes import OPENING, RESULT_POINTER, StepType
from apps.plans.validation import Limits, Problem, estimates, validate
from apps.workers.shapes import OfferView as Offer

PLANNER_VERSION: Final = "14"
_MOST_STEPS: Final = 12
_NEAREST: Final = 5
_REFUSED: Final = 0.35
_PATH: Final = "delegation_path"
"""A tool with this param passes requests on, and is told the way that they came."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is asked, and under which bounds."""

    asked: Asked
    limits: Limits
    priority: Priority = Priority.BALANCED
    after: int = 0
    """The highest number of a step of the plans before; new steps are numbered from there on."""
    head: Mapping[str, Any]
    """Members that the plan has whatever comes of the request. A `scope` there is the asker's or the delegate's."""


def assemble(terms: Terms, proposal: Proposal, catalogue: Catalogue) -> Plan:
    """The plan that a proposal gives: ready, to be confirmed, with questions, or with what is missing."""
    work = _Assembly(terms, proposal, catalogue)
    work.look_for_workers()
    if work.missing:
        return work.refusal()
    if work.questions:
        return work.inquiry()
    made = work.whole()
    for problem in validate(made.document(), catalogue, limits=terms.limits):
        work.missing.append(_missing_of(problem, made))
    return work.refusal() if work.missing else made


def read_again(
    document: Mapping[str, Any], offered: Mapping[str, Tool], done: Mapping[str, Step] | None = None
) -> Proposal | None:
    """The proposal that a plan's document came from. None if a tool is offered no more, or a text has references within.

    :param offered: the tools by uid.
    :param done: the steps that have run to their end, by id; None: those of which the document says so.
    """
    told = partial_of(document)
    if done is None:
        done = {step["step_id"]: Step.model_validate(step) for step in told["steps"] if step.get("done")}
    waited = {step["step_id"]: step.get("wait_for_step_ids") or () for step in told["steps"]}
    runs = [step for step in told["steps"] if step.get("tool_name")]
    places = {step["step_id"]: place for place, step in enumerate(runs)}
    steps = []
    for step in runs:
        params, ran = step.get("params") or {}, done.get(step["step_id"])
        tool = offered.get(step.get("tool_uid", "")) if ran is None else ran_before(ran).tool
        if tool is None or any(isinstance(one, Reference) and not one.whole for one in references.within(params)):
            return None
        above = [source for one in step.get("depends_on", ()) for source in (one, *waited.get(one, ()))]
        sources = step.get("provenance") or {}
        steps.append(
            ProposedStep(
                tool=tool,
                values={
                    name: _value(_with_refs(value, places), sources.get(name, {})) for name, value in params.items()
                },
                missing=tuple(step.get("missing_params", ())),
                part=step.get("clause"),
                confidence=step.get("confidence", 1.0),
                after=frozenset(places[one] for one in above if one in places),
                done=ran,
            )
        )
    return Proposal(
        proposer=document.get("proposer", "submitted"),
        steps=tuple(steps),
        confidence=told.get("confidence", 0.0),
        questions=tuple(
            Question(
                step=places[one["step_id"]],
                param=one.get("param"),
                text=one["text"],
                choices=tuple(one.get("choices", ())),
                schema=one.get("schema"),
            )
            for one in document.get("questions", ())
        ),
        doubtful=any("param" not in one for one in document.get("unsure", ())),
        assumptions=tuple(document.get("assumptions", ())),
    )


def ran_before(step: Step) -> ProposedStep:
    """A step that has run to its end; its tool may be offered no more."""
    name = step.tool_name or ""
    tool = Tool(uid=step.tool_uid or "", name=name, description="", input_schema={}, output_schema={})
    return ProposedStep(tool=tool, part=step.clause, confidence=step.confidence or 1.0, done=step)


def _with_refs(value: Any, places: Mapping[str, int]) -> Any:
    if isinstance(value, dict):
        return {name: _with_refs(item, places) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_refs(item, places) for item in value]
    found = next(references.within(value), None) if isinstance(value, str) else None
    return Ref(places[found.step_id], found.path) if isinstance(found, Reference) and found.whole else value


def _value(value: Any, source: Mapping[str, Any]) -> Value:
    named = source.get("source")
    evidence = Evidence(named) if named in set(Evidence) else Evidence.TYPED
    return Value(value=value, evidence=evidence, text=source.get("key") or source.get("text") or "")


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
        return references.write(ids[value.step], *value.path)
    if isinstance(value, Mapping):
        return {name: _written(item, ids) for name, item in value.items()}
    return [_written(item, ids) for item in value] if isinstance(value, (list, tuple)) else value


class _Assembly:
    """One proposal on its way to a plan."""

    def __init__(self, terms: Terms, proposal: Proposal, catalogue: Catalogue) -> None:
        self.terms = terms
        self.proposal = proposal
        self.catalogue = catalogue
        self.missing = list(proposal.missing)
        self.steps = [step if step.done else self._tidy(step) for step in proposal.steps]
        asked = {(one.step, one.param) for one in proposal.questions}
        self.questions = list(proposal.questions)
        self.questions += [
            self._question(place, name)
            for place, step in enumerate(self.steps)
            for name in step.missing
            if (place, name) not in asked
        ]
        self.parents = self._parents()
        self.choices: dict[int, Choice] = {}
        self.salt = hashlib.blake2b(terms.asked.intent.encode("utf-8", "replace"), digest_size=16).hexdigest()
        self._steps: list[Step] = []
        self._ids: dict[int, str] = {}
        self._waits: dict[int, str] = {}
        self._number = terms.after

    def _tidy(self, step: ProposedStep) -> ProposedStep:
        """The step with the way that the request came, and without values that no plan can hold."""
        ids = dict.fromkeys(range(len(self.proposal.steps)), "step")
        values = {name: one for name, one in step.values.items() if can_be_told(_written(one.value, ids))}
        if _PATH in step.tool.inputs:
            path = list(self.terms.asked.delegation_path)
            values[_PATH] = Value(value=path, evidence=Evidence.DELEGATION)
        lost = [name for name in step.values if name not in values and name in step.tool.required]
        missing = dict.fromkeys((*step.missing, *lost))
        return replace(step, values=values, missing=tuple(name for name in missing if name not in values))

    def _question(self, place: int, param: str) -> Question:
        tool = self.steps[place].tool
        is_inexact = param in self.proposal.steps[place].values
        why = " What there is has no exact form; give it as text." if is_inexact else ""
        return Question(
            step=place, param=param, text=f"Which {param} is {tool.name} to take?{why}", schema=tool.inputs.get(param)
        )

    # Order and workers.

    def _parents(self) -> list[set[int]]:
        """What each step waits for: what it takes results from, and what comes first.

        Nothing runs beside a step that changes something: it waits for all before it, and all after it wait for it.
        """
        changes = [
            any(offer.effects - GENTLE_EFFECTS for offer in self.catalogue.open_offers(step.tool.uid))
            for step in self.steps
        ]
        found: list[set[int]] = []
        above: list[set[int]] = []
        for place, step in enumerate(self.steps):
            parents = {ref.step for value in step.values.values() for ref in _refs(value.value)} | step.after
            if any(parent >= place for parent in parents):
                detail = f"{step.tool.name} takes the result of a step that comes later."
                self.missing.append(Missing(kind=Lack.CONFIDENCE, detail=detail, tool_name=step.tool.name))
                parents = {parent for parent in parents if parent < place}
            reached = parents.union(*(above[parent] for parent in parents))
            for before in reversed(range(place)):
                if (changes[before] or changes[place]) and before not in reached:
                    parents.add(before)
                    reached |= {before, *above[before]}
            found.append(parents)
            above.append(reached)
        return found

    def look_for_workers(self) -> None:
        """Give each step that is to run a worker that may run it, within the budget if possible."""
        if not self.steps and not self.missing:
            detail = "The request names nothing that a registered tool does."
            self.missing.append(Missing(kind=Lack.TOOL, detail=detail, text=self.terms.asked.intent[:2000]))
        todo = [place for place, step in enumerate(self.steps) if step.done is None]
        if len(todo) > _MOST_STEPS:
            detail = f"The request needs {len(todo)} tools; {_MOST_STEPS} are the most for one plan."
            self.missing.append(Missing(kind=Lack.LIMIT, detail=detail))
        for place in todo:
            if not self._offers(place):
                self.missing.append(self._barred(self.steps[place]))
        ids = dict.fromkeys(range(len(self.steps)), "step-99")
        calls: Counter[str] = Counter()
        spent = 0.0
        for number, place in enumerate(todo):
            offers, step = self._offers(place), self.steps[place]
            size = payload_bytes({name: _written(value.value, ids) for name, value in step.values.items()})
            reasons = [lacks_room(one, payload_bytes=size, calls=calls[one.worker_id] + 1) for one in offers]
            able = [one for one, reason in zip(offers, reasons, strict=True) if reason is None]
            if able:
                later = [self._offers(one) for one in todo[number + 1 :]]
                offers = self._affordable(able, spent, later)
                self.choices[place] = choice = choose(offers, salt=self.salt, priority=self.terms.priority)
                calls[choice.offer.worker_id] += 1
                spent += choice.cost
            elif offers:
                why = "; ".join(sorted(reason for reason in reasons if reason))
                detail = f"No worker has room for {step.tool.name}: {why}."
                self.missing.append(Missing(kind=Lack.LIMIT, detail=detail, text=step.text, tool_name=step.tool.name))

    def _offers(self, place: int) -> Sequence[Offer]:
        step = self.steps[place]
        offers = self.catalogue.open_offers(step.tool.uid)
        return [one for one in offers if step.worker_id in {None, one.worker_id}]

    def _barred(self, step: ProposedStep) -> Missing:
        offers = self.catalogue.offers_of(step.tool.uid)
        reasons = {f"{offer.worker_id}: {reason}" for offer in offers if (reason := self.catalogue.bar(offer))}
        if not reasons:
            detail = f"No worker offers {step.tool.name}."
            return Missing(kind=Lack.TOOL, detail=detail, text=step.text, tool_name=step.tool.name)
        detail = f"{step.tool.name} does this, but may not be used. {'; '.join(sorted(reasons))}."
        return Missing(kind=Lack.PERMISSION, detail=detail, text=step.text, tool_name=step.tool.name)

    def _affordable(self, offers: Sequence[Offer], spent: float, later: Iterable[Sequence[Offer]]) -> Sequence[Offer]:
        """Those that leave enough for what comes later at its cheapest; all of them, if none does."""
        limits = self.terms.limits
        rest = math.fsum(min((one.cost for one in others), default=0.0) for others in later)
        total = math.inf if limits.max_total_cost is None else round(limits.max_total_cost - spent - rest, 6)
        most = min(total, math.inf if limits.max_cost_per_step is None else limits.max_cost_per_step)
        return [one for one in offers if one.cost <= most] or offers

    # What comes out.

    def whole(self) -> Plan:
        """The plan with all of its steps: what ran, the calls, a wait before each use of a queued result, and an end."""
        for place, step in enumerate(self.steps):
            if step.done is not None:
                self._steps.append(step.done)
                self._ids[place] = self._waits[place] = step.done.step_id
            else:
                self._wait(sorted(self.parents[place]))
                self._call(place, step)
        self._wait(list(self._ids))
        self._close()
        doubts = self._doubts()
        runs = [step.step_id for step in self._steps if step.runs_tool]
        made = self._plan(
            PlanStatus.NEEDS_CONFIRMATION if doubts else PlanStatus.READY,
            self._steps,
            confidence=self.proposal.confidence,
            unsure=doubts or None,
            references={
                **self.terms.head["references"],
                "expected_outputs": {"result_pointers": [references.write(one, RESULT_POINTER) for one in runs]},
            },
        )
        return made.model_copy(update=estimates(made, self.catalogue))

    def _add(self, kind: StepType, depends_on: Sequence[str], **members: Any) -> str:
        self._number += 1
        step_id = f"step-{self._number}"
        self._steps.append(Step(step_id=step_id, step_type=kind, depends_on=tuple(depends_on), **members))
        return step_id

    def _wait(self, places: Sequence[int]) -> None:
        """One wait for all queued results among these that nothing has waited for yet."""
        queued = {step.step_id for step in self._steps if step.step_type == StepType.QUEUE_EXECUTION}
        targets = [place for place in places if place not in self._waits and self._ids[place] in queued]
        if targets:
            ids = tuple(self._ids[place] for place in targets)
            step_id = self._add(StepType.WAIT_FOR, ids, wait_for_step_ids=ids, wait_for_receipts=())
            self._waits.update(dict.fromkeys(targets, step_id))

    def _call(self, place: int, step: ProposedStep) -> None:
        choice = self.choices[place]
        parents = {self._waits.get(parent, self._ids[parent]) for parent in self.parents[place]}
        self._ids[place] = self._add(
            choice.mode,
            [one.step_id for one in self._steps if one.step_id in parents],
            order_hint=(self._ids[place - 1],) if place and not self.parents[place] else None,
            worker_id=choice.offer.worker_id,
            estimated_runtime_seconds=choice.seconds,
            estimated_cost=choice.cost,
            critical=any(place in parents for parents in self.parents),
            fallback_worker_ids=choice.fallbacks,
            **self._told(step, self._ids),
        )

    def _told(self, step: ProposedStep, ids: Mapping[int, str]) -> dict[str, Any]:
        """What a step says of itself, whether it is called or not."""
        return {
            "tool_name": step.tool.name,
            "tool_uid": step.tool.uid,
            "params": {name: _written(value.value, ids) for name, value in step.values.items()},
            "provenance": {name: _source(name, value, ids) for name, value in step.values.items()},
            "confidence": step.confidence,
            "alternatives": [
                {"tool_name": tool.name, "tool_uid": tool.uid, "score": score} for tool, score in step.alternatives
            ],
            "clause": step.part,
        }

    def _close(self) -> None:
        intent, runs = self.terms.asked.intent, [step for step in self._steps if step.runs_tool]
        ends = list(dict.fromkeys(self._waits.get(place, step_id) for place, step_id in self._ids.items()))
        if len(runs) > 1 or self.proposal.wishes:
            parts = ", ".join(f"{step.step_id} ({step.tool_name})" for step in runs)
            wishes = "".join(f" Also: {wish}." for wish in self.proposal.wishes)
            aggregate = self._add(
                StepType.AGGREGATE,
                ends,
                aggregate_step_ids=tuple(step.step_id for step in runs),
                synthesis_instructions=_plain(
                    f"Put the results of {parts} together into one answer to: {intent}.{wishes}"
                ),
                executor="principal",
            )
            ends = [aggregate]
        self._add(
            StepType.ESCALATE,
            ends,
            report_summary=_plain(f"Done ({', '.join(step.tool.name for step in self.steps)}): {intent[:500]}"),
            decision_required=False,
            recommendation="Review the result and keep what is worth remembering.",
        )

    def _doubts(self) -> list[dict[str, Any]]:
        """Each value that is a guess, and each tool that is only a little likelier than another."""
        found = [
            {
                "detail": (
                    f"{step.tool.name} takes {name} = {json.dumps(value.value, ensure_ascii=False)[:500]},"
                    f" from {'your words' if value.evidence == Evidence.CUT else 'nothing that you said'}."
                ),
                "step_id": self._ids[place],
                "param": name,
            }
            for place, step in enumerate(self.steps)
            for name, value in step.values.items()
            if step.done is None and value.evidence in UNSURE
        ]
        if self.proposal.doubtful:
            least = min(
                (place for place, step in enumerate(self.steps) if step.done is None and step.part is not None),
                key=lambda place: self.steps[place].confidence,
                default=0,
            )
            step = self.steps[least]
            others = " or ".join(tool.name for tool, _ in step.alternatives[:2])
            detail = f"{step.tool.name} is meant{f', not {others}' if others else ''}."
            found.insert(0, {"detail": detail, "step_id": self._ids[least]})
        return found[:100]

    def refusal(self) -> Plan:
        """The plan whose only step escalates, with what is missing and what comes nearest."""
        first = self.missing[0]
        found = sorted(self.proposal.nearest, key=lambda one: (-one[1], one[0].uid))[:_NEAREST]
        best = max((score for _, score, _ in found), default=0.0)
        return self._without_steps(
            PlanStatus.NEEDS_ESCALATION,
            f"No plan can be made that does all of this: {self.terms.asked.intent[:500]}",
            f"{_sentence(first.detail[:1500])} {self._approval(first) or _ADVICE[first.kind]}",
            confidence=round(min(best, _REFUSED), 2),
            missing=[
                {
                    "kind": str(one.kind),
                    "detail": one.detail[:2000],
                    "clause": one.text or None,
                    "tool_name": one.tool_name,
                }
                for one in self.missing[:100]
            ],
            candidates=[
                {
                    "tool_name": tool.name,
                    "tool_uid": tool.uid,
                    "worker_id": next((one.worker_id for one in self.catalogue.offers_of(tool.uid)), None),
                    "score": score,
                    "description": tool.description[:500] or None,
                    "reason": reason[:2000],
                }
                for tool, score, reason in found
            ],
        )

    def _approval(self, first: Missing) -> str:
        """How an operator lets a tool be used whose effects are all that stands against it."""
        tools = [*(step.tool for step in self.steps), *(tool for tool, _, _ in self.proposal.nearest)]
        offers = (
            offer for tool in tools if tool.name == first.tool_name for offer in self.catalogue.offers_of(tool.uid)
        )
        worker_id = next((one.worker_id for one in offers if "does not allow" in (self.catalogue.bar(one) or "")), None)
        if worker_id is None or first.kind != Lack.PERMISSION:
            return ""
        return f"An operator approves it with: manage.py mcp_workers approve {worker_id} --tool {first.tool_name}"

    def inquiry(self) -> Plan:
        """The plan whose only step asks, with all questions."""
        ids = self._partial_ids()
        return self._without_steps(
            PlanStatus.NEEDS_INPUT,
            f"Some of what this needs was not said: {self.terms.asked.intent[:500]}",
            _sentence(self.questions[0].text[:1500]),
            confidence=round(min(self.proposal.confidence, _REFUSED), 2),
            questions=[
                {
                    "question_id": f"question-{number}",
                    "text": one.text[:2000],
                    "step_id": ids[one.step],
                    "tool_name": self.steps[one.step].tool.name,
                    "param": one.param,
                    "choices": list(one.choices[:300]) or None,
                    "schema": one.schema if can_be_told(one.schema) else None,
                }
                for number, one in enumerate(self.questions[:100], start=1)
            ],
        )

    def _without_steps(self, status: PlanStatus, summary: str, recommendation: str, **more: Any) -> Plan:
        escalate = Step(
            step_id="step-1",
            step_type=StepType.ESCALATE,
            report_summary=_plain(summary),
            decision_required=True,
            recommendation=_plain(recommendation),
        )
        ids = self._partial_ids()
        steps = [self._partial(place, step, ids) for place, step in enumerate(self.steps)]
        partial = {"confidence": self.proposal.confidence, "steps": steps}
        figures = {"estimated_total_runtime_seconds": 0.0, "execution_cost_estimate": 0.0, "can_run_parallel": False}
        return self._plan(status, [escalate], partial_plan=partial, **figures, **more)

    def _partial_ids(self) -> dict[int, str]:
        return {
            place: step.done.step_id if step.done else f"step-{self.terms.after + place + 1}"
            for place, step in enumerate(self.steps)
        }

    def _partial(self, place: int, step: ProposedStep, ids: Mapping[int, str]) -> dict[str, Any]:
        if step.done is not None:
            return step.done.document()
        choice = self.choices.get(place)
        told = {
            "step_id": ids[place],
            "step_type": str(choice.mode if choice else StepType.CALL_WORKER),
            "worker_id": choice.offer.worker_id if choice else None,
            "depends_on": [ids[parent] for parent in sorted(self.parents[place])],
            "missing_params": list(step.missing),
            **self._told(step, ids),
        }
        return {name: value for name, value in told.items() if value is not None}

    def _plan(self, status: PlanStatus, steps: Sequence[Step], **more: Any) -> Plan:
        head, proposal = self.terms.head, self.proposal
        said = {
            "scope": self._scope(),
            "status": status,
            "steps": tuple(steps),
            "proposer": proposal.proposer,
            "registry_epoch": self.catalogue.epoch,
            "assumptions": tuple(dict.fromkeys((*proposal.assumptions, *head.get("assumptions", ()))))[:100],
        }
        return Plan.model_validate({**head, **said, **more})

    def _scope(self) -> str:
        """The asker's or delegate's word for the domain, else the capability that most of the chosen workers have."""
        tags = Counter(tag for choice in self.choices.values() for tag in choice.offer.capabilities)
        return self.terms.head.get("scope") or (tags.most_common(1)[0][0][:200] if tags else "general")


def _source(name: str, value: Value, ids: Mapping[int, str]) -> dict[str, Any]:
    """Where the value of a param is from, as a plan tells it."""
    ref = next(_refs(value.value), None)
    if ref is not None:
        return {"source": str(Evidence.STEP), "step_id": ids[ref.step], "path": ".".join(ref.path)}
    if value.evidence == Evidence.CONTEXT:
        return {"source": str(value.evidence), "key": value.text or name}
    return {"source": str(value.evidence), **({"text": value.text} if value.text else {})}


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
