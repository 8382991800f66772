from apps.core.errors import Conflict, Forbidden, Invalid, NotFound


class UnknownPlan(NotFound):
    """There is no plan of this id that the caller may see."""

    code = "unknown_plan"


class PlanInvalid(Invalid):
    """The plan breaks a rule, or is none to be carried out."""

    code = "plan_invalid"


class UnknownStep(NotFound):
    """The plan has no step of this id."""

    code = "unknown_step"


class NoTool(Invalid):
    """The step runs no tool, so that nothing can be chosen otherwise."""

    code = "step_without_tool"


class StepDone(Conflict):
    """The step has run to its end; its result stands."""

    code = "step_done"


class PlanReplaced(Conflict):
    """Another plan has taken this one's place."""

    code = "plan_replaced"


class PlanAbandoned(Conflict):
    """The plan was replaced, was forgotten, or waited too long to be begun: it is not carried out any more."""

    code = "plan_abandoned"


class OutsidePool(Forbidden):
    """The worker is not in the pool of the DeleGate that would call it."""

    code = "outside_pool"


class DelegationLoop(Invalid):
    """The wish has come through this DeleGate already: it would plan for itself through others."""

    code = "delegation_loop"


class DelegationTooDeep(Invalid):
    """The wish has come through too many DeleGates."""

    code = "delegation_too_deep"


class UnknownDelegate(NotFound):
    """There is no DeleGate of this id."""

    code = "unknown_delegate"


class RootDelegate(Conflict):
    """The root DeleGate is the gate itself, and stays as it is."""

    code = "root_delegate"


class PrincipalIsNoDelegate(Invalid):
    """The principal is of another kind than `delegate`."""

    code = "principal_is_no_delegate"


class PrincipalPlansAlready(Conflict):
    """The principal is another DeleGate: each acts under a name of its own."""

    code = "principal_plans_already"


class DelegateCircle(Conflict):
    """A DeleGate would be above itself."""

    code = "delegate_circle"


class DelegatesTooDeep(Conflict):
    """More DeleGates would stand above each other than a wish may come through."""

    code = "delegates_too_deep"


class UnknownCurrency(Invalid):
    """Costs are known in USD only."""

    code = "unknown_currency"


class NoEarlierModel(Conflict):
    """There is no model to go back to."""

    code = "no_earlier_model"
