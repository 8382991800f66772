"""What a proposer makes of a request: steps with tools and values, and what it is not sure of.

There are three proposers: the principal (`submit_plan`), a model, and the local planner. Only the validator makes a plan of
what they propose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from apps.plans.catalogue import Tool, allowed, resolved
from apps.plans.documents import ModelUse


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


@dataclass(frozen=True, slots=True)
class Ref:
    """What an earlier step gives: its place in the proposal, and the path into its result."""

    step: int
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The value of one param and where it comes from."""

    value: Any
    """A JSON value, in which a :class:`Ref` may stand for any part."""
    evidence: Evidence
    text: str = ""
    """The words of the request that it was taken from, or the context's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedStep:
    """One call of a tool."""

    tool: Tool
    values: Mapping[str, Value] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    """Required params that nothing gives a value."""
    part: int | None = 0
    """The number of the part of the request that asks for the call; None: it only feeds a later step."""
    text: str = ""
    """The words of that part."""
    confidence: float = 1.0
    """How likely this is the call that was meant, 0 to 1."""
    alternatives: tuple[tuple[Tool, float], ...] = ()
    """Other tools for the same part, likeliest first."""
    after: frozenset[int] = frozenset()
    """Steps that must end first, though nothing of theirs is taken."""


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
class Question:
    """One thing to ask the principal, which one answer settles."""

    step: int
    """The place of the step in the proposal."""
    param: str | None
    """The param that lacks a value; None: two tools fit alike, and the answer is a tool's name."""
    text: str
    """The question in one plain sentence."""
    choices: tuple[Any, ...] = ()
    """What may be answered, where that is known."""
    schema: Mapping[str, Any] | None = None
    """The JSON Schema of the answer."""


def question_for(step: int, tool: Tool, name: str) -> Question:
    """What to ask for a param that lacks a value."""
    raw = tool.inputs.get(name)
    schema = resolved(raw, tool.input_schema) if isinstance(raw, Mapping) else {}
    choices = tuple(allowed(schema))
    told = f" One of: {', '.join(map(str, choices[:12]))}." if choices else ""
    said = str(schema.get("description", "")).split("\n")[0].strip()
    about = f" ({said.rstrip('.')[:120]})" if said else ""
    text = f"What is “{name}”{about} for {tool.name}?{told}"
    return Question(step=step, param=name, text=text, choices=choices, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What one proposer makes of a request.

    With `missing` it needs an escalation. Else with `questions` it needs an input. Else, if some value is unsure or
    `doubtful` is set, it needs a confirmation. Else it is ready.
    """

    proposer: str
    """`local`, `model` or `submitted`."""
    steps: tuple[ProposedStep, ...] = ()
    confidence: float = 0.0
    """How likely all of it is what was meant, 0 to 1, calibrated."""
    questions: tuple[Question, ...] = ()
    missing: tuple[Missing, ...] = ()
    doubtful: bool = False
    """Everything has a value, and the margin to another plan is small."""
    assumptions: tuple[str, ...] = ()
    wishes: tuple[str, ...] = ()
    """Parts of the request that need no tool: what the asker is to make of the results ("and summarize it")."""
    reason: str = "No model is asked."
    """Why this proposer was used."""
    model_use: ModelUse | None = None

    @property
    def is_ready(self) -> bool:
        """Is nothing missing, to be asked, or to be confirmed?"""
        values = (value for step in self.steps for value in step.values.values())
        return bool(self.steps) and not (
            self.missing or self.questions or self.doubtful or any(value.evidence in UNSURE for value in values)
        )


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
