"""Commands on plans, and what the planner learns from those that were carried out."""

from apps.plans.services.arranging import set_delegate
from apps.plans.services.asking import asks_a_model, suggestions
from apps.plans.services.lessons import go_back, learn, record_outcome, take_over_history, unlearn
from apps.plans.services.planning import MadePlan, PlanRequest, create_plan, prepare, sketch
from apps.plans.services.replanning import (
    Escalation,
    Replacement,
    abandon_expired,
    expire_forgotten,
    replan,
    take_up,
)
from apps.plans.services.submitting import submit
from apps.plans.validation import Limits

__all__ = [
    "Escalation",
    "Limits",
    "MadePlan",
    "PlanRequest",
    "Replacement",
    "abandon_expired",
    "asks_a_model",
    "create_plan",
    "expire_forgotten",
    "go_back",
    "learn",
    "prepare",
    "record_outcome",
    "replan",
    "set_delegate",
    "sketch",
    "submit",
    "suggestions",
    "take_over_history",
    "take_up",
    "unlearn",
]
