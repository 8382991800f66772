"""Refusals of executions that somebody catches; the others are raised with a code where they happen."""

from typing import Any, ClassVar, Final

from apps.core.errors import Conflict, DomainError, Invalid, Unavailable

NEEDS_ESCALATION: Final = "needs_escalation"
"""The code of a step whose worker answered that somebody else has to do it."""
OUTCOME_UNKNOWN: Final = "outcome_unknown"
"""The code of a call whose tool may have run, gave no answer, and may not run twice."""


class UnresolvedReference(Invalid):
    """A reference between steps names something that no envelope holds."""

    code = "unresolved_reference"


class WorkerUnavailable(Unavailable):
    """The worker takes no calls now: its heartbeat is late, or it is offline, in maintenance or quarantined.

    `may_come_back`: False for a quarantined worker, which nobody waits for.
    """

    code = "worker_unavailable"

    def __init__(self, detail: str, *, may_come_back: bool = True) -> None:
        super().__init__(detail)
        self.may_come_back = may_come_back


class WorkerCallFailed(DomainError):
    """A call of a worker's tool gave no result. The code says how it failed.

    `retryable`: the same call may succeed later. `reached`: the tool may have run, so only a tool that may run twice
    may be called again.
    """

    code = "worker_call_failed"
    retries: ClassVar[bool] = False

    def __init__(
        self, detail: str, *, code: str | None = None, retryable: bool | None = None, reached: bool = True, **extra: Any
    ) -> None:
        super().__init__(detail, code=code, **extra)
        self.retryable = self.retries if retryable is None else retryable
        self.reached = reached


class WorkerAway(WorkerCallFailed, Unavailable):
    """No answer: `worker_unreachable`, `worker_disconnected`, `worker_timed_out`, `worker_broke`, `job_lost`, `job_overdue`."""

    retries = True


class WorkerRefused(WorkerCallFailed, Invalid):
    """The worker answered that it won't or can't: `worker_refused`, `worker_redirected`, `answer_too_large`, `job_failed`."""

    code = "worker_refused"


class WorkerAsks(WorkerRefused):
    """The tool asked a question in the middle of the call, and got no answer. `questions` has each with its key."""

    code = "worker_asks"


class UnusableAnswer(WorkerRefused):
    """The worker's answer can't be read or stored. Asked again, it would answer the same."""


class OutcomeUnknown(WorkerCallFailed, Conflict):
    """A tool that may not run twice gave no answer, and may have done its work. Nobody calls it again."""

    code = OUTCOME_UNKNOWN


class CallCanceled(WorkerCallFailed, Conflict):
    """The call was given up because its task or execution was canceled."""

    code = "call_canceled"
