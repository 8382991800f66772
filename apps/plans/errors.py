"""Refusals that somebody catches or that several places raise."""

from apps.core.errors import Conflict, Forbidden, NotFound


class UnknownPlan(NotFound):
    """There is no plan of this id that the caller may see."""

    code = "unknown_plan"


class PlanReplaced(Conflict):
    """Another plan has taken this one's place."""

    code = "plan_replaced"


class PlanAbandoned(Conflict):
    """The plan was replaced, was forgotten, or waited too long to be begun: it is not carried out any more."""

    code = "plan_abandoned"


class OutsidePool(Forbidden):
    """The worker is not in the pool of the DeleGate that would call it."""

    code = "outside_pool"
