"""Commands on plans."""

from apps.plans.services.delegates import set_delegate
from apps.plans.services.lessons import go_back, learn, record_outcome, take_over_history, unlearn
from apps.plans.services.planning import answer, confirm, create_plan, plan_request
from apps.plans.services.proposing import PlanRequest, propose
from apps.plans.services.replanning import (
    Escalation,
    Replacement,
    abandon_expired,
    replan,
    take_up,
)
from apps.plans.services.submitting import submit
from apps.plans.validation import Limits

__all__ = [
    "Escalation",
    "Limits",
    "PlanRequest",
    "Replacement",
    "abandon_expired",
    "answer",
    "confirm",
    "create_plan",
    "go_back",
    "learn",
    "plan_request",
    "propose",
    "record_outcome",
    "replan",
    "set_delegate",
    "submit",
    "take_over_history",
    "take_up",
    "unlearn",
]
