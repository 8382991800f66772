"""What executions and calls of workers refuse."""

from typing import ClassVar, Final

from apps.core.errors import Conflict, DomainError, Forbidden, Invalid, NotFound, TooLarge, Unavailable

NEEDS_ESCALATION: Final = "needs_escalation"
"""The code of a step whose worker says that somebody else has to do it."""
BUDGET_EXCEEDED: Final = "budget_exceeded"
"""The code of a step that gave no result and that the budget does not let be called again."""
OUTCOME_UNKNOWN: Final = "outcome_unknown"
"""The code of a step whose tool may have done its work, did not say so, and may not be run twice."""


class UnknownExecution(NotFound):
    """There is no such execution, or it is another principal's."""

    code = "unknown_execution"


class UnknownStep(NotFound):
    """The execution has no step of this id."""

    code = "unknown_step"


class AlreadyExecuted(Conflict):
    """The plan has an execution with another mode, strategy or budget; a plan is carried out once."""

    code = "already_executed"


class PlanRefused(Conflict):
    """The plan only says what is missing; there is nothing in it to carry out."""

    code = "plan_refused"


class IllegalTransition(Conflict):
    """The execution or step can't go there from where it is."""

    code = "illegal_transition"


class ExecutionEnded(Conflict):
    """The execution is over; nothing more can be done to it."""

    code = "execution_ended"


class StillAtWork(Conflict):
    """A worker still has a step of the execution."""

    code = "still_at_work"


class StepNotOpen(Conflict):
    """The step does not wait for this: not yet, not any more, or for something else."""

    code = "step_not_open"


class OtherResult(Conflict):
    """The step was answered before, with something else."""

    code = "other_result"


class AheadOfExecution(Invalid):
    """Fewer steps have ended than the client says that it has heard of."""

    code = "ahead_of_execution"


class NotExecutable(Invalid):
    """The plan can't be carried out as it stands."""

    code = "not_executable"


class UnresolvedReference(Invalid):
    """A reference between steps names what no envelope holds."""

    code = "unresolved_reference"


class InvalidParams(Invalid):
    """The parameters don't fit the tool's schema."""

    code = "invalid_params"


class DirectCallsAreNotKept(Invalid):
    """A direct call leaves nothing by which the same one could be known again."""

    code = "direct_calls_are_not_kept"


class WorkerUnavailable(Unavailable):
    """The worker takes no calls just now: its heartbeat is late, it is offline, in maintenance or quarantined.

    `may_come_back`: nobody has decided against it, so that who has time waits.
    """

    code = "worker_unavailable"

    def __init__(self, detail: str, *, may_come_back: bool = True) -> None:
        super().__init__(detail)
        self.may_come_back = may_come_back


class WorkerBarred(Forbidden):
    """The worker's tier does not allow what the tool does."""

    code = "worker_barred"


class ToolChanged(Invalid):
    """The tool takes other parameters, or has other effects, than the version that a step was planned for."""

    code = "tool_changed"


class WorkerCallFailed(DomainError):
    """A call of a worker's tool gave no result.

    `retryable`: the same call may succeed later. `reached`: the tool may have run, so that only a tool that may run
    twice may be called again.
    """

    code = "worker_call_failed"
    retryable: ClassVar[bool] = False
    reached: ClassVar[bool] = True


class WorkerUnreachable(WorkerCallFailed, Unavailable):
    """No connection to the worker: nothing was sent."""

    code = "worker_unreachable"
    retryable = True
    reached = False


class WorkerDisconnected(WorkerCallFailed, Unavailable):
    """The worker went away during the call."""

    code = "worker_disconnected"
    retryable = True


class WorkerTimedOut(WorkerCallFailed, Unavailable):
    """The worker did not answer by the deadline."""

    code = "worker_timed_out"
    retryable = True


class WorkerBroke(WorkerCallFailed, Unavailable):
    """The tool broke inside the worker: nobody has decided that it won't."""

    code = "worker_broke"
    retryable = True


class WorkerRefused(WorkerCallFailed, Invalid):
    """The worker answered that it won't or can't: an error of the tool, or of the protocol."""

    code = "worker_refused"


class WorkerUnintelligible(WorkerRefused):
    """The worker has answered what can't be used or kept: asked again, it would answer the same."""


class WorkerRedirected(WorkerCallFailed, Invalid):
    """The worker's endpoint redirects; redirects are never followed."""

    code = "worker_redirected"
    reached = False


class AnswerTooLarge(WorkerCallFailed, TooLarge):
    """The worker's answer is over the limit."""

    code = "answer_too_large"


class PayloadTooLarge(WorkerCallFailed, TooLarge):
    """The parameters are over what the worker accepts; nothing was sent."""

    code = "payload_too_large"
    reached = False


class JobFailed(WorkerCallFailed, Invalid):
    """The worker's own job, which a call had started, has failed."""

    code = "job_failed"


class JobLost(WorkerCallFailed, Unavailable):
    """The worker does not know the job that a call had started, most likely because it was restarted."""

    code = "job_lost"
    retryable = True


class JobOverdue(WorkerCallFailed, Unavailable):
    """The worker's own job takes far longer than the worker had estimated."""

    code = "job_overdue"


class CallCanceled(WorkerCallFailed, Conflict):
    """The call was given up because its task or execution was canceled."""

    code = "call_canceled"
