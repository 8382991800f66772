"""Commands on plans."""

from apps.plans.documents import Constraints
from apps.plans.services.delegates import set_delegate
from apps.plans.services.lessons import learn, record_outcome, unlearn
from apps.plans.services.planning import answer, confirm, create_plan, go_on, plan_request
from apps.plans.services.proposing import PlanRequest, propose
from apps.plans.services.replanning import (
    Escalation,
    Replacement,
    abandon_expired,
    replan,
    take_up,
)
from apps.plans.services.submitting import submit

__all__ = [
    "Constraints",
    "Escalation",
    "PlanRequest",
    "Replacement",
    "abandon_expired",
    "answer",
    "confirm",
    "create_plan",
    "go_on",
    "learn",
    "plan_request",
    "propose",
    "record_outcome",
    "replan",
    "set_delegate",
    "submit",
    "take_up",
    "unlearn",
]
