"""Commands on plans, and what the planner learns from those that were carried out."""

from apps.plans.services.lessons import go_back, learn, record_outcome, take_over_history, unlearn
from apps.plans.services.planning import MadePlan, PlanRequest, create_plan

__all__ = [
    "MadePlan",
    "PlanRequest",
    "create_plan",
    "go_back",
    "learn",
    "record_outcome",
    "take_over_history",
    "unlearn",
]
