from apps.core.errors import Conflict, Invalid, NotFound


class UnknownPlan(NotFound):
    """There is no plan of this id that the caller may see."""

    code = "unknown_plan"


class UnknownDelegate(NotFound):
    """There is no DeleGate of this id."""

    code = "unknown_delegate"


class UnknownCurrency(Invalid):
    """Costs are known in USD only."""

    code = "unknown_currency"


class NoEarlierModel(Conflict):
    """There is no model to go back to."""

    code = "no_earlier_model"
