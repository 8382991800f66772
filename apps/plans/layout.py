"""Steps in the making, and how they are laid out as the numbered steps of a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.plans import references, shapes
from apps.plans.catalogue import Tool
from apps.plans.clauses import Clause
from apps.plans.documents import Step
from apps.plans.offers import Choice
from apps.plans.ranking import Candidate
from apps.plans.shapes import WORKER_STEPS, StepType
from apps.plans.slots import Axis, Filling, Ref

Branch = Mapping[Axis, int]
"""Of values that are named alike, by where they stand: the place of the one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOn:
    """A part of the intent whose worker has asked for another to take it on."""

    clause: int
    intent: str
    """What is asked of the other, in the words of the first."""
    worker_id: str


@dataclass(slots=True, kw_only=True)
class Draft:
    """A step in the making."""

    key: int
    tool: Tool
    clause: Clause
    p: float
    alternatives: Sequence[Candidate] = ()
    filling: Filling = field(default_factory=Filling)
    after: set[int] = field(default_factory=set)
    hints: set[int] = field(default_factory=set)
    choice: Choice | None = None
    asked: bool = True
    """Does a clause ask for it, or does it only feed another step?"""
    handed_on: HandedOn | None = None
    """Another worker has named who is to do it."""
    done: Step | None = None
    """It has run under the plan before, as this step."""
    branch: Branch = field(default_factory=dict)
    """Which of the values it is for that the request names alike."""
    first: int | None = None
    """The draft that this one is another of, for another such value."""

    @property
    def row(self) -> int:
        """What it shares with the drafts that do the same with other values."""
        return self.key if self.first is None else self.first

    @property
    def parents(self) -> set[int]:
        return set(self.filling.refs) | self.after


