"""What a proposer makes of a request: steps with tools and values, and what it is not sure of.

There are three proposers: the principal (`submit_plan`), a model, and the local planner. Only the validator makes a plan of
what they propose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from apps.plans.catalogue import Reference, Tool, allowed, references_in, resolved
from apps.plans.documents import ModelUse, Step, can_be_told
from apps.plans.shapes import StepType


class Evidence(StrEnum):
    """Where the value of a param comes from."""

    CONTEXT = "context"
    """The request's context names it."""
    STEP = "step"
    """An earlier step's result."""
    TYPED = "typed"
    """A token of the request with a form of its own: a date, a path, an id, a number."""
    QUOTED = "quoted"
    CHOICE = "choice"
    """A word of the request that is one of the param's choices."""
    REQUEST = "request"
    """The request itself, for a tool that takes one in plain words."""
    CUT = "cut"
    """Words of the request without quotes: where they begin and end is a guess."""
    ASSUMED = "assumed"
    """It stands nowhere: a model made it up."""
    ANSWER = "answer"
    """The principal answered a question."""
    CONFIRMED = "confirmed"
    """It was a guess, and the principal confirmed it."""
    DELEGATION = "delegation"
    """The way that the request came, for a tool that passes it on."""


UNSURE: Final = frozenset({Evidence.CUT, Evidence.ASSUMED})
"""A plan with such a value needs a confirmation."""
_PATH: Final = "delegation_path"
"""A tool with this param passes requests on, and is told the way that they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The value of one param and where it comes from."""

    value: Any
    evidence: Evidence
    text: str = ""
    """The words of the request that it was taken from, or the context's key."""


@dataclass(frozen=True, slots=True)
class Likely:
    """The uids of the tools that a request comes to by past plans, likeliest first, each with its probability."""

    tools: tuple[tuple[str, float], ...] = ()
    confidence: float = 0.0
    """How likely just these tools serve it."""


class Lack(StrEnum):
    """What stands between a request and a plan that may run."""

    TOOL = "tool"
    """No registered tool does this."""
    PERMISSION = "permission"
    """A tool does this and may not be used: its worker's tier, state or effects forbid it."""
    CONDITION = "condition"
    """The request is negated, conditional, excepted or repeated: a plan can't hold that."""
    LIMIT = "limit"
    """Too long, too many steps, or beyond a worker's limits."""
    BUDGET = "budget"
    TIME = "time"
    CONFIDENCE = "confidence"
    """The words fit the tools too weakly, or some word is explained by nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """One reason why there is no plan. The first is what the asker reads first."""

    kind: Lack
    detail: str
    """One plain sentence that names the tool, the tier or the word."""
    text: str = ""
    """The part of the request that it is about."""
    tool_name: str | None = None
    tool_uid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What one proposer makes of a request, or what a plan was made of.

    With `missing` it needs an escalation. Else with questions or steps that lack params it needs an input. Else, if some value
    is unsure or `doubtful` is set, it needs a confirmation. Else it is ready.
    """

    proposer: str
    """`local`, `model` or `submitted`."""
    steps: Sequence[Step] = ()
    """The calls, `step-1` the first. They have no workers, or those of the plan before."""
    confidence: float = 0.0
    """How likely all of it is what was meant, 0 to 1, calibrated."""
    questions: Sequence[Mapping[str, Any]] = ()
    """What is asked beside the params that lack, as a plan tells it. The answer to one without a param is a tool's name."""
    missing: Sequence[Missing] = ()
    doubtful: bool = False
    """Everything has a value, and the margin to another plan is small."""
    assumptions: Sequence[str] = ()
    wishes: Sequence[str] = ()
    """Parts of the request that need no tool: what the asker is to make of the results ("and summarize it")."""
    synthesis: str | None = None
    """How the results are to be put together; None: as results of several calls always are."""
    reason: str | None = "No model is asked."
    """Why this proposer was used."""
    model_use: ModelUse | None = None

    @property
    def is_ready(self) -> bool:
        """Is nothing missing, to be asked, or to be confirmed?"""
        is_sure = not any(one.missing_params or guesses(one) for one in self.steps)
        return bool(self.steps) and is_sure and not (self.missing or self.questions or self.doubtful)

    def confirmed(self) -> Proposal:
        """The same, after the principal has confirmed its guesses."""
        sure = {"source": str(Evidence.CONFIRMED)}
        steps = [
            step.model_copy(
                update={
                    "provenance": {**(step.provenance or {}), **{name: {**one, **sure} for name, one in told.items()}}
                }
            )
            for step in self.steps
            for told in [guesses(step)]
        ]
        return replace(self, steps=steps, doubtful=False)

    def answered(self, answers: Mapping[str, Any]) -> Proposal:
        """The same with answers to questions about params, by question id."""
        steps = {step.step_id: step for step in self.steps}
        for question in self.questions:
            if question["question_id"] in answers:
                step, param = steps[question["step_id"]], question["param"]
                lacking = tuple(name for name in step.missing_params or () if name != param)
                told = {
                    "params": {**(step.params or {}), param: answers[question["question_id"]]},
                    "provenance": {**(step.provenance or {}), param: {"source": str(Evidence.ANSWER)}},
                    "missing_params": lacking or None,
                }
                steps[step.step_id] = step.model_copy(update=told)
        left = [one for one in self.questions if one["question_id"] not in answers]
        return replace(self, steps=list(steps.values()), questions=left)


