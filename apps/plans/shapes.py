"""What plans and those who carry them out write and read alike: types of steps, references between them, and bounds of cost."""

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from django.db.models import TextChoices
from pydantic import AfterValidator, Field

from apps.core.schemas import Input, Name, Output, Text


class StepType(TextChoices):
    """What an instruction of a plan asks its executor to do."""

    CALL_WORKER = "call_worker"
    QUEUE_EXECUTION = "queue_execution"
    WAIT_FOR = "wait_for"
    AGGREGATE = "aggregate"
    ESCALATE = "escalate"


WORKER_STEPS: Final = frozenset({StepType.CALL_WORKER, StepType.QUEUE_EXECUTION})
"""The step types that run a tool and bear a result."""

OPENING: Final = "{{"
REFERENCE: Final = re.compile(r"\{\{([A-Za-z0-9][A-Za-z0-9_-]*)\.([A-Za-z0-9_$-]+(?:\.[A-Za-z0-9_$-]+)*)\}\}")
"""The step, and the path into its result."""
RESULT_POINTER: Final = "result_pointer"
RESULT_TEXT: Final = "text"
"""The path of a whole result as text, where the result has no such member."""
_PLACE: Final = re.compile(r"[0-9]{1,9}")

Money = Annotated[float, Field(ge=0, le=1_000_000)]


def place_in_list(part: str) -> int | None:
    """The place in a list that a part of a path names; None if it names none that a list can have."""
    return int(part) if _PLACE.fullmatch(part) else None


def tighter(one: float | None, other: float | None) -> float | None:
    """The tighter of two bounds; None bounds nothing."""
    return min((bound for bound in (one, other) if bound is not None), default=None)


class PlanSummary(Output):
    """A plan as a list shows it."""

    plan_id: str
    status: Literal["ready", "needs_confirmation", "needs_input", "needs_escalation"]
    intent: Annotated[str, AfterValidator(lambda text: text[:200])]
    """Its first 200 characters; empty: it was forgotten on request."""
    can_be_begun: bool
    """Does it wait to be carried out? What becomes of one that was begun, get_plan_status tells."""
    created_at: datetime


Id = Annotated[Text, Field(min_length=1, max_length=100)]


class Budget(Input):
    max_total_cost: Money | None = None
    max_cost_per_step: Money | None = None
    currency: Literal["USD"] = "USD"


class PlanConstraints(Input):
    """Hard bounds: a plan that would break one is refused."""

    timeout_seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    """The longest that the plan may take by its estimate."""
    budget: Budget = Budget()
    exclude_workers: Annotated[list[Id], Field(max_length=200)] = []
    prefer: Literal["balanced", "cheap", "fast", "safe"] = "balanced"
    """What decides between workers that offer the same tool."""


class CreatePlan(Input):
    intent: Annotated[Text, Field(min_length=1, max_length=20_000)]
    """What you want done, in plain words. Put paths and texts in quotes."""
    principal_ai: Name | None = None
    """Who will carry the plan out; left out, it is you."""
    context: Annotated[dict[str, Any], Field(max_length=200)] | None = None
    """Values for params by name (language, path, …), and grounding: memory_refs, receipt_refs, concept_names."""
    constraints: PlanConstraints | None = None
    caused_by_receipt_id: Id | None = None
    """The receipt that made you ask; left out, a chain begins here."""
    delegate_id: Id | None = None
    """Which DeleGate to ask; left out, the root."""
    delegation_path: Annotated[list[Id], Field(max_length=32)] = []
    """What a DeleGate that passes this on was given in its own delegation_path. One that stands in it already refuses."""


class CapabilityMatch(Output):
    worker_id: str
    tool_name: str
    relevance_score: float
    """How well the tool's words fit, from 0 to 1: the share of what the best tool comes to."""
    description: str


class OnePlan(Input):
    plan_id: Id


class PlanAnswer(Output):
    next_step: str
    """What to do next, in one plain sentence."""
    plan: dict[str, Any]
    """The whole plan. What is to be confirmed stands in `unsure`, what is asked in `questions`, and why there is no plan in
    `missing`.
    """
    plan_id: str
    status: Literal["ready", "needs_confirmation", "needs_input", "needs_escalation"]
    can_execute_now: bool
    """Is the plan ready, does it still wait to be begun, and is every worker in it available?"""
    receipt_id: str
    receipt_uuid: str
    steps: list[dict[str, Any]]
    estimated_runtime_seconds: float
