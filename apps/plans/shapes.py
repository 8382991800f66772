"""What plans and those who carry them out write and read alike: types of steps, references between them, and bounds of cost."""

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final, Literal, TypeVar

from django.db.models import TextChoices
from pydantic import Field

from apps.core.schemas import Output

Amount = TypeVar("Amount", float, Decimal)


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

MOST_MONEY: Final = 1_000_000
Money = Annotated[float, Field(ge=0, le=MOST_MONEY)]


def place_in_list(part: str) -> int | None:
    """The place in a list that a part of a path names; None if it names none that a list can have."""
    return int(part) if _PLACE.fullmatch(part) else None


def tighter(one: Amount | None, other: Amount | None) -> Amount | None:
    """The tighter of two bounds; None bounds nothing."""
    return min((bound for bound in (one, other) if bound is not None), default=None)


class PlanSummary(Output):
    """A plan as a list shows it."""

    plan_id: str
    status: Literal["ready", "needs_confirmation", "needs_input", "needs_escalation"]
    intent: str
    """Its first 200 characters; empty: it was forgotten on request."""
    is_submitted: bool
    """Have you made it yourself?"""
    replaces: str | None
    """The plan whose place it took."""
    can_be_begun: bool
    """Does it wait to be carried out? What becomes of one that was begun, get_plan_status tells."""
    created_at: datetime
