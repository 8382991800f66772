from apps.core.errors import Conflict, Forbidden, Invalid, NotFound, TooLarge, Unavailable


class UnknownTask(NotFound):
    """No task of this id is visible to the caller."""

    code = "unknown_task"


class UnknownTaskType(NotFound):
    code = "unknown_task_type"


class UnknownQueue(NotFound):
    code = "unknown_queue"


class UnknownRecipient(NotFound):
    """The tenant has no such principal to report to."""

    code = "unknown_recipient"


class UnknownSchedule(NotFound):
    """The caller has no schedule of this name."""

    code = "unknown_schedule"


class UnknownFile(NotFound):
    """Where the pointer points there is no file that this deployment reads for the tenant."""

    code = "unknown_file"


class UnknownArtifact(NotFound):
    code = "unknown_artifact"


class TaskTypeDisabled(Conflict):
    """The type takes no new tasks just now."""

    code = "task_type_disabled"


class TaskTypeInCode(Conflict):
    """The type belongs to a handler of the product, which alone declares it."""

    code = "task_type_in_code"


class IdempotencyConflict(Conflict):
    """The key was used for another request."""

    code = "idempotency_conflict"


class InvalidParams(Invalid):
    """The parameters do not fit the type's schema."""

    code = "invalid_params"


class InvalidSchema(Invalid):
    """The document is no JSON Schema, or refers to one elsewhere."""

    code = "invalid_schema"


class InvalidPointer(Invalid):
    """The result pointer can't be taken as it is."""

    code = "invalid_pointer"


class UnrecordableResult(Invalid):
    """What a run returned can't be recorded as it is."""

    code = "unrecordable_result"


class InvalidTimetable(Invalid):
    """The moments of a schedule can't be read, or there are none."""

    code = "invalid_timetable"


class ParamsTooLarge(TooLarge):
    code = "params_too_large"


class ArtifactTooLarge(TooLarge):
    code = "artifact_too_large"


class UnreadableResult(Conflict):
    """This deployment does not read what the pointer points to."""

    code = "unreadable_result"


class ArtifactsUnavailable(Unavailable):
    """The storage of artifacts does not answer, or holds something else than was put there."""

    code = "artifacts_unavailable"


class BadLeaseToken(Forbidden):
    """The token was not issued to this caller for this task; says nothing about the task."""

    code = "bad_lease_token"


class LeaseLost(Conflict):
    """The run that this token stands for is over; `reason` says how."""

    code = "lease_lost"


class AlreadyDecided(Conflict):
    """This run has ended with another outcome or content."""

    code = "already_decided"


class AlreadyFinished(Conflict):
    """The task is in a terminal state."""

    code = "already_finished"


class NotADeadLetter(Conflict):
    """Only what has failed can be replayed."""

    code = "not_a_dead_letter"


class NotLeased(Conflict):
    """Nobody holds the task."""

    code = "not_leased"


class NotFinished(Conflict):
    """The task has no result yet."""

    code = "not_finished"