def guesses(step: Step) -> dict[str, dict[str, Any]]:
    """The params of a step with values that are not sure, and where those are from."""
    return {name: one for name, one in (step.provenance or {}).items() if str(one.get("source")) in UNSURE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as proposers see it."""

    intent: str
    now: datetime
    """The time that words such as "tomorrow" are relative to, with its zone."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Values for params by name, the answers of `answer_plan` among them."""
    tools: Mapping[int, str] = field(default_factory=dict)
    """The uid of the tool that a part of the request is to be served by, as an answer settled it."""
    delegation_path: Sequence[str] = ()
    """For a tool with a param of this name, its value."""


def call(number: int, tool: Tool, values: Mapping[str, Value], asked: Asked, **more: Any) -> Step:
    """A call of a tool as a plan tells it. What has no exact form in a plan is left out, and lacks if it is required.

    :param number: its place among the calls, from 1.
    :param more: further members of the step.
    """
    path = {_PATH: Value(value=list(asked.delegation_path), evidence=Evidence.DELEGATION)}
    values = {**values, **(path if _PATH in tool.inputs else {})}
    params = {name: one.value for name, one in values.items() if can_be_told(one.value)}
    above = {found.step_id for one in values.values() for found in _cited(one)}.union(more.pop("depends_on", ()))
    return Step(
        step_id=f"step-{number}",
        step_type=StepType.CALL_WORKER,
        depends_on=tuple(sorted(above, key=lambda one: (len(one), one))),
        tool_name=tool.name,
        tool_uid=tool.uid,
        params=params,
        provenance={name: _source(name, one) for name, one in values.items()},
        missing_params=tuple(name for name in tool.required if name not in params) or None,
        **more,
    )


def _cited(value: Value) -> list[Reference]:
    """The results that a value takes. What the asker has written reads like a reference at most."""
    found = references_in(value.value) if value.evidence in (Evidence.STEP, Evidence.ASSUMED) else ()
    return [one for one in found if one.path]


def _source(name: str, value: Value) -> dict[str, Any]:
    """Where the value of a param is from, as a plan tells it."""
    told: dict[str, Any] = {"source": str(value.evidence)}
    if cited := _cited(value):
        told |= {"step_id": cited[0].step_id, "path": ".".join(cited[0].path)}
    elif value.evidence == Evidence.CONTEXT:
        told["key"] = value.text or name
    elif value.text:
        told["text"] = value.text
    return told


def question_for(step: Step, tool: Tool, name: str) -> dict[str, Any]:
    """What to ask for a param that lacks a value, as a plan tells it."""
    raw = tool.inputs.get(name)
    schema = resolved(raw, tool.input_schema) if isinstance(raw, Mapping) else {}
    choices = allowed(schema)[:300]
    said = str(schema.get("description", "")).split("\n")[0].strip()
    about = f" ({said.rstrip('.')[:120]})" if said else ""
    told = f" One of: {', '.join(map(str, choices[:12]))}." if choices else ""
    why = " What there is has no exact form; give it as text." if name in (step.provenance or {}) else ""
    return {
        "text": f"What is “{name}”{about} for {tool.name}?{told}{why}"[:2000],
        "step_id": step.step_id,
        "tool_name": tool.name,
        "param": name,
        **({"choices": list(choices)} if choices else {}),
        **({"schema": schema} if can_be_told(schema) else {}),
    }