class Layout:
    """Drafts as numbered steps, with a wait before whatever needs a queued result, an aggregate and the final report."""

    def __init__(self, intent: str, drafts: Sequence[Draft], wishes: Sequence[Clause], *, after: int = 0) -> None:
        """:param after: the number that the first new step comes after."""
        self.intent = intent
        self.drafts = drafts
        self.wishes = wishes
        self.made: list[Step] = [draft.done for draft in drafts if draft.done is not None]
        self.ids: dict[int, str] = {draft.key: draft.done.step_id for draft in drafts if draft.done is not None}
        self.waits: dict[int, str] = dict(self.ids)
        self._number = after

    def steps(self) -> tuple[Step, ...]:
        """Return the steps of the plan."""
        for draft in self.drafts:
            if draft.done is not None:
                continue
            self._wait([key for key in sorted(draft.parents) if key not in self.waits])
            self._worker(draft)
        self._wait([draft.key for draft in self.drafts if draft.key not in self.waits])
        self._close(self._aggregate())
        return tuple(self.made)

    def _id(self) -> str:
        self._number += 1
        return f"step-{self._number}"

    def _is_queued(self, key: int) -> bool:
        return any(step.step_id == self.ids[key] and step.step_type == StepType.QUEUE_EXECUTION for step in self.made)

    def _wait(self, keys: Iterable[int]) -> None:
        """One wait for all queued results that the next step needs and nobody has waited for yet."""
        queued = [key for key in keys if self._is_queued(key)]
        if not queued:
            return
        targets = tuple(self.ids[key] for key in queued)
        step = Step(
            step_id=self._id(),
            step_type=StepType.WAIT_FOR,
            depends_on=targets,
            wait_for_step_ids=targets,
            wait_for_receipts=(),
        )
        self.made.append(step)
        self.waits.update(dict.fromkeys(queued, step.step_id))

    def _worker(self, draft: Draft) -> None:
        choice = draft.choice
        if choice is None:
            return
        step_id = self._id()
        self.ids[draft.key] = step_id
        parents = {self.waits.get(key, self.ids[key]) for key in draft.parents}
        later = [other for other in self.drafts if draft.key in other.parents]
        self.made.append(
            Step(
                step_id=step_id,
                step_type=choice.mode,
                depends_on=tuple(step.step_id for step in self.made if step.step_id in parents),
                order_hint=tuple(self.ids[key] for key in sorted(draft.hints)) or None,
                worker_id=choice.offer.worker_id,
                tool_name=draft.tool.name,
                tool_uid=draft.tool.uid,
                params=resolved(draft.filling.params, self.ids),
                provenance=self._provenance(draft),
                estimated_runtime_seconds=choice.seconds,
                estimated_cost=choice.cost,
                confidence=draft.p,
                critical=bool(later),
                fallback_worker_ids=choice.fallbacks,
                alternatives=tuple(
                    {"tool_name": one.tool.name, "tool_uid": one.tool.uid, "score": one.p} for one in draft.alternatives
                ),
                clause=draft.clause.number if draft.asked else None,
            )
        )

    def _provenance(self, draft: Draft) -> dict[str, Any]:
        found = {name: dict(source) for name, source in draft.filling.provenance.items()}
        for source in found.values():
            if "key" in source and source["source"] == "step":
                source["step_id"] = self.ids[source.pop("key")]
        return found

    def _aggregate(self) -> str | None:
        wishes = self.wishes
        borne = [step for step in self.made if step.step_type in WORKER_STEPS]
        if len(borne) < 2 and not wishes:  # noqa: PLR2004  # one result needs no putting together
            return None
        parts = ", ".join(f"{step.step_id} ({step.tool_name})" for step in borne)
        ready = {self.ids[key]: wait for key, wait in self.waits.items()}
        told = "".join(f" Also: {wish.text}." for wish in wishes)
        step = Step(
            step_id=self._id(),
            step_type=StepType.AGGREGATE,
            depends_on=tuple(dict.fromkeys(ready.get(one.step_id, one.step_id) for one in borne)),
            aggregate_step_ids=tuple(one.step_id for one in borne),
            synthesis_instructions=plain(
                f"Put the results of {parts} together into one answer to: {self.intent}.{told}"
            ),
            executor="principal",
        )
        self.made.append(step)
        return step.step_id

    def _close(self, aggregate: str | None) -> None:
        ends = (
            (aggregate,) if aggregate else tuple(dict.fromkeys(self.waits.get(key, self.ids[key]) for key in self.ids))
        )
        tools = ", ".join(draft.tool.name for draft in self.drafts)
        self.made.append(
            Step(
                step_id=self._id(),
                step_type=StepType.ESCALATE,
                depends_on=ends,
                report_summary=plain(f"Done ({tools}): {self.intent[:500]}"),
                decision_required=False,
                recommendation="Review the result and keep what is worth remembering.",
            )
        )


def longest_way(steps: Sequence[Step]) -> float:
    """How long the longest way through steps in their order takes, those that are done left out."""
    finish: dict[str, float] = {}
    for step in steps:
        seconds = 0.0 if step.done else step.estimated_runtime_seconds or 0.0
        finish[step.step_id] = seconds + max((finish[parent] for parent in _parents(step)), default=0.0)
    return round(max(finish.values(), default=0.0), 3)


def has_independent_steps(steps: Sequence[Step]) -> bool:
    """Is there a pair of tools to run of which neither waits for the other?"""
    above: dict[str, set[str]] = {}
    for step in steps:
        parents = _parents(step)
        above[step.step_id] = parents.union(*(above[parent] for parent in parents))
    todo = [step.step_id for step in steps if step.step_type in WORKER_STEPS and not step.done]
    return any(first not in above[second] for place, second in enumerate(todo) for first in todo[:place])


def _parents(step: Step) -> set[str]:
    return {*step.depends_on, *(step.wait_for_step_ids or ()), *(step.aggregate_step_ids or ())}


def resolved(params: Mapping[str, Any], ids: Mapping[int, str]) -> dict[str, Any]:
    return {
        name: references.write(ids[value.key], *value.path) if isinstance(value, Ref) else value
        for name, value in params.items()
    }


def plain(text: str) -> str:
    """Prose that quotes the asker must hold nothing that reads as a reference."""
    return text.replace(shapes.OPENING, "{ {")[:20_000]
