"""The states of a task and its transitions. The database forbids the others."""

from collections.abc import Mapping
from typing import Final

from django.db.models import TextChoices


class Status(TextChoices):
    """Only ends are stored; the other statuses are derived from the live row."""

    WAITING = "waiting"  # for other tasks, or for admission
    SCHEDULED = "scheduled"  # for a moment: its start, or the next attempt
    QUEUED = "queued"
    LEASED = "leased"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = {
    Status.WAITING: frozenset({Status.CANCELED}),
    Status.SCHEDULED: frozenset({Status.QUEUED, Status.CANCELED}),
    Status.QUEUED: frozenset({Status.LEASED, Status.CANCELED}),
    Status.LEASED: frozenset({Status.QUEUED, Status.SCHEDULED, Status.CANCELING, Status.SUCCEEDED, Status.FAILED}),
    Status.CANCELING: frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELED: frozenset(),
}
TERMINAL: Final = frozenset(status for status, following in TRANSITIONS.items() if not following)


class Outcome(TextChoices):
    """How one run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RELEASED = "released"
    EXPIRED = "expired"
    CANCELED = "canceled"
    REVOKED = "revoked"


class Reason(TextChoices):
    """Why a task was canceled or failed."""

    NOT_RETRYABLE = "not_retryable"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    EXPIRIES_EXHAUSTED = "expiries_exhausted"
    CANCELED = "canceled"
    DEADLINE_PASSED = "deadline_passed"
    BUDGET_EXHAUSTED = "budget_exhausted"
    DEPENDENCY_FAILED = "dependency_failed"


class IfDependencyFails(TextChoices):
    """What happens to a task when one of its dependencies fails or is canceled."""

    CANCEL = "cancel"
    FAIL = "fail"  # it is a dead letter, which can be retried


class BulkVerb(TextChoices):
    """What an operator can do to many tasks at once."""

    CANCEL = "cancel"
    RETRY = "retry"


FENCING_TOKEN_BITS: Final = 16
"""A run's key is its task's id and its fencing_token in one number."""
MOST_RUNS: Final = 2**FENCING_TOKEN_BITS - 2
"""A task that has had so many is given out no more."""

# Flags of the live row.
CANCEL_REQUESTED: Final = 1
STRICT: Final = 2
CHECKPOINT_WANTED: Final = 4
DRAINING: Final = 8
REVOKES_STUCK: Final = 16
BUDGET_SPENT: Final = 32  # the holder has been told


def after_failure(*, flags: int, retryable: bool, failures: int, max_attempts: int, runs: int) -> Reason | None:
    """Why a failed run ends its task; None if the task gets another attempt.

    :param failures: this failure included.
    :param runs: this one included, be they failed, expired or given back.
    """
    if not retryable:
        return Reason.NOT_RETRYABLE
    if flags & CANCEL_REQUESTED:
        return Reason.CANCELED
    if flags & BUDGET_SPENT:
        return Reason.BUDGET_EXHAUSTED
    return Reason.ATTEMPTS_EXHAUSTED if failures >= max_attempts or runs >= MOST_RUNS else None


class Order(TextChoices):
    """What the answer to a heartbeat orders; the first that holds."""

    CANCEL = "cancel"  # stop: nobody wants it any more
    DRAIN = "drain"  # save what there is, give the task back, take no more
    CHECKPOINT = "checkpoint"  # save what there is, and go on
    CONTINUE = "continue"


def order_of(flags: int) -> Order:
    """The order for the flags of a leased row."""
    if flags & (CANCEL_REQUESTED | BUDGET_SPENT):
        return Order.CANCEL
    if flags & DRAINING:
        return Order.DRAIN
    return Order.CHECKPOINT if flags & CHECKPOINT_WANTED else Order.CONTINUE
